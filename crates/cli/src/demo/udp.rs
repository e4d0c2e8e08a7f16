//! The datagram half of the emulated path: one thread for both directions.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use haul_sim::SpecError;
use haul_udp::{Arrival, ArrivalClock, Options, Receiver, UdpSocket};
use haul_wan::Way;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::direction::{Direction, FlowId};
use super::spec::{PathCounts, PathSpec, relay_problem};

/// Clients that are told apart; more are ignored.
const MAX_FLOWS: usize = 256;
/// Longest sleep while nothing is under way: how soon a stop is noticed.
const IDLE: Duration = Duration::from_millis(50);
/// Shortest and longest time between two rounds while packets are under way. Deliveries are late by at most
/// this and the scheduler's slack, and bursts are what the bottleneck carries in it.
const ROUND: (Span, Span) = (Span::from_micros(20), Span::from_micros(200));
/// Receive calls per socket and round.
const CALLS_PER_ROUND: usize = 4;

/// Moves datagrams between clients and the server through the two directions of a path.
pub(super) struct UdpRelay {
    clients: UdpSocket,
    server: SocketAddr,
    flows: Vec<Flow>,
    by_client: HashMap<SocketAddr, FlowId>,
    /// Of the clients' socket.
    drops: DropWatch,
    up: Direction,
    down: Direction,
    receiver: Receiver,
    clock: Clock,
    round: Span,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<PathCounts>>,
}

/// One client, with a socket of its own toward the server.
struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
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

/// Whether more may wait in a socket than was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backlog {
    None,
    Some,
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

impl UdpRelay {
    pub(super) fn new(
        spec: &PathSpec,
        clients: UdpSocket,
        server: SocketAddr,
        stop: Arc<AtomicBool>,
        counts: Arc<Mutex<PathCounts>>,
    ) -> Result<Self, SpecError> {
        Ok(Self {
            receiver: Receiver::new(&clients),
            clients,
            server,
            flows: Vec::new(),
            by_client: HashMap::new(),
            drops: DropWatch::default(),
            up: Direction::new(spec, Way::Forth)?,
            down: Direction::new(spec, Way::Back)?,
            clock: Clock { start: Instant::now(), arrivals: ArrivalClock::new() },
            round: (spec.rtt / 32).clamp(ROUND.0, ROUND.1),
            stop,
            counts,
        })
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            // Where something is left to be read, the time is that of what was read.
            if self.receive_from_clients() == Backlog::None {
                self.up.advance(now);
            }
            if self.receive_from_server() == Backlog::None {
                self.down.advance(now);
            }
            let all_sent = self.deliver();
            let counts = PathCounts { up: self.up.counts, down: self.down.counts };
            *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
            if let Err(error) = self.wait(all_sent) {
                relay_problem("waiting for datagrams", &error);
                return;
            }
        }
    }

    fn receive_from_clients(&mut self) -> Backlog {
        for _ in 0..CALLS_PER_ROUND {
            if self.receiver.recv(&self.clients).is_err() {
                return Backlog::None;
            }
            let now = self.clock.now();
            self.clock.arrivals.sync(now);
            for mut batch in self.receiver.datagrams() {
                self.up.counts.overrun += u64::from(self.drops.new_drops(batch.drops));
                let Some(flow) = flow_of(&mut self.flows, &mut self.by_client, self.server, batch.source)
                else {
                    self.up.counts.offered += batch.count() as u64;
                    self.up.counts.relay += batch.count() as u64;
                    continue;
                };
                let arrival = arrival_time(&self.clock.arrivals, batch.arrival, now);
                let from = (flow, batch.ecn);
                self.up.offer(batch.iter_mut().map(|packet| &*packet), arrival, from);
            }
        }
        Backlog::Some
    }

    fn receive_from_server(&mut self) -> Backlog {
        let mut backlog = Backlog::None;
        for (id, flow) in self.flows.iter_mut().enumerate() {
            for call in 1..=CALLS_PER_ROUND {
                if self.receiver.recv(&flow.socket).is_err() {
                    break;
                }
                if call == CALLS_PER_ROUND {
                    backlog = Backlog::Some;
                }
                let now = self.clock.now();
                self.clock.arrivals.sync(now);
                for mut batch in self.receiver.datagrams() {
                    self.down.counts.overrun += u64::from(flow.drops.new_drops(batch.drops));
                    let arrival = arrival_time(&self.clock.arrivals, batch.arrival, now);
                    let from = (id as FlowId, batch.ecn);
                    self.down.offer(batch.iter_mut().map(|packet| &*packet), arrival, from);
                }
            }
        }
        backlog
    }

    /// Sends what is due in both directions; false if some of it has to wait for a socket.
    fn deliver(&mut self) -> bool {
        let Self { up, down, flows, clients, .. } = self;
        let up_done = up.deliver(|batch, bytes| {
            let flow = &flows[batch.flow as usize];
            flow.socket.send(bytes, batch.segment.max(1), batch.ecn).map(|sent| sent.datagrams)
        });
        let down_done = down.deliver(|batch, bytes| {
            let to = flows[batch.flow as usize].client;
            clients.send_to(bytes, batch.segment.max(1), batch.ecn, to).map(|sent| sent.datagrams)
        });
        up_done && down_done
    }

    /// Sleeps until the next round: while packets are under way one round's time or until the next is due,
    /// otherwise until something arrives.
    fn wait(&self, all_sent: bool) -> rustix::io::Result<()> {
        let next = [self.up.next_event(), self.down.next_event()].into_iter().flatten().min();
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
