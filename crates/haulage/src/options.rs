use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Bytes, Rate};
use haul_engine::{ChannelOptions, OpenOptions};
use haul_proto::micro::registry;
use haul_stack::Registry;
use haul_wire::control::Cipher;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// The micro-protocols that recipes can name.
    pub registry: Arc<Registry>,
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// For connecting, for the TLS handshake, and for the server's answer: each may take so long.
    pub timeout: Duration,
    /// Ceiling of a stream of bytes that is never exceeded; recipes have parameters of their own.
    pub rate: Option<Rate>,
    /// Streams of bytes: whether the kernel cuts and joins datagrams, if both sides want it.
    pub offload: bool,
    /// Streams of bytes: socket buffers to ask the kernel for, at both ends; `None`: what suits most.
    pub socket_buffer: Option<Bytes>,
    /// Bytes of messages that may wait to be sent.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken; above, arriving ones are dropped as if the path had lost them.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes. What the path does not carry is lost; 1,200 pass everywhere.
    pub datagram: u16,
    /// Sends a keep-alive when nothing has come for so long; after three without an answer the connection ends.
    pub keep_alive: Option<Duration>,
    /// How long a waiting thread polls the socket before it sleeps; zero: not at all.
    pub busy_poll: Duration,
    /// A file for what lets this client come back without a handshake. If it holds something usable, that is tried
    /// first; it is readable by its owner only.
    pub resumption: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let channel = ChannelOptions::default();
        Self {
            registry: Arc::new(registry()),
            ciphers: OpenOptions::default().ciphers,
            timeout: Duration::from_secs(10),
            rate: None,
            offload: true,
            socket_buffer: None,
            queue: channel.queue,
            inbox: channel.inbox,
            datagram: channel.datagram,
            keep_alive: channel.keep_alive,
            busy_poll: channel.busy_poll,
            resumption: None,
        }
    }
}

impl Options {
    pub(crate) fn channel(&self) -> ChannelOptions {
        ChannelOptions {
            queue: self.queue,
            inbox: self.inbox,
            datagram: self.datagram,
            open_timeout: self.timeout,
            keep_alive: self.keep_alive,
            busy_poll: self.busy_poll,
        }
    }

    pub(crate) fn open(&self) -> OpenOptions {
        OpenOptions {
            ciphers: self.ciphers.clone(),
            connect_timeout: self.timeout,
            answer_timeout: self.timeout,
            channel: self.channel(),
        }
    }
}
