//! A fair scheduler with slices: earliest eligible virtual deadline first (Stoica and Abdel-Wahab, 1995), as
//! in Linux since 6.6 (`kernel/sched/fair.c`).
//!
//! Virtual time runs at `1024 / weight` of real time while a task holds the core. A task is eligible while
//! its virtual time is not ahead of the weighted average of all runnable tasks. Of the eligible tasks, the
//! one with the earliest virtual deadline (virtual time at the start of its slice, plus the slice) runs. Not
//! modelled: groups, several cores, and delayed dequeueing of sleepers with negative lag (6.12).

use haul_base::{Span, Time};

use super::ledger::{Ledger, Sample};
use super::{Scheduler, SleepKind, TaskId, TaskSpec, TaskView, Waker, next_tick};

/// `sched_prio_to_weight`: 1024 at nice 0, a factor of about 1.25 from one nice value to the next.
const WEIGHTS: [i64; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620, 6_100,
    4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110,
    87, 70, 56, 45, 36, 29, 23, 18, 15,
];
const NICE_0_WEIGHT: i64 = 1_024;

/// Machine-dependent parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FairConfig {
    /// Tick interval (`1 / HZ`); slices end at ticks.
    pub tick: Span,
    /// Time for which a task may run before tasks with earlier deadlines are preferred.
    pub slice: Span,
    /// Whether a task keeps the core until its slice is used up or it is no longer eligible
    /// (`RUN_TO_PARITY`). Otherwise a waking task with an earlier deadline preempts it immediately.
    pub run_to_parity: bool,
}

