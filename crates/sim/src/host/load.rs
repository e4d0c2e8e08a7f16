//! What else runs on the receiver's core: the four kinds of load of the papers, and their generator.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haul_base::{Rng, Span, Time};

use super::cpu::Cpu;
use super::scheduler::{Nice, SleepKind, TaskId, TaskSpec, Waker};

/// A load on the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Processes that only compute.
    Computation {
        /// Number of processes.
        processes: u32,
        /// How nice they are, and the sleep average with which they start.
        spec: TaskSpec,
    },
    /// Processes that read and write files: they run, wait a little for the disk, and run again. Both spans vary by up
    /// to half, evenly.
    SystemCalls {
        /// Number of processes.
        processes: u32,
        /// How long they run on average.
        run: Span,
        /// How long they wait on average.
        wait: Span,
        /// What the waits are for the scheduler.
        sleep: SleepKind,
    },
    /// Processes that read through a buffer larger than the cache (1 GB in the paper). They compute without end, and
    /// while they live the receivers on this core take longer for everything, as the cache is cold.
    Memory {
        /// Number of processes.
        processes: u32,
        /// What receivers take, in thousandths of what they take otherwise; at least 1,000.
        slowdown_permille: u32,
    },
    /// Packets that the kernel forwards for others: softirq time comes before every task.
    Forwarding {
        /// Packets a second; none at zero.
        packets_per_second: u64,
        /// Core time for each.
        per_packet: Span,
        /// Packets per interrupt.
        burst: u32,
    },
    /// The generator of the papers (dickens-classifier): 0 to `most` computing processes, evenly, for `run`; then a
    /// `pause`; both even between their bounds.
    Generator {
        /// Most processes at a time.
        most: u32,
        /// Shortest and longest time that they run.
        run: (Span, Span),
        /// Shortest and longest pause.
        pause: (Span, Span),
        /// The sleep average with which its processes start on the O(1) scheduler: see [`Load::papers`].
        inherited: Span,
    },
    /// The receivers on this core are stopped, as by `SIGSTOP`: their sockets go on filling.
    Suspension {
        /// Time from one stop to the next; the first comes after `every - stop`.
        every: Span,
        /// How long each stop lasts.
        stop: Span,
    },
}

impl Load {
    /// The generator with the papers' numbers: 0-7 processes for 1-7 s, pauses of 0-20 s.
    ///
    /// On the O(1) scheduler a child inherits most of its parent's sleep average (`wake_up_new_task`). A parent that
    /// slept long has 799 ms (`INTERACTIVE_SLEEP`), bonus 7; `7 * CHILD_PENALTY / 100` is 6, that is 600 ms.
    pub const fn papers() -> Self {
        Self::Generator {
            most: 7,
            run: (Span::from_secs(1), Span::from_secs(7)),
            pause: (Span::ZERO, Span::from_secs(20)),
            inherited: Span::from_millis(600),
        }
    }

    /// File reading and writing in short pieces: 2 ms of work, 1 ms of waiting.
    pub const fn system_calls(processes: u32) -> Self {
        Self::SystemCalls {
            processes,
            run: Span::from_millis(2),
            wait: Span::from_millis(1),
            sleep: SleepKind::Uninterruptible,
        }
    }
}

/// A load that was started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LoadId(usize);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Alarm {
    Wake(TaskId),
    Forward(usize),
    Begin(usize),
    Cease(usize),
}

#[derive(Clone, Debug)]
struct Running {
    load: Load,
    tasks: Vec<TaskId>,
    live: bool,
    started: Time,
    bursts: u64,
    /// Whether it stops the receivers now.
    stops_receivers: bool,
}

/// All loads of one core.
#[derive(Clone, Debug)]
pub struct LoadSet {
    rng: Rng,
    loads: Vec<Running>,
    /// To which load a task belongs, by its number.
    owner: Vec<Option<usize>>,
    alarms: BinaryHeap<Reverse<(Time, u64, Alarm)>>,
    next_alarm: u64,
}

/// Even between the bounds.
fn between(rng: &mut Rng, (low, high): (Span, Span)) -> Span {
    low + Span::from_nanos(rng.below(high.saturating_sub(low).as_nanos() + 1))
}

/// Even between half and one and a half of `mean`.
fn around(rng: &mut Rng, mean: Span) -> Span {
    between(rng, (mean / 2, mean + mean / 2))
}

