use std::sync::Arc;

use haul_base::{Bytes, Machine, Rng, Span, Time};
use haul_stack::{MessageSource, Recipe, SendError, SendOptions, Stack, StackEvent};
use proptest::prelude::*;

use super::segment_size;
use crate::config::{FixedSizeConfig, RetransmitConfig};
use crate::micro::stats::FixedSizeStats;
use crate::micro::testing::{Pair, Path, T0, compiled, events, object_recipe, receive, setup, stats};

fn recipe() -> Recipe {
    Recipe::new("test").with("fixed_size")
}

fn body(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

/// Sizes of the packets of the next batch.
fn next_batch(stack: &mut Stack) -> Vec<usize> {
    let mut slot = vec![0; 65_536];
    let Some(sent) = stack.poll_transmit(T0, &mut slot) else { return Vec::new() };
    slot[..sent.len].chunks(sent.segment_size).map(<[u8]>::len).collect()
}

#[test]
fn messages_of_unaligned_length_fill_a_batch() {
    let mut pair = Pair::new(&recipe());
    let sent: Vec<_> = (0..20).map(|n| (n, body(n, 4_096))).collect();
    for (_, message) in &sent {
        pair.a.send(T0, message, SendOptions::default()).unwrap();
    }
    let mut slot = vec![0; 65_536];
    let batch = pair.a.poll_transmit(T0, &mut slot).unwrap();
    let packets = batch.len.div_ceil(batch.segment_size);
    assert!(packets > 40 && batch.len.is_multiple_of(batch.segment_size), "{packets} packets");
    receive(&mut pair.b, T0, &mut slot[..batch.len], batch.segment_size);
    pair.exchange(T0, &mut Path::default());
    let mut got = pair.received_by_b();
    got.sort();
    assert!(got == sent, "{} messages", got.len());
}

#[test]
fn equal_messages_of_two_packets_fill_a_batch() {
    let mut pair = Pair::new(&recipe());
    for n in 0..40 {
        pair.a.send(T0, &body(n, 2_000), SendOptions::default()).unwrap();
    }
    let sizes = next_batch(&mut pair.a);
    let whole = sizes[0];
    assert!(sizes.len() > 40 && sizes.iter().all(|&size| size == whole), "{sizes:?}");
}

#[test]
fn a_long_message_is_not_segmented_to_a_short_ones_size() {
    let mut pair = Pair::new(&recipe());
    pair.a.send(T0, b"short", SendOptions::default()).unwrap();
    pair.a.send(T0, &body(1, 10_000), SendOptions::default()).unwrap();
    assert_eq!(next_batch(&mut pair.a).len(), 1);
    let sizes = next_batch(&mut pair.a);
    assert!(sizes.len() <= 10_000_usize.div_ceil(1_100), "{sizes:?}");
}

#[test]
fn a_too_long_message_is_refused_and_the_longest_accepted() {
    let mut pair = Pair::new(&recipe());
    let error = pair.a.send(T0, &vec![0; 65_537], SendOptions::default()).unwrap_err();
    assert_eq!(error, SendError::TooLarge { len: 65_537, max: 65_536 });
    pair.a.send(T0, &body(1, 65_536), SendOptions::default()).unwrap();
    pair.exchange(T0, &mut Path { reverse: true, ..Path::default() });
    assert_eq!(pair.received_by_b(), [(0, body(1, 65_536))]);
}

#[test]
fn a_recipe_cannot_claim_more_than_256_mib_for_incomplete_messages() {
    for (reassembly, is_allowed) in [("256MiB", true), ("257MiB", false)] {
        let mut recipe = recipe();
        crate::micro::registry().set(&mut recipe, "fixed_size.reassembly", reassembly).unwrap();
        let checked = Arc::new(crate::micro::registry()).compile(&recipe, 0).map(drop);
        assert_eq!(checked.is_ok(), is_allowed, "{checked:?}");
    }
}

#[test]
fn incomplete_messages_are_abandoned_when_memory_is_needed() {
    let mut recipe = recipe();
    crate::micro::registry().set(&mut recipe, "fixed_size.reassembly", "150KiB").unwrap();
    let mut pair = Pair::new(&recipe);
    let mut number = 0;
    // The second packet of each message is lost.
    let mut lose = |_| {
        number += 1;
        number % 56 == 2
    };
    for n in 0..20 {
        pair.a.send(T0, &body(n, 60_000), SendOptions::default()).unwrap();
    }
    pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    assert!(stats::<FixedSizeStats>(&pair.b).given_up >= 10);
    assert!(stats::<FixedSizeStats>(&pair.b).incomplete <= 3);
    pair.received_by_b();
    pair.a.send(T0, &body(1, 60_000), SendOptions::default()).unwrap();
    pair.exchange(T0, &mut Path::default());
    assert_eq!(pair.received_by_b().len(), 1);
}

/// Source of ten messages of one length, or of growing ones.
struct Ten {
    left: u64,
    len: usize,
    equal: bool,
}

impl MessageSource for Ten {
    fn next(&mut self, _: Time, into: &mut [u8]) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let len = if self.equal { self.len } else { (10 - self.left as usize) * self.len };
        into[..len].copy_from_slice(&body(self.left, len));
        Some(len)
    }

    fn message_len(&self) -> usize {
        if self.equal { self.len } else { 0 }
    }
}

