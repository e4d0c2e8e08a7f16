//! The O(1) scheduler of Linux 2.6.21 (2.6.22 was the last version to use it), for one core and tasks of
//! normal policy.
//!
//! It follows `kernel/sched.c`; each function here names the kernel's. Not modelled: real-time and batch
//! policies, several cores, kernel threads (which are exempt from the limit on long sleeps), and that a child
//! shares its parent's first time slice.

use haul_base::{Span, Time};

use super::ledger::{Ledger, Sample};
use super::priority_array::PriorityArray;
use super::{Scheduler, SleepKind, TaskId, TaskSpec, TaskView, Waker, next_tick};

/// `MAX_RT_PRIO`: best priority of a normal task.
const BEST: i32 = 100;
/// `MAX_PRIO - 1`: worst priority.
const WORST: i32 = 139;
/// `NICE_TO_PRIO(0)`.
const NICE_0: i32 = 120;
/// `DEF_TIMESLICE`: 100 ms.
const DEFAULT_SLICE_MS: i32 = 100;
/// `MIN_TIMESLICE`: 5 ms.
const MIN_SLICE_MS: i32 = 5;
/// `MAX_BONUS`: a quarter (`PRIO_BONUS_RATIO` 25 %) of the 40 user levels.
const MAX_BONUS: u64 = 10;
/// `INTERACTIVE_DELTA`.
const INTERACTIVE_DELTA: i32 = 2;
/// `MAX_SLEEP_AVG` = `DEF_TIMESLICE * MAX_BONUS`: 1 s.
const MAX_SLEEP_AVERAGE: u64 = 1_000_000_000;
/// `ON_RUNQUEUE_WEIGHT` as `schedule` applies it: 30 % in 128ths, `(30 * 128 / 100) / 128`.
const QUEUE_WEIGHT_128THS: u64 = 38;
/// `GRANULARITY`: 10 ms.
const GRANULARITY_MS: u64 = 10;

/// Machine-dependent parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct O1Config {
    /// Tick interval (`1 / HZ`): a divisor of 5 ms.
    pub tick: Span,
}

impl O1Config {
    /// Maximum sleep average.
    pub const SLEEP_AVERAGE_LIMIT: Span = Span::from_nanos(MAX_SLEEP_AVERAGE);
}

impl Default for O1Config {
    /// HZ = 1000, as in server distributions of that time.
    fn default() -> Self {
        Self { tick: Span::from_millis(1) }
    }
}

/// `enum sleep_type`: how the time between waking and running is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Credit {
    /// The task has run since it woke.
    Normal,
    /// Waited for a disk, or slept very long: waiting for the core is not credited.
    NonInteractive,
    /// Woken by a task: 30 % of the wait counts as sleep.
    Interactive,
    /// Woken by an interrupt: the whole wait counts as sleep.
    Interrupted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum O1TaskState {
    Active,
    Expired,
    Sleeping,
    Exited,
}

#[derive(Clone, Debug)]
struct Task {
    static_priority: i32,
    priority: u8,
    sleep_average: u64,
    /// Time of its last transition: wake-up, start or end of a run.
    stamp: Time,
    slice_ticks: u64,
    credit: Credit,
    state: O1TaskState,
}

/// `static_prio_timeslice`: 800 ms at nice -20, 100 ms at 0, 5 ms at 19.
fn slice_for(static_priority: i32) -> Span {
    let base = if static_priority < NICE_0 { DEFAULT_SLICE_MS * 4 } else { DEFAULT_SLICE_MS };
    let ms = (base * (WORST + 1 - static_priority) / 20).max(MIN_SLICE_MS);
    Span::from_millis(ms as u64)
}

/// `DELTA`: how much better than its static priority a task must be to count as interactive.
fn interactive_margin(static_priority: i32) -> i32 {
    let nice = static_priority - NICE_0;
    (nice + 20) * MAX_BONUS as i32 / 40 - 5 + INTERACTIVE_DELTA
}

/// `INTERACTIVE_SLEEP`: maximum sleep average that one long sleep can give.
fn sleep_ceiling(static_priority: i32, tick: Span) -> u64 {
    let jiffies = MAX_SLEEP_AVERAGE / tick.as_nanos();
    let levels = MAX_BONUS.cast_signed() / 2 + i64::from(interactive_margin(static_priority)) + 1;
    let ceiling = jiffies.cast_signed() * levels / MAX_BONUS.cast_signed() - 1;
    (ceiling.max(0) as u64 * tick.as_nanos()).min(MAX_SLEEP_AVERAGE)
}

