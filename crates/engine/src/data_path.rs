//! What the thread that moves data gets from a session.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use haul_proto::{Open, Seal};
use haul_udp::{Interest, Receiver, UdpSocket};
use haul_wire::control::Settings;

use crate::endpoint::{PathProbe, Registration, send_probes};
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
    /// Goes on beside the data.
    pub probe: PathProbe,
    /// The session's control channel.
    pub control: Control,
    /// The settings in force.
    pub settings: Settings,
    /// First estimate of the round trip, from the set-up of the connection.
    pub round_trip: Span,
    /// The clock whose times [`DataPath::probe`] was given so far.
    pub clock: Clock,
    /// The server's: late challenges find the session by it.
    pub(crate) registration: Option<Registration>,
}

impl DataPath {
    /// The largest datagram that is likely to pass to the peer: one of its own has come.
    pub fn likely_datagram(&self) -> u16 {
        let heard_before = self.registration.as_ref().map_or(0, |it| it.pending().largest());
        self.probe.likely_datagram().max(heard_before)
    }

    /// Does nothing but probe the path: on the client until all of it is settled, on the server, which cannot know
    /// that, until `limit` has passed. For sessions that move no data. Datagrams of other kinds are dropped.
    ///
    /// # Errors
    /// [`EngineError::UdpBlocked`]; how the control channel failed; [`EngineError::System`].
    pub fn probe_path(&mut self, limit: Duration) -> Result<(), EngineError> {
        let until = Instant::now() + limit;
        let mut receiver = Receiver::new(&self.socket);
        loop {
            let now = self.clock.now();
            self.probe.on_deadline(now);
            send_probes(&self.socket, &mut self.probe, now);
            let settled = self.role == Role::Client && self.probe.deadline().is_none();
            let left = until.saturating_duration_since(Instant::now());
            if settled || left.is_zero() {
                return Ok(());
            }
            self.check(now)?;
            let wait = self.probe.deadline().map_or(LOOK, |at| at.since(now).into()).min(LOOK).min(left);
            let ready = self.socket.wait(Interest::Read, wait);
            if ready.map_err(|e| EngineError::system("cannot wait for UDP", e))? {
                self.receive_frames(&mut receiver);
            }
        }
    }

    fn check(&self, now: Time) -> Result<(), EngineError> {
        if let Some(error) = self.control.failure() {
            return Err(error);
        }
        self.probe.failure(now, self.control.udp_seen().is_some()).map_or(Ok(()), Err)
    }

    fn receive_frames(&mut self, receiver: &mut Receiver) {
        // Errors are what routers and hosts on the way say; the probe notices by itself.
        if receiver.recv(&self.socket).is_err() {
            return;
        }
        let now = self.clock.now();
        for mut batch in receiver.datagrams() {
            for datagram in batch.iter_mut() {
                self.probe.on_packet(now, datagram);
            }
        }
    }
}

impl fmt::Debug for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPath").field("role", &self.role).field("peer", &self.peer).finish_non_exhaustive()
    }
}
