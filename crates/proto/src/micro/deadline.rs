//! `deadline`: drops messages that are too late, at the sender and at the receiver.
//!
//! The sender drops messages whose lifetime has ended before they are segmented. Every segment carries the
//! remaining lifetime, from which the receiver subtracts the part of the delay that it can measure: how much
//! longer the packet took than the fastest recent one. It cannot know the delay of an empty path, and ignores
//! it. Lost segments of an expired message are not repeated (`retransmit`).

use haul_base::{Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Delivery, MESSAGE_SETTLED, MicroProtocol, Order,
    Outgoing, Part, ProtocolStats, Registration, Resolution, Settled, SharedValue, StackEvent, Submission,
    Verdict, configuration,
};

use super::attributes::{DEPARTED, MESSAGE, REST_OF_LIFE};
use super::message_map::MessageMap;
use super::stats::DeadlineStats;
use crate::one_way::OneWayDelay;

/// Before messages are segmented.
const SWEEP: Order = Order(Order::NORMAL.0 - 50);
/// Minimum time between two passes of the queue, per queued message: however many messages expire one after the
/// other, passes take a bounded share of the CPU. With 10,000 messages, one is dropped up to 1 ms late.
const PASS: Span = Span::from_nanos(100);
/// Number of messages between their first segment and their delivery whose deadline is stored.
const REMEMBERED: usize = 1_024;
/// Window for the fastest packet. Two clocks drift by up to 100 ppm, 6 ms in this time; a suspended machine
/// stops its clock, and a path may become longer for good.
const FASTEST_WINDOW: Span = Span::from_secs(60);
/// Remaining lifetime in microseconds that stands for all longer ones.
const ENDLESS: u64 = u32::MAX as u64;

/// Packets of the current batch, each with the deadline of its message; written by `fixed_size` as it
/// segments.
#[derive(Debug, Default)]
pub(super) struct CutEnds(pub(super) Vec<(usize, Option<Time>)>);

#[derive(Clone, Copy, Debug)]
struct Attributes {
    /// Send time in wrapped microseconds of the sender's clock.
    departed: Attribute<u32>,
    /// Remaining lifetime from then on, in microseconds; `u32::MAX`: no deadline.
    remaining: Attribute<u32>,
}

/// Returns the deadline of a segment sent now, from the attribute `rest_of_life`; `None`: no deadline.
pub(super) fn deadline_of(remaining: u32, now: Time) -> Option<Time> {
    (u64::from(remaining) != ENDLESS).then(|| now + Span::from_micros(u64::from(remaining)))
}

#[derive(Debug)]
struct DropLate {
    lifetime: Span,
    attributes: Option<Attributes>,
    message: Option<Attribute<u32>>,
    cut: Option<SharedValue<CutEnds>>,
    /// Earliest deadline in the queue.
    next_end: Option<Time>,
    /// Earliest time of the next pass of the queue.
    next_pass: Time,
    /// Allocated when the first packet arrives.
    one_way: Option<Box<OneWayDelay>>,
    arriving: MessageMap<Option<Time>>,
    dropped: u64,
    late: u64,
}

configuration! {
    /// Parameters of `deadline`.
    pub struct DeadlineConfig: "deadline" {
        lifetime: Span = "1s", "lifetime of messages that specify none";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size"]],
        ..Registration::of::<DeadlineConfig>(1, "drops expired messages", |parameters, _| {
            Ok(Box::new(DropLate {
                lifetime: parameters.read::<DeadlineConfig>().lifetime,
                attributes: None,
                message: None,
                cut: None,
                next_end: None,
                next_pass: Time::ZERO,
                one_way: None,
                arriving: MessageMap::new(REMEMBERED),
                dropped: 0,
                late: 0,
            }))
        })
    }
}

impl DropLate {
    /// Drops expired messages from the queue.
    fn sweep(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        if self.next_end.is_some() && context.queue().is_empty() {
            self.next_end = None;
            context.cancel_timer(0);
        }
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        let mut expired: Vec<Outgoing> = Vec::new();
        let mut next_end: Option<Time> = None;
        let is_expired = |message: &Outgoing| {
            #[cfg(test)]
            tests::VISITED.set(tests::VISITED.get() + 1);
            let Some(end) = message.deadline else { return false };
            if end > now {
                next_end = Some(next_end.map_or(end, |known| known.min(end)));
            }
            end <= now
        };
        context.queue().remove(is_expired, |message| expired.push(message));
        (self.next_end, self.next_pass) = (next_end, now + PASS * context.queue().len() as u64);
        for message in expired {
            self.dropped += 1;
            let (id, arrived) = (message.id, false);
            context.pool().put(message.data);
            context.raise(MESSAGE_SETTLED, &mut Settled { message: id, arrived });
            context.emit(StackEvent::Settled { message: id, arrived });
        }
        self.wake(context);
    }

