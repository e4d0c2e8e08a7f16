//! A thread of the application that waits on a channel and drives the endpoint meanwhile.

use std::mem::take;
use std::sync::Arc;

use haul_base::{Span, Time};
use nix::sys::resource::{UsageWho, getrusage};

use super::anticipation::Expected;
use super::helm::Sleeper;
use super::run::{LONGEST_WAIT, Runner, end_all, sleep};
use super::shared::{Shared, count};
use crate::{Clock, EngineError};

/// Receive calls before it is looked whether what is waited for has come.
const ROUNDS: usize = 1;

/// A turn of others on the same processor takes longer, one of the other end of a conversation does not.
const CROWDED: Span = Span::from_micros(500);

/// A thread that waits on a channel, for the time that it waits.
pub(super) struct Guest<'s> {
    shared: &'s Arc<Shared>,
    /// Present while it is at the helm.
    runner: Option<Box<Runner>>,
    /// The last turn has left nothing to do.
    idle: bool,
    rested: Rested,
}

/// What became of a rest before a message that is expected.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rested {
    /// Others have kept the thread from its processor for so long while it looked for the message itself.
    pub(super) kept: Option<Span>,
    /// How long after the time that was set for looking it woke up.
    pub(super) late: Option<Span>,
}

impl<'s> Guest<'s> {
    pub(super) fn new(shared: &'s Arc<Shared>) -> Self {
        shared.helm.enter();
        Self { shared, runner: None, idle: false, rested: Rested::default() }
    }

    /// Whether it is at the helm; it takes it if that is possible.
    pub(super) fn is_at_helm(&mut self) -> bool {
        if self.shared.is_stopped() {
            self.runner = None;
        } else if self.runner.is_none() {
            self.runner = self.shared.helm.take();
            self.idle = false;
            if self.runner.is_some() {
                count(&self.shared.counters.guests);
            }
        }
        self.runner.is_some()
    }

    /// What this flight has to send is left to whoever drives next.
    pub(super) fn owe(&mut self, identity: u32) {
        if let Some(runner) = &mut self.runner {
            runner.owe(identity);
        }
    }

    /// Drives one turn: sleeps if there is nothing to do, until `until` at most, and does what there is. No lock of a
    /// flight may be held.
    pub(super) fn turn(&mut self, until: Option<Time>, awaited: Option<Expected>) {
        if self.runner.is_none() {
            return;
        }
        let rested = if self.idle { self.rest(until, awaited) } else { Ok(()) };
        let Some(runner) = &mut self.runner else { return };
        match rested.and_then(|()| drive(self.shared, runner)) {
            Ok(idle) => self.idle = idle,
            Err(error) => {
                self.runner = None;
                end_all(self.shared, &error);
            }
        }
    }

    /// How it rested since this was last asked.
    pub(super) fn rested(&mut self) -> Rested {
        take(&mut self.rested)
    }

    /// There is nothing to do: sleeps, unless a message is expected any moment.
    fn rest(&mut self, until: Option<Time>, awaited: Option<Expected>) -> Result<(), EngineError> {
        let shared = self.shared;
        let now = shared.clock.now();
        let look = awaited.and_then(|awaited| awaited.look).filter(|look| now < look.end);
        if look.is_some_and(|look| look.start <= now) {
            shared.helm.guest_looks();
            count(&shared.counters.looks);
            self.rested.kept = give_way(&shared.clock);
            return Ok(());
        }
        let longest = look.map_or(now + LONGEST_WAIT, |look| look.start);
        let longest = until.map_or(longest, |until| until.min(longest));
        shared.helm.guest_sleeps(longest, awaited.map(|awaited| awaited.at));
        let woken = sleep(shared, Sleeper::Guest);
        shared.helm.guest_wakes();
        let now = shared.clock.now();
        self.rested.late = look.filter(|look| look.start <= now).map(|look| now.since(look.start));
        woken
    }
}

impl Drop for Guest<'_> {
    /// Also if something has panicked on the way.
    fn drop(&mut self) {
        self.shared.helm.leave(self.runner.take());
    }
}

/// Others may need this core more. Says for how long they have needed it, if that was long. A host that stops the whole virtual
/// machine takes as long, but to sleep is no help against that.
fn give_way(clock: &Clock) -> Option<Span> {
    let (before, switches) = (clock.now(), involuntary_switches());
    std::thread::yield_now();
    let kept = clock.now().since(before);
    (kept > CROWDED && involuntary_switches() > switches).then_some(kept)
}

/// How often this thread had to give its processor to another one.
fn involuntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Does what there is to do; whether nothing is left.
fn drive(shared: &Arc<Shared>, runner: &mut Runner) -> Result<bool, EngineError> {
    let more = runner.receive(shared, ROUNDS)?;
    let due = runner.look_after(shared);
    Ok(!more && !due)
}
