//! Timers of the connections of a shared socket.

use std::collections::BTreeSet;

#[cfg(not(test))]
use haul_base::Time;

#[cfg(test)]
use super::counted_time::Time;

/// The timers of many connections, multiplexed on one timer of the driver.
#[derive(Debug, Default)]
pub struct TimerQueue {
    /// At most one entry per connection.
    entries: BTreeSet<(Time, u32)>,
    /// Time to which the driver's timer is set.
    armed: Option<Time>,
}

impl TimerQueue {
    /// Moves the timer of a connection from `old` to `new`; returns whether to set the driver's timer to
    /// [`TimerQueue::armed`]. It is only set to an earlier time, unless `exactly`: a timer that expires early
    /// costs a wake-up, setting it a system call.
    pub fn set(&mut self, identity: u32, old: Option<Time>, new: Option<Time>, exactly: bool) -> bool {
        if let Some(old) = old {
            self.entries.remove(&(old, identity));
        }
        if let Some(new) = new {
            self.entries.insert((new, identity));
        }
        self.arm(exactly)
    }

    /// Returns when the driver's timer expires.
    pub fn armed(&self) -> Option<Time> {
        self.armed
    }

    /// Records that the driver's timer has expired.
    pub fn on_expired(&mut self) {
        self.armed = None;
    }

    /// Arms the driver's timer for the first deadline if earlier, or if `exactly`; returns whether to set it.
    pub fn arm(&mut self, exactly: bool) -> bool {
        let first = self.entries.first().map(|(at, _)| *at);
        let is_earlier = first.is_some_and(|first| self.armed.is_none_or(|armed| first < armed));
        let changes = is_earlier || (exactly && first != self.armed);
        if changes {
            self.armed = first;
        }
        changes
    }

    /// Removes and returns the next connection whose timer has expired, with the time it was set to.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        self.entries.first().is_some_and(|(at, _)| *at <= now).then(|| self.entries.pop_first()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;
    use proptest::prelude::*;

    use super::*;
    use crate::connection::counted_time::comparisons;

    /// A connection sets its timer to this many microseconds from now, or clears it; or time passes.
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

    /// A queue, the connections' timers, and the wake-ups of the kernel's timer.
    #[derive(Default)]
    struct World {
        queue: TimerQueue,
        scheduled: [Option<Time>; 3],
        now: Time,
        spurious: usize,
        set_for: usize,
    }

    impl World {
        fn set(&mut self, identity: u32, new: Option<Time>, exactly: bool) {
            let old = std::mem::replace(&mut self.scheduled[identity as usize], new);
            self.set_for += usize::from(self.queue.set(identity, old, new, exactly));
        }

        /// Runs until `end` as the endpoint's thread does: when the timer expires, handles what is due.
        fn pass(&mut self, end: Time) {
            while let Some(expired) = self.queue.armed.filter(|at| *at <= end) {
                self.now = self.now.max(expired);
                self.queue.on_expired();
                let mut ran = 0;
                while let Some((at, identity)) = self.queue.pop_due(self.now) {
                    assert_eq!(self.scheduled[identity as usize].take(), Some(at));
                    ran += 1;
                }
                self.spurious += usize::from(ran == 0);
                self.queue.arm(true);
                let first = self.scheduled.iter().flatten().min().copied();
                assert_eq!(self.queue.armed, first, "after a wake-up the next one is not for nothing");
            }
            self.now = end;
        }
    }

    proptest! {
        #[test]
        fn no_timer_is_late_or_expires_twice(
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
                let first = world.scheduled.iter().flatten().min().copied();
                prop_assert!(first.is_none_or(|first| world.queue.armed.is_some_and(|armed| armed <= first)));
                prop_assert!(world.spurious <= sets, "each needs a timer that was moved");
            }
        }
    }

    #[test]
    fn a_postponed_timer_is_rescheduled_lazily_unless_exact() {
        let after = |millis| Some(Time::ZERO + Span::from_millis(millis));
        let mut world = World::default();
        for millis in 10..60 {
            world.set(0, after(millis), false);
        }
        assert_eq!((world.set_for, world.queue.armed), (1, after(10)));
        world.pass(Time::ZERO + Span::from_millis(50));
        assert_eq!((world.spurious, world.queue.armed), (1, after(59)));
        world.set(0, after(70), true);
        assert_eq!((world.set_for, world.queue.armed), (2, after(70)));
        world.set(0, None, true);
        assert_eq!(world.queue.armed, None, "nothing to wake up for");
    }

    #[test]
    fn many_short_deadlines_leave_one_entry_per_connection() {
        let mut world = World::default();
        for cycle in 0..10_000_u64 {
            for identity in 0..3 {
                // An acknowledgement is deferred, and sent before the timer expires.
                world.set(identity, Some(world.now + Span::from_micros(500)), false);
                world.set(identity, Some(world.now + Span::from_secs(15)), false);
                if cycle % 5 == u64::from(identity) {
                    world.set(identity, None, false);
                }
            }
            world.pass(world.now + Span::from_micros(200));
            assert!(world.queue.entries.len() <= world.scheduled.len(), "after {cycle} cycles");
        }
    }

    /// Sets 100 timers that expire at once, beside `others` that do not; returns how often times were compared.
    fn comparisons_of_due_timers(others: u32) -> u64 {
        let mut queue = TimerQueue::default();
        for identity in 1..=others {
            queue.set(identity, None, Some(Time::ZERO + Span::from_secs(u64::from(identity))), false);
        }
        let before = comparisons();
        for _ in 0..100 {
            queue.set(0, None, Some(Time::ZERO), false);
            queue.on_expired();
            assert_eq!((queue.pop_due(Time::ZERO), queue.pop_due(Time::ZERO)), (Some((Time::ZERO, 0)), None));
            queue.arm(true);
        }
        comparisons() - before
    }

    #[test]
    fn a_due_timer_is_found_without_visiting_every_other() {
        let [few, many] = [1_000, 100_000].map(comparisons_of_due_timers);
        assert!(few >= 100, "the queue does not compare times: {few}");
        assert!(many <= 3 * few, "{few} comparisons with 1,000 timers, {many} with 100,000");
    }
}