impl LoadSet {
    /// None.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::from_seed(seed),
            loads: Vec::new(),
            owner: Vec::new(),
            alarms: BinaryHeap::new(),
            next_alarm: 0,
        }
    }

    fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.alarms.push(Reverse((at, self.next_alarm, alarm)));
        self.next_alarm += 1;
    }

    fn spawn(&mut self, cpu: &mut Cpu, index: usize, spec: &TaskSpec, work: Option<Span>) {
        let task = cpu.spawn(spec, work);
        self.owner.resize(self.owner.len().max(task.index() + 1), None);
        self.owner[task.index()] = Some(index);
        self.loads[index].tasks.push(task);
    }

    /// Starts a load now.
    pub fn start(&mut self, cpu: &mut Cpu, load: Load) -> LoadId {
        let index = self.loads.len();
        let now = cpu.now();
        self.loads.push(Running {
            load,
            tasks: Vec::new(),
            live: true,
            started: now,
            bursts: 0,
            stops_receivers: false,
        });
        match load {
            Load::Computation { processes, spec } => {
                (0..processes).for_each(|_| self.spawn(cpu, index, &spec, None));
            }
            Load::Memory { processes, .. } => {
                (0..processes).for_each(|_| self.spawn(cpu, index, &TaskSpec::default(), None));
            }
            Load::SystemCalls { processes, run, .. } => {
                for _ in 0..processes {
                    let first = around(&mut self.rng, run);
                    self.spawn(cpu, index, &TaskSpec::default(), Some(first));
                }
            }
            Load::Forwarding { .. } => self.arm_forwarding(index),
            Load::Generator { .. } => self.set_alarm(now, Alarm::Begin(index)),
            Load::Suspension { every, stop } => {
                self.set_alarm(now + every.saturating_sub(stop), Alarm::Begin(index));
            }
        }
        LoadId(index)
    }

    /// Stops a load and ends its processes.
    pub fn stop(&mut self, cpu: &mut Cpu, id: LoadId) {
        self.loads[id.0].live = false;
        self.loads[id.0].stops_receivers = false;
        self.kill_all(cpu, id.0);
    }

    fn kill_all(&mut self, cpu: &mut Cpu, index: usize) {
        for task in std::mem::take(&mut self.loads[index].tasks) {
            cpu.kill(task);
            self.owner[task.index()] = None;
        }
    }

    /// When a load next does something of its own accord, besides the work of its tasks.
    pub fn next_event(&self) -> Option<Time> {
        self.alarms.peek().map(|Reverse((at, ..))| *at)
    }

    /// Does what is due at the core's time.
    pub fn fire(&mut self, cpu: &mut Cpu) {
        while self.next_event().is_some_and(|at| at <= cpu.now()) {
            let Some(Reverse((_, _, alarm))) = self.alarms.pop() else { return };
            match alarm {
                Alarm::Wake(task) => {
                    if self.owner[task.index()].is_some() {
                        cpu.wake(task, Waker::Interrupt);
                    }
                }
                Alarm::Forward(index) => self.forward(cpu, index),
                Alarm::Begin(index) | Alarm::Cease(index) if !self.loads[index].live => {}
                Alarm::Begin(index) => self.begin(cpu, index),
                Alarm::Cease(index) => self.cease(cpu, index),
            }
        }
    }

    fn arm_forwarding(&mut self, index: usize) {
        let running = &mut self.loads[index];
        let Load::Forwarding { packets_per_second, burst, .. } = running.load else { return };
        if packets_per_second == 0 || burst == 0 {
            return;
        }
        // From the start, so that rounding does not add up.
        running.bursts += 1;
        let packets = u128::from(running.bursts) * u128::from(burst);
        let offset = (packets * 1_000_000_000 / u128::from(packets_per_second)) as u64;
        let at = running.started + Span::from_nanos(offset);
        self.set_alarm(at, Alarm::Forward(index));
    }

    fn forward(&mut self, cpu: &mut Cpu, index: usize) {
        let Running { load: Load::Forwarding { per_packet, burst, .. }, live: true, .. } = self.loads[index]
        else {
            return;
        };
        cpu.steal(per_packet * u64::from(burst));
        self.arm_forwarding(index);
    }

    fn begin(&mut self, cpu: &mut Cpu, index: usize) {
        let length = match self.loads[index].load {
            Load::Generator { most, run, inherited, .. } => {
                let spec = TaskSpec { nice: Nice::default(), sleep_average: inherited };
                let processes = self.rng.below(u64::from(most) + 1);
                (0..processes).for_each(|_| self.spawn(cpu, index, &spec, None));
                between(&mut self.rng, run)
            }
            Load::Suspension { stop, .. } => {
                self.loads[index].stops_receivers = true;
                stop
            }
            _ => return,
        };
        self.set_alarm(cpu.now() + length, Alarm::Cease(index));
    }

    fn cease(&mut self, cpu: &mut Cpu, index: usize) {
        let pause = match self.loads[index].load {
            Load::Generator { pause, .. } => {
                self.kill_all(cpu, index);
                between(&mut self.rng, pause)
            }
            Load::Suspension { every, stop } => {
                self.loads[index].stops_receivers = false;
                every.saturating_sub(stop)
            }
            _ => return,
        };
        self.set_alarm(cpu.now() + pause, Alarm::Begin(index));
    }

    /// The running task `task` has done its work: if it belongs to a load, it takes its next step.
    pub fn step(&mut self, cpu: &mut Cpu, task: TaskId) -> bool {
        let Some(index) = self.owner.get(task.index()).copied().flatten() else { return false };
        match self.loads[index].load {
            Load::SystemCalls { run, wait, sleep, .. } => {
                let next = around(&mut self.rng, run);
                let wake = cpu.now() + around(&mut self.rng, wait);
                cpu.set_work(task, Some(next));
                cpu.sleep(sleep);
                self.set_alarm(wake, Alarm::Wake(task));
            }
            _ => cpu.set_work(task, None),
        }
        true
    }

    /// How many processes there are now.
    pub fn processes(&self) -> usize {
        self.loads.iter().map(|running| running.tasks.len()).sum()
    }

    /// Whether `task` belongs to a load.
    pub fn owns(&self, task: TaskId) -> bool {
        self.owner.get(task.index()).copied().flatten().is_some()
    }

    /// Whether the receivers are stopped.
    pub fn stops_receivers(&self) -> bool {
        self.loads.iter().any(|running| running.stops_receivers)
    }

    /// What receivers take now, in thousandths of what they take on a core with a warm cache.
    pub fn slowdown_permille(&self) -> u32 {
        let of = |running: &Running| match running.load {
            Load::Memory { processes, slowdown_permille } if running.live && processes > 0 => {
                slowdown_permille
            }
            _ => 1_000,
        };
        self.loads.iter().map(of).max().unwrap_or(1_000).max(1_000)
    }
}

#[cfg(test)]
mod tests;
