//! Key derivation from the secret that two ends share: keys of a session, which drops the secret, and of the
//! connections that follow. Both ends keep the secret of a connection, from which the keys of every
//! generation can be derived: dropping used keys, as sessions do, would protect nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_wire::packet::{
    ConnectionId, ControlFrame, ControlFrameKind, FRAME_MAC_LEN, INITIAL_HEADER_LEN, InitialHeader,
};
use haul_wire::secret::Secret;

use super::generation::next_secret;
use crate::connection::Role;

const DATA_CONTEXT: &str = "haulage 5 connection: secret of one direction";
const CONTROL_CONTEXT: &str = "haulage 5 connection: key of initial headers and control frames";

/// Secret from which all keys of a session and of its later connections are derived. Exported from the TLS
/// connection of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumptionSecret(pub Secret);

impl ResumptionSecret {
    fn derive(&self, context: &str, sender: Role, connection: &[u8]) -> Secret {
        let sender = match sender {
            Role::Client => 1,
            Role::Server => 2,
        };
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(self.0.as_bytes()).update(connection).update(&[sender]);
        Secret::from(*hasher.finalize().as_bytes())
    }
}

/// Returns the number of a challenge. It is derived from a key of this end and the challenge's purpose, so
/// that no state is kept for an address that is not validated.
pub(crate) fn challenge_number(key: &[u8; 32], context: &str) -> u32 {
    let hash = blake3::keyed_hash(key, context.as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u32::from_be_bytes(*first)
}

/// Keys that authenticate the initial headers and control frames of a connection at one end. Packet keys
/// cannot be derived from them.
#[derive(Clone, Debug)]
pub struct FrameKeys {
    ours: Secret,
    theirs: Secret,
    /// Connection whose frames these keys authenticate.
    pub id: ConnectionId,
}

impl FrameKeys {
    /// Derives the keys of this connection for the end `role`.
    pub fn new(secret: &ResumptionSecret, id: ConnectionId, role: Role) -> Self {
        let [ours, theirs] = [role, role.peer()].map(|sender| secret.derive(CONTROL_CONTEXT, sender, &[]));
        Self { ours, theirs, id }
    }

    /// Returns a control frame of this end, as a datagram of `size` bytes.
    pub fn frame(&self, kind: ControlFrameKind, number: u32, size: u16) -> Vec<u8> {
        let mut frame = ControlFrame { id: self.id, kind, number, size, mac: [0; FRAME_MAC_LEN] };
        frame.mac = mac(&self.ours, &frame.authenticated());
        let mut datagram = vec![0; size.into()];
        frame.write(&mut datagram);
        datagram
    }

    /// Returns the initial header of this end.
    pub fn initial_header(&self) -> [u8; INITIAL_HEADER_LEN] {
        let mac = mac(&self.ours, &InitialHeader::authenticated(&self.id));
        InitialHeader { id: self.id, mac }.to_bytes()
    }

    /// Whether the frame was sent by the peer of this connection.
    pub fn verifies(&self, frame: &ControlFrame) -> bool {
        frame.id == self.id && self.is_from_peer(&frame.authenticated(), &frame.mac)
    }

    /// Whether the initial header was sent by the peer of this connection.
    pub fn verifies_initial(&self, header: &InitialHeader) -> bool {
        header.id == self.id && self.is_from_peer(&InitialHeader::authenticated(&header.id), &header.mac)
    }

    /// Whether the code is correct; compares in constant time.
    fn is_from_peer(&self, bytes: &[u8], code: &[u8; FRAME_MAC_LEN]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&mac(&self.theirs, bytes), code).is_ok()
    }
}

fn mac(key: &Secret, bytes: &[u8]) -> [u8; FRAME_MAC_LEN] {
    let mut mac = [0; FRAME_MAC_LEN];
    mac.copy_from_slice(&blake3::keyed_hash(key.as_bytes(), bytes).as_bytes()[..FRAME_MAC_LEN]);
    mac
}

