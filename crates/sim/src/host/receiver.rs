//! A complete receiving host: ring, softirq, socket buffers and tasks.

use std::collections::VecDeque;

use haul_base::{HostSample, Span, Time};

use super::cpu::Cpu;
use super::load::{Load, LoadId, LoadSet};
use super::nic::{Nic, NicConfig};
use super::scheduler::{Nice, SchedulerKind, SleepKind, TaskId, TaskSpec, Trace, Waker};
use super::socket::{SocketBuffer, SocketConfig};
use super::{Admission, HostDrop, HostOutput, Incoming};

/// A receiving program: one task with one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiverConfig {
    /// Size and accounting rule of the socket buffer.
    pub socket: SocketConfig,
    /// Nice value of the task.
    pub nice: Nice,
    /// Core time per system call (`recvmmsg`), even if it returns nothing.
    pub per_call: Span,
    /// Core time per socket buffer read.
    pub per_skb: Span,
    /// Core time per packet: copying, decrypting, writing.
    pub per_packet: Span,
    /// Maximum socket buffers read per call.
    pub batch: u32,
    /// Core time per packet sent: building, encrypting, its share of the system call.
    pub per_sent: Span,
}

impl ReceiverConfig {
    /// Returns a program that reads one packet per call and takes 10 us for it, as the papers' receivers do.
    pub fn packet_by_packet(socket: SocketConfig) -> Self {
        Self {
            socket,
            nice: Nice::default(),
            per_call: Span::from_micros(1),
            per_skb: Span::from_micros(1),
            per_packet: Span::from_micros(8),
            batch: 1,
            per_sent: Span::ZERO,
        }
    }
}

impl Default for ReceiverConfig {
    /// About 2 us per packet: enough for 500,000 packets per second. Sending costs nothing.
    fn default() -> Self {
        Self {
            socket: SocketConfig::default(),
            nice: Nice::default(),
            per_call: Span::from_micros(1),
            per_skb: Span::from_nanos(400),
            per_packet: Span::from_nanos(1_500),
            batch: 32,
            per_sent: Span::ZERO,
        }
    }
}

/// Configuration of a receiving host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Scheduler of the core.
    pub scheduler: SchedulerKind,
    /// Network card.
    pub nic: NicConfig,
    /// Receiving programs, all on the one core.
    pub receivers: Vec<ReceiverConfig>,
    /// Loads that run from the start.
    pub loads: Vec<Load>,
    /// Seed of all random decisions.
    pub seed: u64,
}

/// Packet counters of a host: `arrived = ring_drops + socket_drops + delivered + inside`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCounters {
    /// Packets that reached the network card.
    pub arrived: u64,
    /// Packets dropped because the ring was full.
    pub ring_drops: u64,
    /// Packets dropped because a socket buffer was full.
    pub socket_drops: u64,
    /// Packets read by a program.
    pub delivered: u64,
}

/// Phase of a receiving task's loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Sleeping until packets arrive.
    Sleeping,
    /// In the system call, before it reads the buffer.
    Calling,
    /// Processing a socket buffer; the number of buffers read in this call, including this one.
    Reading(u32),
    /// Doing the work for packets that it has sent.
    Sending,
}

/// A queued socket buffer: the number of its entries in the queue of arrivals.
#[derive(Clone, Copy, Debug)]
struct Group {
    arrivals: u32,
    queued: Time,
}

#[derive(Debug)]
struct Receiver {
    config: ReceiverConfig,
    task: TaskId,
    phase: Phase,
    /// Whether the task is stopped, as by `SIGSTOP`: it reads nothing, and nothing wakes it.
    is_stopped: bool,
    buffer: SocketBuffer<Group>,
    /// The arrivals of all queued groups and of the current one, in order.
    arrivals: VecDeque<Incoming>,
    current: Option<(Group, Option<u32>)>,
    /// Core time for sent packets that has not been spent yet.
    send_work: Span,
}

/// A single-core host with receiving programs and loads.
#[derive(Debug)]
pub struct ReceivingHost {
    cpu: Cpu,
    nic: Nic,
    receivers: Vec<Receiver>,
    loads: LoadSet,
    counters: HostCounters,
    /// Reused buffer for packets that leave the softirq.
    passing: Vec<Incoming>,
}

