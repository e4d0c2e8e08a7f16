//! `witness`: the receiver reports which packets its kernel has dropped. Each packet arrives with the number
//! of buffers that the socket dropped before it (`SO_RXQ_OVFL`): where the count has grown, the missing
//! packets were lost in this host.
//!
//! A message contains gaps: first missing packet u48, packets of the gap u16, number of missing ones u16, and
//! increase of the count u32. Each gap is sent in two messages, so that losing one has no effect.

use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, ProtocolStats,
    Registration, Resolution,
};

use super::events::{DroppedGap, WITNESSED};
use super::stats::WitnessStats;

const WITNESS: Kind = Kind(20);
/// Bytes of a gap in a message.
const GAP: usize = 14;
/// Maximum number of queued gaps. Further ones are merged with the last.
const MAX_GAPS: usize = 64;
/// Gaps with fewer packets between them are merged: a socket that stays full drops every other packet. Our
/// choice.
const MAX_JOIN_DISTANCE: u64 = 16;
/// Minimum time between messages: no more often than reports of the preset `bulk`.
const INTERVAL: Span = Span::from_millis(2);
const REPEATS: u8 = 2;
/// Before other handlers take packets out of the batch.
const COUNT: Order = Order(Order::FIRST.0 - 1);

/// State of `witness`; see the module documentation.
#[derive(Debug, Default)]
struct Witness {
    witnessed: Option<Event<DroppedGap>>,
    /// Largest number of a received data packet, and the drop count before it.
    newest: Option<(u64, u32)>,
    /// Gaps to report, each with the number of messages that have carried it.
    gaps: VecDeque<(DroppedGap, u8)>,
    reported_at: Option<Time>,
    /// At the sender: the number after the last reported gap.
    known: u64,
    counts: WitnessStats,
}

pub(super) fn registration() -> Registration {
    let summary = "reports which packets the receiving host's kernel dropped";
    Registration {
        needs: &[&["rate_control"]],
        ..Registration::new("witness", 1, summary, |_, _| Ok(Box::<Witness>::default()))
    }
}

impl Witness {
    /// Records that packets `first` to `last` arrived together, after the socket had dropped `drops` buffers
    /// in total.
    fn on_data(&mut self, first: u64, last: u64, drops: u32) {
        let (newest, before) = self.newest.unwrap_or((last, drops));
        self.newest = Some((newest.max(last), drops));
        let (grown, missing) = (drops.wrapping_sub(before), first.saturating_sub(newest + 1));
        // A falling count comes from another socket.
        if grown > 0 && grown.cast_signed() > 0 && missing > 0 {
            self.record(DroppedGap { first_pn: newest + 1, packets: missing, missing, drops: grown });
        }
    }

    fn record(&mut self, gap: DroppedGap) {
        self.counts.gaps += 1;
        let is_full = self.gaps.len() == MAX_GAPS;
        let joins = |last: &DroppedGap| is_full || gap.first_pn < last.end() + MAX_JOIN_DISTANCE;
        if let Some((last, _)) = self.gaps.back_mut().filter(|(last, reports)| *reports == 0 && joins(last)) {
            last.packets = gap.end() - last.first_pn;
            last.missing += gap.missing;
            last.drops = last.drops.saturating_add(gap.drops);
        } else {
            self.gaps.truncate(MAX_GAPS - 1);
            self.gaps.push_back((gap, 0));
        }
    }

    /// Time at which the next message is due.
    fn due(&self, now: Time) -> Option<Time> {
        (!self.gaps.is_empty()).then(|| self.reported_at.map_or(now, |reported_at| reported_at + INTERVAL))
    }

    fn schedule(&self, context: &mut Context<'_>) {
        match self.due(context.now()) {
            Some(due) if due <= context.now() => context.request_control(),
            Some(due) => context.set_timer(0, due),
            None => {}
        }
    }

    /// Raises an event for each new gap of a message; `None` if the message is invalid.
    fn on_message(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<()> {
        let witnessed = self.witnessed.expect("declared before it is used");
        let sent = context.next_pn();
        let (gaps, rest) = body.as_chunks::<GAP>();
        if gaps.is_empty() || !rest.is_empty() {
            return None;
        }
        for gap in gaps {
            let mut gap = DroppedGap::read(gap).filter(|gap| gap.end() <= sent)?;
            if gap.first_pn >= self.known {
                self.known = gap.end();
                self.counts.gaps += 1;
                context.raise(witnessed, &mut gap);
            }
        }
        Some(())
    }
}

impl DroppedGap {
    fn write(&self) -> [u8; GAP] {
        let short = |packets| u16::try_from(packets).unwrap_or(u16::MAX).to_be_bytes();
        let mut body = [0; GAP];
        body[..6].copy_from_slice(&self.first_pn.to_be_bytes()[2..]);
        body[6..8].copy_from_slice(&short(self.packets));
        body[8..10].copy_from_slice(&short(self.missing));
        body[10..].copy_from_slice(&self.drops.to_be_bytes());
        body
    }

