//! What the thread of an endpoint and the applications' threads share.

use std::collections::VecDeque;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use haul_base::Ecn;
use haul_udp::{Full, Interest, SendError, UdpSocket};

use super::helm::Helm;
use super::inner::Inner;
use super::table::Table;
use super::{ChannelOptions, EndpointStats};
use crate::identity::random;
use crate::{Clock, EngineError, Role};

/// Room for one batch: no UDP message of the kernel is larger.
pub(super) const SLOT: usize = 65_536;
/// Free slots that are kept.
const KEPT_SLOTS: usize = 8;
/// Longest wait for room in the socket before a batch counts as lost.
const SEND_PATIENCE: u32 = 20;
/// Wait when a queue below the socket is full: about what it takes to send a batch at 1 Gbit/s.
const LOCAL_QUEUE_WAIT: Duration = Duration::from_micros(500);

/// Locks; every update behind these locks is whole, so a panic elsewhere leaves nothing half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much an endpoint keeps for the other sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointLimits {
    /// Associations, with flights or without.
    pub(crate) associations: usize,
    /// Flights that wait to be accepted.
    pub(crate) arrivals: usize,
}

impl EndpointLimits {
    /// For a client, which has only what it has asked for itself.
    pub(crate) const CLIENT: Self = Self { associations: usize::MAX, arrivals: 0 };
}

/// What happened at an endpoint, counted by several threads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) unknown: AtomicU64,
    pub(super) unauthentic: AtomicU64,
    pub(super) replayed_flights: AtomicU64,
    pub(super) flights: AtomicU64,
    pub(super) strays: AtomicU64,
    pub(super) inbox_full: AtomicU64,
    pub(super) unsent: AtomicU64,
    pub(super) guests: AtomicU64,
    pub(super) pairs: AtomicU64,
    pub(super) looks: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> EndpointStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EndpointStats {
            unknown: get(&self.unknown),
            unauthentic: get(&self.unauthentic),
            replayed_flights: get(&self.replayed_flights),
            flights: get(&self.flights),
            strays: get(&self.strays),
            inbox_full: get(&self.inbox_full),
            unsent: get(&self.unsent),
            guests: get(&self.guests),
            pairs: get(&self.pairs),
            looks: get(&self.looks),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Flights that the other side has begun, and tasks that wait for one.
#[derive(Default)]
struct Arrivals {
    flights: VecDeque<Arc<Inner>>,
    wakers: Vec<Waker>,
}

/// A socket, its clock and its flights.
pub(crate) struct Shared {
    pub(super) socket: UdpSocket,
    pub(super) clock: Clock,
    pub(super) role: Role,
    pub(super) helm: Helm,
    pub(super) stop: AtomicBool,
    pub(super) counters: Counters,
    pub(super) table: Mutex<Table>,
    /// How flights run that the other side begins.
    pub(super) options: Mutex<ChannelOptions>,
    arrivals: Mutex<Arrivals>,
    most_arrivals: usize,
    arrived: Condvar,
    slots: Mutex<Vec<Box<[u8]>>>,
    /// What challenges are made of; nobody else knows it.
    pub(super) challenge_key: [u8; 32],
}

impl Shared {
    pub(super) fn new(socket: UdpSocket, role: Role, limits: EndpointLimits) -> Result<Self, EngineError> {
        let clock = Clock::start();
        Ok(Self {
            socket,
            clock,
            role,
            helm: Helm::new(clock)?,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
            table: Mutex::new(Table::new(limits.associations)),
            options: Mutex::default(),
            arrivals: Mutex::default(),
            most_arrivals: limits.arrivals,
            arrived: Condvar::new(),
            slots: Mutex::default(),
            challenge_key: random()?,
        })
    }

    pub(super) fn take_slot(&self) -> Box<[u8]> {
        lock(&self.slots).pop().unwrap_or_else(|| vec![0; SLOT].into())
    }

    pub(super) fn put_slot(&self, slot: Box<[u8]>) {
        let mut slots = lock(&self.slots);
        if slots.len() < KEPT_SLOTS {
            slots.push(slot);
        }
    }

    /// Sends a batch. Waits a little where there is no room; what finds none then is lost, as it might be on the way.
    pub(super) fn send(&self, data: &[u8], segment_size: usize, ecn: Ecn, to: SocketAddr) {
        let (mut done, mut waits) = (0, 0);
        while done < data.len() {
            match self.socket.send_to(&data[done..], segment_size, ecn, to) {
                Ok(sent) => done += sent.bytes,
                Err(SendError::WouldBlock(full)) if waits < SEND_PATIENCE => {
                    waits += 1;
                    match full {
                        // An error here shows again with the next try.
                        Full::SocketBuffer => {
                            drop(self.socket.wait(Interest::Write, Duration::from_millis(1)));
                        }
                        Full::LocalQueue => std::thread::sleep(LOCAL_QUEUE_WAIT),
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, %to, "packets were not sent");
                    count(&self.counters.unsent);
                    return;
                }
            }
        }
    }

    /// Offers a flight to whoever accepts, and gives the tasks that are to be woken for it, once no lock is held any
    /// more; `None` if too many flights wait.
    pub(super) fn announce(&self, flight: Arc<Inner>) -> Option<Vec<Waker>> {
        let mut arrivals = lock(&self.arrivals);
        if arrivals.flights.len() >= self.most_arrivals {
            return None;
        }
        arrivals.flights.push_back(flight);
        self.arrived.notify_one();
        Some(take(&mut arrivals.wakers))
    }

    /// The next flight that the other side has begun; if there is none, `waker` is woken when there is.
    pub(super) fn poll_arrival(&self, waker: &Waker) -> Option<Arc<Inner>> {
        let mut arrivals = lock(&self.arrivals);
        let next = arrivals.flights.pop_front();
        if next.is_none() && !arrivals.wakers.iter().any(|known| known.will_wake(waker)) {
            arrivals.wakers.push(waker.clone());
        }
        next
    }

    /// The next flight that the other side has begun.
    pub(super) fn next_arrival(&self, timeout: Duration) -> Option<Arc<Inner>> {
        let nothing =
            |arrivals: &mut Arrivals| arrivals.flights.is_empty() && !self.stop.load(Ordering::Relaxed);
        let waited = self.arrived.wait_timeout_while(lock(&self.arrivals), timeout, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.flights.pop_front()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the thread, guests, and the waiting for flights.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let wakers = take(&mut lock(&self.arrivals).wakers);
        self.arrived.notify_all();
        self.helm.wake_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}
