//! The datagram half of the emulated path: one thread for both directions.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_base::{Bytes, Ecn, Span, Time};
use haul_udp::{Arrival, ArrivalClock, Options, Receiver, SendError, UdpSocket};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::line::{Batch, DelayLine, FlowId};
use super::model::{Fate, PathModel, PathSpec};
use super::path::{Counters, relay_problem};

/// Clients that are told apart; more are ignored.
const MAX_FLOWS: usize = 256;
/// Longest sleep while nothing is under way: how soon a stop is noticed.
const IDLE: Duration = Duration::from_millis(50);
/// Shortest and longest time between two rounds while packets are under way. Deliveries are late by at most
/// this and the scheduler's slack, and bursts are what the bottleneck carries in it.
const ROUND: (Span, Span) = (Span::from_micros(20), Span::from_micros(200));
/// Rooms of the ring beyond what the path itself holds.
const SPARE: u64 = 4 << 20;
/// The most that one ring takes, so that an odd choice of rate and delay does not eat the machine.
const MAX_RING: u64 = 2 << 30;
/// Receive calls per socket and round.
const CALLS_PER_ROUND: usize = 4;

/// Moves datagrams between clients and the server through the two directions of a path.
pub(super) struct UdpRelay {
    clients: UdpSocket,
    server: SocketAddr,
    flows: Vec<Flow>,
    by_client: HashMap<SocketAddr, FlowId>,
    up: Direction,
    down: Direction,
    receiver: Receiver,
    clock: Clock,
    round: Span,
    stop: Arc<AtomicBool>,
    counters: Arc<[Counters; 2]>,
}

/// One client, with a socket of its own toward the server.
struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
    drops: DropWatch,
}

struct Direction {
    model: PathModel,
    line: DelayLine,
    drops: DropWatch,
}

struct Clock {
    start: Instant,
    arrivals: ArrivalClock,
}

impl Clock {
    fn now(&self) -> Time {
        Time::ZERO + Span::from(self.start.elapsed())
    }
}

/// Follows a socket's wrapping count of dropped buffers.
#[derive(Default)]
struct DropWatch(u32);

impl DropWatch {
    fn new_drops(&mut self, count: Option<u32>) -> u32 {
        let Some(count) = count else { return 0 };
        count.wrapping_sub(std::mem::replace(&mut self.0, count))
    }
}

impl Direction {
    fn new(spec: &PathSpec, direction: u64) -> Self {
        let in_flight = spec.rate.bytes_in(spec.rtt / 2);
        let room = spec.queue().0.saturating_add(in_flight).saturating_add(SPARE);
        let line = DelayLine::new(Bytes(room.min(MAX_RING)));
        Self { model: PathModel::new(spec, direction), line, drops: DropWatch::default() }
    }

    /// A packet arrives at this end of the path.
    fn take(&mut self, packet: &[u8], arrival: Time, flow: FlowId, ecn: Ecn, counters: &Counters) {
        match self.model.offer(arrival, packet.len()) {
            Fate::Drop(reason) => counters.dropped(reason),
            Fate::Deliver(due) if self.line.push(packet, due, flow, ecn) => {}
            Fate::Deliver(_) => counters.relay_dropped(1),
        }
    }

    /// Sends what is due with `send`; false if a socket was full and the rest has to wait.
    fn deliver(
        &mut self,
        now: Time,
        counters: &Counters,
        send: impl Fn(&Batch, &[u8]) -> Result<usize, SendError>,
    ) -> bool {
        while let Some(batch) = self.line.due_batch(now) {
            match send(&batch, self.line.bytes(&batch)) {
                Ok(packets) => {
                    let bytes = batch.range.len().min(packets * batch.segment);
                    counters.delivered(packets, bytes);
                    self.line.release(packets);
                }
                Err(SendError::WouldBlock(_)) => return false,
                Err(error) => {
                    // Nobody listens any more, or the like: the packets are gone, as on a real path.
                    tracing::debug!(%error, "emulated path: packets dropped at its end");
                    counters.relay_dropped(batch.packets);
                    self.line.release(batch.packets);
                }
            }
        }
        true
    }
}

