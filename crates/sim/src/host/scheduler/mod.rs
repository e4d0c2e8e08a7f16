//! Task schedulers of a core: one trait with two implementations.

mod fair;
mod kind;
mod ledger;
mod o1;
mod priority_array;
mod task;

use std::fmt::Debug;

use haul_base::{Span, Time};

pub use fair::{Fair, FairConfig};
pub use kind::SchedulerKind;
pub use ledger::{Ledger, RunSlice, Sample, Trace};
pub use o1::{O1, O1Config};
pub use task::{Nice, SleepKind, TaskId, TaskSpec, TaskView, Waker};

/// The scheduler of one core.
///
/// The caller supplies the time, which never goes back. Before any other input at `now`, it must call
/// [`Scheduler::advance`] for every [`Scheduler::next_event`] up to `now`; the running task then does not
/// change between events.
pub trait Scheduler: Debug + Send {
    /// Creates a task, which is runnable immediately.
    fn spawn(&mut self, now: Time, spec: &TaskSpec) -> TaskId;
    /// Makes a sleeping task runnable. No effect if it already is.
    fn wake(&mut self, now: Time, task: TaskId, waker: Waker);
    /// Puts the running task to sleep. No effect on an idle core.
    fn sleep(&mut self, now: Time, kind: SleepKind);
    /// Ends a task in any state.
    fn kill(&mut self, now: Time, task: TaskId);
    /// Returns the task that holds the core.
    fn running(&self) -> Option<TaskId>;
    /// Returns when the running task may change without input: the next relevant tick.
    fn next_event(&self) -> Option<Time>;
    /// Advances to `now`, which must not be after the next event.
    fn advance(&mut self, now: Time);
    /// Returns the state of a task.
    fn view(&self, task: TaskId) -> TaskView;
    /// Returns a task's sleep average as a switch at `now` would leave it, which is what another program
    /// reads: it needs the core to read it. `None` if the scheduler has no sleep average.
    fn sleep_average(&self, _now: Time, _task: TaskId) -> Option<Span> {
        None
    }
    /// Returns the run-time accounting.
    fn ledger(&self) -> &Ledger;
    /// Returns the accounting mutably, to switch the trace on or off.
    fn ledger_mut(&mut self) -> &mut Ledger;
}

/// Returns the first multiple of `tick` after `now`.
pub(crate) fn next_tick(now: Time, tick: Span) -> Time {
    let tick = tick.as_nanos();
    Time::from_nanos((now.as_nanos() / tick + 1).saturating_mul(tick))
}
