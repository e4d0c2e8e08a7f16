//! Packet protection: the ciphers behind [`Seal`] and [`Open`], and the ratchet of their keys.

mod flight;
mod generation;
mod siphash;

use std::fmt;

use haul_proto::{Open, Seal, Unauthentic};
use haul_wire::control::Cipher;

pub(crate) use self::flight::{FlightKeys, TicketSecret};
pub(crate) use self::generation::tag_len;
use self::generation::{PacketKey, generation_of};
use crate::{Role, Secret};

/// The first secret of each direction of a session, as both ends derive them from the TLS session.
pub struct DataKeys {
    cipher: Cipher,
    from_client: Secret,
    from_server: Secret,
}

impl DataKeys {
    /// Keys from one 32-byte secret per direction, in the order client to server, server to client.
    pub fn new(cipher: Cipher, from_client: impl Into<Secret>, from_server: impl Into<Secret>) -> Self {
        Self { cipher, from_client: from_client.into(), from_server: from_server.into() }
    }

    /// The cipher that the keys are for.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Seals what `role` sends.
    pub fn sealer(&self, role: Role) -> Sealer {
        Sealer::new(self.cipher, self.sent_by(role))
    }

    /// Opens what the peer of `role` sends.
    pub fn opener(&self, role: Role) -> Opener {
        Opener::new(self.cipher, self.sent_by(role.peer()))
    }

    fn sent_by(&self, role: Role) -> &Secret {
        match role {
            Role::Client => &self.from_client,
            Role::Server => &self.from_server,
        }
    }
}

impl fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKeys").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

/// Seals the packets of one direction.
pub struct Sealer {
    cipher: Cipher,
    generation: u64,
    key: PacketKey,
    next: Secret,
    /// No packet number below this one is used again.
    lowest_unused: u64,
}

impl Sealer {
    fn new(cipher: Cipher, first: &Secret) -> Self {
        let key = first.packet_key(cipher);
        Self { cipher, generation: 0, key, next: first.next(), lowest_unused: 0 }
    }

    fn advance_to(&mut self, generation: u64) {
        while self.generation < generation {
            self.key = self.next.packet_key(self.cipher);
            self.next = self.next.next();
            self.generation += 1;
        }
    }
}

impl Seal for Sealer {
    fn tag_len(&self) -> usize {
        tag_len(self.cipher)
    }

    /// # Panics
    /// When a packet number would be used twice: that would give away the plaintext.
    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, header_len: usize, first_pn: u64) {
        assert!(first_pn >= self.lowest_unused, "packet number {first_pn} has been used before");
        let mut pn = first_pn;
        for packet in batch.chunks_mut(stride) {
            self.advance_to(generation_of(pn));
            self.key.seal(packet, header_len, pn);
            pn += 1;
        }
        self.lowest_unused = pn;
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Sealer");
        out.field("cipher", &self.cipher).field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Opens the packets of one direction. It holds the keys of the previous, the current and the next
/// generation; a packet of any other costs nothing, and only one that authenticates moves it on.
pub struct Opener {
    cipher: Cipher,
    generation: u64,
    previous: Option<PacketKey>,
    current: PacketKey,
    next: PacketKey,
    after_next: Secret,
}

impl Opener {
    fn new(cipher: Cipher, first: &Secret) -> Self {
        let second = first.next();
        let (current, next) = (first.packet_key(cipher), second.packet_key(cipher));
        Self { cipher, generation: 0, previous: None, current, next, after_next: second.next() }
    }

    fn advance(&mut self) {
        let after_next = self.after_next.packet_key(self.cipher);
        let next = std::mem::replace(&mut self.next, after_next);
        self.previous = Some(std::mem::replace(&mut self.current, next));
        self.after_next = self.after_next.next();
        self.generation += 1;
    }
}

impl Open for Opener {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let generation = generation_of(pn);
        if generation == self.generation {
            self.current.open(packet, header_len, pn)
        } else if generation == self.generation + 1 {
            let opened = self.next.open(packet, header_len, pn)?;
            self.advance();
            Ok(opened)
        } else if generation + 1 == self.generation {
            self.previous.as_ref().ok_or(Unauthentic)?.open(packet, header_len, pn)
        } else {
            Err(Unauthentic)
        }
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Opener");
        out.field("cipher", &self.cipher).field("generation", &self.generation).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
