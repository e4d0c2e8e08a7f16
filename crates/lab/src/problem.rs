//! What went wrong, in words for people.

use std::fmt;
use std::io;

use haul_base::WithCauses;
use haul_wan::WanError;

/// Exit code for a command line or a file that asks for what cannot be.
pub(crate) const USAGE: u8 = 2;
/// Exit code for everything else that fails.
pub(crate) const FAILED: u8 = 1;
/// What shells add to the number of the signal that has ended a command.
pub(crate) const SIGNALLED: i32 = 128;

/// A failure: what happened and why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    message: String,
    hint: String,
    exit_code: u8,
}

impl Problem {
    /// Something that was asked for is wrong.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit_code: USAGE }
    }

    /// Something did not work.
    pub(crate) fn failed(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit_code: FAILED }
    }

    /// The same failure, with what was being done.
    pub(crate) fn during(self, what: &str) -> Self {
        Self { message: format!("{what} failed: {}", self.message), ..self }
    }

    /// A signal is to end this process.
    pub(crate) fn ended_by(signal: i32) -> Self {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let exit_code = u8::try_from(SIGNALLED + signal).unwrap_or(FAILED);
        Self { message: format!("ended by {name}"), hint: String::new(), exit_code }
    }

    /// The system refused `what`.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        Self::failed(format!("{what}: {}", WithCauses(error)), "")
    }

    /// What the process should end with.
    pub(crate) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

/// What to do without the privilege that an emulator takes.
const INSTEAD: &str = "run it as root (sudo), or use `haul demo`, which emulates a path on the loopback and needs \
                       no privilege";

impl From<WanError> for Problem {
    fn from(error: WanError) -> Self {
        let hint = match error.remedy() {
            Some(remedy) => format!("{INSTEAD}; or {remedy}"),
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

/// Says what the system was asked for when it refuses.
pub(crate) trait While<T> {
    /// `what`, with the system's reason behind it.
    fn while_doing(self, what: &str) -> Result<T, Problem>;
}

impl<T> While<T> for io::Result<T> {
    fn while_doing(self, what: &str) -> Result<T, Problem> {
        self.map_err(|error| Problem::io(what, &error))
    }
}
