//! Keys of one direction, for sealing or opening: a ratchet over generations. A session drops used keys, so
//! that an attacker who takes over this end later cannot read earlier packets. A connection's keys can be
//! derived again; they are dropped while it is idle.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_stack::{Open, Seal, Unauthentic};
use haul_wire::control::Cipher;
use haul_wire::secret::Secret;

use super::generation::{PacketKey, generation_of, next_secret, tag_len};
use super::keys::ConnectionKeys;
use crate::connection::{ReplayWindow, Role};

/// Key of a generation, and secret of the next.
#[derive(Debug)]
struct ActiveKeys {
    key: PacketKey,
    next: Secret,
}

impl ActiveKeys {
    fn new(secret: &Secret, cipher: Cipher) -> Self {
        Self { key: PacketKey::of(secret, cipher), next: next_secret(secret) }
    }
}

/// Source from which the keys of a direction can be derived again; `None`: they are a session's.
type Origin = Option<Arc<ConnectionKeys>>;

/// Derives the secret of a generation of the direction sent by `sender`.
fn rederive(origin: &Origin, sender: fn(Role) -> Role, generation: u32) -> Option<Secret> {
    origin.as_ref().map(|keys| keys.secret_of(sender(keys.role), generation))
}

/// Seals the packets of one direction.
#[derive(Debug)]
pub struct Sealer {
    origin: Origin,
    cipher: Cipher,
    generation: u32,
    live: Option<Box<ActiveKeys>>,
    /// Lowest packet number that may still be used.
    lowest_unused: u64,
}

impl Sealer {
    /// Creates a sealer from the direction's first secret. Used keys are dropped.
    pub fn new(first: impl Into<Secret>, cipher: Cipher) -> Self {
        let live = Some(Box::new(ActiveKeys::new(&first.into(), cipher)));
        Self { origin: None, cipher, generation: 0, live, lowest_unused: 0 }
    }

    fn advance_to(&mut self, generation: u32) {
        while self.generation < generation {
            self.live = self.live.take().map(|live| Box::new(ActiveKeys::new(&live.next, self.cipher)));
            self.generation += 1;
        }
    }

    fn live(&mut self) -> &ActiveKeys {
        let rederive = || rederive(&self.origin, |ours| ours, self.generation);
        let rederive = || rederive().expect("only keys that can be made again are dropped");
        self.live.get_or_insert_with(|| Box::new(ActiveKeys::new(&rederive(), self.cipher)))
    }
}

impl Seal for Sealer {
    fn tag_len(&self) -> usize {
        tag_len(self.cipher)
    }

    /// # Panics
    /// If a packet number were used twice: that would reveal plaintext.
    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, header_len: usize, first_pn: u64) {
        assert!(first_pn >= self.lowest_unused, "packet number {first_pn} has been used before");
        let mut pn = first_pn;
        for packet in batch.chunks_mut(stride.max(1)) {
            self.advance_to(generation_of(pn));
            self.live().key.seal(packet, header_len, pn);
            pn += 1;
        }
        self.lowest_unused = pn;
    }

    fn release_idle(&mut self) {
        self.live.take_if(|_| self.origin.is_some());
    }
}

/// Opens the packets of one direction, of the previous, current and next generation. Packets of others are
/// refused without decryption, and only an authentic packet advances the generation.
#[derive(Debug)]
pub struct Opener {
    origin: Origin,
    cipher: Cipher,
    generation: u32,
    previous: Option<Box<PacketKey>>,
    live: Option<Box<ActiveKeys>>,
    /// Derived for the first packet that claims to be of the next generation, and kept: forged packets cause
    /// no further derivations.
    next: Option<Box<ActiveKeys>>,
    /// Accepts each packet number once; used by connections, whose stacks may not check that.
    window: ReplayWindow,
}

impl Opener {
    /// As [`Sealer::new`], from the same secret at the other end.
    pub fn new(first: impl Into<Secret>, cipher: Cipher) -> Self {
        let (live, window) =
            (Some(Box::new(ActiveKeys::new(&first.into(), cipher))), ReplayWindow::default());
        Self { origin: None, cipher, generation: 0, previous: None, live, next: None, window }
    }

    fn rederive(&self, generation: u32) -> Option<Secret> {
        rederive(&self.origin, Role::peer, generation)
    }

    fn open_once(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let generation = generation_of(pn);
        if generation == self.generation {
            self.live()?.key.open(packet, header_len, pn)
        } else if generation == self.generation + 1 {
            let opened = self.next()?.key.open(packet, header_len, pn)?;
            self.previous =
                std::mem::replace(&mut self.live, self.next.take()).map(|live| Box::new(live.key));
            self.generation = generation;
            Ok(opened)
        } else if generation + 1 == self.generation {
            if self.previous.is_none() {
                self.previous =
                    self.rederive(generation).map(|secret| Box::new(PacketKey::of(&secret, self.cipher)));
            }
            self.previous.as_ref().ok_or(Unauthentic)?.open(packet, header_len, pn)
        } else {
            Err(Unauthentic)
        }
    }

    fn live(&mut self) -> Result<&ActiveKeys, Unauthentic> {
        if self.live.is_none() {
            self.live =
                self.rederive(self.generation).map(|secret| Box::new(ActiveKeys::new(&secret, self.cipher)));
        }
        self.live.as_deref().ok_or(Unauthentic)
    }

    fn next(&mut self) -> Result<&ActiveKeys, Unauthentic> {
        if self.next.is_none() {
            let cipher = self.cipher;
            self.next = Some(Box::new(ActiveKeys::new(&self.live()?.next, cipher)));
        }
        self.next.as_deref().ok_or(Unauthentic)
    }
}

impl Open for Opener {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        if self.origin.is_some() && !self.window.is_new(pn) {
            return Err(Unauthentic);
        }
        let len = self.open_once(packet, header_len, pn)?;
        if let Some(origin) = &self.origin {
            self.window.mark(pn);
            origin.opened_end.store(self.window.end(), Ordering::Relaxed);
        }
        Ok(len)
    }

    /// Keeps only the latest 64 packet numbers of the window.
    fn release_idle(&mut self) {
        if self.origin.is_some() {
            (self.live, self.previous, self.next) = (None, None, None);
            self.window.release_idle();
        }
    }
}

impl ConnectionKeys {
    /// Returns a pair of ciphers for a stack, whose keys can be derived again. Touches the cipher's code so
    /// that the first message is not delayed.
    pub fn pair(self: &Arc<Self>, cipher: Cipher) -> (Box<dyn Seal>, Box<dyn Open>) {
        rehearse(cipher);
        let (sealer, opener) = self.session_pair(cipher);
        let origin = || Some(self.clone());
        (Box::new(Sealer { origin: origin(), ..sealer }), Box::new(Opener { origin: origin(), ..opener }))
    }

    /// Returns the pair of ciphers of a session, which drops keys as they are used.
    pub fn session_pair(&self, cipher: Cipher) -> (Sealer, Opener) {
        let [ours, theirs] = [self.role, self.role.peer()].map(|sender| self.secret_of(sender, 0));
        (Sealer::new(ours, cipher), Opener::new(theirs, cipher))
    }
}

/// Seals and opens a packet with an unused key: the first use of the code causes page faults.
fn rehearse(cipher: Cipher) {
    let key = PacketKey::of(&Secret::from([0; 32]), cipher);
    let mut packet = [0; 64];
    key.seal(&mut packet, 16, 0);
    black_box(key.open(&mut packet, 16, 0)).ok();
}

#[cfg(test)]
#[path = "direction_tests.rs"]
mod tests;
