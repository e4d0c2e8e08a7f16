//! The keys of one direction: a ratchet over generations, for whoever seals and for whoever opens.

use haul_proto::Unauthentic;
use haul_wire::control::Cipher;

use super::generation::{PacketKey, generation_of};
use super::window::Window;
use crate::Secret;

/// Derives no secret again: those of a session are dropped once they are used, so whoever takes over this end later
/// learns nothing of earlier generations.
pub(super) fn never_again(_: u64) -> Option<Secret> {
    None
}

/// The key of a generation, and the secret of the next.
#[derive(Debug)]
struct Live {
    key: PacketKey,
    next: Secret,
}

impl Live {
    fn new(secret: &Secret, cipher: Cipher) -> Self {
        Self { key: secret.packet_key(cipher), next: secret.next() }
    }
}

/// The keys of a direction at the end that seals.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    generation: u64,
    live: Option<Box<Live>>,
    /// No packet number below this one is used again.
    lowest_unused: u64,
}

impl Sealing {
    pub(super) fn new(first: &Secret, cipher: Cipher) -> Self {
        Self { live: Some(Box::new(Live::new(first, cipher))), ..Self::default() }
    }

    /// Seals packets side by side in place, as [`Seal::seal_batch`](haul_proto::Seal::seal_batch).
    ///
    /// # Panics
    /// When a packet number would be used twice: that would give away the plaintext.
    pub(super) fn seal_batch(
        &mut self,
        cipher: Cipher,
        secret_of: impl Fn(u64) -> Option<Secret>,
        (batch, stride, header_len): (&mut [u8], usize, usize),
        first_pn: u64,
    ) {
        assert!(first_pn >= self.lowest_unused, "packet number {first_pn} has been used before");
        let mut pn = first_pn;
        for packet in batch.chunks_mut(stride.max(1)) {
            self.advance_to(generation_of(pn), cipher);
            self.live(cipher, &secret_of).key.seal(packet, header_len, pn);
            pn += 1;
        }
        self.lowest_unused = pn;
    }

    fn advance_to(&mut self, generation: u64, cipher: Cipher) {
        while self.generation < generation {
            self.live = self.live.take().map(|live| Box::new(Live::new(&live.next, cipher)));
            self.generation += 1;
        }
    }

    fn live(&mut self, cipher: Cipher, secret_of: impl Fn(u64) -> Option<Secret>) -> &Live {
        let again = || secret_of(self.generation).expect("only keys that can be made again are dropped");
        self.live.get_or_insert_with(|| Box::new(Live::new(&again(), cipher)))
    }

    pub(super) fn prepare(&mut self, cipher: Cipher, secret_of: impl Fn(u64) -> Option<Secret>) {
        self.live(cipher, secret_of);
    }

    pub(super) fn is_prepared(&self) -> bool {
        self.live.is_some()
    }

    /// Drops the key, which can be derived again.
    pub(super) fn release_idle(&mut self) {
        self.live = None;
    }
}

/// The keys of a direction at the end that opens, of the previous, the present and the next generation. Packets of
/// others are refused without a decryption, and only a packet that authenticates advances the generation.
#[derive(Debug, Default)]
pub(super) struct Opening {
    pub(super) generation: u64,
    previous: Option<Box<PacketKey>>,
    live: Option<Box<Live>>,
    /// Made for the first packet that claims to be of the next generation, and kept: forged packets make no more keys.
    next: Option<Box<Live>>,
    /// Lets every packet number pass once; used by connections, whose stacks may not check that.
    pub(super) window: Window,
}

impl Opening {
    pub(super) fn new(first: &Secret, cipher: Cipher) -> Self {
        Self { live: Some(Box::new(Live::new(first, cipher))), ..Self::default() }
    }

    /// Authenticates and decrypts a packet in place, as [`Open::open`](haul_proto::Open::open).
    pub(super) fn open(
        &mut self,
        cipher: Cipher,
        secret_of: impl Fn(u64) -> Option<Secret>,
        (packet, header_len): (&mut [u8], usize),
        pn: u64,
    ) -> Result<usize, Unauthentic> {
        let generation = generation_of(pn);
        if generation == self.generation {
            self.live(cipher, secret_of)?.key.open(packet, header_len, pn)
        } else if generation == self.generation + 1 {
            let opened = self.next(cipher, secret_of)?.key.open(packet, header_len, pn)?;
            self.previous =
                std::mem::replace(&mut self.live, self.next.take()).map(|live| Box::new(live.key));
            self.generation = generation;
            Ok(opened)
        } else if generation + 1 == self.generation {
            let again = || secret_of(generation).map(|secret| Box::new(secret.packet_key(cipher)));
            self.previous = self.previous.take().or_else(again);
            self.previous.as_ref().ok_or(Unauthentic)?.open(packet, header_len, pn)
        } else {
            Err(Unauthentic)
        }
    }

    fn live(
        &mut self,
        cipher: Cipher,
        secret_of: impl Fn(u64) -> Option<Secret>,
    ) -> Result<&Live, Unauthentic> {
        let again = || secret_of(self.generation).map(|secret| Box::new(Live::new(&secret, cipher)));
        self.live = self.live.take().or_else(again);
        self.live.as_deref().ok_or(Unauthentic)
    }

    fn next(
        &mut self,
        cipher: Cipher,
        secret_of: impl Fn(u64) -> Option<Secret>,
    ) -> Result<&Live, Unauthentic> {
        if self.next.is_none() {
            self.next = Some(Box::new(Live::new(&self.live(cipher, secret_of)?.next, cipher)));
        }
        self.next.as_deref().ok_or(Unauthentic)
    }

    pub(super) fn prepare(&mut self, cipher: Cipher, secret_of: impl Fn(u64) -> Option<Secret>) {
        // Only keys that can be made again are ever missing.
        let _ = self.live(cipher, secret_of);
    }

    /// Drops the keys, which can be derived again, and all but the latest 64 packet numbers of the window.
    pub(super) fn release_idle(&mut self) {
        (self.live, self.previous, self.next) = (None, None, None);
        self.window.release_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_packets_of_the_next_generation_cost_one_derivation_in_all() {
        let first = Secret::from([1; 32]);
        let mut opening = Opening::new(&first, Cipher::Aes128Gcm);
        let next = 1 << 22;
        let forge = |opening: &mut Opening| {
            assert!(opening.open(Cipher::Aes128Gcm, never_again, (&mut [0; 40], 11), next).is_err());
            std::ptr::from_ref(opening.next.as_deref().unwrap())
        };
        let made = forge(&mut opening);
        assert!((0..5).all(|_| forge(&mut opening) == made));
        // The genuine one is taken with it.
        let mut packet = [3; 40];
        Sealing::new(&first, Cipher::Aes128Gcm).seal_batch(
            Cipher::Aes128Gcm,
            never_again,
            (&mut packet, 40, 11),
            next,
        );
        assert!(opening.open(Cipher::Aes128Gcm, never_again, (&mut packet, 11), next).is_ok());
        assert_eq!((opening.generation, opening.next.is_none()), (1, true));
    }
}
