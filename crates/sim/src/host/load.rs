//! Background load on the receiver's core: the four kinds of load of the papers, and their generator.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haul_base::{Rng, Span, Time};

use super::cpu::Cpu;
use super::scheduler::{Nice, SleepKind, TaskId, TaskSpec, Waker};

/// Background load on a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// CPU-bound processes.
    Computation {
        /// Number of processes.
        processes: u32,
        /// Nice value and initial sleep average.
        spec: TaskSpec,
    },
    /// Processes that read and write files: they run, wait briefly for the disk, and run again. Both spans
    /// vary uniformly by up to half.
    SystemCalls {
        /// Number of processes.
        processes: u32,
        /// Mean run time.
        run: Span,
        /// Mean wait time.
        wait: Span,
        /// How the scheduler classifies the waits.
        sleep: SleepKind,
    },
    /// Processes that read through a buffer larger than the cache (1 GB in the paper). They compute without
    /// end. While they exist the cache is cold, and receivers on this core take longer for everything.
    Memory {
        /// Number of processes.
        processes: u32,
        /// Cost of receivers' work in thousandths of the normal cost; at least 1,000.
        slowdown_permille: u32,
    },
    /// Packets forwarded by the kernel, whose softirq time preempts every task.
    Forwarding {
        /// Packets per second; none at zero.
        packets_per_second: u64,
        /// Core time per packet.
        per_packet: Span,
        /// Packets per interrupt.
        burst: u32,
    },
    /// The papers' generator (dickens-classifier): 0 to `most` CPU-bound processes (uniform) for `run`, then
    /// a `pause`; both times uniform between their bounds.
    Generator {
        /// Maximum number of concurrent processes.
        most: u32,
        /// Minimum and maximum run time.
        run: (Span, Span),
        /// Minimum and maximum pause.
        pause: (Span, Span),
        /// Sleep average with which its processes start on the O(1) scheduler: see [`Load::of_paper`].
        inherited: Span,
    },
    /// The receivers on this core are stopped, as by `SIGSTOP`; their sockets continue to fill.
    Suspension {
        /// Period of the stops; the first one comes after `every - stop`.
        every: Span,
        /// Length of each stop.
        stop: Span,
    },
}

impl Load {
    /// Returns the generator with the papers' numbers: 0-7 processes for 1-7 s, pauses of 0-20 s.
    ///
    /// On the O(1) scheduler a child inherits most of its parent's sleep average (`wake_up_new_task`). A
    /// parent that slept long has 799 ms (`INTERACTIVE_SLEEP`), bonus 7; `7 * CHILD_PENALTY / 100` is 6, that
    /// is 600 ms.
    pub const fn of_paper() -> Self {
        Self::Generator {
            most: 7,
            run: (Span::from_secs(1), Span::from_secs(7)),
            pause: (Span::ZERO, Span::from_secs(20)),
            inherited: Span::from_millis(600),
        }
    }

    /// Returns a load of short file accesses: 2 ms of work, 1 ms of waiting.
    pub const fn system_calls(processes: u32) -> Self {
        Self::SystemCalls {
            processes,
            run: Span::from_millis(2),
            wait: Span::from_millis(1),
            sleep: SleepKind::Uninterruptible,
        }
    }
}

/// Index of a started load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LoadId(usize);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Wake(TaskId),
    Forward(usize),
    Start(usize),
    Stop(usize),
}

#[derive(Clone, Debug)]
struct Running {
    load: Load,
    tasks: Vec<TaskId>,
    live: bool,
    started: Time,
    bursts: u64,
    /// Whether the load currently stops the receivers.
    stops_receivers: bool,
}

/// All loads of one core.
#[derive(Clone, Debug)]
pub struct LoadSet {
    rng: Rng,
    loads: Vec<Running>,
    /// Index of the owning load, by task number.
    owner: Vec<Option<usize>>,
    timers: BinaryHeap<Reverse<(Time, u64, Timer)>>,
    next_timer: u64,
}