    /// When the next message can be dropped.
    fn due(&self) -> Option<Time> {
        self.next_end.map(|end| end.max(self.next_pass))
    }

    fn wake(&self, context: &mut Context<'_>) {
        match self.due() {
            Some(due) => context.set_timer(0, due),
            None => context.cancel_timer(0),
        }
    }

    fn write(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let (attributes, now) = (self.attributes.expect("declared"), context.now());
        for i in 0..batch.len() {
            if !batch.is_resent(i) {
                batch.set(i, attributes.departed, now.as_wrapped_micros());
                batch.set(i, attributes.remaining, u32::MAX);
            }
        }
        let cut = context.shared(self.cut.expect("declared"));
        for (i, end) in cut.0.drain(..) {
            let remaining = end.map_or(ENDLESS, |end| end.since(now).as_micros());
            batch.set(i, attributes.remaining, remaining.min(ENDLESS) as u32);
        }
    }

    /// Returns the deadline of packet `i`'s message, on the receiver's clock.
    fn end_of(&mut self, batch: &Batch<'_>, i: usize, now: Time) -> Option<Time> {
        let attributes = self.attributes.expect("declared");
        let one_way = self.one_way.get_or_insert_with(|| Box::new(OneWayDelay::within(FASTEST_WINDOW)));
        let departed = batch.get(i, attributes.departed);
        let spent = one_way.on_arrival(now, departed, now.as_wrapped_micros());
        Some(deadline_of(batch.get(i, attributes.remaining), now)? - spent)
    }
}

impl MicroProtocol for DropLate {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.cut = Some(declaration.shared(CutEnds::default));
        self.attributes = Some(Attributes {
            departed: declaration.attribute(DEPARTED),
            remaining: declaration.attribute(REST_OF_LIFE),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.message = Some(resolution.attribute(MESSAGE));
        resolution.on_submit(Order::NORMAL);
        resolution.on_batch(BatchEvent::FILL, SWEEP);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
        resolution.on_delivery(Order::EARLY);
    }

    fn on_submit(&mut self, submission: &mut Submission<'_>, context: &mut Context<'_>) {
        let end = *submission.deadline.get_or_insert(context.now() + self.lifetime);
        if self.next_end.is_none_or(|known| end < known) {
            self.next_end = Some(end);
            self.wake(context);
        }
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            self.sweep(context);
        } else if event == BatchEvent::SEGMENT_FROM_USER {
            self.write(batch, context);
        } else {
            for i in batch.live() {
                let end = self.end_of(batch, i, context.now());
                self.arriving.insert(batch.get(i, self.message.expect("bound")), end);
            }
        }
    }

    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, context: &mut Context<'_>) {
        let end = self.arriving.remove(delivery.id as u32).flatten();
        // A message is not late at its deadline: the clock may not have advanced since the packet arrived.
        if end.is_some_and(|end| end < context.now()) {
            self.late += 1;
            delivery.verdict = Verdict::Drop;
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        self.sweep(context);
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.lifetime = parameters.read::<DeadlineConfig>().lifetime;
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&DeadlineStats { dropped: self.dropped, late: self.late });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use haul_base::{Bytes, Machine, Rate, Span, Time};
    use haul_stack::{Recipe, SendOptions, StackEvent};

    use crate::config::{DeadlineConfig, FixedRateConfig, RetransmitConfig};
    use crate::micro::stats::{DeadlineStats, KeepCopiesStats};
    use crate::micro::testing::{Pair, Path, T0, events, receive, stats};

