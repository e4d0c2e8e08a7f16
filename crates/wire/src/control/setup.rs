use serde::{Deserialize, Serialize};

use super::durability::{Durability, Readback};
use super::{Preserve, Selection};

/// The version that this crate speaks. Sides with different versions do not talk.
pub const PROTOCOL_VERSION: u16 = 8;

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u16,
    /// Proof that the client knows the URL's secret: BLAKE3, keyed with the secret, of the TLS exporter
    /// (RFC 8446 section 7.5) labelled `EXPORTER-haul-auth`.
    pub proof: [u8; 32],
    /// Ciphers for the packets, most wanted first. [`Cipher::None`] only if a person asked for it.
    pub ciphers: Vec<Cipher>,
    /// What the session is for.
    pub request: Request,
    /// How it should run.
    pub settings: Settings,
}

/// What the client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The client sends files.
    Put {
        /// Where to, a path below the server's root; empty is the root itself.
        destination: Vec<u8>,
        /// How the entries lie at the destination.
        layout: Layout,
        /// What happens to what is there.
        receive_policy: ReceivePolicy,
    },
    /// The client receives files.
    Get {
        /// Paths below the server's root.
        sources: Vec<Vec<u8>>,
        /// Which entries of them.
        selection: Selection,
        /// What happens to files that grow meanwhile.
        growth: Growth,
        /// Whether anything is done at all; the receiver keeps to it.
        run: RunMode,
        /// What of the files is to travel.
        preserve: Preserve,
    },
    /// The client sends memory.
    BenchSend,
    /// The server sends memory.
    BenchReceive,
    /// Nothing is moved; the client only wants to know whether it could be.
    Check,
    /// Both sides keep stacks of this recipe; packets go on without this connection.
    Connect {
        /// The recipe, TOML.
        recipe: String,
        /// Name and version of each of its micro-protocols at the client.
        versions: Vec<(String, u16)>,
    },
    /// The client sends a stream of bytes whose length is not known beforehand.
    StreamSend,
    /// The server sends a stream of bytes whose length is not known beforehand.
    StreamReceive,
    /// The client sends one file, whose length is not known beforehand.
    PutStream {
        /// Its name, a path below the server's root.
        destination: Vec<u8>,
        /// When it counts as received.
        durability: Durability,
    },
}

impl Request {
    /// Its name for people and scripts.
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

    /// Whether it is only said what would be moved.
    pub fn is_dry_run(&self) -> bool {
        match self {
            Self::Put { receive_policy, .. } => receive_policy.run == RunMode::ListChanges,
            Self::Get { run, .. } => *run == RunMode::ListChanges,
            _ => false,
        }
    }
}

/// What happens to a file that has grown since it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Growth {
    /// It counts as changed and is not delivered.
    #[default]
    Refuse,
    /// It is sent as long as it was found.
    Accept,
}

/// What a receiver does about what is at the destination already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReceivePolicy {
    /// What counts as there already.
    pub equal: Equal,
    /// What happens to files that are newer at the destination.
    pub newer: Newer,
    /// What happens to names in the set's directories that the set does not have.
    pub extraneous: Extraneous,
    /// Whether leftovers of earlier attempts are used.
    pub leftovers: Leftovers,
    /// Whether anything is done at all.
    pub run: RunMode,
    /// When a file counts as received.
    pub durability: Durability,
    /// Whether files are read back from the disk.
    pub readback: Readback,
}

/// When a file at the destination is taken for the one in the set, and not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Equal {
    /// Equal size and time of last modification.
    #[default]
    SizeAndTime,
    /// Equal size and equal contents, compared by hash.
    Contents,
    /// Never.
    Nothing,
}

/// What happens to files that were modified later than those of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Newer {
    /// They are replaced like others.
    #[default]
    Replace,
    /// They are kept.
    Keep,
}

/// What happens to names that the set does not have, in directories that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Extraneous {
    /// They stay.
    #[default]
    Keep,
    /// They are removed when everything else has succeeded.
    Delete,
    /// Likewise, unless they are more than so many: then all stay.
    DeleteAtMost(u64),
}

/// Whether leftovers of earlier attempts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Leftovers {
    /// What is proved to be right is not sent again.
    #[default]
    Resume,
    /// Everything is sent from its beginning.
    Ignore,
    /// They are, and so is a shorter file at the destination, as the beginning of the source's.
    Extend,
}

/// Whether anything is done at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RunMode {
    /// The set is moved.
    #[default]
    Move,
    /// It is only said what would be done.
    ListChanges,
    /// The set is moved, and the receiver says what it does to each name.
    Verbose,
}

/// How the entries of a [`Request::Put`] lie at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Below it: the destination is, or becomes, a directory.
    Into,
    /// In its place: the single source takes the destination's name, unless that is an existing directory.
    As,
}

/// How a session runs. The client asks, and the server's [`Accept`] says what is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What carries the object; `None`: the recipe `bulk`.
    pub recipe: Option<RecipeOffer>,
    /// Whether segmentation and receive offload (GSO, GRO) may be used.
    pub offload: bool,
    /// Bytes to ask the kernel for, for each of the two buffers of the UDP socket; `None`: as many as each end does by
    /// itself.
    pub socket_buffer: Option<u64>,
    /// When a bench ends.
    pub bench_limit: BenchLimit,
}

impl Default for Settings {
    fn default() -> Self {
        Self { recipe: None, offload: true, socket_buffer: None, bench_limit: BenchLimit::Unlimited }
    }
}

/// A recipe that a session is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeOffer {
    /// The recipe, TOML.
    pub text: String,
    /// Name and version of each of its micro-protocols at the client.
    pub versions: Vec<(String, u16)>,
}

/// When a bench ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BenchLimit {
    /// When one side stops it.
    #[default]
    Unlimited,
    /// After so many bytes.
    Bytes(u64),
    /// After so many microseconds of sending.
    Micros(u64),
}

/// The server's answer to a [`Hello`] that it will serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accept {
    /// Identifies the session in the headers of its packets.
    pub session: u32,
    /// The cipher of the packets, one of those that the client offered.
    pub cipher: Cipher,
    /// Where the client's packets go.
    pub udp_port: u16,
    /// Name and version of the server's program, for people.
    pub server: String,
    /// The settings in force: those that the client asked for, within what the server permits.
    pub settings: Settings,
}

/// How packets are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode (RFC 5116).
    Aes128Gcm,
    /// AES-256 in Galois/counter mode (RFC 5116).
    Aes256Gcm,
    /// `ChaCha20` and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
    /// No secrecy: a token per packet keeps strangers and strays out.
    None,
}

impl Cipher {
    /// The name for people and scripts, for example `aes-128-gcm`.
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
