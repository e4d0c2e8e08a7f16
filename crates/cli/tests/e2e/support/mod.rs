//! Shared helpers of the end-to-end tests: hosts, processes, trees.

mod haul;
mod net;
mod process;
mod sshd;
mod tree;

pub(crate) use haul::{HAUL, LIMIT, PORT, Server, at, clean, haul, run, run_here, tampered};
pub(crate) use net::{Host, Mtu, Net, Way, free_port, possible, skip};
pub(crate) use process::{Outcome, Running, children, descendants, until, until_heeds_interrupts};
pub(crate) use sshd::{FAR, Sshd, common, copy, script};
pub(crate) use tree::{
    assert_holes, assert_same, assert_same_file, assert_same_to_rsync, can_be_particular, contents,
    directory, file, many, names, odd, particular,
};

/// Runs a system command that must succeed.
pub(crate) use net::run as system;
