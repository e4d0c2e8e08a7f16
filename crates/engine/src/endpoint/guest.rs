//! A thread of the application that waits on a channel and drives the endpoint meanwhile.

use std::sync::Arc;

use haul_base::Time;

use super::anticipation::Window;
use super::helm::Sleeper;
use super::run::{LONGEST_WAIT, Runner, end_all, sleep};
use super::shared::{Shared, count};
use crate::EngineError;

/// Receive calls before it is looked whether what is waited for has come.
const ROUNDS: usize = 1;

/// A thread that waits on a channel, for the time that it waits.
pub(super) struct Guest<'s> {
    shared: &'s Arc<Shared>,
    /// Present while it is at the helm.
    runner: Option<Box<Runner>>,
    /// The last turn has left nothing to do.
    idle: bool,
}

impl<'s> Guest<'s> {
    pub(super) fn new(shared: &'s Arc<Shared>) -> Self {
        shared.helm.enter();
        Self { shared, runner: None, idle: false }
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
    pub(super) fn turn(&mut self, until: Option<Time>, awaited: Option<Window>) {
        let Some(runner) = &mut self.runner else { return };
        let rested = if self.idle { rest(self.shared, until, awaited) } else { Ok(()) };
        match rested.and_then(|()| drive(self.shared, runner)) {
            Ok(idle) => self.idle = idle,
            Err(error) => {
                self.runner = None;
                end_all(self.shared, &error);
            }
        }
    }
}

impl Drop for Guest<'_> {
    /// Also if something has panicked on the way.
    fn drop(&mut self) {
        self.shared.helm.leave(self.runner.take());
    }
}

/// There is nothing to do: sleeps, unless a message is expected any moment.
fn rest(shared: &Arc<Shared>, until: Option<Time>, awaited: Option<Window>) -> Result<(), EngineError> {
    let now = shared.clock.now();
    let awaited = awaited.filter(|window| now < window.end);
    if awaited.is_some_and(|window| window.start <= now) {
        // Others may need this core more.
        std::thread::yield_now();
        return Ok(());
    }
    let longest = awaited.map_or(now + LONGEST_WAIT, |window| window.start);
    let longest = until.map_or(longest, |until| until.min(longest));
    shared.helm.guest_sleeps(longest, awaited.map(|window| window.expected));
    let woken = sleep(shared, Sleeper::Guest);
    shared.helm.guest_wakes();
    woken
}

/// Does what there is to do; whether nothing is left.
fn drive(shared: &Arc<Shared>, runner: &mut Runner) -> Result<bool, EngineError> {
    let more = runner.receive(shared, ROUNDS)?;
    let due = runner.look_after(shared);
    Ok(!more && !due)
}
