//! Keys of a flight: made from the ticket when they are first needed, dropped while nothing is sent, and with a
//! window that lets every packet number pass once. Who holds the ticket can make the keys of every generation, so
//! keeping the secrets of a flight beside it would protect nothing.

use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_proto::{Open, Seal, Unauthentic};
use haul_wire::control::Cipher;
use haul_wire::packet::{FLIGHT_MAC_LEN, Flight};

use super::generation::{PacketKey, generation_of, tag_len};
use crate::{Role, Secret};

const DATA_CONTEXT: &str = "haulage 1 association: secret of one direction of a flight";
const WORD_CONTEXT: &str = "haulage 1 association: key of opening headers and words";
/// Words of 64 packet numbers by which a packet may be overtaken and still be taken.
const WINDOW_WORDS: usize = 16;

/// What both ends of an association know: exported from the TLS connection over which it was made.
#[derive(Clone)]
pub(crate) struct TicketSecret(pub(crate) Secret);

impl TicketSecret {
    fn flight_secret(&self, flight: &Flight, sender: Role) -> Secret {
        let mut hasher = blake3::Hasher::new_derive_key(DATA_CONTEXT);
        hasher
            .update(self.0.as_bytes())
            .update(&flight.epoch.to_be_bytes())
            .update(&flight.salt.to_be_bytes());
        Secret::from(*hasher.update(&[role_byte(sender)]).finalize().as_bytes())
    }

    /// The authentication code of an opening header or a word.
    pub(crate) fn mac(&self, sender: Role, bytes: &[u8]) -> [u8; FLIGHT_MAC_LEN] {
        let mut hasher = blake3::Hasher::new_derive_key(WORD_CONTEXT);
        let key = hasher.update(self.0.as_bytes()).update(&[role_byte(sender)]).finalize();
        let mut mac = [0; FLIGHT_MAC_LEN];
        mac.copy_from_slice(&blake3::keyed_hash(key.as_bytes(), bytes).as_bytes()[..FLIGHT_MAC_LEN]);
        mac
    }

    /// Whether an authentication code is right; takes the same time wherever it differs.
    pub(crate) fn verifies(&self, sender: Role, bytes: &[u8], mac: &[u8; FLIGHT_MAC_LEN]) -> bool {
        let ours = self.mac(sender, bytes);
        aws_lc_rs::constant_time::verify_slices_are_equal(&ours, mac).is_ok()
    }
}

fn role_byte(role: Role) -> u8 {
    match role {
        Role::Client => 1,
        Role::Server => 2,
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret(..)")
    }
}

/// Both directions' keys of one end of a flight, and what they are made from: a base station has many thousand flights,
/// so whatever can be made again is there only while packets come.
pub(crate) struct FlightKeys {
    ticket: TicketSecret,
    flight: Flight,
    role: Role,
    cipher: Cipher,
    sealing: Mutex<Direction>,
    opening: Mutex<Opening>,
}

/// Where one direction stands.
#[derive(Default)]
struct Direction {
    generation: u64,
    live: Option<Box<Live>>,
}

/// The secret and the key of the present generation, while they are in use.
struct Live {
    secret: Secret,
    key: PacketKey,
}

impl Live {
    fn new(secret: Secret, cipher: Cipher) -> Self {
        Self { key: secret.packet_key(cipher), secret }
    }
}

#[derive(Default)]
struct Opening {
    direction: Direction,
    /// Key of the generation before, for packets that were overtaken.
    previous: Option<Box<Live>>,
    window: Window,
}

impl FlightKeys {
    /// The keys of `role`'s end.
    pub(crate) fn new(ticket: &TicketSecret, flight: &Flight, role: Role, cipher: Cipher) -> Arc<Self> {
        let (ticket, flight) = (ticket.clone(), *flight);
        Arc::new(Self { ticket, flight, role, cipher, sealing: Mutex::default(), opening: Mutex::default() })
    }

