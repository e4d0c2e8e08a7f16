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

impl Queue {
    /// Moves the entry of a connection; whether the kernel's timer is to be set to [`Self::armed`].
    fn set(&mut self, identity: u32, old: Option<Time>, new: Option<Time>, exactly: bool) -> bool {
        if let Some(old) = old {
            self.entries.remove(&(old, identity));
        }
        if let Some(new) = new {
            self.entries.insert((new, identity));
        }
        self.arm(exactly)
    }

    fn arm(&mut self, exactly: bool) -> bool {
        let first = self.entries.first().map(|(at, _)| *at);
        let is_earlier = first.is_some_and(|first| self.armed.is_none_or(|armed| first < armed));
        let changes = is_earlier || (exactly && first != self.armed);
        if changes {
            self.armed = first;
        }
        changes
    }

    fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        self.entries.first().is_some_and(|(at, _)| *at <= now).then(|| self.entries.pop_first()).flatten()
    }
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
        if queue.set(identity, old, new, exactly) {
            self.apply(queue.armed);
        }
    }

    /// Sets the kernel's timer, or disarms it.
    fn apply(&self, at: Option<Time>) {
        let left = at.map_or(Span::ZERO, |at| at.since(self.clock.now()).max(Span::from_nanos(1)));
        // Zero disarms it. Deadlines of the engine always fit.
        let Ok(it_value) = Timespec::try_from(Duration::from(left)) else { return };
        let new = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // Fails only for a wrong descriptor or a negative time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new);
    }

    /// The next connection whose timer has expired. If there is none, sets the kernel's timer to the earliest deadline.
    pub(super) fn due(&self, now: Time) -> Option<(Time, u32)> {
        let mut queue = lock(&self.queue);
        let due = queue.pop_due(now);
        if due.is_none() && queue.arm(true) {
            self.apply(queue.armed);
        }
        due
    }

    /// Has a connection send its unsent batch when the socket's send buffer has room.
    pub(super) fn wait_for_room(&self, identity: u32) {
        lock(&self.blocked).push(identity);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A connection sets its timer to so many microseconds from now, or clears it; or time passes.
    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, Option<u64>, bool),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3_u32, proptest::option::weighted(0.9, 0..1_000_u64), any::<bool>())
                .prop_map(|(identity, at, exactly)| Step::Set(identity, at, exactly)),
            (0..400_u64).prop_map(Step::Pass),
        ]
    }

    /// A queue, what its connections want, and the wake-ups of the kernel's timer.
    #[derive(Default)]
    struct World {
        queue: Queue,
        wanted: [Option<Time>; 3],
        now: Time,
        for_nothing: usize,
        set_for: usize,
    }

    impl World {
        fn set(&mut self, identity: u32, new: Option<Time>, exactly: bool) {
            let old = std::mem::replace(&mut self.wanted[identity as usize], new);
            self.set_for += usize::from(self.queue.set(identity, old, new, exactly));
        }

        /// Until `end`, as the endpoint's thread does: whenever the timer expires, it runs what is due.
        fn pass(&mut self, end: Time) {
            while let Some(expired) = self.queue.armed.filter(|at| *at <= end) {
                self.now = self.now.max(expired);
                self.queue.armed = None;
                let mut ran = 0;
                while let Some((at, identity)) = self.queue.pop_due(self.now) {
                    assert_eq!(self.wanted[identity as usize].take(), Some(at));
                    ran += 1;
                }
                self.for_nothing += usize::from(ran == 0);
                self.queue.arm(true);
                let first = self.wanted.iter().flatten().min().copied();
                assert_eq!(self.queue.armed, first, "after a wake-up the next one is not for nothing");
            }
            self.now = end;
        }
    }

    proptest! {
        #[test]
        fn no_timer_is_late_and_none_expires_twice_for_nothing(
            steps in proptest::collection::vec(step(), 1..200)
        ) {
            let (mut world, mut sets) = (World::default(), 0);
            for step in steps {
                match step {
                    Step::Set(identity, micros, exactly) => {
                        sets += 1;
                        world.set(identity, micros.map(|micros| world.now + Span::from_micros(micros)), exactly);
                    }
                    Step::Pass(micros) => world.pass(world.now + Span::from_micros(micros)),
                }
                let first = world.wanted.iter().flatten().min().copied();
                prop_assert!(first.is_none_or(|first| world.queue.armed.is_some_and(|armed| armed <= first)));
                prop_assert!(world.for_nothing <= sets, "each needs a timer that was moved");
            }
        }
    }

    #[test]
    fn a_timer_that_moves_to_later_is_left_until_it_expires_unless_it_is_to_be_exact() {
        let after = |millis| Some(Time::ZERO + Span::from_millis(millis));
        let mut world = World::default();
        for millis in 10..60 {
            world.set(0, after(millis), false);
        }
        assert_eq!((world.set_for, world.queue.armed), (1, after(10)));
        world.pass(Time::ZERO + Span::from_millis(50));
        assert_eq!((world.for_nothing, world.queue.armed), (1, after(59)));
        world.set(0, after(70), true);
        assert_eq!((world.set_for, world.queue.armed), (2, after(70)));
        world.set(0, None, true);
        assert_eq!(world.queue.armed, None, "nothing to wake up for");
    }
}
