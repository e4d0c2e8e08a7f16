//! `sequenced_segment`: gives every new segment the next sequence number of its direction; a retransmitted
//! one keeps its number. Duplicates reach only the handlers that count and acknowledge.

use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, MicroProtocol, Order, Part, ProtocolStats,
    RENUMBERED, Recipe, Registration, Resolution, SharedValue, U48, configuration,
};

use super::attributes::SEQUENCE;
use super::received_set::{ReceivedSet, SPAN};
use super::retransmit::RetransmitConfig;
use super::scoreboard::Scoreboard;
use super::stats::SequencedSegmentStats;
use super::turns::Turns;

/// Where arrivals are recorded: after those without space were refused, before the others are acknowledged.
const RECORD: Order = Order(Order::EARLY.0 - 1);
/// Where duplicates are dropped: after they have been acknowledged again.
const SUPPRESS: Order = Order(Order::EARLY.0 + 50);

/// Whether the stack retransmits lost segments. Then nothing may be dropped once it has been acknowledged.
pub(super) fn is_reliable(resolution: &Resolution<'_>) -> bool {
    resolution.has("retransmit")
}

#[derive(Debug)]
struct SequencedSegment {
    sequence: Option<Attribute<U48>>,
    received: Option<SharedValue<ReceivedSet>>,
    scoreboard: Option<SharedValue<Scoreboard>>,
    next: u64,
    window: u64,
    reliable: bool,
    turns: Turns,
    /// A bit for each duplicate in the batch.
    repeated: u64,
    duplicates: u64,
    given_up: u64,
}

configuration! {
    /// Parameters of `sequenced_segment`.
    pub struct SequencedSegmentConfig: "sequenced_segment" {
        window: u64 in (64, 1 << 24) = "262144",
            "distance from the newest to the oldest segment that may still arrive; more than retransmit.window";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["fixed_size", "object"]],
        compare,
        ..Registration::of::<SequencedSegmentConfig>(
            1,
            "numbers segments and drops duplicates",
            |parameters, _| {
                Ok(Box::new(SequencedSegment {
                    sequence: None,
                    received: None,
                    scoreboard: None,
                    next: 0,
                    reliable: false,
                    window: parameters.read::<SequencedSegmentConfig>().window,
                    turns: Turns::default(),
                    repeated: 0,
                    duplicates: 0,
                    given_up: 0,
                }))
            },
        )
    }
}

/// Retransmitted segments must not count as given up. The bitmaps of an object detect duplicates themselves.
fn compare(parameters: &Part, recipe: &Recipe) -> Result<(), (&'static str, String)> {
    let repeats = recipe.configuration::<RetransmitConfig>().filter(|_| !recipe.has("bitmap_ack"));
    let SequencedSegmentConfig { window } = parameters.read();
    match repeats.map(|repeats| repeats.window) {
        Some(outstanding) if window <= outstanding => {
            let problem = format!(
                "must be more than `retransmit.window = {outstanding}`, or retransmissions would be dropped; set it to {} or more, or lower retransmit.window",
                outstanding + 1
            );
            Err(("window", problem))
        }
        _ => Ok(()),
    }
}

impl SequencedSegment {
    fn number(&mut self, batch: &mut Batch<'_>) {
        let sequence = self.sequence.expect("declared");
        let next = self.next;
        if batch.count_resent() == 0 {
            batch.set_each(0..batch.len(), sequence, |i| next + i as u64);
            self.next += batch.len() as u64;
            return;
        }
        for i in batch.fresh() {
            batch.set(i, sequence, self.next);
            self.next += 1;
        }
    }

    fn record(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let (sequence, received) = (self.sequence.expect("declared"), self.received.expect("declared"));
        // With retransmission at least as much as a sender may have outstanding: the ends change parameters
        // one after the other, and segments sent under the wider ones must not look given up.
        let width = if self.reliable { self.window.max(SPAN) } else { self.window };
        let received = context.shared(received);
        self.repeated = 0;
        for i in batch.live() {
            match received.insert(batch.get(i, sequence), width) {
                Some(passed) => self.given_up += passed,
                None => self.repeated |= 1 << i,
            }
        }
    }

    fn suppress(&mut self, batch: &mut Batch<'_>) {
        let repeated = self.repeated;
        for i in batch.live().filter(|i| repeated >> i & 1 == 1) {
            self.duplicates += 1;
            batch.take(i);
        }
    }
}