    /// What a stack takes as its keys.
    pub(crate) fn pair(self: &Arc<Self>) -> (Box<dyn Seal>, Box<dyn Open>) {
        (
            Box::new(FlightSealer { keys: self.clone(), lowest_unused: 0 }),
            Box::new(FlightOpener(self.clone())),
        )
    }

    pub(crate) fn flight(&self) -> Flight {
        self.flight
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// This end's authentication code of an opening header or a word.
    pub(crate) fn mac(&self, bytes: &[u8]) -> [u8; FLIGHT_MAC_LEN] {
        self.ticket.mac(self.role, bytes)
    }

    /// Makes the keys now and has the cipher's code in memory, so that the first message need not wait for that.
    pub(crate) fn prepare(&self) {
        let mut sealing = lock(&self.sealing);
        if sealing.live.is_none() {
            self.live(&mut sealing, self.role);
            self.live(&mut lock(&self.opening).direction, self.role.peer());
            rehearse(self.cipher);
        }
    }

    /// Drops what can be made again when it is needed.
    pub(crate) fn rest(&self) {
        lock(&self.sealing).live = None;
        let mut opening = lock(&self.opening);
        opening.direction.live = None;
        opening.previous = None;
        opening.window.rest();
    }

    /// The secret of a generation, from the ticket: one hash for each generation before it, and each of them took
    /// millions of packets.
    fn secret_of(&self, sender: Role, generation: u64) -> Secret {
        let first = self.ticket.flight_secret(&self.flight, sender);
        (0..generation).fold(first, |secret, _| secret.next())
    }

    /// What the present generation of a direction works with.
    fn live<'d>(&self, direction: &'d mut Direction, sender: Role) -> &'d Live {
        let generation = direction.generation;
        direction
            .live
            .get_or_insert_with(|| Box::new(Live::new(self.secret_of(sender, generation), self.cipher)))
    }

    /// The next generation of a direction, which begins with a packet that is known to be genuine.
    fn after(&self, direction: &mut Direction, sender: Role) -> Live {
        Live::new(self.live(direction, sender).secret.next(), self.cipher)
    }

    fn open(&self, opening: &mut Opening, packet: &mut [u8], header_len: usize, pn: u64) -> Opened {
        let (sender, direction) = (self.role.peer(), &mut opening.direction);
        let (generation, present) = (generation_of(pn), direction.generation);
        if generation == present {
            self.live(direction, sender).key.open(packet, header_len, pn)
        } else if generation == present + 1 {
            let next = self.after(direction, sender);
            let opened = next.key.open(packet, header_len, pn)?;
            opening.previous = direction.live.replace(Box::new(next));
            direction.generation = generation;
            Ok(opened)
        } else if generation + 1 == present {
            let previous = &mut opening.previous;
            let live = || Box::new(Live::new(self.secret_of(sender, generation), self.cipher));
            previous.get_or_insert_with(live).key.open(packet, header_len, pn)
        } else {
            Err(Unauthentic)
        }
    }
}

/// Seals and opens a packet with a key that nobody uses: the first use of the code waits for its pages.
fn rehearse(cipher: Cipher) {
    let key = Secret::from([0; 32]).packet_key(cipher);
    let mut packet = [0; 64];
    key.seal(&mut packet, 16, 0);
    black_box(key.open(&mut packet, 16, 0)).ok();
}

type Opened = Result<usize, Unauthentic>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made key behind: keys are put in place whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for FlightKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightKeys").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct FlightSealer {
    keys: Arc<FlightKeys>,
    /// No packet number below this one is used again.
    lowest_unused: u64,
}

impl Seal for FlightSealer {
    fn tag_len(&self) -> usize {
        tag_len(self.keys.cipher)
    }

    /// # Panics
    /// When a packet number would be used twice: that would give away the plaintext.
    fn seal_batch(&mut self, batch: &mut [u8], stride: usize, header_len: usize, first_pn: u64) {
        assert!(first_pn >= self.lowest_unused, "packet number {first_pn} has been used before");
        let (keys, mut direction) = (&self.keys, lock(&self.keys.sealing));
        let mut pn = first_pn;
        for packet in batch.chunks_mut(stride.max(1)) {
            while direction.generation < generation_of(pn) {
                let next = keys.after(&mut direction, keys.role);
                direction.live = Some(Box::new(next));
                direction.generation += 1;
            }
            keys.live(&mut direction, keys.role).key.seal(packet, header_len, pn);
            pn += 1;
        }
        self.lowest_unused = pn;
    }
}

