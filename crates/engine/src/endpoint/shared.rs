//! What the drivers of an endpoint and the applications' threads share.

use std::collections::{BTreeSet, VecDeque};
use std::mem::{replace, take};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use haul_base::{AlignedBytes, Ecn, Span, Time};
use haul_udp::{Capabilities, SendError, Sent, UdpSocket};

use super::ConnectionOptions;
use super::connection::Connection;
use super::driver::Driver;
use super::session_table::SessionTable;
use super::table::Table;
use crate::counters::counters;
use crate::identity::random;
use crate::wake::WakerList;
use crate::{Clock, EngineError};

/// Where a batch begins in its slot: behind room for a header, and aligned.
pub(super) const SLOT_START: usize = 64;
/// Room for one batch: no UDP message of the kernel is larger.
const SLOT: usize = SLOT_START + 65_536;
/// Batches that one of many connections sends before others have their turn.
const ROUNDS: usize = 16;
/// Batches that a connection on a socket of its own sends before it is time to receive.
const OWN_ROUNDS: usize = 4;
/// Free slots that are kept.
const KEPT_SLOTS: usize = 8;
/// Where there are many connections, those that were silent for so long release what can be made again.
const IDLE: Span = Span::from_secs(2);
/// With fewer connections, releasing is not worth the wake-ups.
const MANY: usize = 64;

/// Locks. A poisoned lock is fine: every update behind these locks is complete before anything can panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much an endpoint keeps for its peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointLimits {
    /// Resumption states, with connections or without.
    pub(crate) known_peers: usize,
    /// Connections that wait to be accepted.
    pub(crate) arrivals: usize,
}

impl EndpointLimits {
    /// For a client, which has begun all its connections itself.
    pub(crate) const CLIENT: Self = Self { known_peers: usize::MAX, arrivals: 0 };
}

/// Whether handshakes are under way, so that control frames may come for sessions that do not exist yet.
pub(crate) type Expecting = Box<dyn Fn() -> bool + Send + Sync>;

counters! {
    Counters:
    /// What has happened at an endpoint.
    pub struct EndpointStats {
        /// Datagrams that name no session and no connection.
        pub unknown,
        /// Packets, initial headers and control frames that do not authenticate, repeated ones among them.
        pub unauthentic,
        /// Initial headers of connections that were over already.
        pub replayed_connections,
        /// Connections that the other side has begun.
        pub connections,
        /// Datagrams of other kinds.
        pub strays,
        /// Control frames of a session from another address than before, or than its TCP connection's, which were
        /// answered by a challenge.
        pub challenged,
        /// Buffers of data dropped because nobody took the messages before them.
        pub inbox_full,
        /// Batches that the system did not take.
        pub unsent,
        /// Waits on a channel in which the waiting thread itself received packets.
        pub inline_waits,
        /// Datagrams sent with two packets each, an answer and a message.
        pub pairs,
    }
}

/// Connections that the other side has begun, and tasks that wait for one.
#[derive(Default)]
struct Arrivals {
    connections: VecDeque<Arc<Connection>>,
    wakers: WakerList,
}

/// Connections that were active since they last released what can be made again.
#[derive(Default)]
struct Active {
    identities: BTreeSet<u32>,
    /// When idle ones were last released.
    released: Time,
}

impl Active {
    /// Whether many peers are known, or there are many identities of connections that may have ended.
    fn is_worth_releasing(&self, peers: usize) -> bool {
        !self.identities.is_empty() && (peers >= MANY || self.identities.len() >= MANY)
    }
}

/// A socket, its clock and its connections.
pub(crate) struct Shared {
    pub(super) socket: Arc<UdpSocket>,
    pub(crate) clock: Clock,
    /// `None`: the socket is connected and of one connection, which has a thread of its own.
    pub(super) driver: Option<Driver>,
    /// Batches that a connection sends before others, or what has come, have their turn.
    pub(super) rounds: usize,
    #[cfg(feature = "faults")]
    faults: Option<Mutex<crate::faults::Faults>>,
    pub(super) stop: AtomicBool,
    pub(super) counters: Counters,
    pub(super) table: Mutex<Table>,
    /// Sessions whose control frames may come to this socket.
    pub(super) sessions: Arc<SessionTable>,
    pub(super) expecting: Expecting,
    /// How connections run that the other side begins.
    pub(super) options: Mutex<ConnectionOptions>,
    arrivals: Mutex<Arrivals>,
    most_arrivals: usize,
    slots: Mutex<Vec<AlignedBytes>>,
    active: Mutex<Active>,
    /// Key of the address challenges; it never leaves this process.
    pub(super) challenge_key: [u8; 32],
}

