//! Packet protection: the ciphers behind [`Seal`](haul_proto::Seal) and [`Open`](haul_proto::Open), and the ratchet of
//! their keys.

mod connection;
mod direction;
mod generation;
mod session;
mod window;

pub(crate) use self::connection::{ConnectionKeys, FrameKeys, Keys, ResumptionSecret, challenge_number};
pub(crate) use self::generation::{ENCRYPTED, tag_len};
pub use self::session::{DataKeys, Opener, Sealer};
