use proptest::prelude::*;

use super::*;

const CIPHERS: [Cipher; 4] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None];
const HEADER: usize = 7;
const GENERATION: u64 = 1 << 22;

/// First secret of each direction.
struct Keys {
    cipher: Cipher,
    from_client: [u8; 32],
    from_server: [u8; 32],
}

impl Keys {
    fn sealer(&self, role: Role) -> Sealer {
        Sealer::new(self.sent_by(role), self.cipher)
    }

    /// Opens what the peer of `role` sends.
    fn opener(&self, role: Role) -> Opener {
        Opener::new(self.sent_by(role.peer()), self.cipher)
    }

    fn sent_by(&self, role: Role) -> [u8; 32] {
        if role == Role::Client { self.from_client } else { self.from_server }
    }
}

fn keys(cipher: Cipher) -> Keys {
    Keys { cipher, from_client: [1; 32], from_server: [2; 32] }
}

/// A packet as laid out by the machines, not yet sealed.
fn plain(pn: u64, body: &[u8], tag_len: usize) -> Vec<u8> {
    let mut packet = vec![1];
    packet.extend_from_slice(&pn.to_be_bytes()[2..]);
    packet.extend_from_slice(body);
    packet.resize(packet.len() + tag_len, 0);
    packet
}

fn sealed(sealer: &mut Sealer, pn: u64, body: &[u8]) -> Vec<u8> {
    let mut packet = plain(pn, body, sealer.tag_len());
    let len = packet.len();
    sealer.seal_batch(&mut packet, len, HEADER, pn);
    packet
}

#[test]
fn a_packet_can_be_opened_only_by_the_peer() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let (mut client, mut server) = (keys.sealer(Role::Client), keys.opener(Role::Server));
        let mut packet = sealed(&mut client, 9, b"some body");
        let copy = packet.clone();
        let len = server.open(&mut packet, HEADER, 9).unwrap();
        assert_eq!(&packet[HEADER..HEADER + len], b"some body");
        assert!(keys.opener(Role::Client).open(&mut copy.clone(), HEADER, 9).is_err(), "reflected");
        let stranger = Keys { cipher, from_client: [3; 32], from_server: [4; 32] };
        assert!(stranger.opener(Role::Server).open(&mut copy.clone(), HEADER, 9).is_err());
    }
}

#[test]
fn bodies_are_encrypted_unless_the_cipher_is_none() {
    for cipher in CIPHERS {
        let packet = sealed(&mut keys(cipher).sealer(Role::Client), 0, b"plain words");
        let visible = packet.windows(11).any(|w| w == b"plain words");
        assert_eq!(visible, cipher == Cipher::None, "{cipher:?}");
    }
}

#[test]
fn a_batch_seals_like_single_packets_even_across_generations() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let mut one_by_one = keys.sealer(Role::Client);
        let mut batched = keys.sealer(Role::Client);
        let first = GENERATION - 2;
        let bodies: [&[u8]; 4] = [b"aaaa", b"bbbb", b"cccc", b"d"];
        let mut expected = Vec::new();
        let mut batch = Vec::new();
        for (pn, body) in (first..).zip(bodies) {
            expected.extend(sealed(&mut one_by_one, pn, body));
            batch.extend(plain(pn, body, batched.tag_len()));
        }
        let stride = HEADER + 4 + batched.tag_len();
        batched.seal_batch(&mut batch, stride, HEADER, first);
        assert_eq!(batch, expected);
        let mut opener = keys.opener(Role::Server);
        for (pn, packet) in (first..).zip(batch.chunks_mut(stride)) {
            assert!(opener.open(packet, HEADER, pn).is_ok());
        }
        assert_eq!(opener.generation, 1);
    }
}

#[test]
#[should_panic(expected = "used before")]
fn a_packet_number_cannot_be_sealed_twice() {
    let mut sealer = keys(Cipher::Aes128Gcm).sealer(Role::Client);
    sealed(&mut sealer, 5, b"x");
    sealed(&mut sealer, 5, b"y");
}

