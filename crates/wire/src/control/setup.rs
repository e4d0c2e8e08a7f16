use serde::{Deserialize, Serialize};

use super::durability::{Durability, Readback};
use super::{Preserve, Selection};

/// Protocol version of this crate. Peers of different versions cannot communicate.
pub const PROTOCOL_VERSION: u16 = 8;

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client's [`PROTOCOL_VERSION`].
    pub version: u16,
    /// Proof that the client knows the URL's secret: BLAKE3, keyed with the secret, of the TLS exporter (RFC
    /// 8446 section 7.5) with the label `EXPORTER-haul-auth`.
    pub proof: [u8; 32],
    /// Packet ciphers in order of preference. [`Cipher::None`] only if requested by the user.
    pub ciphers: Vec<Cipher>,
    /// Purpose of the session.
    pub request: Request,
    /// Proposed settings.
    pub settings: Settings,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The client sends files.
    Put {
        /// Destination path below the server's root; empty for the root itself.
        destination: Vec<u8>,
        /// Layout of the entries at the destination.
        layout: Layout,
        /// How existing files are treated.
        receive_policy: ReceivePolicy,
    },
    /// The client receives files.
    Get {
        /// Paths below the server's root.
        sources: Vec<Vec<u8>>,
        /// Which of their entries are sent.
        selection: Selection,
        /// How growing files are treated.
        growth: Growth,
        /// Whether anything is changed; applied by the receiver.
        run: RunMode,
        /// Which attributes are transferred.
        preserve: Preserve,
    },
    /// The client sends data from memory, as a benchmark.
    BenchSend,
    /// The server sends data from memory, as a benchmark.
    BenchReceive,
    /// Nothing is transferred; the client only checks whether it could be.
    Check,
    /// Both peers keep the recipe for connections, which need no control channel.
    Connect {
        /// Recipe in TOML.
        recipe: String,
        /// Names and versions of its micro-protocols at the client.
        versions: Vec<(String, u16)>,
    },
    /// The client sends a stream of bytes of unknown length.
    StreamSend,
    /// The server sends a stream of bytes of unknown length.
    StreamReceive,
    /// The client sends one file of unknown length.
    PutStream {
        /// Destination path below the server's root.
        destination: Vec<u8>,
        /// When the file counts as received.
        durability: Durability,
    },
}

impl Request {
    /// Returns the name for users and scripts.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::BenchSend => "bench",
            Self::BenchReceive => "bench-reverse",
            Self::Check => "check",
            Self::Connect { .. } => "connect",
            Self::StreamSend => "stream",
            Self::StreamReceive => "stream-reverse",
            Self::PutStream { .. } => "put-stream",
        }
    }

    /// Whether only the changes are listed.
    pub fn is_dry_run(&self) -> bool {
        match self {
            Self::Put { receive_policy, .. } => receive_policy.run == RunMode::ListChanges,
            Self::Get { run, .. } => *run == RunMode::ListChanges,
            _ => false,
        }
    }
}

/// How a file that has grown since it was found is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Growth {
    /// It counts as changed and is not delivered.
    #[default]
    Refuse,
    /// Only its initial length is sent.
    Accept,
}

/// How a receiver treats existing files at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReceivePolicy {
    /// When a file counts as equal.
    pub equal: Equal,
    /// How files that are newer at the destination are treated.
    pub newer: Newer,
    /// How names in the set's directories that the set does not have are treated.
    pub extraneous: Extraneous,
    /// Whether partial files of earlier attempts are used.
    pub leftovers: Leftovers,
    /// Whether anything is changed.
    pub run: RunMode,
    /// When a file counts as received.
    pub durability: Durability,
    /// Whether files are read back from the disk.
    pub readback: Readback,
}

/// When a file at the destination counts as equal to the one in the set, and is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Equal {
    /// Equal size and modification time.
    #[default]
    SizeAndTime,
    /// Equal size and equal contents, compared by hash.
    Contents,
    /// Never.
    Nothing,
}

/// How files that were modified later than those of the set are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Newer {
    /// They are replaced like others.
    #[default]
    Replace,
    /// They are kept.
    Keep,
}

/// How names that the set does not have, in directories that it has, are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Extraneous {
    /// They are kept.
    #[default]
    Keep,
    /// They are deleted after everything else has succeeded.
    Delete,
    /// The same, unless there are more than this number: then all are kept.
    DeleteAtMost(u64),
}

/// Whether partial files of earlier attempts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Leftovers {
    /// Parts verified as correct are not sent again.
    #[default]
    Resume,
    /// No: everything is sent from the beginning.
    Ignore,
    /// As `Resume`, and a shorter file at the destination is used as the beginning of the source's.
    Extend,
}

/// Whether anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RunMode {
    /// The set is transferred.
    #[default]
    Move,
    /// The changes are only listed.
    ListChanges,
    /// The set is transferred, and the receiver reports each change.
    Verbose,
}

/// Layout of the entries of a [`Request::Put`] at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Below the destination, which is or becomes a directory.
    Into,
    /// The single source takes the destination's name, unless that is an existing directory.
    As,
}

/// Settings of a session. The client proposes them; the server's [`Accept`] has those in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Recipe that carries the object; `None` for `bulk`.
    pub recipe: Option<RecipeOffer>,
    /// Whether segmentation and receive offload (GSO, GRO) may be used.
    pub offload: bool,
    /// Size to request for each of the two buffers of the UDP socket, in bytes; `None` for each end's
    /// default.
    pub socket_buffer: Option<u64>,
    /// When a benchmark ends.
    pub bench_limit: BenchLimit,
}

impl Default for Settings {
    fn default() -> Self {
        Self { recipe: None, offload: true, socket_buffer: None, bench_limit: BenchLimit::Unlimited }
    }
}

/// A recipe proposed for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeOffer {
    /// Recipe in TOML.
    pub text: String,
    /// Names and versions of its micro-protocols at the client.
    pub versions: Vec<(String, u16)>,
}

/// When a benchmark ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BenchLimit {
    /// When either peer stops it.
    #[default]
    Unlimited,
    /// After this number of bytes.
    Bytes(u64),
    /// After sending for this number of microseconds.
    Micros(u64),
}

/// The server's answer to an accepted [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accept {
    /// Session ID in packet headers.
    pub session: u32,
    /// Packet cipher, one of those that the client offered.
    pub cipher: Cipher,
    /// The server's UDP port.
    pub udp_port: u16,
    /// Name and version of the server's program, for users.
    pub server: String,
    /// Settings in force: those that the client proposed, within the server's limits.
    pub settings: Settings,
}

/// Protection of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode (RFC 5116).
    Aes128Gcm,
    /// AES-256 in Galois/counter mode (RFC 5116).
    Aes256Gcm,
    /// `ChaCha20` and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
    /// No encryption: a token per packet rejects foreign packets.
    None,
}

impl Cipher {
    /// Returns the name for users and scripts, for example `aes-128-gcm`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::None => "none",
        }
    }
}

impl std::fmt::Display for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
