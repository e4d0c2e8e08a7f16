//! A session: two authenticated peers that have agreed on a request.

use std::net::SocketAddr;
use std::sync::Arc;

use haul_base::{Bytes, Span};
use haul_proto::connection::{FrameKeys, Opener, Sealer, canonical};
use haul_proto::{LossModel, config::RateControlConfig};
use haul_stack::{Part, Recipe};
use haul_udp::{Offload, Options};
use haul_wire::control::{Cipher, Request, Settings};

use crate::endpoint::UdpSide;
use crate::{Clock, Control, Role};

/// One end of a running session.
#[derive(derive_more::Debug)]
#[debug("Session({role:?}, {peer}, {request:?})")]
pub struct Session {
    pub(crate) role: Role,
    pub(crate) peer: SocketAddr,
    pub(crate) control: Control,
    pub(crate) request: Request,
    pub(crate) settings: Settings,
    /// Recipe with the session's settings applied.
    pub(crate) recipe: Recipe,
    pub(crate) program: String,
    pub(crate) cipher: Cipher,
    pub(crate) round_trip: Span,
    pub(crate) clock: Clock,
    /// `None` once the data thread has it.
    pub(crate) path: Option<DataPath>,
    pub(crate) loss_model: Option<Arc<LossModel>>,
}

/// What the data thread of a session takes over.
pub(crate) struct DataPath {
    pub(crate) keys: (Sealer, Opener),
    /// Authenticates this end's control frames.
    pub(crate) frames: FrameKeys,
    pub(crate) udp: UdpSide,
}

impl Session {
    /// Returns which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the control channel.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the client's request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the recipe with the session's settings applied.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the recipe's `rate_control`, for [`crate::Transfer::switch_law`]; `None` if it has none.
    pub fn law(&self) -> Option<Part> {
        self.recipe.part("rate_control").cloned()
    }

    /// Returns the name of the recipe's initial control law; empty if it has none.
    pub fn controller(&self) -> String {
        let law = self.recipe.configuration::<RateControlConfig>();
        law.map(|law| law.controller).unwrap_or_default()
    }

    /// Returns the cipher that protects the packets.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns the peer's TCP address; IPv4-mapped IPv6 addresses are returned as IPv4.
    pub fn peer(&self) -> SocketAddr {
        canonical(self.peer)
    }

    /// Returns name and version of the server's program.
    pub fn server(&self) -> &str {
        &self.program
    }

    /// Returns the initial round-trip estimate, measured while connecting.
    pub fn round_trip(&self) -> Span {
        self.round_trip
    }

    /// Sets the model with which a sender classifies its losses, from [`Session::start_sending`] on; `None`,
    /// the default, is the shipped model. The peer is not told.
    pub fn set_loss_model(&mut self, model: Option<Arc<LossModel>>) {
        self.loss_model = model;
    }
}

/// Minimum and maximum size of a socket buffer, which bounds the memory that a peer can request. The kernel's
/// own limit is usually lower.
pub const SOCKET_BUFFER: [Bytes; 2] = [Bytes(64 << 10), Bytes(256 << 20)];

/// Options of a session's UDP socket.
pub(crate) fn udp_options(settings: &Settings, reuse_port: bool) -> Options {
    let offload = if settings.offload { Offload::Auto } else { Offload::Off };
    let buffer = settings.socket_buffer.map_or(Options::DEFAULT_BUFFER, Bytes);
    let [min, max] = SOCKET_BUFFER;
    let buffer = buffer.clamp(min, max);
    Options { reuse_port, offload, recv_buffer: buffer, send_buffer: buffer, ..Options::default() }
}
