//! What decides which task holds a core: one trait, and two schedulers behind it.

mod fair;
mod ledger;
mod o1;
mod priority_array;

use std::fmt::Debug;

use haul_base::{Span, Time};

pub use fair::{Fair, FairConfig};
pub use ledger::{Ledger, RunSlice, Sample, Trace};
pub use o1::{O1, O1Config};

/// A task of one core. Numbers are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u32);

impl TaskId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// How nice a task is to others: -20 (gets most) to 19.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nice(i8);

impl Nice {
    /// The nearest permitted value.
    pub fn new(nice: i8) -> Self {
        Self(nice.clamp(-20, 19))
    }

    /// -20 to 19.
    pub const fn get(self) -> i8 {
        self.0
    }
}

/// What a new task brings along.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskSpec {
    /// Its static priority.
    pub nice: Nice,
    /// The sleep average it inherits; only the O(1) scheduler looks at it.
    pub sleep_average: Span,
}

/// What a task waits for when it goes to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SleepKind {
    /// A packet, a key, a timer.
    Interruptible,
    /// A disk. The O(1) scheduler gives less credit for it.
    Uninterruptible,
}

/// Who wakes a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waker {
    /// An interrupt or softirq, as with packets and timers.
    Interrupt,
    /// Another task.
    Task,
}

/// What a scheduler knows about a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskView {
    /// Whether it runs or waits for the core.
    pub runnable: bool,
    /// Dynamic priority of the O(1) scheduler (100 best to 139), or 120 + nice of the fair one.
    pub priority: u8,
    /// The O(1) scheduler's sleep average; zero for the fair one.
    pub sleep_average: Span,
    /// What is left of the time slice.
    pub slice_left: Span,
}

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

/// Which scheduler a host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerKind {
    /// Linux 2.6 up to 2.6.22, the one of the papers.
    O1(O1Config),
    /// Fair with slices, as Linux from 6.6.
    Fair(FairConfig),
}

impl SchedulerKind {
    /// The scheduler, at the start of its core.
    pub fn build(self, start: Time) -> Box<dyn Scheduler> {
        match self {
            Self::O1(config) => Box::new(O1::new(config, start)),
            Self::Fair(config) => Box::new(Fair::new(config, start)),
        }
    }
}

/// The next multiple of `tick` after `now`.
pub(crate) fn next_tick(now: Time, tick: Span) -> Time {
    let tick = tick.as_nanos();
    Time::from_nanos((now.as_nanos() / tick + 1).saturating_mul(tick))
}