/// Draws uniformly between the bounds.
fn between(rng: &mut Rng, (low, high): (Span, Span)) -> Span {
    low + Span::from_nanos(rng.below(high.saturating_sub(low).as_nanos() + 1))
}

/// Draws uniformly between 0.5 and 1.5 times `mean`.
fn vary(rng: &mut Rng, mean: Span) -> Span {
    between(rng, (mean / 2, mean + mean / 2))
}

impl LoadSet {
    /// Creates an empty set.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::from_seed(seed),
            loads: Vec::new(),
            owner: Vec::new(),
            timers: BinaryHeap::new(),
            next_timer: 0,
        }
    }

    fn set_timer(&mut self, at: Time, timer: Timer) {
        self.timers.push(Reverse((at, self.next_timer, timer)));
        self.next_timer += 1;
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
                    let first = vary(&mut self.rng, run);
                    self.spawn(cpu, index, &TaskSpec::default(), Some(first));
                }
            }
            Load::Forwarding { .. } => self.arm_forwarding(index),
            Load::Generator { .. } => self.set_timer(now, Timer::Start(index)),
            Load::Suspension { every, stop } => {
                self.set_timer(now + every.saturating_sub(stop), Timer::Start(index));
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

    /// Returns when a load next acts, other than by its tasks' work.
    pub fn next_event(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Runs the actions that are due at the core's time.
    pub fn fire(&mut self, cpu: &mut Cpu) {
        while self.next_event().is_some_and(|at| at <= cpu.now()) {
            let Some(Reverse((_, _, timer))) = self.timers.pop() else { return };
            match timer {
                Timer::Wake(task) => {
                    if self.owner[task.index()].is_some() {
                        cpu.wake(task, Waker::Interrupt);
                    }
                }
                Timer::Forward(index) => self.forward(cpu, index),
                Timer::Start(index) | Timer::Stop(index) if !self.loads[index].live => {}
                Timer::Start(index) => self.begin(cpu, index),
                Timer::Stop(index) => self.remove(cpu, index),
            }
        }
    }

    fn arm_forwarding(&mut self, index: usize) {
        let running = &mut self.loads[index];
        let Load::Forwarding { packets_per_second, burst, .. } = running.load else { return };
        if packets_per_second == 0 || burst == 0 {
            return;
        }
        // Computed from the start, so that rounding errors do not accumulate.
        running.bursts += 1;
        let packets = u128::from(running.bursts) * u128::from(burst);
        let offset = (packets * 1_000_000_000 / u128::from(packets_per_second)) as u64;
        let at = running.started + Span::from_nanos(offset);
        self.set_timer(at, Timer::Forward(index));
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
        self.set_timer(cpu.now() + length, Timer::Stop(index));
    }

    fn remove(&mut self, cpu: &mut Cpu, index: usize) {
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
        self.set_timer(cpu.now() + pause, Timer::Start(index));
    }

    /// Runs the next step of `task`, which has finished its work. Returns false if it belongs to no load.
    pub fn step(&mut self, cpu: &mut Cpu, task: TaskId) -> bool {
        let Some(index) = self.owner.get(task.index()).copied().flatten() else { return false };
        match self.loads[index].load {
            Load::SystemCalls { run, wait, sleep, .. } => {
                let next = vary(&mut self.rng, run);
                let wake = cpu.now() + vary(&mut self.rng, wait);
                cpu.set_work(task, Some(next));
                cpu.sleep(sleep);
                self.set_timer(wake, Timer::Wake(task));
            }
            _ => cpu.set_work(task, None),
        }
        true
    }

    /// Returns the current number of processes.
    pub fn processes(&self) -> usize {
        self.loads.iter().map(|running| running.tasks.len()).sum()
    }

    /// Whether the receivers are currently stopped.
    pub fn stops_receivers(&self) -> bool {
        self.loads.iter().any(|running| running.stops_receivers)
    }

    /// Returns the receivers' current cost in thousandths of the cost with a warm cache.
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
