use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Bytes, Rate};
use haul_engine::{ConnectionOptions, OpenOptions};
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
    /// How connections run.
    pub connection: ConnectionOptions,
    /// A file for what lets this client come back without a handshake. If it holds something usable, that is tried
    /// first; it is readable by its owner only.
    pub resumption: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            registry: Arc::new(registry()),
            ciphers: OpenOptions::default().ciphers,
            timeout: Duration::from_secs(10),
            rate: None,
            offload: true,
            socket_buffer: None,
            connection: ConnectionOptions::default(),
            resumption: None,
        }
    }
}

impl Options {
    /// A server's answer to the first packet takes no longer than any other.
    pub(crate) fn channel(&self) -> ConnectionOptions {
        ConnectionOptions { open_timeout: self.timeout, ..self.connection }
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