    thread_local! {
        /// Number of queued messages whose deadline this thread has checked.
        pub(super) static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    fn pair() -> Pair {
        let recipe = Recipe::new("x")
            .with("fixed_size")
            .with(FixedRateConfig { rate: Rate::from_mbps(1), burst: Bytes(1_000) })
            .with(DeadlineConfig { lifetime: Span::from_millis(50) });
        Pair::new(&recipe)
    }

    fn options(millis: u64) -> SendOptions {
        SendOptions { lifetime: Some(Span::from_millis(millis)), ..SendOptions::default() }
    }

    #[test]
    fn messages_that_waited_too_long_are_dropped_and_reported() {
        let mut pair = pair();
        // A kilobyte takes 8 ms: of twenty messages with a lifetime of 50 ms, six or seven are sent, then the
        // one without.
        for _ in 0..20 {
            pair.a.send(T0, &[0; 950], SendOptions::default()).unwrap();
        }
        pair.a.send(T0, &[1; 950], options(1_000)).unwrap();
        pair.exchange(T0, &mut Path::default());
        pair.run_until(T0 + Span::from_millis(300), &mut Path::default());
        let dropped = stats::<DeadlineStats>(&pair.a).dropped;
        assert!((12..=14).contains(&dropped), "{dropped}");
        let got = pair.received_by_b();
        assert_eq!((got.len() as u64, got.last().unwrap().0), (21 - dropped, 20));
        let given_up = |e: &StackEvent| matches!(e, StackEvent::Settled { arrived: false, .. });
        assert_eq!(events(&mut pair.a).iter().filter(|e| given_up(e)).count() as u64, dropped);
        assert_eq!(pair.a.deadline(), None);
    }

    /// Queues messages that expire at this interval, and sends after each; returns how many deadlines are checked.
    fn checked_deadlines(messages: u64, interval: Span) -> u64 {
        let (mut pair, mut cut) = (pair(), Path { cut: [true, true], ..Path::default() });
        let before = VISITED.get();
        for number in 0..messages {
            let now = T0 + interval * number;
            pair.a.send(now, &[0; 10], SendOptions::default()).unwrap();
            pair.exchange(now, &mut cut);
        }
        pair.run_until(T0 + interval * messages + Span::from_millis(60), &mut cut);
        assert_eq!(pair.a.deadline(), None);
        assert!(stats::<DeadlineStats>(&pair.a).dropped > messages / 4);
        VISITED.get() - before
    }

    #[test]
    fn expired_messages_are_dropped_in_one_pass_of_the_queue() {
        for messages in [1_000, 10_000] {
            let checked = checked_deadlines(messages, Span::ZERO);
            assert!(checked <= messages, "{checked} checks for {messages} messages");
        }
    }

    #[test]
    fn messages_that_expire_one_after_the_other_take_few_passes_of_the_queue() {
        for messages in [1_000, 10_000] {
            let checked = checked_deadlines(messages, Span::from_micros(1));
            assert!(checked <= 12 * messages, "{checked} checks for {messages} messages");
        }
    }

    /// A sender that offers more than the path carries has only such messages: each is sent at the end of its
    /// lifetime.
    #[test]
    fn losses_after_the_deadline_are_not_retransmitted() {
        let recipe = Recipe::new("x")
            .with("fixed_size")
            .with("sequenced_segment")
            .with("retransmit")
            .with("positive_ack")
            .with(DeadlineConfig { lifetime: Span::from_millis(50) });
        let mut pair = Pair::new(&recipe);
        let patient = SendOptions { lifetime: Some(Span::from_secs(3_600)), ..SendOptions::default() };
        pair.a.send(T0, &[1; 5_000], SendOptions::default()).unwrap();
        pair.a.send(T0, &[2; 10], patient).unwrap();
        let outstanding = |pair: &Pair| stats::<KeepCopiesStats>(&pair.a).outstanding;
        let mut cut = Path { cut: [true, false], ..Path::default() };
        pair.exchange(T0, &mut cut);
        pair.run_until(T0 + Span::from_millis(45), &mut cut);
        assert!(outstanding(&pair) > 2, "until then it is repeated");
        pair.run_until(T0 + Span::from_millis(200), &mut cut);
        assert_eq!((outstanding(&pair), stats::<KeepCopiesStats>(&pair.a).given_up), (1, 1));
        let settled = |e: &StackEvent| matches!(e, StackEvent::Settled { message: 0, arrived: false });
        assert_eq!(events(&mut pair.a).iter().filter(|e| settled(e)).count(), 1);
        // The message that can wait arrives when the path is back, and the other does not delay it.
        pair.run_until(T0 + Span::from_secs(60), &mut Path::default());
        assert_eq!(pair.received_by_b(), [(1, vec![2; 10])]);
        assert_eq!(pair.a.deadline(), None);
    }

    #[test]
    fn messages_delayed_beyond_the_deadline_are_not_delivered() {
        let mut pair = pair();
        let mut slot = vec![0; 65_536];
        // The first one takes 5 ms, the others that and their delay; each has a lifetime of 50 ms.
        for (n, delay) in [5, 50, 60, 5].into_iter().enumerate() {
            let now = T0 + Span::from_millis(1_000 * n as u64);
            pair.a.send(now, &[n as u8; 10], SendOptions::default()).unwrap();
            let sent = pair.a.poll_transmit(now, &mut slot).unwrap();
            receive(&mut pair.b, now + Span::from_millis(delay), &mut slot[..sent.len], sent.len);
        }
        let got: Vec<_> = pair.received_by_b().into_iter().map(|(id, _)| id).collect();
        assert_eq!(got, [0, 1, 3]);
        assert_eq!(stats::<DeadlineStats>(&pair.b).late, 1);
    }

    #[test]
    fn clock_drift_makes_nothing_late_and_a_stopped_clock_only_briefly() {
        let mut pair = pair();
        let mut slot = vec![0; 65_536];
        let mut arrives = |n: u64, ahead: Span| {
            let now = T0 + Span::from_secs(10 * n);
            pair.a.send(now, &[0; 10], SendOptions::default()).unwrap();
            let sent = pair.a.poll_transmit(now, &mut slot).unwrap();
            receive(&mut pair.b, now + ahead, &mut slot[..sent.len], sent.len);
            pair.received_by_b().len()
        };
        // The receiver's clock is faster by 100 ppm: after two hours it is ahead by more than ten lifetimes.
        let arrived: usize = (0..720).map(|n| arrives(n, Span::from_millis(5 + n))).sum();
        assert_eq!(arrived, 720);
        // The sender's clock has stood still for twenty seconds.
        let arrived: Vec<usize> = (720..740).map(|n| arrives(n, Span::from_secs(20))).collect();
        assert!(arrived[..3] == [0; 3] && arrived[8..] == [1; 12], "{arrived:?}");
    }

    /// A link of one packet a millisecond with a queue of 50 ms, and 10 ms of delay each way.
    #[derive(Default)]
    struct Link {
        free: Time,
        forth: VecDeque<(Time, Vec<u8>)>,
        back: VecDeque<(Time, Vec<u8>)>,
        packets: u64,
    }

    impl Link {
        fn carry(&mut self, pair: &mut Pair, now: Time) {
            let (delay, mut slot) = (Span::from_millis(10), vec![0; 65_536]);
            for stack in [&mut pair.a, &mut pair.b] {
                if stack.deadline().is_some_and(|deadline| deadline.at <= now) {
                    stack.on_deadline(now);
                }
            }
            while let Some(sent) = pair.a.poll_transmit(now, &mut slot) {
                for packet in slot[..sent.len].chunks(sent.segment_size) {
                    self.packets += 1;
                    let start = self.free.max(now);
                    if start.since(now) <= Span::from_millis(50) {
                        self.free = start + Span::from_millis(1);
                        self.forth.push_back((self.free + delay, packet.to_vec()));
                    }
                }
            }
            while let Some(sent) = pair.b.poll_transmit(now, &mut slot) {
                let packets = slot[..sent.len].chunks(sent.segment_size);
                self.back.extend(packets.map(|packet| (now + delay, packet.to_vec())));
            }
            for (way, to) in [(&mut self.forth, &mut pair.b), (&mut self.back, &mut pair.a)] {
                while let Some((_, mut packet)) = way.pop_front_if(|(at, _)| *at <= now) {
                    let len = packet.len();
                    receive(to, now, &mut packet, len);
                }
            }
        }
    }

    #[test]
    fn an_overloaded_path_is_filled_with_messages_within_their_deadline() {
        let recipe = Recipe::new("x")
            .with("fixed_size")
            .with("sequenced_segment")
            .with(RetransmitConfig { window: 16_384, ..RetransmitConfig::default() })
            .with("positive_ack")
            .with(DeadlineConfig { lifetime: Span::from_millis(100) });
        let (mut pair, mut link, mut arrived) = (Pair::new(&recipe), Link::default(), 0);
        // Two messages a millisecond, for two seconds.
        for tick in 0..20_000 {
            let now = T0 + Span::from_micros(100 * tick);
            if tick % 5 == 0 {
                pair.a.send(now, &[0; 1_000], SendOptions::default()).unwrap();
            }
            link.carry(&mut pair, now);
            arrived += pair.received_by_b().len();
            events(&mut pair.a);
        }
        assert!(arrived > 1_900, "of 2,000 that the link can carry: {arrived}");
        assert!(link.packets < 4_500, "4,000 messages in {} packets", link.packets);
    }
}
