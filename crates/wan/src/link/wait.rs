//! Waits for a packet or a point in time, as precisely as the kernel's timers allow.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::guard::{end_soon, pin};
use crate::net::{Tun, run_before_others};

/// Shorter remaining waits are spun: sleeping and waking up take as long.
const SPIN: Span = Span::from_micros(15);
/// A thread that last waited less than this ago does not spin.
const IDLE: Span = Span::from_micros(100);
/// Longer sleeps end early by [`LONG_SLEEP_LEAD`].
const LONG: Span = Span::from_millis(1);
const LONG_SLEEP_LEAD: Span = Span::from_micros(500);
/// Maximum wake-up latency that is compensated.
const MAX_LATENESS: Span = Span::from_micros(100);

/// Clock of an emulated path: nanoseconds since its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts the clock.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the current time.
    pub fn now(self) -> Time {
        Time::ZERO + Span::from(self.0.elapsed())
    }
}

/// An eventfd with which other threads end a wait.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Ends the current wait, or the next one.
    pub(super) fn wake(&self) {
        // Fails only if the counter would overflow, after 2^64 rings.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Resets the bell, so that the next wait blocks.
    fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Minimises the calling thread's timer slack and raises its priority.
pub(super) fn prioritise_thread(cpu: Option<usize>) {
    // Each of these improves precision but is optional: without the privilege the path is less precise.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if run_before_others().is_err() {
        end_soon();
    }
    if let Some(cpu) = cpu {
        pin(cpu);
    }
}

/// Precise sleeps. A processor that has slept long takes long to wake up, so a long sleep ends early and is
/// followed by a short one, whose measured latency is subtracted.
#[derive(Debug)]
pub(super) struct Sleeper {
    clock: Clock,
    /// Recent average wake-up latency of short and of long sleeps.
    lateness: [Span; 2],
    /// End of the last wait.
    last: Time,
}

impl Sleeper {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, lateness: [Span::from_micros(20); 2], last: Time::ZERO }
    }

    /// Waits until the bell rings, until (nearly) `until`, or, with `device`, until a packet arrives. May
    /// return early. Returns the time of the event that ended the wait: before now, by the wake-up latency.
    pub(super) fn wait(
        &mut self,
        until: Option<Time>,
        device: Option<&Tun>,
        waker: &Waker,
    ) -> rustix::io::Result<Time> {
        let start = self.clock.now();
        let idle = start.since(self.last) >= IDLE;
        let remaining = until.map_or(Span::MAX, |until| until.since(start));
        let kind = usize::from(remaining > LONG);
        let lead = if remaining > LONG { LONG_SLEEP_LEAD } else { self.lateness[kind] };
        if remaining <= lead + SPIN && idle {
            let until = until.unwrap_or(start);
            while self.clock.now() < until {
                std::hint::spin_loop();
            }
            self.last = self.clock.now();
            return Ok(self.last);
        }
        // With frequent packets the thread does not wait for a single one: a sleep accumulates several.
        let sleep = if remaining <= lead { remaining } else { remaining.saturating_sub(lead) };
        let ready = poll_both(until.map(|_| sleep), device, waker)?;
        self.last = self.clock.now();
        if ready {
            let slept = usize::from(self.last.since(start) > LONG);
            return Ok((self.last - self.lateness[slept]).max(start));
        }
        let lateness = self.last.since(start + sleep);
        // Moving average over eight sleeps; very late wake-ups are not caused by the timer.
        self.lateness[kind] = ((self.lateness[kind] * 7 + lateness) / 8).min(MAX_LATENESS);
        Ok(self.last)
    }
}

/// Polls the bell, and the device if given. Returns whether one of them was ready before the timeout.
fn poll_both(time: Option<Span>, device: Option<&Tun>, waker: &Waker) -> rustix::io::Result<bool> {
    let timeout = time.and_then(|time| Timespec::try_from(Duration::from(time)).ok());
    let waker_fd = PollFd::from_borrowed_fd(waker.0.as_fd(), PollFlags::IN);
    // Without a device, the bell is polled twice.
    let other = device.map_or(waker.0.as_fd(), AsFd::as_fd);
    let mut fds = [waker_fd, PollFd::from_borrowed_fd(other, PollFlags::IN)];
    let ready = match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => ready > 0,
        Err(rustix::io::Errno::INTR) => true,
        Err(error) => return Err(error),
    };
    // Reset before the inbox is read, so that no request is missed.
    if fds[0].revents().contains(PollFlags::IN) {
        waker.reset();
    }
    Ok(ready)
}
