//! Waiting for a packet or for a point in time, as precisely as the kernel's timers allow.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::guard::{hurry, pin};
use crate::net::{Tun, run_before_others};

/// What is left of a wait is spun away if it is shorter: going to sleep and back takes as long.
const SPIN: Span = Span::from_micros(15);
/// Whoever has waited less long ago than this does not spin.
const IDLE: Span = Span::from_micros(100);
/// Longer sleeps end early by [`EARLY`].
const LONG: Span = Span::from_millis(1);
const EARLY: Span = Span::from_micros(500);
/// The most that waking up is thought to take.
const MOST_LATENESS: Span = Span::from_micros(100);

/// The clock of an emulated path: nanoseconds since it was started.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// What time it is.
    pub fn now(self) -> Time {
        Time::ZERO + Span::from(self.0.elapsed())
    }
}

/// Lets other threads end a wait.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Ends the present wait, or the next.
    pub(super) fn ring(&self) {
        // It can fail only if it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the next wait a real one.
    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Makes the calling thread's timers exact, and asks to be served before others.
pub(super) fn be_punctual(cpu: Option<usize>) {
    // Each of these makes it better and none is needed: without the privilege the path is a little less exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if run_before_others().is_err() {
        hurry();
    }
    if let Some(cpu) = cpu {
        pin(cpu);
    }
}

/// Sleeps that end when they should. A processor that has slept for long takes long to wake up, so a long sleep
/// ends early and a short one follows, whose lateness is learnt and taken off.
#[derive(Debug)]
pub(super) struct Alarm {
    clock: Clock,
    /// How late sleeps have ended lately: short ones, and long ones.
    late: [Span; 2],
    /// When the last wait was over.
    last: Time,
}

impl Alarm {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, late: [Span::from_micros(20); 2], last: Time::ZERO }
    }

    /// Waits until the bell rings, `until` has come or nearly, or, with `device`, a packet has. It may end early.
    /// Returns when what ended it happened: before now by the time that waking up takes.
    pub(super) fn wait(
        &mut self,
        until: Option<Time>,
        device: Option<&Tun>,
        bell: &Bell,
    ) -> rustix::io::Result<Time> {
        let start = self.clock.now();
        let idle = start.since(self.last) >= IDLE;
        let left = until.map_or(Span::MAX, |until| until.since(start));
        let kind = usize::from(left > LONG);
        let lead = if left > LONG { EARLY } else { self.late[kind] };
        if left <= lead + SPIN && idle {
            let until = until.unwrap_or(start);
            while self.clock.now() < until {
                std::hint::spin_loop();
            }
            self.last = self.clock.now();
            return Ok(self.last);
        }
        // Where packets come thick and fast, nobody waits for one: a sleep gathers some.
        let sleep = if left <= lead { left } else { left.saturating_sub(lead) };
        let ready = poll_both(until.map(|_| sleep), device, bell)?;
        self.last = self.clock.now();
        if ready {
            let slept = usize::from(self.last.since(start) > LONG);
            return Ok((self.last - self.late[slept]).max(start));
        }
        let late = self.last.since(start + sleep);
        // An average over eight sleeps; what is very late was not the timer's fault.
        self.late[kind] = ((self.late[kind] * 7 + late) / 8).min(MOST_LATENESS);
        Ok(self.last)
    }
}

/// Polls the bell, and the device if there is one; whether one of them was ready before the time was over.
fn poll_both(time: Option<Span>, device: Option<&Tun>, bell: &Bell) -> rustix::io::Result<bool> {
    let timeout = time.and_then(|time| Timespec::try_from(Duration::from(time)).ok());
    let bell_fd = PollFd::from_borrowed_fd(bell.0.as_fd(), PollFlags::IN);
    // The bell twice is as good as the bell once.
    let other = device.map_or(bell.0.as_fd(), AsFd::as_fd);
    let mut fds = [bell_fd, PollFd::from_borrowed_fd(other, PollFlags::IN)];
    let ready = match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => ready > 0,
        Err(rustix::io::Errno::INTR) => true,
        Err(error) => return Err(error),
    };
    // Silenced before the inbox is looked at, so that no request is missed.
    if fds[0].revents().contains(PollFlags::IN) {
        bell.silence();
    }
    Ok(ready)
}
