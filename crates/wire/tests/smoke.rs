//! The checks of the fuzz targets on seeded inputs, so that they run everywhere: random bytes, valid inputs,
//! and valid inputs with damage.

mod common;

use common::{block, feedback_body, feedback_header, frames, message, rel_path, up_to};
use haul_base::Rng;
use haul_wire::check;
use haul_wire::packet::{
    CommonHeader, DATA_BODY_LEN, DataBody, Flight, FlightWord, HelloBody, HelloHeader, MAX_OFFSET, MAX_PN,
    MAX_SEQ, OpenHeader, PART_BODY_LEN, PacketKind, PairHeader, PartBody, ProbeBody, WordPacket,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const ITERATIONS: u32 = 20_000;
const SEED: u64 = 0x6861_756c;

/// Drives `check` with valid inputs, damaged ones and random ones in turn.
fn drive(valid: impl Strategy<Value = Vec<u8>>, check: impl Fn(&[u8]) -> bool) {
    println!("seed {SEED:#x}");
    let seed = [&SEED.to_le_bytes()[..], &[0; 24]].concat();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut rng = Rng::from_seed(SEED);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..ITERATIONS {
        let mut bytes = valid.new_tree(&mut runner).expect("the strategies always find a value").current();
        match round % 4 {
            0 => assert!(check(&bytes), "a valid input was refused: {}", bytes.escape_ascii()),
            3 => {
                bytes.resize(rng.below(150) as usize, 0);
                rng.fill(&mut bytes);
            }
            _ => (0..=rng.below(4)).for_each(|_| damage(&mut bytes, &mut rng)),
        }
        if check(&bytes) {
            accepted += 1;
        } else {
            refused += 1;
        }
    }
    assert!(accepted > ITERATIONS / 4 && refused > 100, "accepted {accepted}, refused {refused}");
}

/// Damages the bytes in one place.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    match rng.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u64() as u8),
        2 => {
            let tail = bytes[at..].to_vec();
            bytes.extend(tail);
        }
        _ if at == bytes.len() => {}
        3 => bytes[at] ^= 1 << rng.below(8),
        4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'.'][rng.below(7) as usize],
        _ => drop(bytes.remove(at)),
    }
}

#[test]
fn packet_headers() {
    let valid = (1u8..=6, up_to(MAX_PN), any::<u32>(), vec(any::<u8>(), 0..20)).prop_map(
        |(kind, pn, session, rest)| {
            let kind = PacketKind::from_byte(kind).unwrap();
            let mut bytes = vec![0; kind.header_len()];
            match kind {
                PacketKind::Hello => HelloHeader { pn, session }.write(&mut bytes),
                _ => CommonHeader { kind, pn }.write(&mut bytes),
            }
            bytes.extend(rest);
            bytes
        },
    );
    drive(valid, check::packet_headers);
}

#[test]
fn data_body() {
    let fields = (up_to(MAX_SEQ), up_to(MAX_OFFSET - 50), any::<u32>(), vec(any::<u8>(), 0..50));
    let valid = fields.prop_map(|(seq, offset, timestamp, payload)| {
        let mut bytes = vec![0; DATA_BODY_LEN];
        DataBody { seq, offset, timestamp }.write(&mut bytes);
        bytes.extend(payload);
        bytes
    });
    drive(valid, check::data_body);
}

#[test]
fn part_body() {
    let fields =
        (0..=MAX_SEQ, 0..MAX_OFFSET / 2, any::<u32>(), 0u16..2_000, 0u16..2_000, any::<bool>(), 1usize..99);
    let valid = fields.prop_map(|(seq, offset, timestamp, skip, behind, fin, payload)| {
        let mut bytes = vec![0; PART_BODY_LEN + payload];
        let whole = skip + payload as u16 + behind;
        PartBody { seq, offset, timestamp, skip, whole, fin }.write(&mut bytes);
        bytes
    });
    drive(valid, check::part_body);
}

#[test]
fn feedback() {
    let valid =
        (feedback_header(), vec(block(), 0..5)).prop_map(|(header, blocks)| feedback_body(&header, &blocks));
    drive(valid, check::feedback);
}

#[test]
fn hello() {
    let valid = (any::<u64>(), 10usize..100, any::<bool>()).prop_map(|(nonce, len, probe)| {
        let mut bytes = vec![0; len];
        let size = (len + 27) as u16;
        if probe {
            ProbeBody { size }.write(&mut bytes);
        } else {
            HelloBody { nonce, size }.write(&mut bytes);
        }
        bytes
    });
    drive(valid, check::hello);
}

#[test]
fn control_frames() {
    drive(vec(message(), 1..4).prop_map(|messages| frames(&messages)), check::control_frames);
}

#[test]
fn rel_paths() {
    drive(rel_path().prop_map(|path| path.as_bytes().to_vec()), check::rel_path);
}

#[test]
fn flights() {
    let valid =
        (any::<u32>(), any::<u64>(), up_to(MAX_PN), 0..3u8).prop_map(|(identity, epoch, salt, which)| {
            let flight = Flight { identity, epoch, salt };
            let (mac, number) = ([7; 12], identity);
            let open = OpenHeader { flight, mac }.to_bytes();
            let word = WordPacket { flight, word: FlightWord::Ping, number, mac }.to_bytes();
            match which {
                0 => open.to_vec(),
                1 => word.to_vec(),
                _ => [&PairHeader { first: open.len() as u16 }.to_bytes()[..], &open, &word].concat(),
            }
        });
    drive(valid, check::flight);
}
