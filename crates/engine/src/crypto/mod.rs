//! Packet protection: the ciphers behind [`Seal`](haul_proto::Seal) and [`Open`](haul_proto::Open), and the ratchet of
//! their keys.

mod connection;
mod direction;
mod generation;

pub(crate) use self::connection::{ConnectionKeys, FrameKeys, Keys, ResumptionSecret, challenge_number};
pub use self::direction::{Opener, Sealer};
pub(crate) use self::generation::{ENCRYPTED, tag_len};
