//! Timers of the connections on a shared socket, and the connections waiting until it is writable.

use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use haul_base::{Span, Time};
use haul_proto::connection::TimerQueue;
use rustix::event::Timespec;
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::wake::lock;
use crate::{Clock, EngineError, Waker};

/// Timers of connections, and the connections waiting until the socket is writable.
pub(super) struct Timers {
    clock: Clock,
    queue: Mutex<TimerQueue>,
    timer: OwnedFd,
    pub(super) waker: Waker,
    /// Connections with a batch that did not fit the socket's send buffer.
    blocked: Mutex<Vec<u32>>,
}

impl Timers {
    pub(super) fn new(clock: Clock) -> Result<Self, EngineError> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(|error| EngineError::system("cannot make a timer", error))?;
        let (queue, waker, blocked) = (Mutex::default(), Waker::new()?, Mutex::default());
        Ok(Self { clock, queue, timer, waker, blocked })
    }

    /// Descriptor that is readable when a timer has expired.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    pub(super) fn on_expired(&self) {
        let _ = read(&self.timer, &mut [0; 8]);
        lock(&self.queue).on_expired();
    }

    pub(super) fn has_blocked(&self) -> bool {
        !lock(&self.blocked).is_empty()
    }

    /// Takes the waiting connections. One that finds the socket full again registers again.
    pub(super) fn take_blocked(&self) -> Vec<u32> {
        take(&mut *lock(&self.blocked))
    }

    /// See [`TimerQueue::set`].
    pub(super) fn set_timer(&self, identity: u32, old: Option<Time>, new: Option<Time>, exactly: bool) {
        let mut queue = lock(&self.queue);
        if queue.set(identity, old, new, exactly) {
            self.apply(queue.armed());
        }
    }

    /// Sets or disarms the kernel's timer.
    fn apply(&self, at: Option<Time>) {
        let remaining = at.map_or(Span::ZERO, |at| at.since(self.clock.now()).max(Span::from_nanos(1)));
        // Zero disarms it. The engine's deadlines always fit.
        let Ok(it_value) = Timespec::try_from(Duration::from(remaining)) else { return };
        let new = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // Fails only for an invalid descriptor or a negative time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new);
    }

    /// Returns the next connection whose timer expired. If none, sets the kernel's timer to the earliest
    /// deadline.
    pub(super) fn due(&self, now: Time) -> Option<(Time, u32)> {
        let mut queue = lock(&self.queue);
        let due = queue.pop_due(now);
        if due.is_none() && queue.arm(true) {
            self.apply(queue.armed());
        }
        due
    }

    /// Registers a connection to retry its unsent batch when the socket is writable.
    pub(super) fn add_blocked(&self, identity: u32) {
        lock(&self.blocked).push(identity);
        self.waker.wake();
    }
}
