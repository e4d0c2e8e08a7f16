//! Diagnostic messages on stderr.

use std::fmt;

use haul_base::Printable;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::args::Global;
use crate::fault::{self, Fault};
use crate::output::{is_rich_terminal, without_keys};

/// Logs to stderr: warnings, more with `-v`, `-vv`, `-vvv`, only errors with `--quiet`; `HAUL_LOG`
/// filters by module (`HAUL_LOG=haul_engine=debug`) and takes precedence.
pub(crate) fn start(global: &Global) -> Result<(), Fault> {
    let level = match global.verbose {
        0 if global.quiet => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        3.. => LevelFilter::TRACE,
    };
    let filter = match std::env::var("HAUL_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|e| {
            let message = format!("environment variable HAUL_LOG: `{text}` is not a filter: {e}");
            fault::usage(message, "write for example info or haul_engine=debug")
        })?,
        Err(_) => EnvFilter::new(level.to_string()),
    };
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // A second call (tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(debug_fn(field).delimited(" "))
        .with_writer(std::io::stderr)
        .with_ansi(is_rich_terminal() && !is_plain)
        .with_target(global.verbose > 1)
        // Writes with `eprintln!`, which panics if stderr is closed.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

/// Formats one field of a message, escaped and without keys: some texts come from the peer.
fn field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = without_keys(&Printable(format_args!("{value:?}")).to_string());
    match field.name() {
        "message" => to.write_str(&value),
        name => write!(to, "{name}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logged_text_stays_on_one_line_without_control_characters() {
        let (captured, peer) = (Captured::default(), "a\nforged\x1b[2J\u{202e}");
        let writer = captured.clone();
        let log = tracing_subscriber::fmt()
            .fmt_fields(debug_fn(field).delimited(" "))
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(log, || tracing::warn!(%peer, name = peer, "connected to {peer}"));
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains(r"connected to a\nforged\x1b[2J\u{202e}"), "{text}");
        assert!(text.contains(r"peer=a\nforged"), "{text}");
        assert_eq!((text.lines().count(), text.trim_end().contains(haul_base::is_unprintable)), (1, false));
    }
}
