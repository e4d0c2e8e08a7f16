//! A relay on the loopback interface. It listens on one port for clients, forwards UDP to the server through
//! the stages of a path, and TCP with the path's delay. Needs no privilege.

mod direction;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_base::{Span, Time, WithCauses};
use haul_sim::{DropReason, PathSpec, SpecError};
use haul_udp::{Arrival, ArrivalClock, Options, SocketError, UdpSocket};
use rustix::event::{PollFd, PollFlags, Timespec};

pub use self::direction::Relayed;
use self::direction::{Direction, FlowId};
use crate::emulator::rtt_of;
use crate::error::{WanError, While};
use crate::link::{Clock, PathDirection};
use crate::tcp::is_pause;

/// Attempts to find a port that is free for both TCP and UDP.
const PORT_TRIES: u32 = 20;

/// A running relay; stops when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<[Relayed; 2]>>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `server` and returns immediately; [`Relay::address`] is its near end. Both
    /// directions have the same path, with independent losses.
    ///
    /// # Errors
    /// If the path is invalid or a system call fails.
    pub fn start(path: &PathSpec, seed: u64, server: SocketAddr) -> Result<Self, WanError> {
        let cannot_start = "cannot start the relay";
        let (listener, socket) = bind_pair().while_doing(cannot_start)?;
        let address = listener.local_addr().while_doing(cannot_start)?;
        let mut relay = Self { address, stop: Arc::default(), counts: Arc::default(), threads: Vec::new() };
        let (stop, counts) = (Arc::clone(&relay.stop), Arc::clone(&relay.counts));
        let udp = UdpRelay::new((path, seed), socket, server, stop, counts)?;
        let (rtt, stop) = (rtt_of(path, path), Arc::clone(&relay.stop));
        relay.spawn("path-udp", move || udp.run()).while_doing(cannot_start)?;
        relay
            .spawn("path-tcp", move || accept_all(&listener, server, rtt, &stop))
            .while_doing(cannot_start)?;
        Ok(relay)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Returns the address for clients to connect to, TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the datagram counters so far: towards the server, and back.
    pub fn counts(&self) -> [Relayed; 2] {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The relay's thread has reported its panic.
            let _ = thread.join();
        }
    }
}

fn relay_problem(what: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!("emulated path: {what}: {}", WithCauses(error));
}

/// Binds a TCP listener and a UDP socket to the same port.
fn bind_pair() -> io::Result<(TcpListener, UdpSocket)> {
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        tries += 1;
        match UdpSocket::bind(listener.local_addr()?, &Options::default()) {
            Ok(socket) => return Ok((listener, socket)),
            Err(SocketError::Bind { .. }) if tries < PORT_TRIES => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Bytes per read.
const READ: usize = 64 * 1024;
/// Maximum reads in transit per direction; the sender waits beyond it.
const UNDER_WAY: usize = 1_024;
/// Maximum delay until a stop is noticed.
const POLL: Duration = Duration::from_millis(20);

/// Data in transit and its arrival time: bytes, empty at the end, or the error that broke the connection.
type ReadDatagram = (Instant, io::Result<Vec<u8>>);

/// Accepts connections and forwards their bytes until stopped.
fn accept_all(listener: &TcpListener, server: SocketAddr, rtt: Span, stop: &Arc<AtomicBool>) {
    if let Err(error) = listener.set_nonblocking(true) {
        return relay_problem("listening for TCP connections", &error);
    }
    // Accepting must not noticeably increase the path's delay.
    let poll = Duration::from(rtt / 50).clamp(Duration::from_millis(1), POLL);
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = connect_through(client, server, rtt, stop) {
                    relay_problem("a TCP connection", &error);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(poll),
            Err(error) => {
                relay_problem("accepting TCP connections", &error);
                thread::sleep(POLL);
            }
        }
    }
}

fn connect_through(
    client: TcpStream,
    server: SocketAddr,
    rtt: Span,
    stop: &Arc<AtomicBool>,
) -> io::Result<()> {
    // The kernel completed the client's handshake immediately; on the path it would take a round trip.
    let connected = Instant::now() + Duration::from(rtt);
    client.set_nonblocking(false)?;
    let upstream = TcpStream::connect(server)?;
    for stream in [&client, &upstream] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL))?;
    }
    let one_way = Duration::from(rtt / 2);
    pipe(client.try_clone()?, upstream.try_clone()?, (one_way, connected), stop)?;
    pipe(upstream, client, (one_way, connected), stop)
}

