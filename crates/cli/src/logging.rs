//! Diagnostic messages on stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::Global;
use crate::fault::{self, Fault};

/// Sends messages to stderr: warnings, more with `-v`, `-vv`, `-vvv`, only errors with `--quiet`; `HAUL_LOG`
/// chooses by module (`HAUL_LOG=haul_engine=debug`) and wins.
///
/// # Errors
/// When `HAUL_LOG` is no filter.
pub(crate) fn start(global: &Global) -> Result<(), Fault> {
    let level = match (global.quiet, global.verbose) {
        (_, 3..) => LevelFilter::TRACE,
        (_, 2) => LevelFilter::DEBUG,
        (_, 1) => LevelFilter::INFO,
        (true, 0) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
    };
    let filter = match std::env::var("HAUL_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|e| {
            let message = format!("environment HAUL_LOG: `{text}` is not a filter: {e}");
            fault::usage(message, "write for example info or haul_engine=debug")
        })?,
        Err(_) => EnvFilter::new(level.to_string()),
    };
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // A second call (tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !is_plain)
        .with_target(global.verbose > 1)
        .try_init();
    Ok(())
}
