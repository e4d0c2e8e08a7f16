use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Bytes, Rate};
use haul_engine::{ConnectionOptions, OpenOptions};
use haul_proto::LossModel;
use haul_proto::micro::registry;
use haul_stack::{Recipe, Registry};
use haul_wire::control::{Cipher, Request};

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Micro-protocols that recipes can use.
    pub registry: Arc<Registry>,
    /// Ciphers in order of preference. [`Cipher::None`] is used only if no other cipher is listed.
    pub ciphers: Vec<Cipher>,
    /// Timeout of each step: TCP connection, TLS handshake, server's answer to the request or first packet.
    pub timeout: Duration,
    /// Maximum rate of a byte stream, in place of the one in the recipe.
    pub rate: Option<Rate>,
    /// Byte streams: whether to use segmentation offload (GSO and GRO), if the peer also wants it.
    pub offload: bool,
    /// Byte streams: socket buffer size to request at both ends; `None` for the default.
    pub socket_buffer: Option<Bytes>,
    /// Model that classifies losses of what this end sends, also of messages if the recipe has
    /// `rate_control`. Replaces that of `connection`; `None` for the shipped model.
    pub loss_model: Option<Arc<LossModel>>,
    /// Options of the connections.
    pub connection: ConnectionOptions,
    /// File for the state with which this client resumes without a handshake. If it holds valid state,
    /// resumption is tried first. Only its owner can read it.
    pub resumption: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let OpenOptions { registry, ciphers, timeout, connection } = OpenOptions::default();
        let (rate, socket_buffer, loss_model, resumption) = (None, None, None, None);
        Self {
            registry,
            ciphers,
            timeout,
            rate,
            offload: true,
            socket_buffer,
            loss_model,
            connection,
            resumption,
        }
    }
}

impl Options {
    pub(crate) fn open(&self) -> OpenOptions {
        let Self { registry, ciphers, timeout, loss_model, connection, .. } = self.clone();
        OpenOptions { registry, ciphers, timeout, connection: ConnectionOptions { loss_model, ..connection } }
    }
}

type Permit = Box<dyn Fn(&Recipe) -> Result<(), String> + Send + Sync>;

/// Directions in which clients may open byte streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamsPermitted {
    /// Clients may send and receive.
    #[default]
    Both,
    /// Clients may only send.
    FromClients,
    /// Clients may only receive.
    ToClients,
    /// No byte streams.
    Neither,
}

impl StreamsPermitted {
    pub(crate) fn refusal(self, request: &Request) -> Option<&'static str> {
        match (self, request) {
            (Self::Both, _)
            | (Self::FromClients, Request::StreamSend)
            | (Self::ToClients, Request::StreamReceive) => None,
            (Self::Neither, _) => Some("this server does not accept byte streams"),
            (Self::FromClients, _) => Some("this server receives and does not send"),
            (Self::ToClients, _) => Some("this server sends and does not receive"),
        }
    }
}

/// Options of a server.
#[derive(derive_more::Debug)]
#[debug("ListenOptions({addr})")]
pub struct ListenOptions {
    /// Local address and port for both TCP and UDP. The system chooses a port if it is 0.
    pub addr: SocketAddr,
    /// Lifetime of the URL, after which no client connects or resumes; `None` for that of the listener.
    pub expires: Option<Duration>,
    /// Whether clients may connect without encryption.
    pub permit_cipher_none: bool,
    /// Micro-protocols that clients' recipes can use.
    pub registry: Arc<Registry>,
    /// Checks a client's recipe, when the client connects and whenever it changes the recipe. The client is
    /// sent the reason for a refusal.
    pub permit: Permit,
    /// Directions in which clients may open byte streams.
    pub streams: StreamsPermitted,
    /// Model that classifies losses, as [`Options::loss_model`].
    pub loss_model: Option<Arc<LossModel>>,
    /// Options of the connections.
    pub connection: ConnectionOptions,
}

impl ListenOptions {
    /// Returns the default options for this address and port.
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            expires: None,
            permit_cipher_none: false,
            registry: Arc::new(registry()),
            permit: Box::new(|_| Ok(())),
            streams: StreamsPermitted::Both,
            loss_model: None,
            connection: ConnectionOptions::default(),
        }
    }
}
