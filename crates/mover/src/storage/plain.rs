//! The file systems as they are.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::ResolveFlags;
use rustix::io::Result;

use super::Call;

/// What a thread passes on to those that it starts: nothing.
#[derive(Clone, Debug)]
pub(crate) struct Inherited;

impl Inherited {
    pub(crate) fn here() -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "tests have something there")]
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Every call is made; a write with all its bytes.
#[inline]
#[expect(clippy::unnecessary_wraps, reason = "calls fail here when tests want it")]
pub(super) fn decide(_: Call) -> Result<usize> {
    Ok(usize::MAX)
}

/// The kernel finds a name as it is asked for it.
#[inline]
pub(super) fn spelled<T>(_: BorrowedFd<'_>, name: &CStr, real: impl FnOnce(&CStr) -> T) -> T {
    real(name)
}

/// The kernel keeps to what a path is kept to.
#[inline]
pub(super) fn heeded(resolve: ResolveFlags) -> ResolveFlags {
    resolve
}
