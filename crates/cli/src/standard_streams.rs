//! Whether the caller has left the standard streams open.
//!
//! A Rust program never finds one of them closed: before `main`, its run-time library opens `/dev/null` in the place of
//! each that is, for reading and writing. Data would vanish there, or end before it began, without an error. A shell's
//! redirection opens `/dev/null` in the one direction that it needs. A caller that gives away a descriptor which is open
//! in both is refused with the others: nothing tells it apart.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
use rustix::stdio::{stderr, stdin, stdout};

use crate::fault::{Fault, usage};

/// Refuses a closed stdin that was to be read from.
pub(crate) fn check_stdin() -> Result<(), Fault> {
    let hint = "give it a file or a pipe, or </dev/null, opened for reading alone, for no data at all";
    check(stdin(), "stdin is closed: there is nothing to send", hint)
}

/// Refuses a closed stdout that was to take data.
pub(crate) fn check_stdout() -> Result<(), Fault> {
    let hint = "give it a file or a pipe, or >/dev/null, opened for writing alone, to discard the data";
    check(stdout(), "stdout is closed: the data would be lost", hint)
}

/// Refuses a closed stderr that was to take the URL of a listener.
pub(crate) fn check_stderr() -> Result<(), Fault> {
    check(stderr(), "stderr is closed: nobody would get to know the URL", "name a file by --url-file")
}

fn check(stream: BorrowedFd<'_>, message: &str, hint: &str) -> Result<(), Fault> {
    if is_open(stream) { Ok(()) } else { Err(usage(message, hint)) }
}

fn is_open(stream: BorrowedFd<'_>) -> bool {
    let is_both_ways = fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let device = fstat(stream).map(|stat| stat.st_rdev);
    let null = stat("/dev/null").map(|stat| stat.st_rdev);
    !is_both_ways || device.is_err() || null.is_err() || device != null
}