impl Shared {
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        limits: EndpointLimits,
        expecting: Expecting,
    ) -> Result<Self, EngineError> {
        let clock = Clock::start();
        let driver = Driver::new(clock, &socket)?;
        let this = Self::of_one(socket, clock)?;
        let table = Mutex::new(Table::new(limits.known_peers));
        let (driver, rounds, most_arrivals) = (Some(driver), ROUNDS, limits.arrivals);
        #[cfg(feature = "faults")]
        let this = Self { faults: None, ..this };
        Ok(Self { driver, rounds, table, expecting, most_arrivals, ..this })
    }

    /// With one connection, which has a thread of its own; `socket` is connected.
    pub(crate) fn of_one(socket: Arc<UdpSocket>, clock: Clock) -> Result<Self, EngineError> {
        Ok(Self {
            driver: None,
            rounds: OWN_ROUNDS,
            #[cfg(feature = "faults")]
            faults: crate::faults::Faults::from_environment().map(Mutex::new),
            socket,
            clock,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
            table: Mutex::new(Table::new(0)),
            sessions: Arc::default(),
            expecting: Box::new(|| false),
            options: Mutex::default(),
            arrivals: Mutex::default(),
            most_arrivals: 0,
            slots: Mutex::default(),
            active: Mutex::default(),
            challenge_key: random()?,
        })
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.socket.capabilities()
    }

    /// The address as this socket has it: an IPv6 socket reaches IPv4 addresses in IPv6 form (RFC 4291, section 2.5.5.2).
    pub(super) fn reachable(&self, peer: SocketAddr) -> SocketAddr {
        match (peer, self.socket.local_addr()) {
            (SocketAddr::V4(v4), Ok(SocketAddr::V6(_))) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            _ => peer,
        }
    }

    pub(super) fn take_slot(&self) -> AlignedBytes {
        lock(&self.slots).pop().unwrap_or_else(|| AlignedBytes::zeroed(SLOT))
    }

    pub(super) fn put_slot(&self, slot: AlignedBytes) {
        let mut slots = lock(&self.slots);
        if slots.len() < KEPT_SLOTS {
            slots.push(slot);
        }
    }

    /// Sends a batch. If the system does not take all of it, gives how many bytes have left and why.
    pub(super) fn send_batch(
        &self,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
        to: SocketAddr,
    ) -> Result<(), (usize, SendError)> {
        let mut done = 0;
        while done < data.len() {
            let sent = self.send_once(&data[done..], segment_size, ecn, to);
            done += sent.map_err(|error| (done, error))?.bytes;
        }
        Ok(())
    }

    fn send_once(
        &self,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
        to: SocketAddr,
    ) -> Result<Sent, SendError> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return lock(faults).send(&self.socket, data, segment_size, ecn);
        }
        match self.driver {
            Some(_) => self.socket.send_to(data, segment_size, ecn, to),
            None => self.socket.send(data, segment_size, ecn),
        }
    }

    /// Sends one datagram that is repeated if it is lost, or need not arrive: a full socket loses it.
    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) {
        if self.send_batch(datagram, datagram.len(), Ecn::NotEct, to).is_err() {
            self.counters.unsent.add_one();
        }
    }

    /// Notes that a connection is active and may have something to release once it is idle.
    pub(super) fn note_active(&self, identity: u32) {
        lock(&self.active).identities.insert(identity);
    }

    /// Time until idle connections are next released.
    pub(super) fn idle_release_due(&self) -> Option<Span> {
        let active = lock(&self.active);
        let is_worth_releasing = active.is_worth_releasing(lock(&self.table).len());
        is_worth_releasing.then(|| (active.released + IDLE).since(self.clock.now()))
    }

    /// Has connections that were active and are idle now release what can be made again.
    pub(super) fn release_idle(&self, now: Time) {
        let (identities, before) = {
            let mut active = lock(&self.active);
            if now.since(active.released) < IDLE || !active.is_worth_releasing(lock(&self.table).len()) {
                return;
            }
            (take(&mut active.identities), replace(&mut active.released, now))
        };
        for identity in identities {
            let connection = lock(&self.table).live(identity);
            if connection.is_some_and(|connection| !connection.release_idle(now, before)) {
                self.note_active(identity);
            }
        }
    }

    /// Queues a connection to be accepted and returns the tasks to wake once no lock is held; `None` if too many
    /// connections wait.
    pub(super) fn announce(&self, connection: Arc<Connection>) -> Option<WakerList> {
        let mut arrivals = lock(&self.arrivals);
        if arrivals.connections.len() >= self.most_arrivals {
            return None;
        }
        arrivals.connections.push_back(connection);
        Some(arrivals.wakers.take())
    }

    /// The next connection that the other side has begun; if there is none, `waker` is woken when there is.
    pub(super) fn poll_arrival(&self, waker: &Waker) -> Option<Arc<Connection>> {
        let mut arrivals = lock(&self.arrivals);
        let next = arrivals.connections.pop_front();
        if next.is_none() {
            arrivals.wakers.add(waker);
        }
        next
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the drivers, and the waiting for connections.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let wakers = lock(&self.arrivals).wakers.take();
        if let Some(driver) = &self.driver {
            driver.wake_all();
        }
        wakers.wake();
    }

    /// Stops the endpoint, and ends all its connections.
    pub(super) fn end_all(&self, error: &EngineError) {
        if !matches!(error, EngineError::Closed) {
            tracing::error!(%error, "the UDP endpoint has failed");
        }
        self.stop();
        let connections = lock(&self.table).clear();
        for connection in connections {
            let mut state = connection.lock();
            state.end(error.clone());
            Connection::release(state);
        }
    }
}