impl Task {
    /// `CURRENT_BONUS`: 0 to 10.
    fn bonus(&self, tick: Span) -> u64 {
        self.sleep_average / tick.as_nanos() * MAX_BONUS / (MAX_SLEEP_AVERAGE / tick.as_nanos())
    }

    /// `effective_prio`: static priority, improved or worsened by up to 5.
    fn effective_priority(&self, tick: Span) -> u8 {
        let bonus = self.bonus(tick) as i32 - MAX_BONUS as i32 / 2;
        (self.static_priority - bonus).clamp(BEST, WORST) as u8
    }

    /// `TASK_INTERACTIVE`.
    fn is_interactive(&self) -> bool {
        i32::from(self.priority) <= self.static_priority - interactive_margin(self.static_priority)
    }

    /// `TIMESLICE_GRANULARITY`: ticks after which an interactive task lets tasks of equal priority run.
    fn granularity(&self, tick: Span) -> u64 {
        let exponent = (MAX_BONUS - self.bonus(tick)).max(1) - 1;
        (GRANULARITY_MS * 1_000_000 / tick.as_nanos()).max(1) << exponent
    }

    /// `recalc_task_prio`: counts the time since the stamp as sleep.
    fn credit_sleep(&mut self, now: Time, tick: Span) {
        let slept = now.since(self.stamp).as_nanos();
        if slept > 0 {
            let ceiling = sleep_ceiling(self.static_priority, tick);
            if slept > ceiling && self.sleep_average < ceiling {
                self.sleep_average = ceiling;
                self.credit = Credit::NonInteractive;
            } else if self.credit == Credit::NonInteractive {
                // A wait for a disk raises the average no further than the ceiling.
                self.sleep_average = self.sleep_average.max((self.sleep_average + slept).min(ceiling));
            } else {
                self.sleep_average += slept;
            }
            self.sleep_average = self.sleep_average.min(MAX_SLEEP_AVERAGE);
        }
        self.priority = self.effective_priority(tick);
    }
}

/// The run queue of one core (`struct rq`).
#[derive(Clone, Debug)]
pub struct O1 {
    config: O1Config,
    tasks: Vec<Task>,
    active: PriorityArray,
    expired: PriorityArray,
    runnable: u64,
    /// Time at which the first task entered the expired array.
    expired_since: Option<Time>,
    best_expired: i32,
    next_tick: Time,
    ledger: Ledger,
}

impl O1 {
    /// Creates an idle core.
    pub fn new(config: O1Config, start: Time) -> Self {
        Self {
            config,
            tasks: Vec::new(),
            active: PriorityArray::new(),
            expired: PriorityArray::new(),
            runnable: 0,
            expired_since: None,
            best_expired: WORST + 1,
            next_tick: next_tick(start, config.tick),
            ledger: Ledger::new(start),
        }
    }

    fn enqueue(&mut self, id: TaskId, state: O1TaskState) {
        let task = &mut self.tasks[id.index()];
        task.state = state;
        let array = if state == O1TaskState::Active { &mut self.active } else { &mut self.expired };
        array.push_back(task.priority, id);
    }

    fn dequeue(&mut self, id: TaskId) {
        let task = &self.tasks[id.index()];
        match task.state {
            O1TaskState::Active => self.active.remove(task.priority, id),
            O1TaskState::Expired => self.expired.remove(task.priority, id),
            O1TaskState::Sleeping | O1TaskState::Exited => {}
        }
    }

    /// `activate_task` and `TASK_PREEMPTS_CURR`.
    fn activate(&mut self, now: Time, id: TaskId) {
        self.enqueue(id, O1TaskState::Active);
        self.ledger.ready(now, id);
        self.runnable += 1;
        let priority = self.tasks[id.index()].priority;
        let preempts = |running: TaskId| priority < self.tasks[running.index()].priority;
        if self.ledger.running().is_none_or(preempts) {
            self.schedule(now);
        }
    }

