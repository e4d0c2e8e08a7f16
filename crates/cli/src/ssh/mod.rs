//! What it takes to start `haul` on another machine with the system's ssh, and to talk with it.
//!
//! ssh starts the other side and carries its first words, so that its keys, its configuration and its way of
//! asking for passwords hold. The data goes directly between the two machines (docs/ssh.md).

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
