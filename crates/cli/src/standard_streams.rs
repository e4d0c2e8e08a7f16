//! Checks that standard streams were not closed by the caller. For a closed one, Rust's run-time library
//! opens `/dev/null` for reading and writing before `main`, so data would be lost without an error. A shell's
//! redirection to or from `/dev/null` opens it in one direction only.

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
    let is_both_ways = fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let is_null = || Some(fstat(stream).ok()?.st_rdev == stat("/dev/null").ok()?.st_rdev);
    if is_both_ways && is_null() == Some(true) { Err(usage(message, hint)) } else { Ok(()) }
}
