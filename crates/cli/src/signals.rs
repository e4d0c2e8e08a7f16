//! Ctrl-C and SIGTERM: the first asks the work to stop, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::fault::{self, Fault};

/// Exit code of an interrupted run.
pub const INTERRUPTED: u8 = 130;

/// Whether somebody has asked to stop. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asked for by nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ties SIGINT and SIGTERM to a new [`Cancel`]; a second signal ends the process at once with code 130.
///
/// # Errors
/// When the system refuses handlers.
pub fn watch() -> Result<Cancel, Fault> {
    let cancel = Cancel::new();
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the exit looks at the flag before this delivery sets it.
        let ends = signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(INTERRUPTED),
            Arc::clone(&cancel.0),
        );
        ends.and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancel.0)))
            .map_err(|e| fault::io("cannot install signal handlers", &e))?;
    }
    Ok(cancel)
}

/// The words that the shell would need to run this command again.
pub fn command_line(argv: &[std::ffi::OsString]) -> String {
    let words: Vec<String> = argv.iter().map(|word| quote(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// `word` in single quotes if the shell would take some of its characters for itself.
pub fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_back() {
        let argv = ["haul", "cp", "a b", "it's", "haul://h:1/p?k=x&y", ""].map(std::ffi::OsString::from);
        assert_eq!(command_line(&argv), r"haul cp 'a b' 'it'\''s' 'haul://h:1/p?k=x&y' ''");
    }

    #[test]
    fn clones_share_the_request() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        other.request();
        assert!(cancel.is_requested());
    }
}
