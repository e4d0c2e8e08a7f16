//! Run-time accounting of a core: which task held it and when, exact to the nanosecond.

use haul_base::{Span, Time};

use super::TaskId;

/// Period in which a task held the core without interruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunSlice {
    /// Task that held the core.
    pub task: TaskId,
    /// Start of the period.
    pub from: Time,
    /// End of the period.
    pub to: Time,
}

/// What a monitor would have read about a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When the sample was taken.
    pub at: Time,
    /// Task that was sampled.
    pub task: TaskId,
    /// Its sleep average, as a switch at this moment would leave it.
    pub sleep_average: Span,
    /// Its dynamic priority.
    pub priority: u8,
}

/// Recorded slices and samples, up to a limit for each. Further ones are counted but not stored.
#[derive(Clone, Debug)]
pub struct Trace {
    slices: Vec<RunSlice>,
    samples: Vec<Sample>,
    limit: usize,
    sample_gap: Span,
    omitted: u64,
}

impl Trace {
    /// Creates a trace of up to `limit` slices and samples. Samples of a task are at least `sample_gap`
    /// apart, except at task switches.
    pub fn new(limit: usize, sample_gap: Span) -> Self {
        Self { slices: Vec::new(), samples: Vec::new(), limit, sample_gap, omitted: 0 }
    }

    /// Returns every period in which a task held the core, in time order.
    pub fn slices(&self) -> &[RunSlice] {
        &self.slices
    }

    /// Returns the samples in time order.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Returns the number of slices and samples beyond the limit.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns the slices, merged across gaps shorter than `gap` in which no other task ran. A receiver that
    /// sleeps a few microseconds between packets then holds the core in one piece, as a plot shows it.
    pub fn joined(&self, gap: Span) -> Vec<RunSlice> {
        let mut joined: Vec<RunSlice> = Vec::new();
        for slice in &self.slices {
            match joined.last_mut() {
                Some(last) if last.task == slice.task && slice.from.since(last.to) < gap => {
                    last.to = slice.to;
                }
                _ => joined.push(*slice),
            }
        }
        joined
    }

    fn push_slice(&mut self, slice: RunSlice) {
        if self.slices.len() < self.limit {
            self.slices.push(slice);
        } else {
            self.omitted += 1;
        }
    }
}

/// Scheduling delays of a task.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    runnable: bool,
    /// Since when the task has been ready without the core.
    since: Option<Time>,
    total: Span,
    longest: Span,
    involuntary: u32,
}

impl Waits {
    /// Ends the current wait, if any.
    fn settle(&mut self, now: Time) {
        let wait = self.since.take().map_or(Span::ZERO, |since| now.since(since));
        self.total = self.total + wait;
        self.longest = self.longest.max(wait);
    }
}

/// Run times of all tasks, and idle time. Their sum is the time since the start.
#[derive(Clone, Debug)]
pub struct Ledger {
    start: Time,
    since: Time,
    running: Option<TaskId>,
    run: Vec<Span>,
    waits: Vec<Waits>,
    idle: Span,
    switches: u64,
    last_sample: Vec<Option<Time>>,
    trace: Option<Trace>,
}

impl Ledger {
    pub(super) fn new(start: Time) -> Self {
        Self {
            start,
            since: start,
            running: None,
            run: Vec::new(),
            waits: Vec::new(),
            idle: Span::ZERO,
            switches: 0,
            last_sample: Vec::new(),
            trace: None,
        }
    }

