//! Runs the checks of the fuzz targets on their corpora and on seeded inputs, so that they run everywhere.

use haul_base::Rng;
use haul_proto::{check, presets};
use haul_stack::Kind;
use haul_testing::fuzz::drive;
use haul_wire::check::{Steps, message_body};
use haul_wire::control::{ControlMessage, Fault, FaultCode};

/// Up to `most` steps, each created by `step`.
fn steps(rng: &mut Rng, most: u64, mut step: impl FnMut(&mut Rng) -> (u8, Vec<u8>), out: &mut Vec<u8>) {
    for _ in 0..=rng.below(most) {
        let (kind, body) = step(rng);
        Steps::write(kind, &body, out);
    }
}

fn byte(rng: &mut Rng, below: u64) -> u8 {
    rng.below(below) as u8
}

fn millis(rng: &mut Rng) -> Vec<u8> {
    let most = [5, 200, 20_000][rng.below(3) as usize];
    (rng.below(most) as u16).to_be_bytes().to_vec()
}

#[test]
fn recipe() {
    let valid = |rng: &mut Rng| presets::PRESETS[rng.below(presets::PRESETS.len() as u64) as usize].1.into();
    drive("recipe", 4_000, valid, check::recipe);
}

#[test]
fn reconfigure() {
    let step = |rng: &mut Rng| match rng.below(9) {
        0..=3 => {
            // Control word, numbers, recipe.
            let body = vec![1 + byte(rng, 6), byte(rng, 4), byte(rng, 4), byte(rng, 40)];
            (0, [body, b"[fixed_size]\n[seal]\n".to_vec()].concat())
        }
        4 => {
            let kind = [Kind::DATA.0, Kind::DATA.0 | 0x80, Kind::RECONFIGURE.0 | 0x80][rng.below(3) as usize];
            let mut body = vec![kind; 1 + rng.below(60) as usize];
            rng.fill(&mut body[1..]);
            (1, body)
        }
        5 => (2, millis(rng)),
        6 => (4, vec![byte(rng, 32)]),
        7 => (5, vec![7; rng.below(2_000) as usize]),
        _ => (3, Vec::new()),
    };
    let valid = |rng: &mut Rng| {
        let mut bytes = vec![byte(rng, 2)];
        steps(rng, 24, step, &mut bytes);
        bytes
    };
    drive("reconfigure", 3_000, valid, check::reconfigure);
}

#[test]
fn bulk_receiver() {
    let valid = |rng: &mut Rng| {
        let (mut bytes, mut seq) = (Vec::new(), 0u16);
        let step = |rng: &mut Rng| match rng.below(8) {
            0 => (2, millis(rng)),
            1 => (3, Vec::new()),
            2 => {
                let mut body = vec![[1, 2, 3, 6, 7][rng.below(5) as usize]; 1 + rng.below(60) as usize];
                rng.fill(&mut body[1..]);
                (1, body)
            }
            _ => {
                seq += rng.below(3) as u16;
                let shift = if rng.chance(0.02) { 1_000 } else { 0 };
                let (last, offset) = (u8::from(rng.chance(0.05)), u32::from(seq) * 1_000 + shift);
                (0, [&[last][..], &seq.to_be_bytes(), &offset.to_be_bytes()[1..], &[3, 232]].concat())
            }
        };
        steps(rng, 40, step, &mut bytes);
        bytes
    };
    drive("bulk_receiver", 4_000, valid, check::bulk_receiver);
}

#[test]
fn bulk_sender() {
    let valid = |rng: &mut Rng| {
        let mut bytes = Vec::new();
        let step = |rng: &mut Rng| match rng.below(8) {
            0 => (2, millis(rng)),
            1 => (3, Vec::new()),
            2 => {
                let mut body = vec![3; 1 + rng.below(100) as usize];
                rng.fill(&mut body[1..]);
                (1, body)
            }
            _ => {
                let most = [2, 4, 20, 900][rng.below(4) as usize];
                let below = rng.below(most) as u16;
                let fields = [below, below + rng.below(3) as u16, rng.below(4) as u16, below];
                let mut body: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
                body.extend([byte(rng, 17), 0, 0, byte(rng, 16)]);
                (0..rng.below(3)).for_each(|_| body.extend(rng.next_u64().to_be_bytes()));
                (0, body)
            }
        };
        steps(rng, 24, step, &mut bytes);
        // Over the control channel.
        bytes[0] |= if rng.below(2) == 0 { 0x80 } else { 0 };
        bytes
    };
    drive("bulk_sender", 1_500, valid, check::bulk_sender);
}

fn message(rng: &mut Rng) -> ControlMessage {
    let number = rng.next_u64() >> rng.below(64);
    match rng.below(12) {
        0..=2 => ControlMessage::Ping(number),
        3 => ControlMessage::Pong(number),
        4 => ControlMessage::UdpSeen { size: number as u16 },
        5 => ControlMessage::Close,
        6 if rng.chance(0.3) => ControlMessage::Abort(Fault::new(FaultCode::Io, "said by the peer", "")),
        7 if rng.chance(0.3) => ControlMessage::Refuse(Fault::new(FaultCode::Io, "said by the peer", "")),
        8 => ControlMessage::EntriesEnd { entries: number, bytes: number },
        _ => ControlMessage::ObjectSent { bytes: number },
    }
}

#[test]
fn control_sequence() {
    let valid = |rng: &mut Rng| {
        let mut bytes = Vec::new();
        for _ in 0..=rng.below(16) {
            let kind = rng.below(6) as u8;
            let mut body = message_body(&message(rng)).expect("it fits");
            if kind == 2 {
                body.splice(0..0, (body.len() as u32).to_be_bytes());
            }
            Steps::write(kind, &body, &mut bytes);
        }
        bytes
    };
    drive("control_sequence", 10_000, valid, check::control_sequence);
}
