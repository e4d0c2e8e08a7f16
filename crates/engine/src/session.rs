//! A session: two ends that have proved themselves to each other and agreed on what to do.

use std::net::SocketAddr;
use std::sync::Arc;

use haul_base::{Bytes, Span};
use haul_proto::LossModel;
use haul_stack::{Part, Recipe};
use haul_udp::{Offload, Options, UdpSocket};
use haul_wire::control::{Cipher, Request, Settings};

use crate::crypto::{DataKeys, FrameKeys};
use crate::endpoint::{ObjectEnd, PathProbe, PendingSession, SessionSide};
use crate::{Clock, Control, EngineError, Role, Waker};

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
    pub(crate) keys: DataKeys,
    pub(crate) round_trip: Span,
    pub(crate) clock: Clock,
    pub(crate) udp: Option<UdpSide>,
    pub(crate) loss_model: Option<Arc<LossModel>>,
}

/// What the UDP side of a session is until the data thread has it.
pub(crate) enum UdpSide {
    Client(Box<(Arc<UdpSocket>, PathProbe)>),
    Server(Arc<PendingSession>),
}

/// A socket that is connected to the peer's UDP address, what authenticates control frames there, and what its data
/// thread knows of the session.
pub(crate) type OpenPath = (Arc<UdpSocket>, FrameKeys, SessionSide);

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

    /// How packets are protected.
    pub fn cipher(&self) -> Cipher {
        self.keys.cipher()
    }

    /// The peer's TCP address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
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

    /// The UDP side, for the data thread.
    ///
    /// On the client this returns at once: data may follow the challenges before these are answered. On the server it
    /// waits for the client's first challenge, for up to 3 seconds from [`Incoming::accept`](crate::Incoming::accept);
    /// if none comes, the client is told why the session ends. Call it soon after the accept, because later challenges
    /// are answered by the data thread.
    ///
    /// # Errors
    /// [`EngineError::UdpBlocked`] if no challenge comes; how the control channel failed;
    /// [`EngineError::System`] if the socket cannot be opened.
    ///
    /// # Panics
    /// When called again after it has succeeded or failed.
    pub(crate) fn take_path(&mut self, end: ObjectEnd, waker: Waker) -> Result<OpenPath, EngineError> {
        let (control, udp) = (self.control.clone(), self.udp.take());
        Ok(match udp.expect("a session moves one object") {
            UdpSide::Client(udp) => {
                let (socket, probe) = *udp;
                let keys = probe.keys.clone();
                (socket, keys, SessionSide { end, waker, control, probe: Some(probe), pending: None })
            }
            UdpSide::Server(pending) => {
                let socket = pending.wait_for_socket(&control);
                let socket = socket.inspect_err(|error| control.abort(error.fault()))?;
                let keys = pending.keys();
                (socket, keys, SessionSide { end, waker, control, probe: None, pending: Some(pending) })
            }
        })
    }
}

/// How a session's UDP socket is opened.
pub(crate) fn udp_options(settings: &Settings, reuse_port: bool) -> Options {
    let offload = if settings.offload { Offload::Auto } else { Offload::Off };
    let asked = settings.extra.iter().find(|(key, _)| key == "socket_buffer");
    let buffer = asked.and_then(|(_, bytes)| bytes.parse().ok()).map_or(Options::DEFAULT_BUFFER, Bytes);
    // What a peer may ask of this machine's memory; the kernel's own limit is lower as a rule.
    let buffer = buffer.clamp(Bytes(64 << 10), Bytes(256 << 20));
    Options { reuse_port, offload, recv_buffer: buffer, send_buffer: buffer, ..Options::default() }
}