#[derive(Debug)]
struct FlightOpener(Arc<FlightKeys>);

impl Open for FlightOpener {
    fn open(&mut self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let mut opening = lock(&self.0.opening);
        if !opening.window.is_new(pn) {
            return Err(Unauthentic);
        }
        let len = self.0.open(&mut opening, packet, header_len, pn)?;
        opening.window.mark(pn);
        Ok(len)
    }
}

/// Which of the latest packet numbers have come.
#[derive(Default)]
struct Window {
    /// One more than the highest that has come.
    end: u64,
    /// While the flight rests: bit `pn % 64` for each of the last 64; what is older counts as seen.
    latest: u64,
    /// While packets come: bit `pn % 1024` for each of the last 1,024.
    seen: Option<Box<[u64; WINDOW_WORDS]>>,
}

impl Window {
    const LEN: u64 = 64 * WINDOW_WORDS as u64;

    fn place(pn: u64) -> (usize, u64) {
        ((pn / 64) as usize % WINDOW_WORDS, 1 << (pn % 64))
    }

    fn is_new(&self, pn: u64) -> bool {
        let (word, bit) = Self::place(pn);
        let within = |len: u64| pn + len >= self.end;
        pn >= self.end
            || match &self.seen {
                Some(seen) => within(Self::LEN) && seen[word] & bit == 0,
                None => within(64) && self.latest & bit == 0,
            }
    }

    fn mark(&mut self, pn: u64) {
        let end = self.end;
        let mut seen = self.seen.take().unwrap_or_else(|| Box::new(self.awake()));
        if pn >= end {
            if pn - end >= Self::LEN {
                seen.fill(0);
            } else {
                for skipped in end..pn {
                    let (word, bit) = Self::place(skipped);
                    seen[word] &= !bit;
                }
            }
            self.end = pn + 1;
        }
        let (word, bit) = Self::place(pn);
        seen[word] |= bit;
        self.seen = Some(seen);
    }

    /// All bits from the latest: what is older than they say has come.
    fn awake(&self) -> [u64; WINDOW_WORDS] {
        let mut seen = [u64::MAX; WINDOW_WORDS];
        for pn in self.end.saturating_sub(64)..self.end {
            let (word, bit) = Self::place(pn);
            if self.latest & bit == 0 {
                seen[word] &= !bit;
            }
        }
        seen
    }

