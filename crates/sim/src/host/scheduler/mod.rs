//! What decides which task holds a core: one trait, and two schedulers behind it.

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
/// The caller brings the time, which never goes back. Before any other input at `now` it must have called
/// [`Scheduler::advance`] for every [`Scheduler::next_event`] up to `now`; so the running task is the same from
/// one event to the next.
pub trait Scheduler: Debug + Send {
    /// A new task, runnable at once.
    fn spawn(&mut self, now: Time, spec: &TaskSpec) -> TaskId;
    /// A sleeping task becomes runnable; nothing happens if it is so already.
    fn wake(&mut self, now: Time, task: TaskId, waker: Waker);
    /// The running task goes to sleep; nothing happens on an idle core.
    fn sleep(&mut self, now: Time, kind: SleepKind);
    /// A task ends, in whatever state it is.
    fn kill(&mut self, now: Time, task: TaskId);
    /// Who holds the core.
    fn running(&self) -> Option<TaskId>;
    /// When the running task may change without any input: the next tick that matters.
    fn next_event(&self) -> Option<Time>;
    /// Time passes up to `now`, which is not beyond the next event.
    fn advance(&mut self, now: Time);
    /// What it knows about a task.
    fn view(&self, task: TaskId) -> TaskView;
    /// A task's sleep average as a switch at `now` would leave it, which is what a program beside it reads: to read, it
    /// has to get the core. `None` if this scheduler keeps none.
    fn sleep_average(&self, _now: Time, _task: TaskId) -> Option<Span> {
        None
    }
    /// Who held the core, and how long.
    fn ledger(&self) -> &Ledger;
    /// The same, to switch the trace on or off.
    fn ledger_mut(&mut self) -> &mut Ledger;
}

/// The next multiple of `tick` after `now`.
pub(crate) fn next_tick(now: Time, tick: Span) -> Time {
    let tick = tick.as_nanos();
    Time::from_nanos((now.as_nanos() / tick + 1).saturating_mul(tick))
}