impl MicroProtocol for SequencedSegment {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.sequence = Some(declaration.attribute(SEQUENCE));
        self.received = Some(declaration.shared(ReceivedSet::default));
        self.scoreboard = Some(declaration.shared(Scoreboard::default));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::EARLY);
        self.reliable = is_reliable(resolution);
        // `bitmap_ack` drops the duplicates of an object itself.
        if !(resolution.has("bitmap_ack") && resolution.has("object")) {
            resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, RECORD);
            resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, SUPPRESS);
        }
    }

    /// Restarts numbering on both ends, so all records of older numbers are void.
    fn on_start(&mut self, context: &mut Context<'_>) {
        *context.shared(self.received.expect("declared")) = ReceivedSet::default();
        *context.shared(self.scoreboard.expect("declared")) = Scoreboard::default();
        context.raise(RENUMBERED, &mut ());
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_USER {
            self.number(batch);
        } else if self.turns.is_second() {
            self.suppress(batch);
        } else {
            self.record(batch, context);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.window = parameters.read::<SequencedSegmentConfig>().window;
        Ok(())
    }

    fn release_idle(&mut self, context: &mut Context<'_>) {
        let received = context.shared(self.received.expect("declared"));
        if !self.reliable {
            received.settle_below(received.next());
        }
        self.given_up += received.release_idle();
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&SequencedSegmentStats {
            sent: self.next,
            duplicates: self.duplicates,
            given_up: self.given_up,
        });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;
    use haul_stack::{Recipe, SendOptions};

    use crate::config::RetransmitConfig;
    use crate::micro::stats::SequencedSegmentStats;
    use crate::micro::testing::{Pair, Path, T0, stats};

    fn recipe() -> Recipe {
        Recipe::new("test").with("fixed_size").with("sequenced_segment")
    }

    #[test]
    fn duplicates_are_dropped() {
        let mut pair = Pair::new(&recipe());
        for n in 0..100u8 {
            pair.a.send(T0, &[n], SendOptions::default()).unwrap();
        }
        pair.exchange(T0, &mut Path { duplicate: true, reverse: true, ..Path::default() });
        let mut got: Vec<u8> = pair.received_by_b().iter().map(|(_, m)| m[0]).collect();
        got.sort_unstable();
        assert_eq!(got, (0..100).collect::<Vec<_>>());
        assert_eq!(stats::<SequencedSegmentStats>(&pair.b).duplicates, 100);
    }

    #[test]
    fn a_large_jump_uses_no_memory_and_abandons_the_gap() {
        let mut recipe = recipe();
        crate::micro::registry().set(&mut recipe, "sequenced_segment.window", "64").unwrap();
        let mut pair = Pair::new(&recipe);
        let mut lose = |packet: usize| (1..1_000).contains(&packet);
        for n in 0..1_001u32 {
            pair.a.send(T0, &n.to_be_bytes(), SendOptions::default()).unwrap();
        }
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        assert_eq!(pair.received_by_b().len(), 2);
        let given_up = stats::<SequencedSegmentStats>(&pair.b).given_up;
        assert!((870..=999).contains(&given_up), "{given_up}");
    }

    #[test]
    fn temporarily_different_windows_lose_nothing() {
        let mut narrow = recipe()
            .with("positive_ack")
            .with(RetransmitConfig { window: 32, ..RetransmitConfig::default() });
        crate::micro::registry().set(&mut narrow, "sequenced_segment.window", "64").unwrap();
        let mut pair = Pair::new(&narrow);
        let mut wide = narrow.clone();
        crate::micro::registry().set(&mut wide, "retransmit.window", "2000").unwrap();
        crate::micro::registry().set(&mut wide, "sequenced_segment.window", "4000").unwrap();
        pair.a.reconfigure(T0, &wide).unwrap();
        for n in 0..1_000u32 {
            pair.a.send(T0, &n.to_be_bytes(), SendOptions::default()).unwrap();
        }
        // The confirmation of the change is lost, and so is the first message.
        pair.exchange(T0, &mut Path { lose: Some(&mut |packet| packet < 2), ..Path::default() });
        pair.run_until(T0 + Span::from_secs(5), &mut Path::default());
        assert_eq!(pair.received_by_b().len(), 1_000);
    }
}
