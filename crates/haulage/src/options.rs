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

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// The micro-protocols that recipes can name.
    pub registry: Arc<Registry>,
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// For connecting, for the TLS handshake, and for the server's answer to the request or to the first packet: each may
    /// take so long.
    pub timeout: Duration,
    /// Ceiling of a stream of bytes that is never exceeded; recipes have parameters of their own.
    pub rate: Option<Rate>,
    /// Streams of bytes: whether the kernel cuts and joins datagrams, if both sides want it.
    pub offload: bool,
    /// Streams of bytes: socket buffers to ask the kernel for, at both ends; `None`: what suits most.
    pub socket_buffer: Option<Bytes>,
    /// The model by which the pattern of losses is judged of what this end sends, also in messages if the recipe has
    /// `rate_control`; `None`: the shipped one. It replaces that of `connection`.
    pub loss_model: Option<Arc<LossModel>>,
    /// How connections run.
    pub connection: ConnectionOptions,
    /// A file for what lets this client come back without a handshake. If it holds something usable, that is tried
    /// first; it is readable by its owner only.
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

/// Which streams of bytes clients may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamsPermitted {
    /// In both directions.
    #[default]
    Both,
    /// Clients send.
    FromClients,
    /// Clients receive.
    ToClients,
    /// None at all.
    Neither,
}

impl StreamsPermitted {
    pub(crate) fn refusal(self, request: &Request) -> Option<&'static str> {
        match (self, request) {
            (Self::Both, _)
            | (Self::FromClients, Request::StreamSend)
            | (Self::ToClients, Request::StreamReceive) => None,
            (Self::Neither, _) => Some("this server carries no streams of bytes"),
            (Self::FromClients, _) => Some("this server receives and does not send"),
            (Self::ToClients, _) => Some("this server sends and does not receive"),
        }
    }
}

/// How a server listens.
#[derive(derive_more::Debug)]
#[debug("ListenOptions({addr})")]
pub struct ListenOptions {
    /// Address and port for both TCP and UDP; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// The URL is good for so long; `None`: while the listener exists.
    pub expires: Option<Duration>,
    /// Whether a client that wants no encryption gets none.
    pub permit_cipher_none: bool,
    /// The micro-protocols that clients' recipes can name.
    pub registry: Arc<Registry>,
    /// Which recipes are permitted, when a client comes and whenever the recipe of its connection is to change; a
    /// client that brings another is told the reason.
    pub permit: Permit,
    /// Whether clients may send and receive streams of bytes.
    pub streams: StreamsPermitted,
    /// As [`Options::loss_model`].
    pub loss_model: Option<Arc<LossModel>>,
    /// How connections run.
    pub connection: ConnectionOptions,
}

impl ListenOptions {
    /// What suits most servers, on this address and port.
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
