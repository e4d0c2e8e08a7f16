//! A session: two ends that have proved themselves to each other and agreed on what to do.

use std::net::SocketAddr;
use std::sync::Arc;

use haul_base::{Bytes, Ecn, Span};
use haul_proto::connection::{Challenge, FrameKeys, Opener, PathProbe, Sealer, canonical};
use haul_proto::{LossModel, config::RateControlConfig};
use haul_stack::{Part, Recipe};
use haul_udp::{Offload, Options, SendError, UdpSocket};
use haul_wire::control::{Cipher, Request, Settings};
use haul_wire::packet::ControlFrameKind;

use crate::endpoint::PendingSession;
use crate::{Clock, Control, EngineError, Role};

/// One end of a running session.
#[derive(derive_more::Debug)]
#[debug("Session({role:?}, {peer}, {request:?})")]
pub struct Session {
    pub(crate) role: Role,
    pub(crate) peer: SocketAddr,
    pub(crate) control: Control,
    pub(crate) request: Request,
    pub(crate) settings: Settings,
    /// What it runs, with the settings in force.
    pub(crate) recipe: Recipe,
    pub(crate) program: String,
    pub(crate) cipher: Cipher,
    pub(crate) round_trip: Span,
    pub(crate) clock: Clock,
    /// Until the data thread has it.
    pub(crate) path: Option<DataPath>,
    pub(crate) loss_model: Option<Arc<LossModel>>,
}

/// What the data thread of a session takes over.
pub(crate) struct DataPath {
    pub(crate) keys: (Sealer, Opener),
    /// What authenticates this end's control frames.
    pub(crate) frames: FrameKeys,
    pub(crate) udp: UdpSide,
}

/// The UDP side of a session, by its end.
pub(crate) enum UdpSide {
    Client(Arc<UdpSocket>, Box<PathProbe>),
    /// Late challenges find the session by it.
    Server(Arc<PendingSession>),
}

impl UdpSide {
    /// The size of the largest challenge that has come.
    pub(crate) fn largest(&self) -> u16 {
        match self {
            Self::Client(..) => 0,
            Self::Server(pending) => pending.largest(),
        }
    }

    /// The socket that is connected to the peer's UDP address. The client's is there: data may follow the challenges before
    /// these are answered. The server waits for the client's first challenge.
    pub(crate) fn socket(&self, control: &Control) -> Result<Arc<UdpSocket>, EngineError> {
        match self {
            Self::Client(socket, _) => Ok(socket.clone()),
            Self::Server(pending) => pending.wait_for_socket(control),
        }
    }
}

impl Session {
    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The control channel.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// What the client asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The recipe that it runs, with the settings in force.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// What the recipe says of its control law, for [`crate::Transfer::switch_law`]; `None` if it has no `rate_control`.
    pub fn law(&self) -> Option<Part> {
        self.recipe.parts.iter().find(|part| part.name == "rate_control").cloned()
    }

    /// Name of the control law that the recipe begins with; empty if it has none.
    pub fn controller(&self) -> String {
        let law = self.recipe.configuration::<RateControlConfig>();
        law.ok().flatten().map(|law| law.controller).unwrap_or_default()
    }

    /// How packets are protected.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The peer's TCP address; one of IPv4 as such, also where the socket has both.
    pub fn peer(&self) -> SocketAddr {
        canonical(self.peer)
    }

    /// Name and version of the server's program.
    pub fn server(&self) -> &str {
        &self.program
    }

    /// First estimate of the round trip, from the set-up of the connection.
    pub fn round_trip(&self) -> Span {
        self.round_trip
    }

    /// What this end judges the signatures of its losses by when it sends; `None`, the default: the shipped model. It counts
    /// from [`Session::start_sending`] on, and the other end is not told.
    pub fn set_loss_model(&mut self, model: Option<Arc<LossModel>>) {
        self.loss_model = model;
    }
}

/// Sends what the probe has to send. What the system does not take is tried again in the next round.
pub(crate) fn send_probes(socket: &UdpSocket, probe: &mut PathProbe, frames: impl Fn() -> FrameKeys) {
    while let Some(Challenge { number, size }) = probe.poll_transmit() {
        let packet = frames().frame(ControlFrameKind::Challenge, number, size);
        if let Err(SendError::TooLarge) = socket.send(&packet, packet.len(), Ecn::NotEct) {
            probe.on_too_large(packet.len());
        }
    }
}

/// Least and most bytes of a socket's buffer: what a peer may ask of this machine's memory; the kernel's own limit is lower
/// as a rule.
pub const SOCKET_BUFFER: [Bytes; 2] = [Bytes(64 << 10), Bytes(256 << 20)];

/// How a session's UDP socket is opened.
pub(crate) fn udp_options(settings: &Settings, reuse_port: bool) -> Options {
    let offload = if settings.offload { Offload::Auto } else { Offload::Off };
    let buffer = settings.socket_buffer.map_or(Options::DEFAULT_BUFFER, Bytes);
    let [least, most] = SOCKET_BUFFER;
    let buffer = buffer.clamp(least, most);
    Options { reuse_port, offload, recv_buffer: buffer, send_buffer: buffer, ..Options::default() }
}