    /// `schedule`: accounts for the task that ran, and gives the core to the best one.
    fn schedule(&mut self, now: Time) {
        let previous = self.ledger.running();
        let charge = previous.map_or(0, |id| {
            let task = &self.tasks[id.index()];
            let ran = now.since(task.stamp).as_nanos().min(MAX_SLEEP_AVERAGE);
            ran / task.bonus(self.config.tick).max(1)
        });
        if self.runnable == 0 {
            self.expired_since = None;
        } else if self.active.is_empty() {
            std::mem::swap(&mut self.active, &mut self.expired);
            for task in self.tasks.iter_mut().filter(|task| task.state == O1TaskState::Expired) {
                task.state = O1TaskState::Active;
            }
            self.expired_since = None;
            self.best_expired = WORST + 1;
        }
        let next = self.active.first();
        if let Some(id) = next {
            self.credit_waiting(now, id);
        }
        if let Some(id) = previous {
            let task = &mut self.tasks[id.index()];
            task.sleep_average = task.sleep_average.saturating_sub(charge);
            task.stamp = now;
        }
        if let Some(id) = next {
            self.tasks[id.index()].stamp = now;
            if previous.is_none() {
                // Ticks are not counted while the core is idle.
                self.next_tick = next_tick(now, self.config.tick);
            }
        }
        self.sample_switch(now, previous, next);
        self.ledger.switch(now, next);
    }

    /// Part of `schedule` that counts the wait for the core after a wake-up as sleep.
    fn credit_waiting(&mut self, now: Time, id: TaskId) {
        let tick = self.config.tick;
        let task = &mut self.tasks[id.index()];
        let waited = now.since(task.stamp);
        let credited = match task.credit {
            Credit::Interrupted => Some(waited),
            Credit::Interactive => Some(Span::from_nanos(waited.as_nanos() * QUEUE_WEIGHT_128THS / 128)),
            Credit::Normal | Credit::NonInteractive => None,
        };
        if let Some(credited) = credited {
            let before = task.priority;
            task.credit_sleep(task.stamp + credited, tick);
            let after = task.priority;
            if after != before {
                self.active.remove(before, id);
                self.active.push_back(after, id);
            }
        }
        self.tasks[id.index()].credit = Credit::Normal;
    }

    /// Returns the task's sleep average as the next switch would leave it: reduced by its run time, or
    /// increased by its wait where that counts.
    fn settled(&self, now: Time, id: TaskId) -> u64 {
        let tick = self.config.tick;
        let mut task = self.tasks[id.index()].clone();
        if self.ledger.running() == Some(id) {
            let ran = now.since(task.stamp).as_nanos().min(MAX_SLEEP_AVERAGE);
            return task.sleep_average.saturating_sub(ran / task.bonus(tick).max(1));
        }
        if task.credit == Credit::Interrupted && task.state == O1TaskState::Active {
            task.credit_sleep(now, tick);
        }
        task.sleep_average
    }

    fn sample(&mut self, now: Time, id: TaskId, change: bool) {
        let sleep_average = Span::from_nanos(self.settled(now, id));
        let priority = self.tasks[id.index()].priority;
        self.ledger.sample(Sample { at: now, task: id, sleep_average, priority }, change);
    }

    /// Samples both tasks of a switch.
    fn sample_switch(&mut self, now: Time, previous: Option<TaskId>, next: Option<TaskId>) {
        if !self.ledger.traces() {
            return;
        }
        let change = matches!((previous, next), (Some(a), Some(b)) if a != b);
        for id in [previous, next.filter(|_| next != previous)].into_iter().flatten() {
            self.sample(now, id, change);
        }
    }

    /// Samples all runnable tasks at a tick.
    fn sample_runnable(&mut self, now: Time) {
        for index in 0..self.tasks.len() {
            if matches!(self.tasks[index].state, O1TaskState::Active | O1TaskState::Expired) {
                self.sample(now, TaskId(index as u32), false);
            }
        }
    }

    /// `expired_starving`: whether interactive tasks must no longer return to the active array.
    fn expired_starves(&self, now: Time, running: i32) -> bool {
        let limit = Span::from_nanos(MAX_SLEEP_AVERAGE) * self.runnable;
        running > self.best_expired || self.expired_since.is_some_and(|since| now.since(since) > limit)
    }

    /// `scheduler_tick`.
    fn tick(&mut self, now: Time) {
        let Some(id) = self.ledger.running() else { return };
        if self.ledger.traces() {
            self.sample_runnable(now);
        }
        let tick = self.config.tick;
        let task = &mut self.tasks[id.index()];
        if task.state != O1TaskState::Active {
            return self.schedule(now);
        }
        task.slice_ticks = task.slice_ticks.saturating_sub(1);
        if task.slice_ticks == 0 {
            self.end_slice(now, id);
            return self.schedule(now);
        }
        let full_slice = slice_for(task.static_priority).as_nanos() / tick.as_nanos();
        let granularity = task.granularity(tick);
        let rests = (full_slice - task.slice_ticks.min(full_slice)).is_multiple_of(granularity);
        if task.is_interactive() && rests && task.slice_ticks >= granularity {
            let level = task.priority;
            self.active.remove(level, id);
            self.active.push_back(level, id);
            self.schedule(now);
        }
    }