    /// Keeps the latest only.
    fn rest(&mut self) {
        let Some(seen) = self.seen.take() else { return };
        self.latest = (self.end.saturating_sub(64)..self.end)
            .map(Self::place)
            .fold(0, |latest, (word, bit)| latest | seen[word] & bit);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
    use haul_stack::{Recipe, SendOptions, Setup, Stack, StackEvent};
    use proptest::prelude::*;

    use super::*;

    const FLIGHT: Flight = Flight { identity: 7, epoch: 5, salt: 3 };

    fn ends(flight: &Flight) -> [Arc<FlightKeys>; 2] {
        let secret = TicketSecret([9; 32].into());
        [Role::Client, Role::Server].map(|role| FlightKeys::new(&secret, flight, role, Cipher::Aes128Gcm))
    }

    fn sealed(keys: &Arc<FlightKeys>, pn: u64) -> [u8; 40] {
        let mut packet = [1; 40];
        keys.pair().0.seal_batch(&mut packet, 40, 11, pn);
        packet
    }

    #[test]
    fn every_packet_opens_once_at_the_other_end_of_the_same_flight_only() {
        let [client, server] = ends(&FLIGHT);
        let packet = sealed(&client, 5);
        let mut open = server.pair().1;
        assert_eq!(open.open(&mut packet.clone(), 11, 5), Ok(13));
        assert_eq!(open.open(&mut packet.clone(), 11, 5), Err(Unauthentic));
        for other in [Flight { epoch: 6, ..FLIGHT }, Flight { salt: 4, ..FLIGHT }] {
            let [other_client, other_server] = ends(&other);
            assert!(other_server.pair().1.open(&mut packet.clone(), 11, 5).is_err());
            assert!(client.pair().1.open(&mut sealed(&other_client, 6), 11, 6).is_err());
        }
        // Its own direction has another key.
        assert!(client.pair().1.open(&mut packet.clone(), 11, 5).is_err());
    }

    #[test]
    fn after_a_rest_keys_come_back_and_the_window_stays() {
        let [client, server] = ends(&FLIGHT);
        let mut open = server.pair().1;
        let first = sealed(&client, 1);
        assert!(open.open(&mut first.clone(), 11, 1).is_ok());
        server.rest();
        client.rest();
        assert!(open.open(&mut sealed(&client, 2), 11, 2).is_ok());
        assert!(open.open(&mut first.clone(), 11, 1).is_err());
    }

    #[test]
    fn keys_that_were_prepared_are_those_that_are_made_when_needed() {
        for cipher in [Cipher::None, Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let ends = |role| FlightKeys::new(&TicketSecret([9; 32].into()), &FLIGHT, role, cipher);
            let (client, server) = (ends(Role::Client), ends(Role::Server));
            client.prepare();
            assert!(lock(&client.sealing).live.is_some() && lock(&client.opening).direction.live.is_some());
            assert!(server.pair().1.open(&mut sealed(&client, 5), 11, 5).is_ok());
            assert!(client.pair().1.open(&mut sealed(&server, 5), 11, 5).is_ok());
            server.rest();
            server.prepare();
            assert!(server.pair().1.open(&mut sealed(&client, 6), 11, 6).is_ok());
        }
    }

    #[test]
    fn generations_follow_the_packet_numbers_and_forgeries_move_nothing() {
        let [client, server] = ends(&FLIGHT);
        let mut open = server.pair().1;
        let next = 1 << 22;
        assert!(open.open(&mut sealed(&client, next - 2), 11, next - 2).is_ok());
        assert!(open.open(&mut [0; 40], 11, next + 5).is_err());
        let late = sealed(&client, next - 1);
        assert!(open.open(&mut sealed(&client, next), 11, next).is_ok());
        assert!(open.open(&mut late.clone(), 11, next - 1).is_ok());
        assert!(open.open(&mut sealed(&client, next + 1), 11, next + 1).is_ok());
    }

    #[test]
    fn a_rest_in_any_generation_changes_nothing() {
        let [client, server] = ends(&FLIGHT);
        let mut open = server.pair().1;
        for generation in 1..4 {
            let first = generation << 22;
            let [before, late, next] = [first - 2, first - 1, first].map(|pn| sealed(&client, pn));
            assert!(open.open(&mut before.clone(), 11, first - 2).is_ok());
            assert!(open.open(&mut next.clone(), 11, first).is_ok());
            server.rest();
            client.rest();
            assert!(open.open(&mut late.clone(), 11, first - 1).is_ok(), "the generation before");
            for (packet, pn) in [(before, first - 2), (late, first - 1), (next, first)] {
                assert!(open.open(&mut packet.clone(), 11, pn).is_err(), "{pn} a second time");
            }
        }
    }

    #[test]
    fn codes_are_of_their_sender_and_bytes() {
        let secret = TicketSecret([9; 32].into());
        let mac = secret.mac(Role::Client, b"word");
        assert!(secret.verifies(Role::Client, b"word", &mac));
        assert!(!secret.verifies(Role::Server, b"word", &mac));
        assert!(!secret.verifies(Role::Client, b"work", &mac));
        assert!(!TicketSecret([8; 32].into()).verifies(Role::Client, b"word", &mac));
    }

    /// The stacks of both ends, without repair of what is lost.
    fn stacks(recipe: &Recipe) -> [Stack; 2] {
        let blueprint = Arc::new(haul_proto::micro::registry()).compile(recipe, 16).unwrap();
        ends(&FLIGHT).map(|keys| {
            let initiator = keys.role() == Role::Client;
            let setup = Setup { initiator, keys: Some(keys.pair()), ..Setup::new(Time::ZERO) };
            Stack::new(blueprint.clone(), setup).unwrap()
        })
    }

    fn sent(stack: &mut Stack, now: Time) -> Vec<u8> {
        let mut slot = vec![0; 65_536];
        let len = stack.poll_transmit(now, &mut slot).map_or(0, |sent| sent.len);
        slot.truncate(len);
        slot
    }

    fn carry(data: &mut [u8], stride: usize, to: &mut Stack, now: Time) {
        let (path, ecn) = (PathId::default(), Ecn::NotEct);
        to.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
    }

    /// Both ends so far that the first packet of the new recipe comes next.
    fn about_to_change() -> [Stack; 2] {
        let recipe = Recipe::new("x").with("fixed_size").with("transport_driver").with("seal");
        let mut ends = stacks(&recipe);
        ends[0].reconfigure(Time::ZERO, &recipe.with("sequenced_segment")).unwrap();
        // PROPOSE and READY.
        for (from, to) in [(0, 1), (1, 0)] {
            let mut said = sent(&mut ends[from], Time::ZERO);
            let len = said.len();
            carry(&mut said, len, &mut ends[to], Time::ZERO);
        }
        assert_eq!(ends.each_ref().map(|end| end.recipe().has("sequenced_segment")), [true, false]);
        ends
    }

    #[test]
    fn the_packet_that_begins_a_new_recipe_is_not_lost() {
        let [mut client, mut server] = about_to_change();
        client.send(Time::ZERO, b"first of the new", SendOptions::default()).unwrap();
        let commit = sent(&mut client, Time::ZERO);
        let mut data = sent(&mut client, Time::ZERO);
        assert!(commit.len() < data.len());
        let len = data.len();
        carry(&mut data, len, &mut server, Time::ZERO);
        assert_eq!(server.recv().unwrap().1.to_vec(), b"first of the new");
        assert_eq!(server.stats().unauthentic, 0);
    }

    #[test]
    fn packets_of_a_new_recipe_may_come_side_by_side() {
        let [mut client, mut server] = about_to_change();
        let later = Time::ZERO + Span::from_secs(1);
        let mut run = sent(&mut client, Time::ZERO);
        let stride = run.len();
        run.extend(sent(&mut client, later));
        assert_eq!(run.len(), 2 * stride);
        // A stranger's in front of them changes nothing.
        let mut strange = run.clone();
        strange[stride - 1] ^= 1;
        carry(&mut strange[..stride], stride, &mut server, later);
        assert!(!server.recipe().has("sequenced_segment") && server.stats().unauthentic == 1);
        carry(&mut run, stride, &mut server, later);
        assert!(server.recipe().has("sequenced_segment"));
        let mut done = sent(&mut server, later);
        let stride = done.len();
        carry(&mut done, stride, &mut client, later);
        assert_eq!(client.poll_event(), Some(StackEvent::Reconfigured));
        assert_eq!(server.stats().unauthentic, 1);
    }

    proptest! {
        /// The window never lets a number pass twice, and never refuses a new one that is not too old: for one that
        /// has rested, 64 back from where it stood then.
        #[test]
        fn the_window_agrees_with_a_set(steps in prop::collection::vec((0u64..3_000, 0u32..20), 1..400)) {
            let (mut window, mut seen, mut end, mut floor) = (Window::default(), HashSet::new(), 0u64, 0);
            for (pn, rest) in steps {
                if rest == 0 {
                    window.rest();
                    floor = floor.max(end.saturating_sub(64));
                }
                let fresh = !seen.contains(&pn);
                let expected = fresh && pn >= floor && pn + Window::LEN >= end;
                prop_assert_eq!(window.is_new(pn), expected, "pn {}", pn);
                if expected {
                    window.mark(pn);
                    seen.insert(pn);
                    end = end.max(pn + 1);
                }
            }
        }
    }
}