impl ReceivingHost {
    /// Creates a host whose receivers wait for packets from `start` on.
    pub fn new(config: &HostConfig, start: Time) -> Self {
        let mut cpu = Cpu::new(config.scheduler, start);
        let mut loads = LoadSet::new(config.seed);
        let receivers = config.receivers.iter().map(|receiver| Receiver::new(*receiver, &mut cpu)).collect();
        for load in &config.loads {
            loads.start(&mut cpu, *load);
        }
        Self {
            cpu,
            nic: Nic::new(config.nic),
            receivers,
            loads,
            counters: HostCounters::default(),
            passing: Vec::new(),
        }
    }

    /// Returns the core: run times, softirq time, the scheduler and its trace.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Starts or stops recording which task holds the core.
    pub fn set_trace(&mut self, trace: Option<Trace>) {
        self.cpu.scheduler_mut().ledger_mut().set_trace(trace);
    }

    /// Returns the packet counters.
    pub fn counters(&self) -> HostCounters {
        self.counters
    }

    /// Returns the number of packets in the ring, in processing and in socket buffers.
    pub fn inside(&self) -> u64 {
        let queued = self.receivers.iter().flat_map(|receiver| &receiver.arrivals);
        self.nic.packets() + queued.map(|arrival| u64::from(arrival.packets)).sum::<u64>()
    }

    /// Returns the task of receiver `socket`.
    ///
    /// # Panics
    /// If there is no such receiver.
    pub fn task(&self, socket: u16) -> TaskId {
        self.receivers[usize::from(socket)].task
    }

    /// Returns the memory charged to the buffer of receiver `socket` (`sk_rmem_alloc`), and its dropped skbs.
    ///
    /// # Panics
    /// If there is no such receiver.
    pub fn socket_memory(&self, socket: u16) -> (u64, u64) {
        let buffer = &self.receivers[usize::from(socket)].buffer;
        (buffer.charged(), buffer.drops())
    }

    /// Returns the host sample that the program of receiver `socket` would take now. Pressure averages, steal
    /// and disks are not modelled.
    ///
    /// # Panics
    /// If there is no such receiver.
    pub fn sample(&self, socket: u16) -> HostSample {
        let (receiver, now) = (&self.receivers[usize::from(socket)], self.cpu.now());
        let scheduler = self.cpu.scheduler();
        let buffer = &receiver.buffer;
        let thousandths = buffer.charged().saturating_mul(1_000) / buffer.rcvbuf().max(1);
        HostSample {
            run_delay: Some(scheduler.ledger().run_delay(receiver.task, now)),
            socket_fill: Some(thousandths.min(1_000) as u16),
            involuntary_switches: Some(scheduler.ledger().involuntary_switches(receiver.task)),
            sleep_average: scheduler.sleep_average(now, receiver.task),
            early_drops: Some(self.counters.ring_drops as u32),
            ..HostSample::default()
        }
    }

    /// Returns the loads.
    pub fn loads(&self) -> &LoadSet {
        &self.loads
    }

    /// Starts a load. The host must have been advanced to the current time.
    pub fn start_load(&mut self, load: Load) -> LoadId {
        self.loads.start(&mut self.cpu, load)
    }

    /// Stops a load.
    pub fn stop_load(&mut self, id: LoadId) {
        self.loads.stop(&mut self.cpu, id);
        self.update_suspensions();
    }

    /// Stops or continues the receivers, as the loads currently require.
    fn update_suspensions(&mut self) {
        let is_stopped = self.loads.stops_receivers();
        for receiver in self.receivers.iter_mut().filter(|receiver| receiver.is_stopped != is_stopped) {
            receiver.is_stopped = is_stopped;
            receiver.wake(&mut self.cpu);
        }
    }

    /// Lets the softirq take the next group if it is idle.
    fn poll_nic(&mut self) {
        if let Some(cost) = self.nic.take() {
            let done = self.cpu.steal(cost);
            self.nic.started(done);
        }
    }

