//! An acknowledgement and a message, coalesced into one batch.

use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Time, Transmit};
use haul_proto::{micro, presets};
use haul_stack::{Coalesced, SendOptions, Setup, Stack};

use super::channel::{Checksum, TAG};

fn end(initiator: bool) -> Stack {
    let recipe = presets::preset("msg").unwrap().unwrap();
    let compiled = Arc::new(micro::registry()).compile(&recipe, TAG).unwrap();
    let keys: Option<(Box<dyn haul_stack::Seal>, Box<dyn haul_stack::Open>)> =
        Some((Box::new(Checksum), Box::new(Checksum)));
    Stack::new(compiled, Setup { initiator, identity: 7, keys, ..Setup::new(Time::ZERO) }).unwrap()
}

fn deliver(to: &mut Stack, now: Time, slot: &mut [u8], sent: Transmit) {
    let (data, stride) = (&mut slot[..sent.len], sent.segment_size);
    let path = PathId::default();
    let ecn = Ecn::NotEct;
    to.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
}

const NOW: Time = Time::from_nanos(1_000_000);

/// Two ends; the second has received a message and not acknowledged it yet.
fn requested() -> (Stack, Stack) {
    let (mut a, mut b) = (end(true), end(false));
    let mut slot = vec![0; 65_536];
    a.send(NOW, b"question", SendOptions::default()).unwrap();
    let sent = a.poll_transmit_coalesced(NOW, &mut slot).unwrap().batch();
    deliver(&mut b, NOW, &mut slot, sent);
    (a, b)
}

#[test]
fn an_acknowledgement_and_a_message_share_a_batch_in_any_size_order() {
    for len in [1, 10, 300] {
        let (mut a, mut b) = requested();
        let (mut slot, now) = (vec![0; 65_536], NOW);
        assert_eq!(b.recv().unwrap().1.to_vec(), b"question");
        b.send(now, &vec![7; len], SendOptions::default()).unwrap();
        let Some(Coalesced::Pair(sent)) = b.poll_transmit_coalesced(now, &mut slot) else {
            panic!("not both")
        };
        assert!(sent.segment_size < sent.len && sent.len <= 2 * sent.segment_size, "{sent:?}");
        assert!(b.poll_transmit_coalesced(now, &mut slot.clone()).is_none());
        deliver(&mut a, now, &mut slot, sent);
        assert_eq!(a.recv().unwrap().1.to_vec(), vec![7; len]);
        assert_eq!((a.unfinished(), a.stats().unauthentic), (0, 0));
    }
}

#[test]
fn data_beyond_one_packet_follows_in_separate_batches() {
    let (mut a, mut b) = requested();
    let (mut slot, now) = (vec![0; 65_536], NOW);
    let long: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    b.send(now, &long, SendOptions::default()).unwrap();
    let mut batches = 0;
    while let Some(sent) = b.poll_transmit_coalesced(now, &mut slot) {
        batches += 1;
        deliver(&mut a, now, &mut slot, sent.batch());
    }
    assert_eq!(batches, 2);
    assert_eq!(a.recv().unwrap().1.to_vec(), long);
}
