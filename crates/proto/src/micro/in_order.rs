//! `in_order`: delivers messages in the order in which their sending started. Early messages wait for those
//! before them: without retransmission for a limited time, with it until the sender reports that it has given
//! up what is missing.

use std::any::Any;
use std::collections::BTreeMap;

use haul_base::{Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Buffer, Context, Declaration, Delivery, Event, EventId, MicroProtocol,
    Order, Part, ProtocolStats, Registration, Resolution, SharedValue, U48, Verdict, configuration,
};

use super::attributes::{MESSAGE, ORDER, PLACE, SEQUENCE};
use super::events::{ABANDONED, CLOSED};
use super::fixed_size::LAST;
use super::message_map::MessageMap;
use super::received_set::{ReceivedSet, is_abandoned};
use super::sequenced_segment::is_reliable;
use super::stall::StallDetector;
use super::stats::InOrderStats;
use super::truncated::expand;
use super::turns::Turns;

#[derive(Debug)]
struct Held {
    id: u64,
    data: Buffer,
    since: Time,
    /// Sequence number of its first received segment; lower for messages before it. 0 without sequence
    /// numbers.
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Attributes {
    order: Attribute<u32>,
    message: Attribute<u32>,
    place: Attribute<u32>,
    sequence: Option<Attribute<U48>>,
}

#[derive(Debug)]
struct InOrder {
    max_wait: Span,
    limit: usize,
    order: Option<Attribute<u32>>,
    attributes: Option<Attributes>,
    reliable: bool,
    received: Option<SharedValue<ReceivedSet>>,
    abandoned: Option<Event<()>>,
    closed: Option<Event<()>>,
    turns: Turns,
    stall: StallDetector,
    /// Number of messages whose sending has started.
    begun: u32,
    /// Number of the next message to be delivered.
    next: u64,
    /// For each partly received message: its number in order, and the sequence number of its first received
    /// segment.
    places: MessageMap<(u64, u64)>,
    held: BTreeMap<u64, Held>,
    given_up: u64,
    late: u64,
}

configuration! {
    /// Parameters of `in_order`.
    pub struct InOrderConfig: "in_order" {
        max_wait: Span = "200ms", "how long a message waits for earlier ones without `retransmit`";
        held: usize in (1, 65_536) = "4096", "maximum number of waiting messages";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size"]],
        ..Registration::of::<InOrderConfig>(1, "delivers messages in sending order", |parameters, _| {
            let InOrderConfig { max_wait, held: limit } = parameters.read();
            Ok(Box::new(InOrder {
                max_wait,
                limit,
                order: None,
                attributes: None,
                reliable: false,
                received: None,
                abandoned: None,
                closed: None,
                turns: Turns::default(),
                stall: StallDetector::default(),
                begun: 0,
                next: 0,
                places: MessageMap::new(2 * limit),
                held: BTreeMap::new(),
                given_up: 0,
                late: 0,
            }))
        })
    }
}

impl InOrder {
    fn attributes(&self) -> Attributes {
        self.attributes.expect("bound")
    }

    fn number(&mut self, batch: &mut Batch<'_>) {
        let attributes = self.attributes();
        for i in 0..batch.len() {
            if batch.is_resent(i) {
                continue;
            }
            if batch.get(i, attributes.place) & !LAST == 0 {
                self.begun = self.begun.wrapping_add(1);
            }
            batch.set(i, attributes.order, self.begun.wrapping_sub(1));
        }
    }

    fn place(&self, batch: &Batch<'_>, i: usize) -> u64 {
        expand(batch.get(i, self.attributes().order), self.next)
    }

    fn sequence(&self, batch: &Batch<'_>, i: usize) -> u64 {
        self.attributes().sequence.map_or(0, |sequence| batch.get(i, sequence))
    }

    /// Takes segments of messages that cannot be held out of the batch before they are acknowledged, so that
    /// they are retransmitted.
    fn admit(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        for i in batch.live() {
            if self.place(batch, i) < self.next + self.limit as u64 {
                continue;
            }
            let abandoned = |held: &Held| is_abandoned(held.sequence, self.sequence(batch, i));
            let abandoned = self.held.values().next().is_some_and(abandoned);
            batch.take(i);
            if abandoned || self.stall.is_stalled(context.now()) {
                self.give_up_gap(context);
            }
        }
    }

    fn note(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        for i in batch.live() {
            let place = self.place(batch, i);
            let sequence = self.sequence(batch, i);
            self.places.insert(batch.get(i, self.attributes().message), (place, sequence));
        }
        self.wake(context);
    }

    /// Whether all segments of the messages before this one have arrived or were given up.
    fn is_next_to_come(&self, held: &Held, context: &mut Context<'_>) -> bool {
        self.received.is_some_and(|received| context.shared(received).below() > held.sequence)
    }

