//! Keys of a session. Used ones are dropped: whoever takes over this end later learns nothing of earlier packets.

use haul_proto::{Open, Seal, Unauthentic};
use haul_wire::control::Cipher;

use super::direction::{Opening, Sealing, never_again};
use super::generation::tag_len;
use crate::{Role, Secret};

/// The first secret of each direction of a session.
#[derive(Debug)]
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
        Sealer { cipher: self.cipher, keys: Sealing::new(self.sent_by(role), self.cipher) }
    }

    /// Opens what the peer of `role` sends.
    pub fn opener(&self, role: Role) -> Opener {
        Opener { cipher: self.cipher, keys: Opening::new(self.sent_by(role.peer()), self.cipher) }
    }

    fn sent_by(&self, role: Role) -> &Secret {
        match role {
            Role::Client => &self.from_client,
            Role::Server => &self.from_server,
        }
    }
}

/// Seals the packets of one direction.
#[derive(Debug)]
pub struct Sealer {
    cipher: Cipher,
    keys: Sealing,
}

impl Seal for Sealer {
    fn tag_len(&self) -> usize {
        tag_len(self.cipher)
    }

    /// # Panics
    /// When a packet number would be used twice: that would give away the plaintext.
    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, header_len: usize, first_pn: u64) {
        self.keys.seal_batch(self.cipher, never_again, (batch, stride, header_len), first_pn);
    }
}

/// Opens the packets of one direction.
#[derive(Debug)]
pub struct Opener {
    cipher: Cipher,
    keys: Opening,
}

impl Open for Opener {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        self.keys.open(self.cipher, never_again, (packet, header_len), pn)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
