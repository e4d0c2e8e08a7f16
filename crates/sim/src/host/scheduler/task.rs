//! Tasks of a core, as passed to and reported by a scheduler.

use haul_base::Span;

/// Identifies a task of a core; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u32);

impl TaskId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Nice value of a task: -20 (most CPU time) to 19.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nice(i8);

impl Nice {
    /// Clamps `nice` to the permitted range.
    pub fn new(nice: i8) -> Self {
        Self(nice.clamp(-20, 19))
    }

    /// Returns the value, -20 to 19.
    pub const fn get(self) -> i8 {
        self.0
    }
}

/// Parameters of a new task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskSpec {
    /// Nice value, which sets the static priority.
    pub nice: Nice,
    /// Inherited sleep average; used by the O(1) scheduler only.
    pub sleep_average: Span,
}

/// Kind of event that a sleeping task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SleepKind {
    /// A packet, a key, a timer.
    Interruptible,
    /// A disk. The O(1) scheduler credits this less.
    Uninterruptible,
}

/// What wakes a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waker {
    /// An interrupt or softirq, as for packets and timers.
    Interrupt,
    /// Another task.
    Task,
}

/// A scheduler's state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskView {
    /// Whether the task runs or waits for the core.
    pub runnable: bool,
    /// Dynamic priority of the O(1) scheduler (100, best, to 139), or 120 + nice for the fair one.
    pub priority: u8,
    /// The O(1) scheduler's sleep average; zero for the fair one.
    pub sleep_average: Span,
    /// Remaining time slice.
    pub slice_remaining: Span,
}
