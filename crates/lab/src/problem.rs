//! Errors with messages for users.

use std::fmt;
use std::io;

use haul_base::WithCauses;
use haul_wan::WanError;

/// Exit code for invalid arguments or files.
pub(crate) const USAGE: u8 = 2;
/// Exit code for all other errors.
pub(crate) const FAILED: u8 = 1;
/// Added by shells to the number of the signal that ended a command.
pub(crate) const SIGNALLED: i32 = 128;

/// An error: message, and a hint on what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    message: String,
    hint: String,
    exit_code: u8,
}

impl Problem {
    /// Creates an error of usage: invalid arguments or files.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit_code: USAGE }
    }

    /// Creates a runtime error.
    pub(crate) fn failed(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit_code: FAILED }
    }

    /// Adds the failed operation to the message.
    pub(crate) fn during(self, what: &str) -> Self {
        Self { message: format!("{what} failed: {}", self.message), ..self }
    }

    /// Creates the error of being ended by a signal.
    pub(crate) fn ended_by(signal: i32) -> Self {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let exit_code = u8::try_from(SIGNALLED + signal).unwrap_or(FAILED);
        Self { message: format!("ended by {name}"), hint: String::new(), exit_code }
    }

    /// Creates an error for a failed system operation `what`.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        Self::failed(format!("{what}: {}", WithCauses(error)), "")
    }

    /// Returns the process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

/// Alternatives for users without the emulator's privileges.
const DEMO_HINT: &str = "run it as root (sudo), or use `haul demo`, which emulates a path on the loopback and needs \
                       no privilege";

impl From<WanError> for Problem {
    fn from(error: WanError) -> Self {
        let hint = match error.remedy() {
            Some(remedy) => format!("{DEMO_HINT}; or {remedy}"),
            None => String::new(),
        };
        match &error {
            WanError::Path(spec) => Self::usage(spec.to_string(), hint),
            _ => Self::failed(error.to_string(), hint),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\nhint: {}", self.hint)?;
        }
        Ok(())
    }
}

/// Adds the attempted operation to a system error.
pub(crate) trait While<T> {
    /// Converts the error to a [`Problem`] of the operation `what`.
    fn while_doing(self, what: &str) -> Result<T, Problem>;
}

impl<T> While<T> for io::Result<T> {
    fn while_doing(self, what: &str) -> Result<T, Problem> {
        self.map_err(|error| Problem::io(what, &error))
    }
}
