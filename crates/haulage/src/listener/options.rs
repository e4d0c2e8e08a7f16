use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_base::Bytes;
use haul_engine::ChannelOptions;
use haul_proto::micro::registry;
use haul_stack::{Recipe, Registry};
use haul_wire::control::Request;

/// Says why a recipe is not permitted.
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
    /// Bytes of messages that may wait to be sent, for each connection.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken, for each connection.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes.
    pub datagram: u16,
    /// Asks clients for a sign of life when nothing has come for so long.
    pub keep_alive: Option<Duration>,
    /// How long a waiting thread polls the socket before it sleeps; zero: not at all.
    pub busy_poll: Duration,
}

impl ListenOptions {
    /// What suits most servers, on this address and port.
    pub fn new(addr: SocketAddr) -> Self {
        let channel = ChannelOptions::default();
        Self {
            addr,
            expires: None,
            permit_cipher_none: false,
            registry: Arc::new(registry()),
            permit: Box::new(|_| Ok(())),
            streams: StreamsPermitted::Both,
            queue: channel.queue,
            inbox: channel.inbox,
            datagram: channel.datagram,
            keep_alive: channel.keep_alive,
            busy_poll: channel.busy_poll,
        }
    }
}

impl std::fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenOptions").field("addr", &self.addr).finish_non_exhaustive()
    }
}
