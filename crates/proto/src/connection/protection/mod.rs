//! Packet protection: the ciphers behind [`Seal`](haul_stack::Seal) and [`Open`](haul_stack::Open), and the
//! ratchet of their keys. The driver supplies the first secret, from random numbers or the TLS exporter.

mod direction;
mod generation;
mod keys;

pub use direction::{Opener, Sealer};
pub use generation::{ENCRYPTED, tag_len};
pub(crate) use keys::challenge_number;
pub use keys::{ConnectionKeys, FrameKeys, Keys, ResumptionSecret};
