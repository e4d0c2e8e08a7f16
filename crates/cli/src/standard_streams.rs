//! Whether the caller has left the standard streams open. A Rust program never finds one closed: before `main`, its
//! run-time library opens `/dev/null` in its place for reading and writing, where data would vanish without an error. A
//! shell's redirection opens `/dev/null` in one direction only.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
use rustix::stdio::{stderr, stdin, stdout};

use crate::fault::{Fault, usage};

pub(crate) fn check_stdin() -> Result<(), Fault> {
    let hint = "redirect it from a file or a pipe, or from /dev/null to send nothing";
    check(stdin(), "stdin is closed: there is nothing to send", hint)
}

pub(crate) fn check_stdout() -> Result<(), Fault> {
    let hint = "redirect it to a file or a pipe, or to /dev/null to discard the data";
    check(stdout(), "stdout is closed: the data would be lost", hint)
}

pub(crate) fn check_stderr() -> Result<(), Fault> {
    check(stderr(), "stderr is closed: the URL could not be printed", "name a file with --url-file")
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