    /// Moves the softirq's group into a socket buffer, or drops it.
    fn queue_in_socket(&mut self, deliver: &mut dyn FnMut(HostOutput)) {
        let at = self.cpu.now();
        let mut passing = std::mem::take(&mut self.passing);
        self.nic.finish(&mut passing);
        if let Some(first) = passing.first() {
            let receiver = &mut self.receivers[usize::from(first.socket)];
            if receiver.queue(&passing, self.nic.config().carries_batches, at) {
                receiver.wake(&mut self.cpu);
            } else {
                for arrival in &passing {
                    self.counters.socket_drops += u64::from(arrival.packets);
                    deliver(HostOutput::Dropped { arrival: *arrival, at, reason: HostDrop::SocketBuffer });
                }
            }
        }
        passing.clear();
        self.passing = passing;
        self.poll_nic();
    }

    fn step(&mut self, task: TaskId, deliver: &mut dyn FnMut(HostOutput)) {
        if self.loads.step(&mut self.cpu, task) {
            return;
        }
        let slowdown = self.loads.slowdown_permille();
        if let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.task == task) {
            self.counters.delivered += receiver.step(&mut self.cpu, slowdown, deliver);
        }
    }
}

/// Interface to the world. Times never go back.
impl ReceivingHost {
    /// Handles arriving packets. [`ReceivingHost::advance`] must have been called with the same `now` before.
    pub fn on_arrival(&mut self, now: Time, arrival: Incoming) -> Admission {
        debug_assert!(self.cpu.now() == now, "advance to {now:?} first");
        self.counters.arrived += u64::from(arrival.packets);
        let known = usize::from(arrival.socket) < self.receivers.len();
        debug_assert!(known, "no socket {}", arrival.socket);
        if !known || !self.nic.offer(arrival) {
            self.counters.ring_drops += u64::from(arrival.packets);
            return Admission::Dropped(HostDrop::NicRing);
        }
        self.poll_nic();
        Admission::Accepted
    }

    /// Returns the time of the next event inside the host.
    pub fn next_event(&self) -> Option<Time> {
        if self.cpu.finished().is_some() {
            return Some(self.cpu.now());
        }
        [self.cpu.next_event(), self.nic.done_at(), self.loads.next_event()].into_iter().flatten().min()
    }

    /// Advances to `now` and passes the fate of packets to `deliver`, in time order.
    pub fn advance(&mut self, now: Time, deliver: &mut dyn FnMut(HostOutput)) {
        while let Some(at) = self.next_event().filter(|&at| at <= now) {
            self.cpu.advance(at);
            // Interrupts come before timers, and both before tasks.
            if self.nic.done_at().is_some_and(|done| done <= at) {
                self.queue_in_socket(deliver);
            } else if self.loads.next_event().is_some_and(|alarm| alarm <= at) {
                self.loads.fire(&mut self.cpu);
                self.update_suspensions();
            } else if let Some(task) = self.cpu.finished() {
                self.step(task, deliver);
            }
        }
        self.cpu.advance(now);
    }

    /// Whether the program of `socket` has the core now, to act on a timer, and has no pending work for
    /// packets it sent. Wakes it if it sleeps; otherwise it gets the core after one of the next events. The
    /// host must have been advanced to the current time.
    pub fn may_run(&mut self, socket: u16) -> bool {
        let Some(receiver) = self.receivers.get_mut(usize::from(socket)) else { return false };
        receiver.wake(&mut self.cpu);
        self.cpu.scheduler().running() == Some(receiver.task) && !receiver.is_sending()
    }

    /// Charges the program of `socket` for sent packets; it does this work before anything else. The host
    /// must have been advanced to the current time.
    pub fn on_sent(&mut self, socket: u16, packets: u64) {
        let Some(receiver) = self.receivers.get_mut(usize::from(socket)) else { return };
        receiver.send_work = receiver.send_work + receiver.config.per_sent * packets;
        if receiver.send_work > Span::ZERO {
            receiver.wake(&mut self.cpu);
        }
    }

    /// Starts another receiving program and returns its socket's index.
    pub fn add_receiver(&mut self, config: ReceiverConfig) -> u16 {
        self.receivers.push(Receiver::new(config, &mut self.cpu));
        (self.receivers.len() - 1) as u16
    }
}

