//! One core: tasks with work to do under a scheduler, and interrupt work that comes before all of them.

use haul_base::{Span, Time};

use super::scheduler::{Scheduler, SchedulerKind, SleepKind, TaskId, TaskSpec, Waker};

/// A core whose tasks have a known amount of work until they next do something of their own accord.
///
/// Softirq work takes the core from whoever holds it, without the scheduler's knowledge: as on kernels that do not
/// account for interrupt time, the task is charged for it and gets nothing done.
#[derive(Debug)]
pub struct Cpu {
    scheduler: Box<dyn Scheduler>,
    now: Time,
    /// Work left per task, `None` for work without end.
    work: Vec<Option<Span>>,
    softirq_until: Time,
    softirq_total: Span,
    stolen: Span,
}

impl Cpu {
    /// An idle core.
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

    /// Up to when everything has happened.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &dyn Scheduler {
        &*self.scheduler
    }

    /// The scheduler, to switch its trace.
    pub fn scheduler_mut(&mut self) -> &mut dyn Scheduler {
        &mut *self.scheduler
    }

    /// A new task, with work until its first step.
    pub fn spawn(&mut self, spec: &TaskSpec, work: Option<Span>) -> TaskId {
        let id = self.scheduler.spawn(self.now, spec);
        debug_assert_eq!(id.index(), self.work.len());
        self.work.push(work);
        id
    }

    /// A task has this much to do until its next step.
    pub fn set_work(&mut self, task: TaskId, work: Option<Span>) {
        self.work[task.index()] = work;
    }

    /// The running task sleeps.
    pub fn sleep(&mut self, kind: SleepKind) {
        self.scheduler.sleep(self.now, kind);
    }

    /// A task wakes.
    pub fn wake(&mut self, task: TaskId, waker: Waker) {
        self.scheduler.wake(self.now, task, waker);
    }

    /// A task ends.
    pub fn kill(&mut self, task: TaskId) {
        self.scheduler.kill(self.now, task);
    }

    /// Softirq work takes the core; it queues behind what is there already.
    ///
    /// # Returns
    /// When this work is done.
    pub fn steal(&mut self, work: Span) -> Time {
        self.softirq_until = self.softirq_until.max(self.now) + work;
        self.softirq_total = self.softirq_total + work;
        self.softirq_until
    }

    /// How much softirq work there has been, part of it perhaps still to do.
    pub fn softirq_time(&self) -> Span {
        self.softirq_total
    }

    /// How much of it was taken from tasks so far; the rest fell into idle time.
    pub fn stolen_time(&self) -> Span {
        self.stolen
    }

    /// The running task, if it has done its work and wants its next step.
    pub fn finished(&self) -> Option<TaskId> {
        let task = self.scheduler.running()?;
        let done = self.softirq_until <= self.now && self.work[task.index()] == Some(Span::ZERO);
        done.then_some(task)
    }

    /// When the scheduler acts or the running task has done its work.
    pub fn next_event(&self) -> Option<Time> {
        let task = self.scheduler.running()?;
        let tick = self.scheduler.next_event();
        let done = self.work[task.index()].map(|work| self.softirq_until.max(self.now) + work);
        match (tick, done) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Time passes; not beyond the next event.
    pub fn advance(&mut self, to: Time) {
        debug_assert!(self.next_event().is_none_or(|next| to <= next), "an event was passed over");
        if let Some(task) = self.scheduler.running() {
            let elapsed = to.since(self.now);
            let worked = to.since(self.softirq_until.max(self.now));
            self.stolen = self.stolen + elapsed.saturating_sub(worked);
            if let Some(left) = &mut self.work[task.index()] {
                *left = left.saturating_sub(worked);
            }
        }
        self.now = self.now.max(to);
        if self.scheduler.next_event().is_some_and(|tick| tick <= to) {
            self.scheduler.advance(to);
        }
    }
}
