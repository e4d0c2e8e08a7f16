//! Starts `haul` on another machine with the system's ssh, and talks with it (docs/ssh.md). Data does not go by ssh.

mod address;
mod announcement;
pub mod check;
mod command;
mod failure;
mod remote;
mod requests;

pub(crate) use address::{SshHost, SshPath};
pub(crate) use announcement::Announcement;
pub(crate) use command::SshCommand;
pub(crate) use remote::Remote;
pub(crate) use requests::{Job, MAX_JOB, MAX_PERMIT, Permit};