#[test]
fn a_source_writes_directly_into_packets() {
    for (len, equal, batches) in [(100, true, 1), (100, false, 10), (5_000, true, 1)] {
        let mut sender = setup(true);
        sender.ends.message_source = Some(Box::new(Ten { left: 10, len, equal }));
        let a = Stack::new(compiled(&recipe()), sender).unwrap();
        let mut pair = Pair { a, ..Pair::new(&recipe()) };
        assert_eq!(pair.exchange(T0, &mut Path::default()), batches, "{len} {equal}");
        let got = pair.received_by_b();
        let expected = |n: u64| body(9 - n, if equal { len } else { (n as usize + 1) * len });
        assert_eq!(got, (0..10).map(|n| (n, expected(n))).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn segments_are_as_few_as_possible_and_fit(len in 0usize..1 << 24, full in 1usize..9_000) {
        let size = segment_size(len, full);
        prop_assert!(size <= full);
        prop_assert!(len == 0 || len.div_ceil(size) == len.div_ceil(full));
    }

    #[test]
    fn messages_of_any_length_arrive_in_any_order(
        lens in prop::collection::vec(0usize..20_000, 1..20), reverse: bool,
    ) {
        let mut pair = Pair::new(&recipe());
        for (n, &len) in lens.iter().enumerate() {
            pair.a.send(T0, &body(n as u64, len), SendOptions::default()).unwrap();
        }
        pair.exchange(T0, &mut Path { reverse, ..Path::default() });
        let mut got = pair.received_by_b();
        got.sort();
        let sent = lens.iter().enumerate().map(|(n, &len)| (n as u64, body(n as u64, len)));
        prop_assert_eq!(got, sent.collect::<Vec<_>>());
    }
}

/// A message of `len` bytes from `a`, of which all but the first packet are in flight at the time of a
/// change.
fn halfway(recipe: &Recipe, len: usize) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(recipe);
    let message = body(1, len);
    pair.a.send(T0, &message, SendOptions::default()).unwrap();
    pair.exchange(T0, &mut Path { lose: Some(&mut |packet| packet == 0), ..Path::default() });
    (pair, message)
}

fn limited(max_message: Bytes) -> Recipe {
    let base = Recipe::new("test").with(FixedSizeConfig { max_message, ..FixedSizeConfig::default() });
    base.with("sequenced_segment").with("retransmit").with("positive_ack")
}

#[test]
fn a_lowered_message_limit_does_not_affect_started_messages() {
    let (mut pair, message) = halfway(&limited(Bytes(64 << 10)), 40_000);
    let mut shorter = limited(Bytes(1 << 10));
    crate::micro::registry().set(&mut shorter, "fixed_size.reassembly", "1KiB").unwrap();
    pair.b.reconfigure(T0, &shorter).unwrap();
    pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
    assert!(pair.received_by_b() == [(0, message)], "the message has not arrived");
    let too_long = pair.a.send(T0 + Span::from_secs(5), &[0; 1_025], SendOptions::default());
    assert!(too_long.is_err(), "{too_long:?}");
}

#[test]
fn messages_queued_before_the_limit_is_lowered_arrive_although_other_micro_protocols_change_too() {
    for queued_first in [true, false] {
        let mut pair = Pair::new(&limited(Bytes(64 << 10)));
        let message = body(1, 40_000);
        if !queued_first {
            pair.a.reconfigure(T0, &limited(Bytes(1 << 10)).with("in_order")).unwrap();
        }
        for end in [&mut pair.a, &mut pair.b] {
            end.send(T0, &message, SendOptions::default()).unwrap();
        }
        if queued_first {
            pair.a.reconfigure(T0, &limited(Bytes(1 << 10)).with("in_order")).unwrap();
        }
        pair.exchange(T0, &mut Path::default());
        let now = T0 + Span::from_secs(60);
        pair.run_until(now, &mut Path::default());
        assert_eq!((pair.a.unfinished(), pair.b.unfinished()), (0, 0), "{queued_first}");
        assert!(pair.received_by_b() == [(0, message.clone())], "the message has not arrived");
        assert!(pair.a.recv().is_some_and(|(_, received)| received[..] == message));
        for end in [&mut pair.a, &mut pair.b] {
            assert!(events(end).contains(&StackEvent::Reconfigured));
            let too_long = end.send(now, &[0; 1_025], SendOptions::default());
            assert_eq!(too_long, Err(SendError::TooLarge { len: 1_025, max: 1_024 }));
        }
    }
}

#[test]
fn a_message_above_the_old_limit_arrives_after_the_limit_is_raised() {
    let mut pair = Pair::new(&limited(Bytes(1 << 10)));
    pair.a.reconfigure(T0, &limited(Bytes(64 << 10))).unwrap();
    let message = body(2, 60_000);
    pair.a.send(T0, &message, SendOptions::default()).unwrap();
    // The message of the change is lost.
    pair.exchange(T0, &mut Path { lose: Some(&mut |packet| packet == 0), ..Path::default() });
    assert!(stats::<FixedSizeStats>(&pair.b).refused > 40);
    pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
    assert!(pair.received_by_b() == [(0, message)], "the message has not arrived");
    assert_eq!((pair.b.stats().violations, pair.b.has_failed()), (0, false));
}

#[test]
fn abandoned_messages_use_no_memory() {
    let recipe = Recipe::new("test")
        .with(FixedSizeConfig { max_message: Bytes(8 << 10), reassembly: Bytes(32 << 10) })
        .with("sequenced_segment")
        .with(RetransmitConfig { attempts: 2, ..RetransmitConfig::default() })
        .with("positive_ack");
    let mut pair = Pair::new(&recipe);
    let mut now = T0;
    // Of each, the first segment is lost whenever it is sent.
    for n in 0..20 {
        pair.a.send(now, &body(n, 5_000), SendOptions::default()).unwrap();
        let mut first = |packet| packet == 0;
        pair.exchange(now, &mut Path { lose: Some(&mut first), cut: [false, true], ..Path::default() });
        now += Span::from_secs(60);
        pair.run_until(now, &mut Path { cut: [true, true], ..Path::default() });
    }
    assert_eq!((pair.a.unfinished(), pair.received_by_b().len()), (0, 0));
    for n in 20..30 {
        pair.a.send(now, &body(n, 5_000), SendOptions::default()).unwrap();
        pair.exchange(now, &mut Path::default());
    }
    assert_eq!(pair.received_by_b().len(), 10);
    let counted = FixedSizeStats { refused: 0, incomplete: 0, given_up: 20 };
    assert_eq!(stats::<FixedSizeStats>(&pair.b), counted);
}

/// A peer that starts a message and does not finish it must not keep this end from closing.
#[test]
fn missing_segments_of_incoming_messages_are_not_outstanding() {
    let reliable = recipe().with("sequenced_segment").with("retransmit").with("positive_ack");
    let mut pair = Pair::new(&reliable.with("in_order"));
    pair.a.send(T0, &body(1, 3_000), SendOptions::default()).unwrap();
    let mut slot = vec![0; 65_536];
    let batch = pair.a.poll_transmit(T0, &mut slot).unwrap();
    receive(&mut pair.b, T0, &mut slot[..batch.segment_size], batch.segment_size);
    assert_eq!((pair.b.unfinished(), pair.b.outstanding()), (1, 0));
    assert!(pair.a.outstanding() > 0 && pair.a.outstanding() == pair.a.unfinished());
    pair.b.send(T0, b"its own", SendOptions::default()).unwrap();
    assert_eq!(pair.b.outstanding(), 1);
}

#[test]
fn a_partly_received_message_that_was_given_up_does_not_delay_a_change_of_recipe() {
    let retransmit = RetransmitConfig { attempts: 3, ..RetransmitConfig::default() };
    let recipe = recipe().with("sequenced_segment").with("positive_ack").with(retransmit);
    for another_follows in [false, true] {
        let mut pair = Pair::new(&recipe);
        pair.a.send(T0, &body(1, 5_000), SendOptions::default()).unwrap();
        let mut lose = |packet| packet > 0;
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        let mut now = T0 + Span::from_secs(2);
        pair.run_until(now, &mut Path { cut: [true, true], ..Path::default() });
        assert_eq!(stats::<FixedSizeStats>(&pair.b).incomplete, 1);
        if another_follows {
            pair.a.send(now, b"short", SendOptions::default()).unwrap();
            pair.exchange(now, &mut Path::default());
        } else {
            now = T0 + Span::from_secs(62);
            pair.run_until(now, &mut Path::default());
        }
        events(&mut pair.a);
        pair.a.reconfigure(now, &recipe.clone().with("in_order")).unwrap();
        pair.exchange(now, &mut Path::default());
        pair.run_until(now + Span::from_secs(1), &mut Path::default());
        let told = events(&mut pair.a);
        assert!(told.contains(&StackEvent::Reconfigured), "{another_follows}: {told:?}");
    }
}

#[test]
fn a_message_with_a_segment_lost_for_good_does_not_delay_later_changes_of_recipe() {
    let unreliable = recipe().with("sequenced_segment");
    let mut pair = Pair::new(&unreliable);
    pair.a.send(T0, &body(1, 5_000), SendOptions::default()).unwrap();
    let mut lose = |packet| packet == 1;
    pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
    assert_eq!(stats::<FixedSizeStats>(&pair.b).incomplete, 1);
    let reliable = unreliable.with("positive_ack").with("retransmit");
    let mut now = T0;
    for recipe in [reliable.clone(), reliable.with("in_order")] {
        pair.a.reconfigure(now, &recipe).unwrap();
        pair.exchange(now, &mut Path::default());
        now += Span::from_secs(1);
        pair.run_until(now, &mut Path::default());
        assert!(events(&mut pair.a).contains(&StackEvent::Reconfigured), "{:?}", recipe.parts);
    }
    assert_eq!(stats::<FixedSizeStats>(&pair.b).given_up, 1);
}

#[test]
fn what_a_recipe_carries_cannot_change() {
    let recipe = recipe().with("seal");
    let mut pair = Pair::new(&recipe);
    let refused = pair.a.reconfigure(T0, &recipe.without("fixed_size")).unwrap_err().to_string();
    assert_eq!(refused, "`fixed_size` cannot be added or removed while a session runs; start a new one");
    let refused = pair.a.reconfigure(T0, &object_recipe("1Gbit")).unwrap_err().to_string();
    assert_eq!(refused, "`fixed_size` cannot be added or removed while a session runs; start a new one");
    pair.a.send(T0, b"still there", SendOptions::default()).unwrap();
    pair.exchange(T0, &mut Path::default());
    assert_eq!(pair.received_by_b().len(), 1);
}
