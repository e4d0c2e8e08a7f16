use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_engine::ConnectionOptions;
use haul_proto::micro::registry;
use haul_stack::{Recipe, Registry};
use haul_wire::control::Request;

pub(super) type Permit = Box<dyn Fn(&Recipe) -> Result<(), String> + Send + Sync>;

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
    pub(super) fn refusal(self, request: &Request) -> Option<&'static str> {
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
            connection: ConnectionOptions::default(),
        }
    }
}