    /// Starts recording slices and samples, or stops if `None`.
    pub fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace;
    }

    /// Returns the trace, if one is recorded.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Returns when the core started.
    pub fn start(&self) -> Time {
        self.start
    }

    /// Returns how long `task` has held the core up to `now`.
    pub fn run_time(&self, task: TaskId, now: Time) -> Span {
        let settled = self.run.get(task.index()).copied().unwrap_or(Span::ZERO);
        if self.running == Some(task) { settled + now.since(self.since) } else { settled }
    }

    /// Returns the total time for which `task` was ready without the core up to `now`
    /// (`sched_info.run_delay`).
    pub fn run_delay(&self, task: TaskId, now: Time) -> Span {
        let waits = self.waits.get(task.index()).copied().unwrap_or_default();
        waits.since.map_or(waits.total, |since| waits.total + now.since(since))
    }

    /// Returns the longest single wait of `task` for the core up to `now`.
    pub fn longest_wait(&self, task: TaskId, now: Time) -> Span {
        let waits = self.waits.get(task.index()).copied().unwrap_or_default();
        waits.since.map_or(waits.longest, |since| waits.longest.max(now.since(since)))
    }

    /// Returns the number of running and waiting tasks, integrated over time up to `now`. Its growth over an
    /// interval, divided by the interval, is the mean run queue length.
    pub fn runnable_time(&self, now: Time) -> Span {
        let waited = (0..self.run.len()).map(|task| self.run_delay(TaskId(task as u32), now));
        let busy = now.since(self.start).saturating_sub(self.idle_time(now));
        waited.fold(busy, |sum, wait| sum + wait)
    }

    /// Returns how often `task` lost the core while it was ready to run (`nivcsw`).
    pub fn involuntary_switches(&self, task: TaskId) -> u32 {
        self.waits.get(task.index()).map_or(0, |waits| waits.involuntary)
    }

    /// Returns how long the core was idle up to `now`.
    pub fn idle_time(&self, now: Time) -> Span {
        if self.running.is_none() { self.idle + now.since(self.since) } else { self.idle }
    }

    /// Returns the number of switches between tasks or between a task and idle.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Returns the number of tasks created.
    pub fn tasks(&self) -> usize {
        self.run.len()
    }

    pub(super) fn add_task(&mut self) -> TaskId {
        let id = TaskId(self.run.len() as u32);
        self.run.push(Span::ZERO);
        self.waits.push(Waits::default());
        self.last_sample.push(None);
        id
    }

    pub(super) fn running(&self) -> Option<TaskId> {
        self.running
    }

    /// Registers that `task` becomes ready.
    pub(super) fn ready(&mut self, now: Time, task: TaskId) {
        let waits = &mut self.waits[task.index()];
        waits.runnable = true;
        if self.running != Some(task) {
            waits.since.get_or_insert(now);
        }
    }

    /// Registers that `task` sleeps or ends.
    pub(super) fn not_ready(&mut self, now: Time, task: TaskId) {
        let waits = &mut self.waits[task.index()];
        waits.runnable = false;
        waits.settle(now);
    }

    /// Gives the core to `next`.
    pub(super) fn switch(&mut self, now: Time, next: Option<TaskId>) {
        if next == self.running {
            return;
        }
        let held = now.since(self.since);
        match self.running {
            None => self.idle = self.idle + held,
            Some(task) => {
                let total = &mut self.run[task.index()];
                *total = *total + held;
                if let Some(trace) = self.trace.as_mut().filter(|_| held > Span::ZERO) {
                    trace.push_slice(RunSlice { task, from: self.since, to: now });
                }
            }
        }
        self.switches += 1;
        self.since = now;
        if let Some(waits) = self.running.map(|task| &mut self.waits[task.index()])
            && waits.runnable
        {
            waits.involuntary = waits.involuntary.wrapping_add(1);
            waits.since = Some(now);
        }
        if let Some(waits) = next.map(|task| &mut self.waits[task.index()]) {
            waits.settle(now);
        }
        self.running = next;
    }

    pub(super) fn traces(&self) -> bool {
        self.trace.is_some()
    }

    /// Stores a sample if it is far enough from the task's last one, or if `change` is set (task switch).
    pub(super) fn sample(&mut self, sample: Sample, change: bool) {
        let Some(trace) = self.trace.as_mut() else { return };
        let last = &mut self.last_sample[sample.task.index()];
        if !change && last.is_some_and(|last| sample.at.since(last) < trace.sample_gap) {
            return;
        }
        *last = Some(sample.at);
        if trace.samples.len() < trace.limit {
            trace.samples.push(sample);
        } else {
            trace.omitted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn accounts_for_every_moment() {
        let mut ledger = Ledger::new(at(10));
        let (a, b) = (ledger.add_task(), ledger.add_task());
        ledger.switch(at(12), Some(a));
        ledger.switch(at(20), Some(b));
        ledger.switch(at(21), None);
        ledger.switch(at(30), Some(a));
        let now = at(31);
        assert_eq!(ledger.run_time(a, now), Span::from_millis(9));
        assert_eq!(ledger.run_time(b, now), Span::from_millis(1));
        assert_eq!(ledger.idle_time(now), Span::from_millis(11));
        assert_eq!(ledger.switches(), 4);
    }

    #[test]
    fn a_ready_task_waits_from_the_time_it_has_no_core() {
        let ms = Span::from_millis;
        let mut ledger = Ledger::new(at(0));
        let (a, b) = (ledger.add_task(), ledger.add_task());
        ledger.ready(at(0), a);
        ledger.switch(at(0), Some(a));
        ledger.ready(at(2), b);
        // `a` is preempted at 5 ms and gets the core back when `b` sleeps.
        ledger.switch(at(5), Some(b));
        assert_eq!((ledger.run_delay(a, at(7)), ledger.run_delay(b, at(7))), (ms(2), ms(3)));
        assert_eq!(ledger.longest_wait(a, at(7)), ms(2));
        ledger.not_ready(at(9), b);
        ledger.switch(at(9), Some(a));
        ledger.not_ready(at(10), a);
        ledger.switch(at(10), None);
        let now = at(50);
        assert_eq!((ledger.run_delay(a, now), ledger.run_delay(b, now)), (ms(4), ms(3)));
        assert_eq!((ledger.longest_wait(a, now), ledger.longest_wait(b, now)), (ms(4), ms(3)));
        assert_eq!((ledger.involuntary_switches(a), ledger.involuntary_switches(b)), (1, 0));
        // One task for 2 ms, two of them for 7, one again for 1.
        assert_eq!(ledger.runnable_time(now), ms(2 + 2 * 7 + 1));
        // A task that ends while it waits.
        ledger.ready(at(50), b);
        ledger.not_ready(at(60), b);
        assert_eq!(ledger.run_delay(b, at(90)), ms(13));
    }

    #[test]
    fn slices_are_joined_only_over_short_breaks() {
        let mut ledger = Ledger::new(at(0));
        ledger.set_trace(Some(Trace::new(10, Span::ZERO)));
        let (a, b) = (ledger.add_task(), ledger.add_task());
        for (ms, next) in [(0, Some(a)), (2, None), (3, Some(a)), (5, Some(b)), (6, Some(a)), (9, None)] {
            ledger.switch(at(ms), next);
        }
        let trace = ledger.trace().unwrap();
        assert_eq!(trace.slices().len(), 4);
        let joined = trace.joined(Span::from_millis(2));
        assert_eq!(joined[0], RunSlice { task: a, from: at(0), to: at(5) });
        assert_eq!(joined.len(), 3);
    }

    #[test]
    fn a_full_trace_counts_omitted_entries() {
        let mut ledger = Ledger::new(at(0));
        ledger.set_trace(Some(Trace::new(2, Span::ZERO)));
        let a = ledger.add_task();
        for ms in 0..10 {
            ledger.switch(at(2 * ms), Some(a));
            ledger.switch(at(2 * ms + 1), None);
        }
        let trace = ledger.trace().unwrap();
        assert_eq!((trace.slices().len(), trace.omitted()), (2, 8));
    }
}
