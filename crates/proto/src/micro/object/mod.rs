//! `object`: sends and receives an object. The sender divides it into segments that carry their offset, and
//! starts new ones at multiples of the chunk (FOBS: 100 MB, dickens-system-aware-fobs). The receiver passes
//! pieces from the receive buffer to the sink, in any order, and sets the flow-control limit.

mod boundaries;
mod parts;
mod receiver;
mod sender;

use std::any::Any;

use haul_base::{Bytes, Time};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, EventId, Kind, MicroProtocol, Order, Part, ProtocolStats,
    Registration, Resolution, Setup, choice, configuration,
};

use super::attributes::OFFSET;
use super::stats::ObjectStats;
use super::turns::Turns;
pub use receiver::Gaps;
use receiver::ObjectReceiver;
use sender::ObjectSender;

/// Kind of a part of a segment that was first sent whole, and no longer fits the path.
pub(crate) const DATA_PART: Kind = Kind(7);

/// Whether a batch carries object data, as whole segments or as parts.
pub(super) fn carries_data(batch: &Batch<'_>) -> bool {
    batch.is_data() || (!batch.is_empty() && batch.kind(0) == DATA_PART)
}

/// State of `object`; see the module documentation.
#[derive(Debug)]
struct Object {
    now: Time,
    turns: Turns,
    sender: ObjectSender,
    receiver: ObjectReceiver,
}

choice! {
    /// How both ends move the object between memory and disk.
    pub enum DiskAccess {
        /// As bytes arrive.
        Stream = "stream",
        /// A chunk per call.
        Chunk = "chunk",
    }
}

configuration! {
    /// Parameters of `object`.
    pub struct ObjectConfig: "object" {
        chunk: Bytes in (Bytes(1), Bytes(1 << 48)) = "100MB", "size of the chunks into which the object is divided";
        disk: DiskAccess = "stream",
            "files are read 128 KiB at a time and written as data arrives (`stream`), or one chunk (or a file's part of it) per call (`chunk`); chunks above 100 MB in equal parts";
        first_limit: Bytes = "64MiB", "bytes sent before the receiver raises the limit";
        gaps: Gaps = "held",
            "whether the receiver reserves buffer space for missing data (`held`), or lets the sender continue as if it had arrived (`free`), for rounds over a whole set";
    }
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"], &["bitmap_ack"], &["retransmit"], &["rate_control"]],
        conflicts: &[("fixed_size", "a stack carries an object or messages")],
        fixed: &["gaps", "disk"],
        ..Registration::of::<ObjectConfig>(1, "splits an object into segments and reassembles it", build)
    }
}

fn build(parameters: &Part, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    Ok(Box::new(object(parameters, setup)?))
}

fn object(parameters: &Part, setup: &Setup) -> Result<Object, String> {
    let ObjectConfig { chunk, disk, first_limit, gaps } = parameters.read();
    let sender = ObjectSender::new(chunk.0, first_limit.0);
    let receiver = ObjectReceiver::new(gaps);
    if disk == DiskAccess::Chunk && gaps == Gaps::Free {
        return Err("`disk = \"chunk\"` needs `gaps = \"held\"`, so that chunks complete in order".to_owned());
    }
    Ok(Object { now: setup.now, turns: Turns::default(), sender, receiver })
}

