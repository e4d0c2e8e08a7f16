//! Timers that are waited for as file descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use haul_base::Span;
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::EngineError;

/// A timer of the kernel. Unlike the timeout of `poll` it is not rounded up by the timer slack of the thread that waits, and
/// any thread may set it anew while another waits for it.
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> Result<Self, EngineError> {
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map(Self)
            .map_err(|error| EngineError::system("cannot make a timer", error))
    }

    /// It can be read after `span` and not before, whatever it was set to; at once if that is zero.
    pub(super) fn set(&self, span: Span) {
        self.set_raw(span.max(Span::from_nanos(1)));
    }

    /// It cannot be read until it is set again.
    pub(super) fn stop(&self) {
        self.set_raw(Span::ZERO);
    }

    fn set_raw(&self, span: Span) {
        // No time of the engine is as long as what does not fit.
        let Ok(it_value) = Timespec::try_from(Duration::from(span)) else { return };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Only a wrong descriptor or a negative time can be refused.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
    }

    /// Takes note that it has run out.
    pub(super) fn reset(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