/// Forwards bytes from one stream to the other after `delay`, but none before `connected`.
fn pipe(
    from: TcpStream,
    to: TcpStream,
    (delay, connected): (Duration, Instant),
    stop: &Arc<AtomicBool>,
) -> io::Result<()> {
    let (sender, receiver) = sync_channel(UNDER_WAY);
    let (reading, stop) = (from.try_clone()?, Arc::clone(stop));
    thread::Builder::new().name("path-tcp-in".to_owned()).spawn(move || read_all(reading, &sender, &stop))?;
    thread::Builder::new().name("path-tcp-out".to_owned()).spawn(move || {
        if write_all(&to, &receiver, delay, connected).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

fn read_all(mut from: TcpStream, read_datagrams: &SyncSender<ReadDatagram>, stop: &AtomicBool) {
    let mut buffer = vec![0; READ];
    loop {
        let read = match from.read(&mut buffer) {
            Err(error) if is_pause(&error) && !stop.load(Ordering::Relaxed) => continue,
            read => read.map(|read| buffer[..read].to_vec()),
        };
        let is_last = read.as_ref().map_or(true, Vec::is_empty);
        if read_datagrams.send((Instant::now(), read)).is_err() || is_last {
            return;
        }
    }
}

fn write_all(
    mut to: &TcpStream,
    read_datagrams: &Receiver<ReadDatagram>,
    delay: Duration,
    connected: Instant,
) -> io::Result<()> {
    for (read_at, read) in read_datagrams {
        let due = read_at.max(connected) + delay;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        match read? {
            bytes if bytes.is_empty() => return to.shutdown(Shutdown::Write),
            bytes => to.write_all(&bytes)?,
        }
    }
    Ok(())
}

/// Maximum number of clients; further ones are ignored.
const MAX_FLOWS: usize = 256;
/// Maximum sleep while no packet is in transit, and thus the delay until a stop is noticed.
const IDLE: Duration = Duration::from_millis(50);
/// Minimum and maximum time between two rounds while packets are in transit. Deliveries are late by at most
/// this plus the scheduler's slack, and bursts are what the bottleneck carries in this time.
const ROUND: (Span, Span) = (Span::from_micros(20), Span::from_micros(200));
/// Receive calls per socket and round.
const CALLS_PER_ROUND: usize = 4;

/// Forwards datagrams between clients and the server through both directions of a path.
struct UdpRelay {
    clients: UdpSocket,
    server: SocketAddr,
    flows: Vec<Flow>,
    by_client: HashMap<SocketAddr, FlowId>,
    /// Drop counter of the clients' socket.
    drops: DropWatch,
    up: Direction,
    down: Direction,
    receiver: haul_udp::Receiver,
    clock: Clock,
    arrivals: ArrivalClock,
    round: Span,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<[Relayed; 2]>>,
}

/// One client, with its own socket towards the server.
struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
    drops: DropWatch,
}

/// Whether a socket may hold more than was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backlog {
    None,
    Some,
}

/// Tracks a socket's wrapping count of dropped buffers.
#[derive(Default)]
struct DropWatch(u32);

impl DropWatch {
    fn new_drops(&mut self, count: Option<u32>) -> u32 {
        let Some(count) = count else { return 0 };
        count.wrapping_sub(std::mem::replace(&mut self.0, count))
    }
}

impl UdpRelay {
    fn new(
        (path, seed): (&PathSpec, u64),
        clients: UdpSocket,
        server: SocketAddr,
        stop: Arc<AtomicBool>,
        counts: Arc<Mutex<[Relayed; 2]>>,
    ) -> Result<Self, SpecError> {
        Ok(Self {
            receiver: haul_udp::Receiver::new(&clients),
            clients,
            server,
            flows: Vec::new(),
            by_client: HashMap::new(),
            drops: DropWatch::default(),
            up: Direction::new(path, PathDirection::Forth.seed(seed))?,
            down: Direction::new(path, PathDirection::Back.seed(seed))?,
            clock: Clock::start(),
            arrivals: ArrivalClock::new(),
            round: (rtt_of(path, path) / 32).clamp(ROUND.0, ROUND.1),
            stop,
            counts,
        })
    }

    /// Runs until stopped.
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            // With a backlog, time advances only to the arrival of what was read.
            if self.receive_from_clients() == Backlog::None {
                self.up.advance(now);
            }
            if self.receive_from_server() == Backlog::None {
                self.down.advance(now);
            }
            let all_sent = self.deliver();
            let counts = [self.up.counts, self.down.counts];
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
            self.arrivals.sync(now);
            for mut batch in self.receiver.datagrams() {
                self.up.counts.overrun += u64::from(self.drops.new_drops(batch.drops));
                let Some(flow) = flow_of(&mut self.flows, &mut self.by_client, self.server, batch.source)
                else {
                    let bytes = batch.iter_mut().map(|packet| packet.len() as u64).sum();
                    self.up.counts.sent.count(batch.count() as u64, bytes);
                    self.up.counts.drops.count(DropReason::Carrier, batch.count() as u64);
                    continue;
                };
                let arrival = arrival_time(&self.arrivals, batch.arrival, now);
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
                self.arrivals.sync(now);
                for mut batch in self.receiver.datagrams() {
                    self.down.counts.overrun += u64::from(flow.drops.new_drops(batch.drops));
                    let arrival = arrival_time(&self.arrivals, batch.arrival, now);
                    let from = (id as FlowId, batch.ecn);
                    self.down.offer(batch.iter_mut().map(|packet| &*packet), arrival, from);
                }
            }
        }
        backlog
    }

    /// Sends due packets in both directions. Returns false if some have to wait for a socket.
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

    /// Sleeps until the next round: with packets in transit, for one round or until the next packet is due,
    /// otherwise until something arrives.
    fn wait(&self, all_sent: bool) -> rustix::io::Result<()> {
        let next = [self.up.next_event(), self.down.next_event()].into_iter().flatten().min();
        let now = self.clock.now();
        let until_due = next.map_or(IDLE, |due| Duration::from(due.since(now)));
        let round = Duration::from(self.round);
        if !all_sent || until_due <= round {
            return sleep(&mut [], round);
        }
        if next.is_some() {
            // Arrivals have kernel timestamps, so they can wait for the next round.
            sleep(&mut [], round)?;
        }
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(self.clients.as_fd(), PollFlags::IN)];
        fds.extend(self.flows.iter().map(|f| PollFd::from_borrowed_fd(f.socket.as_fd(), PollFlags::IN)));
        sleep(&mut fds, until_due.saturating_sub(round).min(IDLE))
    }
}

/// Returns when a buffer arrived: the kernel's timestamp, or `now`.
fn arrival_time(clock: &ArrivalClock, arrival: Option<Arrival>, now: Time) -> Time {
    arrival.and_then(|arrival| clock.time_of(arrival)).unwrap_or(now)
}

/// Returns the flow of a client, created on its first datagram.
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

/// `ppoll`: waits until one of `fds` is ready or `time` has passed, with the precision of kernel timers.
fn sleep(fds: &mut [PollFd<'_>], time: Duration) -> rustix::io::Result<()> {
    // Only times of centuries do not fit; waiting without a timeout is equivalent.
    let timeout = Timespec::try_from(time).ok();
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
