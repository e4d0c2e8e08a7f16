//! The tasks of a core, as a scheduler is told of them and tells of them.

use haul_base::Span;

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