impl MicroProtocol for Object {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let offset = declaration.attribute(OFFSET);
        declaration.kind(DATA_PART);
        self.sender.declare(declaration, offset);
        self.receiver.declare(declaration, offset);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sender.bind(resolution);
        self.receiver.bind(resolution);
        resolution.on_batch(BatchEvent::FILL, Order::NORMAL);
        // Before others count segments, and after duplicates were removed.
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::EARLY);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::LATE);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        self.sender.start(self.now, context);
        self.receiver.start(context);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            self.sender.fill(batch, context);
        } else if self.turns.is_second() {
            self.receiver.deliver(batch, context);
        } else {
            self.receiver.admit(batch, context);
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if self.sender.on_event(event, argument, context) {
            return;
        }
        self.receiver.on_event(event, argument, context);
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        if self.receiver.on_part(batch, i, context).is_none() {
            batch.reject(i);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.sender.set_chunk(parameters.read::<ObjectConfig>().chunk.0);
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let mut stats = ObjectStats::default();
        self.sender.count(&mut stats);
        self.receiver.count(&mut stats);
        report(&stats);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use haul_base::Span;
    use haul_stack::{Recipe, Registration};
    use haul_wire::packet::{PART_BODY_LEN, PartBody};
    use proptest::prelude::*;

    use super::{DATA_PART, object, registration};
    use crate::micro::registry;
    use crate::micro::stats::ObjectStats;
    use crate::micro::testing::{
        Pair, Path, ReceivedObject, T0, byte_at, control_packet, object_recipe, receive, stats,
    };

    /// A pair whose receiver records at most 100 boundaries of gaps.
    fn pair_with_few_gaps(rate: &str, len: u64) -> (Pair, Arc<Mutex<ReceivedObject>>) {
        let mut registry = registry();
        registry.register(Registration {
            build: |parameters, setup| {
                let mut object = object(parameters, setup)?;
                object.receiver.boundaries.most = 100;
                Ok(Box::new(object))
            },
            ..registration()
        });
        Pair::of_object_from(registry, &object_recipe(rate), len)
    }

    /// Sends `b` one-byte parts that claim to be these segments, all at offset 5. Returns how many bytes it
    /// accepted, and how many packets it rejected.
    fn send_parts(pair: &mut Pair, segments: impl Iterator<Item = u64>) -> (u64, u64) {
        for (pn, seq) in (1..).zip(segments) {
            let mut body = vec![byte_at(5); PART_BODY_LEN + 1];
            PartBody { seq, offset: 5, timestamp: 0, skip: 0, total_len: 1, fin: false }.write(&mut body);
            let mut packet = control_packet(DATA_PART, pn, &body);
            let len = packet.len();
            receive(&mut pair.b, T0, &mut packet, len);
        }
        (stats::<ObjectStats>(&pair.b).bytes_delivered, pair.b.stats().violations)
    }

    #[test]
    fn parts_that_would_add_a_gap_above_the_limit_are_treated_as_lost() {
        let (mut pair, _) = pair_with_few_gaps("1Gbit", 10_000);
        let (accepted, violations) = send_parts(&mut pair, (0..1_000).map(|n| 20 + 10 * n));
        assert!(
            (50..54).contains(&accepted) && violations == 0,
            "{accepted} accepted, {violations} rejected"
        );
    }

    #[test]
    fn parts_of_segments_beyond_any_window_are_rejected() {
        let (mut pair, _) = pair_with_few_gaps("1Gbit", 10_000);
        assert_eq!(send_parts(&mut pair, (1..=20).map(|n| n << 40)), (0, 20));
    }

    #[test]
    fn segments_refused_at_the_limit_of_gaps_are_retransmitted_and_no_violation() {
        let (mut pair, came) = pair_with_few_gaps("1Gbit", 1_000_000);
        let mut packets = 0;
        let mut lose = |_| {
            packets += 1;
            packets < 900 && packets % 2 == 0
        };
        let mut path = Path { lose: Some(&mut lose), ..Path::default() };
        pair.exchange(T0, &mut path);
        pair.run_until(T0 + Span::from_secs(60), &mut path);
        assert_eq!((came.lock().unwrap().complete_len, pair.b.stats().violations), (Some(1_000_000), 0));
    }

    #[test]
    fn gap_handling_is_fixed_when_the_session_starts() {
        let recipe = object_recipe("1Gbit");
        let (mut pair, received) = Pair::of_object(&recipe, 10_000);
        let change = |recipe: &Recipe, key: &str, value: &str| {
            let mut changed = recipe.clone();
            registry().set(&mut changed, key, value).unwrap();
            changed
        };
        let other = recipe.clone().with("statistics");
        for recipe in [&recipe, &other] {
            let refused = pair.a.reconfigure(T0, &change(recipe, "object.gaps", "free")).unwrap_err();
            assert_eq!(refused.to_string(), "object: `gaps` cannot change during a session");
            let refused = pair.a.reconfigure(T0, &change(recipe, "object.disk", "chunk")).unwrap_err();
            assert_eq!(refused.to_string(), "object: `disk` cannot change during a session");
        }
        // An explicit default is no change.
        let other = change(&other, "object.gaps", "held");
        pair.a.reconfigure(T0, &change(&other, "object.chunk", "1MB")).unwrap();
        pair.exchange(T0, &mut Path::default());
        assert!(!pair.a.has_failed() && pair.a.recipe().has("statistics"));
        assert_eq!(received.lock().unwrap().complete_len, Some(10_000));
    }

    proptest! {
        #[test]
        fn data_beyond_the_limit_is_refused_and_data_below_accepted(
            len in 1u64..60_000, limit in 0u64..70_000, reverse: bool, lost in 0usize..40,
        ) {
            let mut recipe = object_recipe("100Gbit");
            // The sender ignores the receiver's limit.
            registry().set(&mut recipe, "object.first_limit", "1GB").unwrap();
            let (mut pair, received) = Pair::of_object_up_to(&recipe, len, limit);
            let mut lose = |packet: usize| packet == lost;
            pair.exchange(T0, &mut Path { reverse, lose: Some(&mut lose), ..Path::default() });
            let (sent, refused) = (pair.a.stats().data_sent, pair.b.stats().violations);
            let received = received.lock().unwrap().bytes;
            prop_assert!(!pair.b.has_failed() && sent == pair.b.stats().data_received + u64::from((lost as u64) < sent));
            prop_assert!(received <= len.min(limit));
            if limit >= len {
                prop_assert_eq!(refused, 0);
            } else {
                // Whole segments lie below the limit; the last one has the rest of the object's length. What
                // was lost may be the latter.
                let is_lost = (lost as u64) < sent;
                prop_assert!(received + 1_472 * (1 + u64::from(is_lost)) > limit, "{} of {} came", received, limit);
                prop_assert!(refused > 0 || is_lost);
            }
        }
    }
}
