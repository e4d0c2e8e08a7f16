//! Checks that standard streams were not closed by the caller. For a closed one, Rust's run-time library
//! opens `/dev/null` for reading and writing before `main`, so data would be lost without an error. A shell's
//! redirection to or from `/dev/null` opens it in one direction only; a caller that opens it for both cannot be
//! distinguished.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
use rustix::stdio::{stderr, stdin, stdout};

use crate::fault::{Fault, usage};

pub(crate) fn check_stdin() -> Result<(), Fault> {
    check(stdin(), "stdin", "redirect it from a file or a pipe, or from /dev/null opened only for reading")
}

pub(crate) fn check_stdout() -> Result<(), Fault> {
    check(stdout(), "stdout", "redirect it to a file or a pipe, or to /dev/null opened only for writing")
}

pub(crate) fn check_stderr() -> Result<(), Fault> {
    check(stderr(), "stderr", "name a file for the URL with --url-file")
}

fn check(stream: BorrowedFd<'_>, name: &str, hint: &str) -> Result<(), Fault> {
    let is_both_ways = fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let is_null = || Some(fstat(stream).ok()?.st_rdev == stat("/dev/null").ok()?.st_rdev);
    if !is_both_ways || is_null() != Some(true) {
        return Ok(());
    }
    Err(usage(format!("{name} is closed, or is /dev/null opened for both reading and writing"), hint))
}