    /// Delivers held messages that are next in order, through all other handlers.
    fn release(&mut self, context: &mut Context<'_>) {
        while let Some(held) = self.held.remove(&self.next) {
            self.next += 1;
            context.deliver(held.id, &held.data);
            context.pool().put(held.data);
        }
        self.wake(context);
    }

    /// Gives up the gap before the first held message, and delivers it.
    fn give_up_gap(&mut self, context: &mut Context<'_>) {
        if let Some((&place, _)) = self.held.first_key_value() {
            self.given_up += place - self.next;
            self.next = place;
            self.release(context);
        }
    }

    /// Gives up the gap before the first held message if nothing will fill it. Returns whether it did.
    fn give_up_settled_gap(&mut self, context: &mut Context<'_>) -> bool {
        let first = self.held.first_key_value();
        let is_settled = first.is_some_and(|(_, held)| !self.reliable || self.is_next_to_come(held, context));
        if is_settled {
            self.give_up_gap(context);
        }
        is_settled
    }

    /// Sets the timer that ends a gap: when the first message after it has waited long enough or, with
    /// retransmission, when nothing can fill the gap any more, which is certain once the current batch has
    /// been delivered.
    fn wake(&self, context: &mut Context<'_>) {
        match self.held.first_key_value() {
            Some((_, held)) if !self.reliable => context.set_timer(0, held.since + self.max_wait),
            Some((_, held)) if self.is_next_to_come(held, context) => context.set_timer(0, context.now()),
            _ => context.cancel_timer(0),
        }
    }

