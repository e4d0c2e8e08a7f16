//! One core: tasks with work to do under a scheduler, and softirq work that preempts all of them.

use haul_base::{Span, Time};

use super::scheduler::{Scheduler, SchedulerKind, SleepKind, TaskId, TaskSpec, Waker};

/// One core whose tasks have a known amount of work until their next step.
///
/// Softirq work preempts the running task without the scheduler's knowledge: as on kernels without interrupt
/// time accounting, the task is charged for that time although it makes no progress.
#[derive(Debug)]
pub struct Cpu {
    scheduler: Box<dyn Scheduler>,
    now: Time,
    /// Remaining work per task; `None` for endless work.
    work: Vec<Option<Span>>,
    softirq_until: Time,
    softirq_total: Span,
    stolen: Span,
}

impl Cpu {
    /// Creates an idle core.
    pub fn new(kind: SchedulerKind, start: Time) -> Self {
        Self {
            scheduler: kind.build(start),
            now: start,
            work: Vec::new(),
            softirq_until: start,
            softirq_total: Span::ZERO,
            stolen: Span::ZERO,
        }
    }

    /// Returns the time up to which the core has been simulated.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &dyn Scheduler {
        &*self.scheduler
    }

    /// Returns the scheduler mutably, to switch its trace.
    pub fn scheduler_mut(&mut self) -> &mut dyn Scheduler {
        &mut *self.scheduler
    }

    /// Creates a task with `work` until its first step.
    pub fn spawn(&mut self, spec: &TaskSpec, work: Option<Span>) -> TaskId {
        let id = self.scheduler.spawn(self.now, spec);
        debug_assert_eq!(id.index(), self.work.len());
        self.work.push(work);
        id
    }

    /// Sets a task's work until its next step.
    pub fn set_work(&mut self, task: TaskId, work: Option<Span>) {
        self.work[task.index()] = work;
    }

    /// Puts the running task to sleep.
    pub fn sleep(&mut self, kind: SleepKind) {
        self.scheduler.sleep(self.now, kind);
    }

    /// Wakes a task.
    pub fn wake(&mut self, task: TaskId, waker: Waker) {
        self.scheduler.wake(self.now, task, waker);
    }

    /// Ends a task.
    pub fn kill(&mut self, task: TaskId) {
        self.scheduler.kill(self.now, task);
    }

    /// Takes the core for softirq work, after softirq work that is already pending.
    ///
    /// # Returns
    /// The time at which this work is done.
    pub fn steal(&mut self, work: Span) -> Time {
        self.softirq_until = self.softirq_until.max(self.now) + work;
        self.softirq_total = self.softirq_total + work;
        self.softirq_until
    }

    /// Returns the total softirq work, including work still to do.
    pub fn softirq_time(&self) -> Span {
        self.softirq_total
    }

    /// Returns the softirq time taken from tasks so far; the rest fell into idle time.
    pub fn stolen_time(&self) -> Span {
        self.stolen
    }

    /// Returns the running task if it has finished its work and needs a next step.
    pub fn finished(&self) -> Option<TaskId> {
        let task = self.scheduler.running()?;
        let done = self.softirq_until <= self.now && self.work[task.index()] == Some(Span::ZERO);
        done.then_some(task)
    }

    /// Returns when the scheduler acts or the running task finishes its work.
    pub fn next_event(&self) -> Option<Time> {
        let task = self.scheduler.running()?;
        let tick = self.scheduler.next_event();
        let done = self.work[task.index()].map(|work| self.softirq_until.max(self.now) + work);
        match (tick, done) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Advances to `to`, which must not be after the next event.
    pub fn advance(&mut self, to: Time) {
        debug_assert!(self.next_event().is_none_or(|next| to <= next), "an event was passed over");
        if let Some(task) = self.scheduler.running() {
            let elapsed = to.since(self.now);
            let worked = to.since(self.softirq_until.max(self.now));
            self.stolen = self.stolen + elapsed.saturating_sub(worked);
            if let Some(remaining) = &mut self.work[task.index()] {
                *remaining = remaining.saturating_sub(worked);
            }
        }
        self.now = self.now.max(to);
        if self.scheduler.next_event().is_some_and(|tick| tick <= to) {
            self.scheduler.advance(to);
        }
    }
}
