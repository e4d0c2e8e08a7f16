//! Starts `haul` on another machine over the system's ssh, which carries control messages only (docs/ssh.md).

mod address;
#[cfg(any(test, fuzzing))]
#[path = "tests/check.rs"]
pub mod check;
mod command;
mod messages;
mod remote;

pub(crate) use address::{SshHost, parse};
pub(crate) use command::SshCommand;
pub(crate) use messages::{Announcement, Job, MAX_JOB, MAX_PERMIT, Permit};
pub(crate) use remote::Remote;