    /// Ends the task's time slice: assigns a new one, and inserts the task into one of the arrays.
    fn end_slice(&mut self, now: Time, id: TaskId) {
        self.dequeue(id);
        let tick = self.config.tick;
        let task = &mut self.tasks[id.index()];
        task.priority = task.effective_priority(tick);
        let static_priority = task.static_priority;
        task.slice_ticks = slice_for(static_priority).as_nanos() / tick.as_nanos();
        let interactive = task.is_interactive();
        self.expired_since.get_or_insert(now);
        if interactive && !self.expired_starves(now, static_priority) {
            self.enqueue(id, O1TaskState::Active);
        } else {
            self.enqueue(id, O1TaskState::Expired);
            self.best_expired = self.best_expired.min(static_priority);
        }
    }
}

impl Scheduler for O1 {
    fn spawn(&mut self, now: Time, spec: &TaskSpec) -> TaskId {
        let static_priority = NICE_0 + i32::from(spec.nice.get());
        let mut task = Task {
            static_priority,
            priority: 0,
            sleep_average: spec.sleep_average.as_nanos().min(MAX_SLEEP_AVERAGE),
            stamp: now,
            slice_ticks: slice_for(static_priority).as_nanos() / self.config.tick.as_nanos(),
            credit: Credit::Normal,
            state: O1TaskState::Sleeping,
        };
        task.priority = task.effective_priority(self.config.tick);
        self.tasks.push(task);
        let id = self.ledger.add_task();
        self.activate(now, id);
        id
    }

    /// `try_to_wake_up`.
    fn wake(&mut self, now: Time, id: TaskId, waker: Waker) {
        let tick = self.config.tick;
        let task = &mut self.tasks[id.index()];
        if task.state != O1TaskState::Sleeping {
            return;
        }
        task.credit_sleep(now, tick);
        if task.credit == Credit::Normal {
            task.credit = if waker == Waker::Interrupt { Credit::Interrupted } else { Credit::Interactive };
        }
        task.stamp = now;
        self.activate(now, id);
    }

    fn sleep(&mut self, now: Time, kind: SleepKind) {
        let Some(id) = self.ledger.running() else { return };
        self.dequeue(id);
        let task = &mut self.tasks[id.index()];
        task.state = O1TaskState::Sleeping;
        if kind == SleepKind::Uninterruptible {
            task.credit = Credit::NonInteractive;
        }
        self.ledger.not_ready(now, id);
        self.runnable -= 1;
        self.schedule(now);
    }

    fn kill(&mut self, now: Time, id: TaskId) {
        let state = self.tasks[id.index()].state;
        self.dequeue(id);
        self.tasks[id.index()].state = O1TaskState::Exited;
        self.ledger.not_ready(now, id);
        if matches!(state, O1TaskState::Active | O1TaskState::Expired) {
            self.runnable -= 1;
        }
        if self.ledger.running() == Some(id) {
            self.schedule(now);
        }
    }

    fn running(&self) -> Option<TaskId> {
        self.ledger.running()
    }

    fn next_event(&self) -> Option<Time> {
        self.ledger.running().map(|_| self.next_tick)
    }

    fn advance(&mut self, now: Time) {
        while self.next_tick <= now {
            let at = self.next_tick;
            self.tick(at);
            // Ticks on an idle core have no effect.
            let from = if self.ledger.running().is_some() { at } else { now };
            self.next_tick = next_tick(from, self.config.tick);
        }
    }

    fn view(&self, id: TaskId) -> TaskView {
        let task = &self.tasks[id.index()];
        TaskView {
            runnable: matches!(task.state, O1TaskState::Active | O1TaskState::Expired),
            priority: task.priority,
            sleep_average: Span::from_nanos(task.sleep_average),
            slice_remaining: self.config.tick * task.slice_ticks,
        }
    }

    fn sleep_average(&self, now: Time, task: TaskId) -> Option<Span> {
        Some(Span::from_nanos(self.settled(now, task)))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

#[cfg(test)]
mod tests;
