//! What the thread that moves data gets from a session.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_base::{Ecn, Span, Time};
use haul_proto::{Open, Seal};
use haul_udp::{Interest, Receiver, SendError, UdpSocket};
use haul_wire::control::Settings;

use crate::hello::{HelloExchange, MAX_HELLO, is_hello};
use crate::{Clock, Control, EngineError, Role};

/// Longest time without a look at the control channel.
const LOOK: Duration = Duration::from_millis(50);

/// A socket that is ready to use, and what protects its packets. Packet numbers of data and feedback start
/// at 0 in each direction.
pub struct DataPath {
    /// Which end this is.
    pub role: Role,
    /// Connected to the peer's UDP address.
    pub socket: UdpSocket,
    /// The peer's UDP address.
    pub peer: SocketAddr,
    /// Seals what this end sends.
    pub seal: Box<dyn Seal>,
    /// Opens what the peer sends.
    pub open: Box<dyn Open>,
    /// Goes on beside the data; see [`HelloExchange`].
    pub hello: HelloExchange,
    /// The session's control channel.
    pub control: Control,
    /// The settings in force.
    pub settings: Settings,
    /// First estimate of the round trip, from the set-up of the connection.
    pub round_trip: Span,
    /// The clock whose times [`DataPath::hello`] was given so far.
    pub clock: Clock,
}

impl DataPath {
    /// Runs nothing but the HELLO exchange: on the client until all of it is settled, on the server, which
    /// cannot know that, until `limit` has passed. For sessions that move no data. Datagrams of other kinds
    /// are dropped.
    ///
    /// # Errors
    /// [`EngineError::UdpBlocked`]; how the control channel failed; [`EngineError::System`].
    pub fn exchange_hellos(&mut self, limit: Duration) -> Result<(), EngineError> {
        let until = Instant::now() + limit;
        let mut receiver = Receiver::new(&self.socket);
        loop {
            let now = self.clock.now();
            self.hello.on_deadline(now);
            send_hellos(&self.socket, &mut self.hello, now);
            let settled = self.role == Role::Client && self.hello.deadline().is_none();
            let left = until.saturating_duration_since(Instant::now());
            if settled || left.is_zero() {
                return Ok(());
            }
            self.check(now)?;
            let wait = self.hello.deadline().map_or(LOOK, |at| at.since(now).into()).min(LOOK).min(left);
            let ready = self.socket.wait(Interest::Read, wait);
            if ready.map_err(|e| EngineError::system("cannot wait for UDP", e))? {
                self.receive_hellos(&mut receiver);
            }
        }
    }

    fn check(&self, now: Time) -> Result<(), EngineError> {
        if let Some(error) = self.control.failure() {
            return Err(error);
        }
        self.hello.failure(now, self.control.udp_seen().is_some()).map_or(Ok(()), Err)
    }

    fn receive_hellos(&mut self, receiver: &mut Receiver) {
        // Errors are what routers and hosts on the way say; the exchange notices by itself.
        if receiver.recv(&self.socket).is_err() {
            return;
        }
        let now = self.clock.now();
        for mut batch in receiver.datagrams() {
            for datagram in batch.iter_mut().filter(|d| is_hello(d)) {
                self.hello.on_packet(now, datagram);
            }
        }
    }
}

/// Sends what the exchange has to send. What the system does not take is tried again in the next round.
pub(crate) fn send_hellos(socket: &UdpSocket, hello: &mut HelloExchange, now: Time) {
    if !hello.wants_transmit() {
        return;
    }
    let mut slot = vec![0; MAX_HELLO];
    while let Some(len) = hello.poll_transmit(now, &mut slot) {
        if let Err(SendError::TooLarge) = socket.send(&slot[..len], len, Ecn::NotEct) {
            hello.on_too_large(len);
        }
    }
}

impl fmt::Debug for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPath").field("role", &self.role).field("peer", &self.peer).finish_non_exhaustive()
    }
}