/// Source of the keys of both directions at one end of a connection. A server may have many thousand
/// connections, so keys exist only while packets arrive.
#[derive(Debug)]
pub struct ConnectionKeys {
    secret: ResumptionSecret,
    id: ConnectionId,
    pub(super) role: Role,
    /// Highest packet number received and opened, plus one.
    pub(super) opened_end: AtomicU64,
}

impl ConnectionKeys {
    /// Creates the source of this connection's keys for the end `role`.
    pub fn new(secret: &ResumptionSecret, id: &ConnectionId, role: Role) -> Arc<Self> {
        Arc::new(Self { secret: secret.clone(), id: *id, role, opened_end: AtomicU64::new(0) })
    }

    /// Derives the secret of a generation of the direction sent by `sender`. Costs one hash per earlier
    /// generation, each of which took millions of packets.
    pub(super) fn secret_of(&self, sender: Role, generation: u32) -> Secret {
        let connection = [self.id.epoch.to_be_bytes(), self.id.salt.to_be_bytes()].concat();
        let first = self.secret.derive(DATA_CONTEXT, sender, &connection);
        (0..generation).fold(first, |secret, _| next_secret(&secret))
    }
}

/// Connection ID and authentication keys of a connection.
#[derive(Debug)]
pub enum Keys {
    /// Keys of a connection that may be opened again.
    Resumable(Arc<ConnectionKeys>),
    /// Keys of a session: its first secrets are dropped.
    Session(Role, Box<FrameKeys>),
}

impl Keys {
    /// Returns the connection that these keys protect.
    pub fn id(&self) -> ConnectionId {
        match self {
            Self::Resumable(keys) => keys.id,
            Self::Session(_, frames) => frames.id,
        }
    }

    /// Returns the role of this end.
    pub fn role(&self) -> Role {
        match self {
            Self::Resumable(keys) => keys.role,
            Self::Session(role, _) => *role,
        }
    }

    /// Returns the keys of initial headers and control frames: derived each time where memory matters.
    pub fn frames(&self) -> FrameKeys {
        match self {
            Self::Resumable(keys) => FrameKeys::new(&keys.secret, keys.id, keys.role),
            Self::Session(_, frames) => FrameKeys::clone(frames),
        }
    }