#[test]
fn late_packets_open_only_from_the_previous_generation() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let mut sealer = keys.sealer(Role::Client);
        let mut packets: Vec<_> = (0..3).map(|g| (g, sealed(&mut sealer, g * GENERATION, b"body"))).collect();
        let mut opener = keys.opener(Role::Server);
        let mut late = packets[0].1.clone();
        assert!(opener.open(&mut packets[0].1, HEADER, 0).is_ok());
        assert!(opener.open(&mut packets[1].1, HEADER, GENERATION).is_ok());
        assert!(opener.open(&mut late.clone(), HEADER, 0).is_ok(), "one generation late");
        assert!(opener.open(&mut packets[2].1, HEADER, 2 * GENERATION).is_ok());
        assert!(opener.open(&mut late, HEADER, 0).is_err(), "two generations late");
    }
}

#[test]
fn a_packet_number_far_ahead_fails_and_changes_nothing() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let mut opener = keys.opener(Role::Server);
        let mut sealer = keys.sealer(Role::Client);
        let first = sealed(&mut sealer, 0, b"body");
        for ahead in [2 * GENERATION, 1 << 40, (1 << 48) - 1] {
            let mut forged = sealed(&mut keys.sealer(Role::Client), 0, b"body");
            assert!(opener.open(&mut forged, HEADER, ahead).is_err());
        }
        let mut forged = first.clone();
        assert!(opener.open(&mut forged, HEADER, GENERATION).is_err(), "next generation, wrong key");
        assert_eq!(opener.generation, 0);
        assert!(opener.open(&mut first.clone(), HEADER, 0).is_ok());
    }
}

#[test]
fn generations_have_different_keys() {
    let secret = Secret::from([7; 32]);
    assert_ne!(next_secret(&secret), secret);
    let keys = keys(Cipher::Aes256Gcm);
    let a = sealed(&mut keys.sealer(Role::Client), 0, b"body");
    let b = sealed(&mut keys.sealer(Role::Client), GENERATION, b"body");
    assert_ne!(a[HEADER..], b[HEADER..]);
}

#[test]
fn forged_packets_of_the_next_generation_cost_one_derivation_in_all() {
    let keys = keys(Cipher::Aes128Gcm);
    let mut opener = keys.opener(Role::Server);
    let forge = |opener: &mut Opener| {
        assert!(opener.open(&mut [0; 40], 11, GENERATION).is_err());
        std::ptr::from_ref(opener.next.as_deref().unwrap())
    };
    let made = forge(&mut opener);
    assert!((0..5).all(|_| forge(&mut opener) == made));
    // The genuine packet is accepted with it.
    let mut packet = [3; 40];
    keys.sealer(Role::Client).seal_batch(&mut packet, 40, 11, GENERATION);
    assert!(opener.open(&mut packet, 11, GENERATION).is_ok());
    assert_eq!((opener.generation, opener.next.is_none()), (1, true));
}

proptest! {
    #[test]
    fn a_changed_packet_does_not_open(
        body in prop::collection::vec(any::<u8>(), 0..64),
        pn in 0u64..1 << 23,
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let keys = keys(cipher);
            let mut packet = sealed(&mut keys.sealer(Role::Client), pn, &body);
            let at = at.index(packet.len());
            packet[at] ^= flip;
            prop_assert!(keys.opener(Role::Server).open(&mut packet, HEADER, pn).is_err());
        }
    }

    #[test]
    fn without_encryption_header_length_and_tag_are_bound(
        body in prop::collection::vec(any::<u8>(), 1..64), pn in 0u64..1 << 23, at in 0usize..7, flip in 1u8..,
    ) {
        let keys = keys(Cipher::None);
        let packet = sealed(&mut keys.sealer(Role::Client), pn, &body);
        let mut opener = keys.opener(Role::Server);
        let mut header = packet.clone();
        header[at] ^= flip;
        prop_assert!(opener.open(&mut header, HEADER, pn).is_err());
        let mut shorter = packet.clone();
        shorter.remove(HEADER);
        prop_assert!(opener.open(&mut shorter, HEADER, pn).is_err());
        prop_assert!(opener.open(&mut packet.clone(), HEADER, pn + 1).is_err());
    }

    #[test]
    fn opening_garbage_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..80), pn in any::<u64>()) {
        for cipher in CIPHERS {
            let _ = keys(cipher).opener(Role::Server).open(&mut bytes, HEADER, pn >> 16);
        }
    }
}