impl Receiver {
    fn new(config: ReceiverConfig, cpu: &mut Cpu) -> Self {
        let spec = TaskSpec { nice: config.nice, sleep_average: Span::ZERO };
        // Starts with the call that finds nothing and puts the task to sleep.
        let task = cpu.spawn(&spec, Some(config.per_call));
        Self {
            config,
            task,
            phase: Phase::Calling,
            is_stopped: false,
            buffer: SocketBuffer::new(config.socket),
            arrivals: VecDeque::new(),
            current: None,
            send_work: Span::ZERO,
        }
    }

    fn is_sending(&self) -> bool {
        self.phase == Phase::Sending || self.send_work > Span::ZERO
    }

    /// Queues one socket buffer with all of `passing`. Returns false if the buffer is full. A batch that
    /// travelled as one is charged once, one merged by the host for each packet.
    fn queue(&mut self, passing: &[Incoming], travelled_as_one: bool, queued: Time) -> bool {
        let layout = self.config.socket.layout;
        let charge = |arrival: &Incoming| match arrival.packets {
            packets if packets <= 1 || travelled_as_one => layout.truesize(arrival.bytes),
            packets => layout.truesize(arrival.bytes.div_ceil(packets)) * u64::from(packets),
        };
        let truesize = passing.iter().map(charge).sum();
        let group = Group { arrivals: passing.len() as u32, queued };
        if self.buffer.push(group, truesize).is_err() {
            return false;
        }
        self.arrivals.extend(passing);
        true
    }

    fn wake(&mut self, cpu: &mut Cpu) {
        if self.phase == Phase::Sleeping && !self.is_stopped {
            self.phase = Phase::Calling;
            cpu.wake(self.task, Waker::Interrupt);
        }
    }

    /// Finishes the current phase and enters the next one.
    ///
    /// # Returns
    /// The number of packets delivered.
    fn step(&mut self, cpu: &mut Cpu, slowdown_permille: u32, deliver: &mut dyn FnMut(HostOutput)) -> u64 {
        let slowed = |cost: Span| Span::from_nanos(cost.as_nanos() * u64::from(slowdown_permille) / 1_000);
        let delivered = self.deliver_current(cpu.now(), deliver);
        if self.send_work > Span::ZERO && !self.is_stopped {
            cpu.set_work(self.task, Some(slowed(std::mem::take(&mut self.send_work))));
            self.phase = Phase::Sending;
            return delivered;
        }
        let has_sent = self.phase == Phase::Sending;
        let read = match self.phase {
            Phase::Reading(read) => read,
            Phase::Calling | Phase::Sleeping | Phase::Sending => 0,
        };
        let may_read = read < self.config.batch.max(1) && !self.is_stopped;
        let next = if may_read { self.buffer.pop() } else { None };
        if let Some(skb) = next {
            let arrivals = self.arrivals.iter().take(skb.content.arrivals as usize);
            let packets: u64 = arrivals.map(|arrival| u64::from(arrival.packets)).sum();
            self.current = Some((skb.content, skb.drops_before));
            self.phase = Phase::Reading(read + 1);
            let cost = self.config.per_skb + self.config.per_packet * packets;
            cpu.set_work(self.task, Some(slowed(cost).max(Span::from_nanos(1))));
        } else {
            cpu.set_work(self.task, Some(slowed(self.config.per_call).max(Span::from_nanos(1))));
            // A program that has just sent checks for more to send before it sleeps.
            if (read == 0 && !has_sent) || self.is_stopped {
                self.phase = Phase::Sleeping;
                cpu.sleep(SleepKind::Interruptible);
            } else {
                self.phase = Phase::Calling;
            }
        }
        delivered
    }

    fn deliver_current(&mut self, at: Time, deliver: &mut dyn FnMut(HostOutput)) -> u64 {
        let Some((group, socket_drops)) = self.current.take() else { return 0 };
        let mut packets = 0;
        for index in 0..group.arrivals {
            let Some(arrival) = self.arrivals.pop_front() else { break };
            packets += u64::from(arrival.packets);
            let (queued, continues) = (group.queued, index > 0);
            deliver(HostOutput::Delivered { arrival, at, queued, continues, socket_drops });
        }
        packets
    }
}

#[cfg(test)]
mod tests;
