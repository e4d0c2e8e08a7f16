//! Runs the checks of the fuzz targets everywhere, on seeded inputs: random bytes, valid inputs, and damaged
//! valid inputs.

mod common;

use common::{block, feedback_body, feedback_header, frames, message, rel_path, up_to};
use haul_wire::check;
use haul_wire::packet::{
    CommonHeader, ConnectionId, ControlFrame, ControlFrameKind, DATA_BODY_LEN, DataBody, InitialHeader,
    MAX_OFFSET, MAX_PN, MAX_SEQ, PART_BODY_LEN, PROBE_BODY_MIN, PacketKind, PairHeader, PartBody, ProbeBody,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const ITERATIONS: u32 = 20_000;
const SEED: u64 = 0x6861_756c;

/// Runs `check` on valid, damaged and random inputs in turn, and on the corpus of `target`.
fn drive(target: &str, valid: impl Strategy<Value = Vec<u8>>, check: impl Fn(&[u8]) -> bool) {
    let seed = [&SEED.to_le_bytes()[..], &[0; 24]].concat();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let next = |_: &mut _| {
        let bytes = valid.new_tree(&mut runner).expect("the strategies always find a value").current();
        assert!(check(&bytes), "a valid input was refused: {}", bytes.escape_ascii());
        bytes
    };
    haul_testing::fuzz::drive(target, ITERATIONS, next, &check);
}

#[test]
fn packet_headers() {
    let valid = (1u8..=3, up_to(MAX_PN), vec(any::<u8>(), 0..20)).prop_map(|(kind, pn, rest)| {
        let mut bytes = vec![0; 7];
        CommonHeader { kind: PacketKind::from_byte(kind).unwrap(), pn }.write(&mut bytes);
        bytes.extend(rest);
        bytes
    });
    drive("packet_headers", valid, check::packet_headers);
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
    drive("data_body", valid, check::data_body);
}

#[test]
fn part_body() {
    let fields =
        (0..=MAX_SEQ, 0..MAX_OFFSET / 2, any::<u32>(), 0u16..2_000, 0u16..2_000, any::<bool>(), 1usize..99);
    let valid = fields.prop_map(|(seq, offset, timestamp, skip, after, fin, payload)| {
        let mut bytes = vec![0; PART_BODY_LEN + payload];
        let total_len = skip + payload as u16 + after;
        PartBody { seq, offset, timestamp, skip, total_len, fin }.write(&mut bytes);
        bytes
    });
    drive("part_body", valid, check::part_body);
}

#[test]
fn feedback() {
    let valid =
        (feedback_header(), vec(block(), 0..5)).prop_map(|(header, blocks)| feedback_body(&header, &blocks));
    drive("feedback", valid, check::feedback);
}

#[test]
fn probe_body() {
    let valid = (PROBE_BODY_MIN..100).prop_map(|len| {
        let mut bytes = vec![0; len];
        ProbeBody { size: (len + 27) as u16 }.write(&mut bytes);
        bytes
    });
    drive("probe_body", valid, check::probe_body);
}

#[test]
fn control_frames() {
    drive(
        "control_frames",
        vec(message(), 1..4).prop_map(|messages| frames(&messages)),
        check::control_frames,
    );
}

#[test]
fn rel_paths() {
    drive("rel_path", rel_path().prop_map(|path| path.as_bytes().to_vec()), check::rel_path);
}

#[test]
fn connection_packets() {
    let valid =
        (any::<u32>(), any::<u64>(), up_to(MAX_PN), 0..3u8).prop_map(|(identity, epoch, salt, which)| {
            let id = ConnectionId { identity, epoch, salt };
            let (mac, number) = ([7; 12], identity);
            let open = InitialHeader { id, mac }.to_bytes();
            let size = 36 + u16::from(which) * 9;
            let mut frame = vec![0; size.into()];
            ControlFrame { id, kind: ControlFrameKind::Challenge, number, size, mac }.write(&mut frame);
            match which {
                0 => open.to_vec(),
                1 => frame,
                _ => [&PairHeader { first: open.len() as u16 }.to_bytes()[..], &open, &frame].concat(),
            }
        });
    drive("connection_packets", valid, check::connection_packets);
}