impl UdpRelay {
    pub(super) fn new(
        spec: &PathSpec,
        clients: UdpSocket,
        server: SocketAddr,
        stop: Arc<AtomicBool>,
        counters: Arc<[Counters; 2]>,
    ) -> Self {
        Self {
            receiver: Receiver::new(&clients),
            clients,
            server,
            flows: Vec::new(),
            by_client: HashMap::new(),
            up: Direction::new(spec, 0),
            down: Direction::new(spec, 1),
            clock: Clock { start: Instant::now(), arrivals: ArrivalClock::new() },
            round: (spec.rtt / 32).clamp(ROUND.0, ROUND.1),
            stop,
            counters,
        }
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.receive_from_clients();
            self.receive_from_server();
            let now = self.clock.now();
            let all_sent = self.deliver(now);
            if let Err(error) = self.wait(all_sent) {
                relay_problem("waiting for datagrams", &error);
                return;
            }
        }
    }

    fn receive_from_clients(&mut self) {
        for _ in 0..CALLS_PER_ROUND {
            if self.receiver.recv(&self.clients).is_err() {
                return;
            }
            let now = self.clock.now();
            self.clock.arrivals.sync(now);
            for mut batch in self.receiver.datagrams() {
                let counters = &self.counters[0];
                counters.overrun(self.up.drops.new_drops(batch.drops));
                counters.offered(batch.count() as u64);
                let Some(flow) = flow_of(&mut self.flows, &mut self.by_client, self.server, batch.source)
                else {
                    counters.relay_dropped(batch.count());
                    continue;
                };
                let arrival = arrival_time(&self.clock.arrivals, batch.arrival, now);
                let ecn = batch.ecn;
                for packet in batch.iter_mut() {
                    self.up.take(packet, arrival, flow, ecn, counters);
                }
            }
        }
    }

    fn receive_from_server(&mut self) {
        for (id, flow) in self.flows.iter_mut().enumerate() {
            for _ in 0..CALLS_PER_ROUND {
                if self.receiver.recv(&flow.socket).is_err() {
                    break;
                }
                let now = self.clock.now();
                self.clock.arrivals.sync(now);
                for mut batch in self.receiver.datagrams() {
                    let counters = &self.counters[1];
                    counters.overrun(flow.drops.new_drops(batch.drops));
                    counters.offered(batch.count() as u64);
                    let arrival = arrival_time(&self.clock.arrivals, batch.arrival, now);
                    let ecn = batch.ecn;
                    for packet in batch.iter_mut() {
                        self.down.take(packet, arrival, id as FlowId, ecn, counters);
                    }
                }
            }
        }
    }

    /// Sends what is due in both directions; false if some of it has to wait for a socket.
    fn deliver(&mut self, now: Time) -> bool {
        let Self { up, down, flows, clients, counters, .. } = self;
        let up_done = up.deliver(now, &counters[0], |batch, bytes| {
            let flow = &flows[batch.flow as usize];
            flow.socket.send(bytes, batch.segment.max(1), batch.ecn).map(|sent| sent.datagrams)
        });
        let down_done = down.deliver(now, &counters[1], |batch, bytes| {
            let to = flows[batch.flow as usize].client;
            clients.send_to(bytes, batch.segment.max(1), batch.ecn, to).map(|sent| sent.datagrams)
        });
        up_done && down_done
    }

    /// Sleeps until the next round: while packets are under way one round's time or until the next is due,
    /// otherwise until something arrives.
    fn wait(&self, all_sent: bool) -> rustix::io::Result<()> {
        let next = [self.up.line.next_due(), self.down.line.next_due()].into_iter().flatten().min();
        let now = self.clock.now();
        let until_due = next.map_or(IDLE, |due| Duration::from(due.since(now)));
        let round = Duration::from(self.round);
        if !all_sent {
            return sleep(&mut [], round);
        }
        if until_due <= round {
            return sleep(&mut [], round);
        }
        if next.is_some() {
            // Arrivals carry the kernel's time stamps, so they can wait for the round.
            sleep(&mut [], round)?;
        }
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(self.clients.as_fd(), PollFlags::IN)];
        fds.extend(self.flows.iter().map(|f| PollFd::from_borrowed_fd(f.socket.as_fd(), PollFlags::IN)));
        sleep(&mut fds, until_due.saturating_sub(round).min(IDLE))
    }
}

/// When a buffer arrived: the kernel's word, or now.
fn arrival_time(clock: &ArrivalClock, arrival: Option<Arrival>, now: Time) -> Time {
    arrival.and_then(|arrival| clock.time_of(arrival)).unwrap_or(now)
}

/// The flow of a client, made when it is first seen.
fn flow_of(
    flows: &mut Vec<Flow>,
    by_client: &mut HashMap<SocketAddr, FlowId>,
    server: SocketAddr,
    client: SocketAddr,
) -> Option<FlowId> {
    if let Some(&id) = by_client.get(&client) {
        return Some(id);
    }
    if flows.len() >= MAX_FLOWS {
        return None;
    }
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match UdpSocket::connected(local, server, &Options::default()) {
        Ok(socket) => {
            let id = flows.len() as FlowId;
            flows.push(Flow { client, socket, drops: DropWatch::default() });
            by_client.insert(client, id);
            Some(id)
        }
        Err(error) => {
            relay_problem("no socket for a new client", &error);
            None
        }
    }
}

/// `ppoll`: until one of `fds` is ready or `time` has passed, with the precision of the kernel's timers.
fn sleep(fds: &mut [PollFd<'_>], time: Duration) -> rustix::io::Result<()> {
    // Only times of centuries do not fit; without a timeout those are waited for just as well.
    let timeout = Timespec::try_from(time).ok();
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