    fn read(body: &[u8; GAP]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (first_pn, packets) = (number(&body[..6]), number(&body[6..8]));
        let (missing, drops) = (number(&body[8..10]), number(&body[10..]) as u32);
        (1..=packets).contains(&missing).then_some(Self { first_pn, packets, missing, drops })
    }
}

impl MicroProtocol for Witness {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(WITNESS);
        self.witnessed = Some(declaration.event(WITNESSED));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, COUNT);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let mut live = batch.live();
        let (Some(first), Some(last)) = (live.next(), batch.live().last()) else { return };
        let (first, last) = (batch.pn(first), batch.pn(last));
        let waits = self.gaps.len();
        self.on_data(first.min(last), first.max(last), context.arrival().socket_drops);
        if self.gaps.len() > waits {
            self.schedule(context);
        }
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn std::any::Any, _: &mut Context<'_>) {}

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        if self.on_message(batch.payload(i), context).is_none() {
            batch.reject(i);
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let now = context.now();
        let fitting = self.gaps.len().min(batch.control_space().unwrap_or(0) / GAP);
        if self.due(now).is_some_and(|due| due <= now)
            && fitting > 0
            && let Some(i) = batch.push(WITNESS, fitting * GAP)
        {
            let (bodies, _) = batch.payload_mut(i).as_chunks_mut::<GAP>();
            for (body, (gap, reports)) in bodies.iter_mut().zip(&mut self.gaps) {
                *body = gap.write();
                *reports += 1;
            }
            self.gaps.retain(|(_, reports)| *reports < REPEATS);
            self.reported_at = Some(now);
            self.counts.messages_sent += 1;
        }
        self.schedule(context);
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        self.schedule(context);
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.counts);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fate of a packet.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        Arrives,
        LostOnPath,
        DroppedByKernel,
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![
            6 => Just(Fate::Arrives),
            1 => Just(Fate::LostOnPath),
            2 => Just(Fate::DroppedByKernel)
        ];
        prop::collection::vec(prop::collection::vec(fate, 1..3), 0..200)
            .prop_map(|runs| runs.into_iter().flat_map(|run| std::iter::repeat_n(run, 3)).flatten().collect())
    }

    proptest! {
        /// Each packet dropped by the kernel is in a gap, and a gap without kernel drops is not reported.
        #[test]
        fn gaps_are_where_the_kernel_dropped_packets(fates in fates(), reported_at in 0usize..400) {
            let mut witness = Witness::default();
            witness.on_data(0, 0, 0);
            let mut drops = 0;
            let mut last = 0;
            for (pn, fate) in (1u64..).zip(&fates) {
                match fate {
                    Fate::Arrives => { witness.on_data(pn, pn, drops); last = pn; }
                    Fate::LostOnPath => {}
                    Fate::DroppedByKernel => drops += 1,
                }
                if pn as usize == reported_at {
                    witness.gaps.iter_mut().for_each(|(_, reports)| *reports = 1);
                }
            }
            let gaps: Vec<DroppedGap> = witness.gaps.iter().map(|(gap, _)| *gap).collect();
            let known = fates.iter().take(last as usize);
            let dropped = (1u64..).zip(known).filter(|(_, fate)| **fate == Fate::DroppedByKernel);
            let dropped: Vec<u64> = dropped.map(|(pn, _)| pn).collect();
            prop_assert!(gaps.is_sorted_by(|a, b| a.end() <= b.first_pn), "{gaps:?}");
            let within = |gap: &DroppedGap| dropped.iter().filter(|pn| (gap.first_pn..gap.end()).contains(pn)).count();
            for gap in &gaps {
                prop_assert!(gap.drops as usize == within(gap) && gap.missing >= u64::from(gap.drops), "{gap:?}");
                prop_assert!(gap.missing <= gap.packets);
            }
            prop_assert_eq!(gaps.iter().map(within).sum::<usize>(), dropped.len());
        }

        #[test]
        fn a_gap_round_trips(first_pn in 0u64..1 << 48, packets: u16, missing: u16, drops: u32) {
            let gap = DroppedGap { first_pn, packets: packets.into(), missing: missing.into(), drops };
            let sound = (1..=packets).contains(&missing);
            prop_assert_eq!(DroppedGap::read(&gap.write()), sound.then_some(gap));
        }
    }

    #[test]
    fn a_decreasing_count_is_another_sockets() {
        let mut witness = Witness::default();
        for (pn, drops) in [(0, 9), (5, 3), (9, u32::MAX), (20, u32::MAX - 4)] {
            witness.on_data(pn, pn, drops);
        }
        assert!(witness.gaps.is_empty(), "{:?}", witness.gaps);
        // The count wraps.
        witness.on_data(21, 21, u32::MAX);
        witness.on_data(30, 32, 1);
        let gap = DroppedGap { first_pn: 22, packets: 8, missing: 8, drops: 2 };
        assert_eq!(witness.gaps, [(gap, 0)]);
    }

    #[test]
    fn the_number_of_kept_gaps_is_limited_to_a_message() {
        let mut witness = Witness::default();
        for number in 0..10_000 {
            witness.on_data(number * 100, number * 100 + 20, number as u32);
        }
        assert_eq!(witness.gaps.len(), MAX_GAPS);
        let sum = |of: fn(&DroppedGap) -> u64| witness.gaps.iter().map(|(gap, _)| of(gap)).sum::<u64>();
        assert_eq!((sum(|gap| gap.drops.into()), sum(|gap| gap.missing)), (9_999, 9_999 * 79));
    }
}