    /// Returns the highest packet number received and opened, plus one; 0 for a session, which has one peer.
    pub fn opened_end(&self) -> u64 {
        match self {
            Self::Resumable(keys) => keys.opened_end.load(Ordering::Relaxed),
            Self::Session(..) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
    use haul_stack::{Open, Recipe, Seal, SendOptions, Setup, Stack, StackEvent, Unauthentic};
    use haul_wire::control::Cipher;

    use super::*;

    const CONNECTION: ConnectionId = ConnectionId { identity: 7, epoch: 5, salt: 3 };

    fn ends(id: &ConnectionId) -> [Arc<ConnectionKeys>; 2] {
        let secret = ResumptionSecret([9; 32].into());
        [Role::Client, Role::Server].map(|role| ConnectionKeys::new(&secret, id, role))
    }

    fn sealed(keys: &Arc<ConnectionKeys>, pn: u64) -> [u8; 40] {
        let mut packet = [1; 40];
        keys.pair(Cipher::Aes128Gcm).0.seal_batch(&mut packet, 40, 11, pn);
        packet
    }

    #[test]
    fn every_packet_opens_once_and_only_in_its_connection() {
        let [client, server] = ends(&CONNECTION);
        let packet = sealed(&client, 5);
        let mut open = server.pair(Cipher::Aes128Gcm).1;
        assert_eq!(open.open(&mut packet.clone(), 11, 5), Ok(13));
        assert_eq!(open.open(&mut packet.clone(), 11, 5), Err(Unauthentic));
        for other in [ConnectionId { epoch: 6, ..CONNECTION }, ConnectionId { salt: 4, ..CONNECTION }] {
            let [other_client, other_server] = ends(&other);
            assert!(other_server.pair(Cipher::Aes128Gcm).1.open(&mut packet.clone(), 11, 5).is_err());
            assert!(client.pair(Cipher::Aes128Gcm).1.open(&mut sealed(&other_client, 6), 11, 6).is_err());
        }
        // The other direction has another key.
        assert!(client.pair(Cipher::Aes128Gcm).1.open(&mut packet.clone(), 11, 5).is_err());
    }

    #[test]
    fn after_an_idle_time_keys_are_restored_and_the_window_kept() {
        let [client, server] = ends(&CONNECTION);
        let mut open = server.pair(Cipher::Aes128Gcm).1;
        let first = sealed(&client, 1);
        assert!(open.open(&mut first.clone(), 11, 1).is_ok());
        open.release_idle();
        assert!(open.open(&mut sealed(&client, 2), 11, 2).is_ok());
        assert!(open.open(&mut first.clone(), 11, 1).is_err());
    }

    #[test]
    fn dropped_keys_are_derived_again_unchanged() {
        for cipher in [Cipher::None, Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let [(from_client, at_client), (from_server, at_server)] =
                ends(&CONNECTION).map(|keys| keys.pair(cipher));
            for (mut seal, mut open) in [(from_client, at_server), (from_server, at_client)] {
                for pn in 5..8 {
                    let mut packet = [1; 40];
                    seal.seal_batch(&mut packet, 40, 11, pn);
                    assert!(open.open(&mut packet, 11, pn).is_ok());
                    seal.release_idle();
                    open.release_idle();
                }
            }
        }
    }

    #[test]
    fn generations_follow_packet_numbers_and_forgeries_do_not_advance_them() {
        let [client, server] = ends(&CONNECTION);
        let mut open = server.pair(Cipher::Aes128Gcm).1;
        let next = 1 << 22;
        assert!(open.open(&mut sealed(&client, next - 2), 11, next - 2).is_ok());
        assert!(open.open(&mut [0; 40], 11, next + 5).is_err());
        let late = sealed(&client, next - 1);
        assert!(open.open(&mut sealed(&client, next), 11, next).is_ok());
        assert!(open.open(&mut late.clone(), 11, next - 1).is_ok());
        assert!(open.open(&mut sealed(&client, next + 1), 11, next + 1).is_ok());
    }

    #[test]
    fn an_idle_time_in_any_generation_changes_nothing() {
        let [client, server] = ends(&CONNECTION);
        let mut open = server.pair(Cipher::Aes128Gcm).1;
        for generation in 1..4 {
            let first = generation << 22;
            let [before, late, next] = [first - 2, first - 1, first].map(|pn| sealed(&client, pn));
            assert!(open.open(&mut before.clone(), 11, first - 2).is_ok());
            assert!(open.open(&mut next.clone(), 11, first).is_ok());
            open.release_idle();
            assert!(open.open(&mut late.clone(), 11, first - 1).is_ok(), "the generation before");
            for (packet, pn) in [(before, first - 2), (late, first - 1), (next, first)] {
                assert!(open.open(&mut packet.clone(), 11, pn).is_err(), "{pn} a second time");
            }
        }
    }

    #[test]
    fn codes_depend_on_sender_connection_and_bytes() {
        let keys = |secret: u8, id, role| FrameKeys::new(&ResumptionSecret([secret; 32].into()), id, role);
        let client = keys(9, CONNECTION, Role::Client);
        let header = InitialHeader::parse(&client.initial_header()).unwrap().0;
        let frame = ControlFrame::parse(&client.frame(ControlFrameKind::Ping, 5, 36)).unwrap();
        let other = ConnectionId { salt: 4, ..CONNECTION };
        for (end, expected) in [
            (keys(9, CONNECTION, Role::Server), true),
            (client, false),
            (keys(9, other, Role::Server), false),
            (keys(8, CONNECTION, Role::Server), false),
        ] {
            assert_eq!((end.verifies(&frame), end.verifies_initial(&header)), (expected, expected));
            assert!(!end.verifies(&ControlFrame { number: 6, ..frame }));
            assert!(!end.verifies(&ControlFrame { size: 37, ..frame }), "the size is authenticated");
            assert!(!end.verifies_initial(&InitialHeader { id: other, ..header }));
        }
    }

    #[test]
    fn a_session_has_other_keys_than_the_connections_after_it() {
        let secret = ResumptionSecret([9; 32].into());
        let id = ConnectionId::of_session(CONNECTION.identity);
        let session = |role| ConnectionKeys::new(&secret, &id, role).session_pair(Cipher::Aes128Gcm);
        let mut packet = [1; 40];
        session(Role::Client).0.seal_batch(&mut packet, 40, 11, 0);
        assert!(ends(&CONNECTION)[1].pair(Cipher::Aes128Gcm).1.open(&mut packet.clone(), 11, 0).is_err());
        assert!(session(Role::Client).1.open(&mut packet.clone(), 11, 0).is_err());
        assert!(session(Role::Server).1.open(&mut packet, 11, 0).is_ok());
    }

    /// The stacks of both ends, without retransmission.
    fn stacks(recipe: &Recipe) -> [Stack; 2] {
        let compiled = Arc::new(crate::micro::registry()).compile(recipe, 16).unwrap();
        ends(&CONNECTION).map(|keys| {
            let initiator = keys.role == Role::Client;
            let setup =
                Setup { initiator, keys: Some(keys.pair(Cipher::Aes128Gcm)), ..Setup::new(Time::ZERO) };
            Stack::new(compiled.clone(), setup).unwrap()
        })
    }

    fn sent(stack: &mut Stack, now: Time) -> Vec<u8> {
        let mut slot = vec![0; 65_536];
        let len = stack.poll_transmit(now, &mut slot).map_or(0, |sent| sent.len);
        slot.truncate(len);
        slot
    }

    fn deliver(data: &mut [u8], stride: usize, to: &mut Stack, now: Time) {
        let (path, ecn) = (PathId::default(), Ecn::NotEct);
        to.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
    }

    /// Both ends just before the first packet of the new recipe.
    fn before_change() -> [Stack; 2] {
        let recipe = Recipe::new("x").with("fixed_size").with("transport_driver").with("seal");
        let mut ends = stacks(&recipe);
        ends[0].reconfigure(Time::ZERO, &recipe.with("sequenced_segment")).unwrap();
        // PROPOSE and READY.
        for (from, to) in [(0, 1), (1, 0)] {
            let mut packets = sent(&mut ends[from], Time::ZERO);
            let len = packets.len();
            deliver(&mut packets, len, &mut ends[to], Time::ZERO);
        }
        assert_eq!(ends.each_ref().map(|end| end.recipe().has("sequenced_segment")), [true, false]);
        ends
    }

    #[test]
    fn the_first_packet_of_a_new_recipe_is_not_lost() {
        let [mut client, mut server] = before_change();
        client.send(Time::ZERO, b"first of the new", SendOptions::default()).unwrap();
        let commit = sent(&mut client, Time::ZERO);
        let mut data = sent(&mut client, Time::ZERO);
        assert!(commit.len() < data.len());
        let len = data.len();
        deliver(&mut data, len, &mut server, Time::ZERO);
        assert_eq!(server.recv().unwrap().1.to_vec(), b"first of the new");
        assert_eq!(server.stats().unauthentic, 0);
    }

    #[test]
    fn packets_of_old_and_new_recipe_can_interleave() {
        let [mut client, mut server] = before_change();
        let later = Time::ZERO + Span::from_secs(1);
        let mut run = sent(&mut client, Time::ZERO);
        let stride = run.len();
        run.extend(sent(&mut client, later));
        assert_eq!(run.len(), 2 * stride);
        // A stranger's packet before them changes nothing.
        let mut other_run = run.clone();
        other_run[stride - 1] ^= 1;
        deliver(&mut other_run[..stride], stride, &mut server, later);
        assert!(!server.recipe().has("sequenced_segment") && server.stats().unauthentic == 1);
        deliver(&mut run, stride, &mut server, later);
        assert!(server.recipe().has("sequenced_segment"));
        let mut done = sent(&mut server, later);
        let stride = done.len();
        deliver(&mut done, stride, &mut client, later);
        assert_eq!(client.poll_event(), Some(StackEvent::Reconfigured));
        assert_eq!(server.stats().unauthentic, 1);
    }
}
