//! The socket of one connection or of many, and what they need to send. Knows nothing of connections.

#[cfg(test)]
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
#[cfg(test)]
use std::thread::ThreadId;

use haul_base::{AlignedBytes, Ecn};
use haul_udp::{SendError, Sent, UdpSocket};

use super::timers::Timers;
use crate::identity::random;
use crate::wake::lock;
use crate::{Clock, EngineError};

/// Offset of a batch in its slot: leaves space for a header, and is aligned.
pub(super) const SLOT_START: usize = 64;
/// Length of a slot for one batch, which cannot exceed the kernel's maximum UDP message.
const SLOT_LEN: usize = SLOT_START + 65_536;
/// Batches that one of many connections sends before the others have their turn.
const SHARED_ROUNDS: usize = 16;
/// Batches that a connection with its own socket sends before receiving.
const DEDICATED_ROUNDS: usize = 4;
/// Maximum number of free slots kept.
const MAX_POOLED_SLOTS: usize = 8;
haul_base::counters! {
    Counters:
    /// Counters of an endpoint.
    pub struct EndpointStats {
        /// Datagrams that belong to no known session or connection.
        pub unknown,
        /// Packets, initial headers and control frames that fail authentication, including replayed ones.
        pub unauthentic,
        /// Initial headers of connections that were over already.
        pub replayed_connections,
        /// Connections opened by peers.
        pub connections,
        /// Datagrams of unknown kinds.
        pub strays,
        /// Control frames of a session that came from a new address, or another than its TCP connection's,
        /// and were answered by a challenge.
        pub challenged,
        /// Buffers of data dropped because the application did not take earlier messages.
        pub inbox_full,
        /// Batches that the system rejected.
        pub unsent,
        /// Waits on a channel in which the waiting thread itself received packets.
        pub inline_waits,
        /// Datagrams sent with two packets each, an acknowledgement and a message.
        pub pairs,
    }
}

/// A socket and its clock.
pub(crate) struct EndpointSocket {
    pub(crate) socket: Arc<UdpSocket>,
    pub(crate) clock: Clock,
    /// Timers of many connections. `None`: the socket is connected, for one connection with its own thread.
    pub(super) timers: Option<Timers>,
    /// Batches that a connection sends before others, or received packets, have their turn.
    pub(super) rounds: usize,
    #[cfg(feature = "faults")]
    faults: Option<Mutex<haul_udp::Faults>>,
    stop: AtomicBool,
    pub(super) counters: Counters,
    slots: Mutex<Vec<AlignedBytes>>,
    /// Key of the address challenges; never leaves this process.
    pub(super) challenge_key: [u8; 32],
    /// While a test makes the send buffer appear full: attempts to send, by thread.
    #[cfg(test)]
    pub(super) refused: Mutex<Option<HashMap<ThreadId, usize>>>,
}

impl EndpointSocket {
    /// Creates the socket of any number of connections.
    pub(super) fn shared(socket: Arc<UdpSocket>) -> Result<Self, EngineError> {
        let clock = Clock::start();
        let (timers, rounds) = (Some(Timers::new(clock)?), SHARED_ROUNDS);
        let this = Self::dedicated(socket, clock)?;
        #[cfg(feature = "faults")]
        let this = Self { faults: None, ..this };
        Ok(Self { timers, rounds, ..this })
    }

    /// Creates the socket of one connection with its own thread; `socket` is connected.
    pub(crate) fn dedicated(socket: Arc<UdpSocket>, clock: Clock) -> Result<Self, EngineError> {
        Ok(Self {
            timers: None,
            rounds: DEDICATED_ROUNDS,
            #[cfg(feature = "faults")]
            faults: haul_udp::Faults::from_environment().map(Mutex::new),
            socket,
            clock,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
            slots: Mutex::default(),
            challenge_key: random()?,
            #[cfg(test)]
            refused: Mutex::default(),
        })
    }

    /// Converts the address for this socket: an IPv6 socket needs IPv4-mapped ones (RFC 4291, section
    /// 2.5.5.2).
    pub(super) fn reachable(&self, peer: SocketAddr) -> SocketAddr {
        match (peer, self.socket.local_addr()) {
            (SocketAddr::V4(v4), Ok(SocketAddr::V6(_))) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            _ => peer,
        }
    }

    pub(super) fn take_slot(&self) -> AlignedBytes {
        lock(&self.slots).pop().unwrap_or_else(|| AlignedBytes::zeroed(SLOT_LEN))
    }

    pub(super) fn return_slot(&self, slot: AlignedBytes) {
        let mut slots = lock(&self.slots);
        if slots.len() < MAX_POOLED_SLOTS {
            slots.push(slot);
        }
    }

    /// Sends a batch. On failure, returns how many bytes were sent before it, and why.
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
        #[cfg(test)]
        if let Some(refused) = &mut *lock(&self.refused) {
            *refused.entry(std::thread::current().id()).or_default() += 1;
            return Err(SendError::WouldBlock(haul_udp::FullQueue::SocketBuffer));
        }
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return lock(faults).send(&self.socket, data, segment_size, ecn);
        }
        match self.timers {
            Some(_) => self.socket.send_to(data, segment_size, ecn, to),
            None => self.socket.send(data, segment_size, ecn),
        }
    }

    /// Sends one datagram that is repeated if lost, or optional: it is dropped if the socket is full.
    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) {
        if self.send_batch(datagram, datagram.len(), Ecn::NotEct, to).is_err() {
            self.counters.unsent.add_one();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests that the thread serving the socket end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(timers) = &self.timers {
            timers.waker.wake();
        }
    }
}
