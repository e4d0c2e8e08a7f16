//! Packet protection as a stack sees it. `haul_proto::connection` has the ciphers; tests use trivial ones.
//!
//! A packet is `kind (1) | packet number (6) | body | tag`. The first seven bytes are authenticated, the
//! body is encrypted and authenticated. The packet number is the nonce and is never used twice.

use std::fmt;

/// The packet did not authenticate, is too short for a tag, or its key generation is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet does not authenticate")]
pub struct Unauthentic;

/// Seals outgoing packets in place.
pub trait Seal: Send + fmt::Debug {
    /// Length of the tag after each body, in bytes.
    fn tag_len(&self) -> usize;

    /// Seals every packet of `batch`, which lie `stride` bytes apart (the last may be shorter) and carry
    /// the packet numbers `first_pn`, `first_pn + 1`, …. Of each packet the first `header_len` bytes are
    /// the header and the last [`Seal::tag_len`] bytes are overwritten with the tag.
    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, header_len: usize, first_pn: u64);

    /// Frees memory kept for reuse.
    fn release_idle(&mut self) {}
}

/// Opens incoming packets in place.
pub trait Open: Send + fmt::Debug {
    /// Authenticates and decrypts `packet` in place: `header_len` bytes of header, then body and tag.
    /// Returns the length of the plain body, which starts at `header_len`.
    ///
    /// # Errors
    /// [`Unauthentic`] if it was not sealed with the keys, or must not be opened again.
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic>;

    /// Frees memory kept for reuse.
    fn release_idle(&mut self) {}
}