    fn hold(
        &mut self,
        (place, sequence): (u64, u64),
        delivery: &mut Delivery<'_>,
        context: &mut Context<'_>,
    ) {
        delivery.verdict = Verdict::Held;
        let data = context.pool().copy(delivery.data);
        self.held.insert(place, Held { id: delivery.id, data, since: context.now(), sequence });
        // With retransmission they were admitted under this or the previous limit, and have been
        // acknowledged.
        if self.held.len() > self.limit && !self.reliable {
            self.give_up_gap(context);
        } else {
            self.wake(context);
        }
    }
}

impl MicroProtocol for InOrder {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.order = Some(declaration.attribute(ORDER));
        self.received = Some(declaration.shared(ReceivedSet::default));
        self.abandoned = Some(declaration.event(ABANDONED));
        self.closed = Some(declaration.event(CLOSED));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.attributes = Some(Attributes {
            order: self.order.expect("declared"),
            message: resolution.attribute(MESSAGE),
            place: resolution.attribute(PLACE),
            sequence: resolution.find_attribute(SEQUENCE),
        });
        self.reliable = is_reliable(resolution);
        self.stall.forgetful = resolution.has("negative_ack");
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        if self.reliable {
            resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::FIRST);
        }
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
        // First, because messages dropped by other handlers in their turn are not gaps.
        resolution.on_delivery(Order::FIRST);
        resolution.on_event(self.abandoned.expect("declared"), Order::NORMAL);
        resolution.on_event(self.closed.expect("declared"), Order::NORMAL);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_USER {
            self.number(batch);
        } else if !self.reliable || self.turns.is_second() {
            self.note(batch, context);
        } else {
            self.admit(batch, context);
        }
    }

    fn on_event(&mut self, event: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        if self.closed.is_some_and(|closed| closed.is(event)) {
            while self.give_up_settled_gap(context) {}
        } else {
            self.wake(context);
        }
    }

    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, context: &mut Context<'_>) {
        let place = self.places.remove(delivery.id as u32).filter(|&(place, _)| place >= self.next);
        let Some((place, sequence)) = place else {
            self.late += 1;
            delivery.verdict = Verdict::Drop;
            return;
        };
        if place > self.next {
            return self.hold((place, sequence), delivery, context);
        }
        self.stall.on_progress();
        self.next += 1;
        delivery.verdict = Verdict::Held;
        context.deliver(delivery.id, delivery.data);
        if !self.held.is_empty() {
            self.release(context);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        self.give_up_settled_gap(context);
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        InOrderConfig { max_wait: self.max_wait, held: self.limit } = parameters.read();
        // The numbers of partly received messages are still needed.
        self.places.set_limit(2 * self.limit, self.reliable);
        self.wake(context);
        Ok(())
    }

    fn unfinished(&self) -> usize {
        self.held.len()
    }

    fn unfinished_incoming(&self) -> usize {
        self.held.len()
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&InOrderStats { waiting: self.held.len() as u64, given_up: self.given_up, late: self.late });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Machine, Rate, Span, Time};
    use haul_stack::{Recipe, SendOptions};
    use proptest::prelude::*;

    use crate::config::{DeadlineConfig, FixedRateConfig, InOrderConfig, RetransmitConfig};
    use crate::micro::stats::{InOrderStats, KeepCopiesStats};
    use crate::micro::testing::{Pair, Path, T0, part, stats};

    fn pair(held: usize) -> Pair {
        let recipe = Recipe::new("x").with("fixed_size").with("sequenced_segment");
        Pair::new(&recipe.with(InOrderConfig { max_wait: Span::from_millis(30), held }))
    }

    fn ids(pair: &mut Pair) -> Vec<u64> {
        pair.received_by_b().into_iter().map(|(id, _)| id).collect()
    }

    proptest! {
        #[test]
        fn the_order_is_kept_on_any_path(
            lens in prop::collection::vec(0usize..4_000, 1..40),
            losses in prop::collection::vec(any::<bool>(), 150),
            held in 1usize..60,
            lossy: bool, reverse: bool, duplicate: bool,
        ) {
            let mut pair = pair(held);
            let mut lose = |packet: usize| lossy && losses[packet % 150];
            for (n, &len) in lens.iter().enumerate() {
                pair.a.send(T0, &vec![n as u8; len], SendOptions::default()).unwrap();
            }
            let mut path = Path { lose: Some(&mut lose), duplicate, reverse, ..Path::default() };
            pair.exchange(T0, &mut path);
            pair.run_until(T0 + Span::from_secs(10), &mut path);
            let got = ids(&mut pair);
            prop_assert!(got.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", got);
            if !lossy && held > lens.len() {
                prop_assert_eq!(got.len(), lens.len());
            }
            prop_assert_eq!((pair.b.unfinished(), pair.b.deadline()), (0, None));
        }
    }

    #[test]
    fn a_gap_is_abandoned_exactly_after_the_wait() {
        let mut pair = pair(100);
        for n in 0..5u8 {
            pair.a.send(T0, &[n; 10], SendOptions::default()).unwrap();
        }
        let mut lose = |packet| packet == 2;
        let mut path = Path { lose: Some(&mut lose), ..Path::default() };
        pair.exchange(T0, &mut path);
        assert_eq!(ids(&mut pair), [0, 1]);
        pair.run_until(T0 + Span::from_millis(29), &mut path);
        assert_eq!(ids(&mut pair), [0u64; 0]);
        pair.run_until(T0 + Span::from_millis(30), &mut path);
        assert_eq!(ids(&mut pair), [3, 4]);
        assert_eq!(stats::<InOrderStats>(&pair.b).given_up, 1);
    }

    #[test]
    fn a_message_abandoned_by_its_sender_blocks_nothing() {
        let recipe = Recipe::new("x")
            .with("fixed_size")
            .with("sequenced_segment")
            .with("positive_ack")
            .with("in_order")
            .with(RetransmitConfig { attempts: 3, ..RetransmitConfig::default() });
        let mut pair = Pair::new(&recipe);
        let mut now = T0;
        let mut sends = |pair: &mut Pair, n: u8, arrives: bool| {
            pair.a.send(now, &[n; 10], SendOptions::default()).unwrap();
            // The sender learns only of the first.
            let mut path = Path { cut: [!arrives, n > 0], ..Path::default() };
            pair.exchange(now, &mut path);
            now += Span::from_millis(1);
        };
        sends(&mut pair, 0, true);
        sends(&mut pair, 1, false);
        sends(&mut pair, 2, true);
        assert_eq!(ids(&mut pair), [0], "the second may still come");
        pair.run_until(T0 + Span::from_secs(60), &mut Path { cut: [true, false], ..Path::default() });
        assert_eq!(stats::<KeepCopiesStats>(&pair.a).given_up, 2);
        let now = T0 + Span::from_secs(60);
        for n in 3..5 {
            pair.a.send(now, &[n; 10], SendOptions::default()).unwrap();
        }
        pair.exchange(now, &mut Path { reverse: true, ..Path::default() });
        pair.run_until(now, &mut Path::default());
        assert_eq!(ids(&mut pair), [2, 3, 4]);
        assert_eq!((stats::<InOrderStats>(&pair.b).given_up, pair.b.deadline()), (1, None));
    }

    /// Each acknowledgement in a recipe that sends everything once.
    fn acknowledgements() -> [(&'static str, Recipe); 3] {
        [
            ("positive_ack", &[][..]),
            ("cumulative_ack", &[]),
            ("negative_ack", &[("silence", "1s"), ("retention", "8s")]),
        ]
        .map(|(name, parameters)| {
            let recipe = Recipe::new("x")
                .with("fixed_size")
                .with("sequenced_segment")
                .with(part(name, parameters))
                .with("in_order")
                .with(RetransmitConfig { attempts: 1, ..RetransmitConfig::default() });
            (name, recipe)
        })
    }

    /// Loses the second of three messages from number `first` on, and perhaps `b`'s acknowledgements of the
    /// others. Nothing follows that would report the loss as given up, and the first packet that does is
    /// lost.
    fn lose_the_second(pair: &mut Pair, now: Time, first: u64, is_answer_lost: bool) {
        for is_lost in [false, true, false] {
            pair.a.send(now, &[7; 10], SendOptions::default()).unwrap();
            pair.exchange(now, &mut Path { cut: [is_lost, is_answer_lost], ..Path::default() });
        }
        assert_eq!(ids(pair), [first]);
        let mut packets = 0;
        let mut lose = |_| {
            packets += 1;
            packets == 1
        };
        let mut path = Path { lose: Some(&mut lose), ..Path::default() };
        pair.run_until(now + Span::from_secs(60), &mut path);
    }

    #[test]
    fn a_message_after_an_abandoned_one_is_delivered_without_another() {
        for (acknowledgement, recipe) in acknowledgements() {
            let mut pair = Pair::new(&recipe);
            lose_the_second(&mut pair, T0, 0, false);
            assert_eq!(ids(&mut pair), [2], "{acknowledgement}");
            assert_eq!((pair.a.stats().violations, pair.b.stats().violations), (0, 0));
            let is_quiet = (pair.a.deadline(), pair.b.deadline()) == (None, None);
            assert!(is_quiet || acknowledgement == "negative_ack", "{acknowledgement}");
        }
    }

    /// Only `sequenced_segment` restarts: the acknowledgement stays, and its records are of other sequence
    /// numbers.
    #[test]
    fn a_message_after_an_abandoned_one_is_delivered_after_renumbering() {
        for (acknowledgement, recipe) in acknowledgements() {
            let mut pair = Pair::new(&recipe);
            for _ in 0..20 {
                pair.a.send(T0, &[7; 10], SendOptions::default()).unwrap();
            }
            pair.exchange(T0, &mut Path::default());
            let mut changed = recipe.with("rate_stats");
            crate::micro::registry().set(&mut changed, "sequenced_segment.window", "100000").unwrap();
            pair.a.reconfigure(T0, &changed).unwrap();
            let now = T0 + Span::from_secs(5);
            pair.run_until(now, &mut Path::default());
            assert!(pair.a.recipe().has("rate_stats") && pair.b.recipe().has("rate_stats"));
            assert_eq!(ids(&mut pair), (0..20).collect::<Vec<_>>());
            lose_the_second(&mut pair, now, 20, true);
            assert_eq!(ids(&mut pair), [22], "{acknowledgement}");
            assert_eq!((pair.a.stats().violations, pair.b.stats().violations), (0, 0));
            let is_quiet = (pair.a.deadline(), pair.b.deadline()) == (None, None);
            assert!(is_quiet || acknowledgement == "negative_ack", "{acknowledgement}");
        }
    }

    #[test]
    fn a_message_dropped_before_sending_is_no_gap() {
        let recipe = Recipe::new("x")
            .with("fixed_size")
            .with("in_order")
            .with(FixedRateConfig { rate: Rate::from_mbps(1), burst: Bytes(1_000) })
            .with(DeadlineConfig { lifetime: Span::from_millis(20) });
        let mut pair = Pair::new(&recipe);
        for n in 0..20u64 {
            let lifetime = (n % 2 == 0).then(|| Span::from_secs(5));
            let options = SendOptions { lifetime, ..SendOptions::default() };
            pair.a.send(T0, &[0; 900], options).unwrap();
        }
        pair.run_until(T0 + Span::from_secs(1), &mut Path::default());
        let got = ids(&mut pair);
        assert!(got.len() < 20 && got.iter().filter(|id| *id % 2 == 0).count() == 10, "{got:?}");
        assert_eq!(stats::<InOrderStats>(&pair.b).given_up, 0);
    }

    #[test]
    fn a_lower_limit_loses_nothing_that_has_been_acknowledged() {
        let recipe = |held: usize| {
            let parts = Recipe::new("x").with("fixed_size").with("sequenced_segment").with("retransmit");
            parts.with("positive_ack").with(InOrderConfig { held, ..InOrderConfig::default() })
        };
        let mut pair = Pair::new(&recipe(100));
        for n in 0..50u8 {
            pair.a.send(T0, &vec![n; 2_000], SendOptions::default()).unwrap();
        }
        // Half of each of the first three is missing; they then arrive in the wrong order.
        let mut lose = |packet| packet < 6 && packet % 2 == 0;
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        assert_eq!(ids(&mut pair), [0u64; 0]);
        pair.b.reconfigure(T0, &recipe(4)).unwrap();
        pair.run_until(T0 + Span::from_secs(5), &mut Path { reverse: true, ..Path::default() });
        assert_eq!(ids(&mut pair), (0..50).collect::<Vec<_>>());
    }
}
