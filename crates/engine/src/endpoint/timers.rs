//! When connections of a shared socket have something to do: at a time, or when the socket has room.

use std::collections::BTreeSet;
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use haul_base::{Span, Time};
use rustix::event::Timespec;
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::guard::lock;
use crate::{Clock, EngineError, Waker};

/// The timers of connections, and those that wait for room.
pub(super) struct Timers {
    clock: Clock,
    queue: Mutex<Queue>,
    timer: OwnedFd,
    pub(super) waker: Waker,
    /// Connections that wait for room in the socket's send buffer.
    blocked: Mutex<Vec<u32>>,
}

#[derive(Default)]
struct Queue {
    /// At most one entry for each connection.
    entries: BTreeSet<(Time, u32)>,
    /// When the kernel's timer expires.
    armed: Option<Time>,
}

impl Timers {
    pub(super) fn new(clock: Clock) -> Result<Self, EngineError> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(|error| EngineError::system("cannot make a timer", error))?;
        let (queue, waker, blocked) = (Mutex::default(), Waker::new()?, Mutex::default());
        Ok(Self { clock, queue, timer, waker, blocked })
    }

    /// Readable when a timer has expired.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    pub(super) fn on_expired(&self) {
        let _ = read(&self.timer, &mut [0; 8]);
        lock(&self.queue).armed = None;
    }

    pub(super) fn has_blocked(&self) -> bool {
        !lock(&self.blocked).is_empty()
    }

    /// Those that wait for room: who finds the socket full again adds itself again.
    pub(super) fn take_blocked(&self) -> Vec<u32> {
        take(&mut *lock(&self.blocked))
    }

    /// Moves the timer of a connection from `old` to `new`. The kernel's timer is only ever set to an earlier time,
    /// unless `exactly`: one that expires too early costs a wake-up, and setting it costs a system call.
    pub(super) fn set_timer(&self, identity: u32, old: Option<Time>, new: Option<Time>, exactly: bool) {
        let mut queue = lock(&self.queue);
        if let Some(old) = old {
            queue.entries.remove(&(old, identity));
        }
        if let Some(new) = new {
            queue.entries.insert((new, identity));
        }
        self.arm(&mut queue, exactly);
    }

    fn arm(&self, queue: &mut Queue, exactly: bool) {
        let first = queue.entries.first().map(|(at, _)| *at);
        let is_earlier = first.is_some_and(|first| queue.armed.is_none_or(|armed| first < armed));
        if is_earlier || (exactly && first != queue.armed) {
            queue.armed = first;
            let left = first.map_or(Span::ZERO, |at| at.since(self.clock.now()).max(Span::from_nanos(1)));
            // Zero disarms it. Deadlines of the engine always fit.
            let Ok(it_value) = Timespec::try_from(Duration::from(left)) else { return };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Fails only for a wrong descriptor or a negative time.
            let _ = timerfd_settime(
                &self.timer,
                TimerfdTimerFlags::empty(),
                &Itimerspec { it_interval, it_value },
            );
        }
    }

    /// The next connection whose timer has expired. If there is none, sets the kernel's timer to the earliest deadline.
    pub(super) fn due(&self, now: Time) -> Option<(Time, u32)> {
        let mut queue = lock(&self.queue);
        if queue.entries.first().is_some_and(|(at, _)| *at <= now) {
            return queue.entries.pop_first();
        }
        self.arm(&mut queue, true);
        None
    }

    /// Has a connection send its unsent batch when the socket's send buffer has room.
    pub(super) fn wait_for_room(&self, identity: u32) {
        lock(&self.blocked).push(identity);
        self.waker.wake();
    }
}