impl Default for FairConfig {
    /// HZ = 1000, slices of 3 ms (`sysctl_sched_base_slice` with eight or more cores), wake-up preemption.
    fn default() -> Self {
        Self { tick: Span::from_millis(1), slice: Span::from_millis(3), run_to_parity: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FairTaskState {
    Runnable,
    Sleeping,
    Exited,
}

#[derive(Clone, Debug)]
struct Task {
    weight: i64,
    nice: i8,
    /// Virtual time in ns at weight 1024.
    virtual_time: i64,
    deadline: i64,
    /// Lag behind the average when the task went to sleep.
    lag: i64,
    state: FairTaskState,
}

impl Task {
    /// `calc_delta_fair`.
    fn to_virtual(&self, ns: i64) -> i64 {
        ns * NICE_0_WEIGHT / self.weight
    }
}

/// The run queue of one core (`struct cfs_rq`).
#[derive(Clone, Debug)]
pub struct Fair {
    config: FairConfig,
    tasks: Vec<Task>,
    runnable: Vec<TaskId>,
    /// Average virtual time when the queue was last non-empty.
    floor: i64,
    /// Time up to which the running task's virtual time is accounted.
    settled: Time,
    /// Deadline with which the running task was picked.
    picked_deadline: i64,
    next_tick: Time,
    ledger: Ledger,
}

impl Fair {
    /// Creates an idle core.
    pub fn new(config: FairConfig, start: Time) -> Self {
        Self {
            config,
            tasks: Vec::new(),
            runnable: Vec::new(),
            floor: 0,
            settled: start,
            picked_deadline: 0,
            next_tick: next_tick(start, config.tick),
            ledger: Ledger::new(start),
        }
    }

    fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    fn weight(&self) -> i64 {
        self.runnable.iter().map(|&id| self.task(id).weight).sum()
    }

    /// `avg_vruntime`: weighted average, rounded down.
    fn average(&self) -> i64 {
        let sum: i128 = self
            .runnable
            .iter()
            .map(|&id| {
                let task = self.task(id);
                i128::from(task.virtual_time) * i128::from(task.weight)
            })
            .sum();
        match self.weight() {
            0 => self.floor,
            weight => sum.div_euclid(i128::from(weight)) as i64,
        }
    }

    /// `entity_eligible`.
    fn is_eligible(&self, id: TaskId) -> bool {
        let own_time = self.task(id).virtual_time;
        let ahead: i128 = self
            .runnable
            .iter()
            .map(|&other| {
                let other = self.task(other);
                i128::from(other.virtual_time - own_time) * i128::from(other.weight)
            })
            .sum();
        ahead >= 0
    }

    /// `pick_eevdf`.
    fn pick(&self) -> Option<TaskId> {
        let running = self.ledger.running().filter(|&id| self.task(id).state == FairTaskState::Runnable);
        if let Some(id) = running
            && self.config.run_to_parity
            && self.task(id).deadline == self.picked_deadline
            && self.is_eligible(id)
        {
            return Some(id);
        }
        // On equal deadlines another task is preferred to the running one.
        let key = |id: &TaskId| (self.task(*id).deadline, Some(*id) == running, *id);
        self.runnable.iter().copied().filter(|&id| self.is_eligible(id)).min_by_key(key)
    }

    /// `update_curr`: charges the running task. Returns true if its slice is used up.
    fn settle(&mut self, now: Time) -> bool {
        let ran = now.since(self.settled).as_nanos().cast_signed();
        self.settled = now;
        let Some(id) = self.ledger.running() else { return false };
        let slice = self.config.slice.as_nanos().cast_signed();
        let task = &mut self.tasks[id.index()];
        task.virtual_time += task.to_virtual(ran);
        if task.virtual_time < task.deadline {
            return false;
        }
        task.deadline = task.virtual_time + task.to_virtual(slice);
        true
    }

    fn schedule(&mut self, now: Time) {
        let next = self.pick();
        let previous = self.ledger.running();
        if let Some(id) = next {
            if previous.is_none() {
                self.next_tick = next_tick(now, self.config.tick);
            }
            if next != previous || self.task(id).deadline != self.picked_deadline {
                self.picked_deadline = self.task(id).deadline;
            }
        }
        if self.ledger.traces() {
            let change = matches!((previous, next), (Some(a), Some(b)) if a != b);
            for id in [previous, next.filter(|_| next != previous)].into_iter().flatten() {
                let priority = (120 + i16::from(self.task(id).nice)) as u8;
                self.ledger.sample(Sample { at: now, task: id, sleep_average: Span::ZERO, priority }, change);
            }
        }
        self.ledger.switch(now, next);
    }

    /// `place_entity`: gives a task that becomes runnable its former lag and a new deadline.
    fn place(&mut self, id: TaskId, share_of_slice: i64) {
        let average = self.average();
        let others = self.weight();
        let slice = self.config.slice.as_nanos().cast_signed();
        let task = &mut self.tasks[id.index()];
        // Adding the task moves the average by weight * lag; scaling the lag up keeps its value afterwards.
        let lag = match others {
            0 => 0,
            others => (i128::from(task.lag) * i128::from(others + task.weight) / i128::from(others)) as i64,
        };
        task.virtual_time = average - lag;
        task.deadline = task.virtual_time + task.to_virtual(slice / share_of_slice);
        task.state = FairTaskState::Runnable;
        self.runnable.push(id);
    }

    /// Removes a runnable task and stores its lag (`update_entity_lag`), bounded by two slices or a tick.
    fn leave(&mut self, id: TaskId, state: FairTaskState) {
        let average = self.average();
        let bound = (self.config.slice * 2).max(self.config.tick).as_nanos().cast_signed();
        let task = &mut self.tasks[id.index()];
        let bound = task.to_virtual(bound);
        task.lag = (average - task.virtual_time).clamp(-bound, bound);
        task.state = state;
        self.runnable.retain(|&other| other != id);
        self.floor = if self.runnable.is_empty() { average } else { self.average() };
    }
}

impl Scheduler for Fair {
    fn spawn(&mut self, now: Time, spec: &TaskSpec) -> TaskId {
        let used_up = self.settle(now);
        let nice = spec.nice.get();
        let weight = WEIGHTS[(i16::from(nice) + 20) as usize];
        self.tasks.push(Task {
            weight,
            nice,
            virtual_time: 0,
            deadline: 0,
            lag: 0,
            state: FairTaskState::Sleeping,
        });
        let id = self.ledger.add_task();
        // A new task starts with half a slice (PLACE_DEADLINE_INITIAL).
        self.place(id, 2);
        self.ledger.ready(now, id);
        if used_up || self.pick() == Some(id) {
            self.schedule(now);
        }
        id
    }

    fn wake(&mut self, now: Time, id: TaskId, _: Waker) {
        if self.task(id).state != FairTaskState::Sleeping {
            return;
        }
        let used_up = self.settle(now);
        self.place(id, 1);
        self.ledger.ready(now, id);
        if used_up || self.pick() == Some(id) {
            self.schedule(now);
        }
    }

    fn sleep(&mut self, now: Time, _: SleepKind) {
        let Some(id) = self.ledger.running() else { return };
        self.settle(now);
        self.leave(id, FairTaskState::Sleeping);
        self.ledger.not_ready(now, id);
        self.schedule(now);
    }

    fn kill(&mut self, now: Time, id: TaskId) {
        self.settle(now);
        self.ledger.not_ready(now, id);
        match self.task(id).state {
            FairTaskState::Runnable => self.leave(id, FairTaskState::Exited),
            FairTaskState::Sleeping | FairTaskState::Exited => {
                self.tasks[id.index()].state = FairTaskState::Exited;
            }
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
            if self.settle(at) {
                self.schedule(at);
            }
            let from = if self.ledger.running().is_some() { at } else { now };
            self.next_tick = next_tick(from, self.config.tick);
        }
    }

    fn view(&self, id: TaskId) -> TaskView {
        let task = self.task(id);
        let remaining = (task.deadline - task.virtual_time).max(0) * task.weight / NICE_0_WEIGHT;
        TaskView {
            runnable: task.state == FairTaskState::Runnable,
            priority: (120 + i16::from(task.nice)) as u8,
            sleep_average: Span::ZERO,
            slice_remaining: Span::from_nanos(remaining as u64),
        }
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
