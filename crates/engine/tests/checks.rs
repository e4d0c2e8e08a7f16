//! The checks of the fuzz targets on their corpora and on seeded inputs, so that they run everywhere.

use haul_base::Rng;
use haul_engine::{HaulUrl, check};
use haul_testing::fuzz::drive;
use haul_wire::check::{Steps, message_body};
use haul_wire::control::{ControlMessage, Fault, FaultCode};

const HOSTS: [&str; 4] = ["data.example.org", "192.0.2.7", "2001:db8::7", "fe80::1%eth0"];

#[test]
fn url() {
    let valid = |rng: &mut Rng| {
        let mut path = vec![0; rng.below(30) as usize];
        rng.fill(&mut path);
        let url = HaulUrl {
            host: HOSTS[rng.below(4) as usize].to_owned(),
            port: 1 + rng.below(65_535) as u16,
            path,
            fingerprint: [rng.next_u64() as u8; 32],
            secret: [rng.next_u64() as u8; 32].into(),
            expires: rng.chance(0.5).then(|| rng.next_u64()),
        };
        url.to_string().into_bytes()
    };
    drive("url", 20_000, valid, check::url);
}

/// Found by the fuzzer: it asked that the key's text be nowhere in what is shown, and here the path is that text.
#[test]
fn a_url_whose_path_is_the_text_of_its_key() {
    let url = HaulUrl {
        host: "data".to_owned(),
        port: 13_431,
        path: Vec::new(),
        fingerprint: [7; 32],
        secret: [9; 32].into(),
        expires: None,
    };
    let text = url.to_string();
    let (place, key) = text.split_once("?k=").unwrap();
    assert!(check::url(format!("{place}{key}?k={key}").as_bytes()));
}

fn message(rng: &mut Rng) -> ControlMessage {
    let number = rng.next_u64() >> rng.below(64);
    match rng.below(12) {
        0..=2 => ControlMessage::Ping(number),
        3 => ControlMessage::Pong(number),
        4 => ControlMessage::UdpSeen { size: number as u16 },
        5 => ControlMessage::Bye,
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
            let what = rng.below(6) as u8;
            let mut body = message_body(&message(rng)).expect("it fits");
            if what == 2 {
                body.splice(0..0, (body.len() as u32).to_be_bytes());
            }
            Steps::write(what, &body, &mut bytes);
        }
        bytes
    };
    drive("control_sequence", 10_000, valid, check::control_sequence);
}
