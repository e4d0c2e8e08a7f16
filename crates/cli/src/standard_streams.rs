//! Whether the caller has left the standard streams open.
//!
//! A Rust program never finds one of them closed: before `main`, its run-time library opens `/dev/null` in the place of
//! each that is, for reading and writing. Data would vanish there, or end before it began, without an error. A shell's
//! redirection opens `/dev/null` in the one direction that it needs. A caller that gives away a descriptor which is open
//! in both is refused with the others: nothing tells it apart.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};

use crate::fault::{Fault, usage};

/// Whether data can be read from stdin.
///
/// # Errors
/// If it is closed.
pub(crate) fn check_stdin() -> Result<(), Fault> {
    let hint = "give it a file or a pipe, or </dev/null for no data at all";
    check(io::stdin(), "stdin is closed: there is nothing to send", hint)
}

/// Whether data that is written to stdout can get anywhere.
///
/// # Errors
/// If it is closed.
pub(crate) fn check_stdout() -> Result<(), Fault> {
    let hint = "give it a file or a pipe, or >/dev/null to discard the data";
    check(io::stdout(), "stdout is closed: the data would be lost", hint)
}

/// Whether words that are written to stderr can get anywhere.
///
/// # Errors
/// If it is closed.
pub(crate) fn check_stderr() -> Result<(), Fault> {
    check(io::stderr(), "stderr is closed: nobody would get to know the URL", "name a file by --url-file")
}

fn check(stream: impl AsFd, message: &str, hint: &str) -> Result<(), Fault> {
    if is_open(&stream) { Ok(()) } else { Err(usage(message, hint)) }
}

fn is_open(stream: &impl AsFd) -> bool {
    let is_both_ways = fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let device = fstat(stream).map(|stat| stat.st_rdev);
    let null = stat("/dev/null").map(|stat| stat.st_rdev);
    !is_both_ways || device.is_err() || null.is_err() || device != null
}
