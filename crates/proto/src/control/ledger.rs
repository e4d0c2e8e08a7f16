//! Record of lost packets: as runs, and per unit of the transmission in which they were sent.

use std::collections::VecDeque;
use std::ops::Range;

use haul_base::{Rate, Span, Time};
use haul_diagnosis::Signature;
use haul_wire::packet::SEGMENT_PACKETS;

use super::sample::{Boundary, LossRuns, LostPacket, Unit};

/// Maximum number of units of a kind whose outcome is open. It is exceeded only after a very long silence;
/// then the oldest is dropped.
const MAX_OPEN: usize = 64;

/// A window with more losses has no signature: the diagnosis cannot use it, and memory stays bounded.
const MAX_LOST: usize = 1 << 16;

/// A unit of the transmission whose outcome is not known yet.
#[derive(Clone, Debug)]
struct Open {
    number: u64,
    first_pn: u64,
    packets: u64,
    bytes: u64,
    lost: u64,
    began: Time,
    /// When its last packet was sent and the packet number after it, once it has ended.
    ended: Option<(Time, u64)>,
    /// Numbers of the lost packets, for a signature.
    lost_pns: Vec<u64>,
    /// Whether `lost_pns` was recorded from the start.
    has_all: bool,
}

/// Units of one kind.
#[derive(Debug, Default)]
struct OpenUnits {
    open: VecDeque<Open>,
    begun: u64,
    /// Whether signatures are recorded.
    records: bool,
    /// Unused vectors, kept for their memory.
    spare: Vec<Vec<u64>>,
}

/// Packets sent together: consecutive numbers, one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) now: Time,
    pub(crate) first_pn: u64,
    pub(crate) packets: u64,
    /// UDP payload bytes.
    pub(crate) bytes: u64,
}

/// How far the outcome of sent packets is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Largest acknowledged packet number.
    pub(crate) largest_pn: u64,
    /// When that packet was sent, wrapped microseconds.
    pub(crate) sent_at: u32,
    /// Packets sent earlier than it by this and not acknowledged count as lost.
    pub(crate) reordering: Span,
    /// UDP payload bytes of the packets of unknown outcome.
    pub(crate) in_flight: u64,
    /// Whether all sent packets have arrived.
    pub(crate) all: bool,
}

impl Known {
    /// All outcomes: everything has arrived, or no further report will.
    pub(crate) const ALL: Self =
        Self { largest_pn: 0, sent_at: 0, reordering: Span::ZERO, in_flight: 0, all: true };
}

impl Open {
    /// Returns about how many of its bytes were sent within `span` of its end.
    fn bytes_in_last(&self, span: Span, ended: Time) -> u64 {
        let sent_for = ended.since(self.began);
        if sent_for <= span { self.bytes } else { Rate::from_transfer(self.bytes, sent_for).bytes_in(span) }
    }
}

impl OpenUnits {
    /// Adds packets to the current unit; `remaining` returns how many more packets (of the given size) it takes.
    fn on_sent(&mut self, mut sent: Sent, remaining: impl Fn(&Open, u64) -> u64) {
        let size = (sent.bytes / sent.packets.max(1)).max(1);
        while sent.packets > 0 {
            let open = self.present(sent.now, sent.first_pn);
            let room = remaining(open, size);
            let packets = sent.packets.min(room);
            let bytes = if packets == sent.packets { sent.bytes } else { packets * size };
            open.packets += packets;
            open.bytes += bytes;
            sent.first_pn += packets;
            sent.packets -= packets;
            sent.bytes = sent.bytes.saturating_sub(bytes);
            if packets == room {
                open.ended = Some((sent.now, sent.first_pn));
            }
        }
    }

    /// Returns the unit that a packet with this number belongs to if sent now.
    fn present(&mut self, now: Time, pn: u64) -> &mut Open {
        if self.open.back().is_none_or(|open| open.ended.is_some()) {
            if self.open.len() == MAX_OPEN {
                self.open.pop_front();
            }
            let number = self.begun;
            self.begun += 1;
            let begun = Open {
                number,
                first_pn: pn,
                packets: 0,
                bytes: 0,
                lost: 0,
                began: now,
                ended: None,
                lost_pns: self.spare.pop().unwrap_or_default(),
                has_all: self.records,
            };
            self.open.push_back(begun);
        }
        self.open.back_mut().expect("one was there or was added")
    }

    fn end(&mut self, now: Time, next_pn: u64) {
        let open = self.open.back_mut().filter(|open| open.ended.is_none() && open.packets > 0);
        if let Some(open) = open {
            open.ended = Some((now, next_pn));
        }
    }

    /// Ends all units: packets from `end_pn` on are unknown. If `needs_one`, at least one unit remains.
    fn cut(&mut self, now: Time, end_pn: u64, needs_one: bool) {
        let is_known = |open: &Open| open.first_pn < end_pn;
        self.open.truncate(self.open.iter().take_while(|open| is_known(open)).count());
        if self.open.is_empty() && needs_one {
            self.present(now, end_pn);
        }
        if let Some(last) = self.open.back_mut().filter(|open| open.ended.is_none_or(|(_, end)| end > end_pn))
        {
            last.packets = last.packets.min(end_pn - last.first_pn);
            last.ended = Some((now, end_pn));
        }
    }

    fn on_lost(&mut self, pn: u64) {
        let of = |open: &&mut Open| open.first_pn <= pn && open.ended.is_none_or(|(_, end)| pn < end);
        if let Some(open) = self.open.iter_mut().rev().find(of) {
            open.lost += 1;
            if self.records && open.lost_pns.len() < MAX_LOST {
                open.lost_pns.push(pn);
            }
        }
    }

    /// Returns the oldest unit if all its outcomes are known, and whether `signature` was set for it.
    fn take(
        &mut self,
        unit: Unit,
        now: Time,
        known: &Known,
        signature: &mut Signature,
    ) -> Option<(Boundary, bool)> {
        let open = self.open.front()?;
        let (ended, end_pn) = open.ended?;
        // The newest packet is recent, the end of the unit may be hours ago.
        let since = Span::from_micros(now.as_wrapped_micros().wrapping_sub(known.sent_at).into());
        let settled = match unit {
            // Its own report is final, but may take several packets.
            Unit::Round => {
                let later: u64 = self.open.iter().skip(1).map(|later| later.bytes).sum();
                known.in_flight <= later + open.bytes_in_last(known.reordering, ended)
            }
            _ => now.since(ended) >= since + known.reordering,
        };
        if !known.all && (known.largest_pn < end_pn || !settled) {
            return None;
        }
        let Open { number, first_pn, packets, bytes, lost, began, lost_pns, has_all, .. } =
            self.open.pop_front()?;
        let has_signature = has_all && lost_pns.len() < MAX_LOST;
        self.sign(lost_pns, first_pn..end_pn, signature);
        let lost = lost.min(packets);
        let end = Boundary { unit, number, first_pn, packets, bytes, lost, began, ended, now, verdict: None };
        Some((end, has_signature))
    }

    /// Sets the signature of a unit's losses. Packets without data sent in between count as received.
    fn sign(&mut self, mut lost_pns: Vec<u64>, pns: Range<u64>, signature: &mut Signature) {
        if self.records {
            for pn in &mut lost_pns {
                *pn = pn.saturating_sub(pns.start);
            }
            signature.set_lost(pns.end.saturating_sub(pns.start), &mut lost_pns);
            lost_pns.clear();
            self.spare.push(lost_pns);
        }
    }
}

/// Maximum number of gaps in the numbers of data packets that are remembered. Our choice: a sender in silence
/// creates some at each probe.
const MAX_GAPS: usize = 128;

/// Packet numbers of packets without data.
#[derive(Debug, Default)]
struct PacketsWithoutData {
    /// Packet number after the newest data packet.
    end_pn: u64,
    /// First data packet after each gap, and the total of numbers in all gaps up to it.
    gaps: VecDeque<(u64, u64)>,
    all: u64,
}

impl PacketsWithoutData {
    fn on_sent(&mut self, sent: &Sent) {
        let others = sent.first_pn.saturating_sub(self.end_pn);
        self.end_pn = self.end_pn.max(sent.first_pn + sent.packets);
        if others > 0 {
            self.all += others;
            if self.gaps.capacity() < MAX_GAPS {
                self.gaps.reserve_exact(MAX_GAPS);
            }
            if self.gaps.len() == MAX_GAPS {
                self.gaps.pop_front();
            }
            self.gaps.push_back((sent.first_pn, self.all));
        }
    }

    /// Returns the number of packets without data before a data packet.
    fn before(&self, pn: u64) -> u64 {
        let index = self.gaps.partition_point(|(first_pn, _)| *first_pn <= pn);
        index.checked_sub(1).and_then(|at| self.gaps.get(at)).map_or(0, |(_, all)| *all)
    }
}

/// Record of losses: see the module documentation. Written by the senders of packets and by loss detection,
/// read by `rate_control`.
#[derive(Debug, Default)]
pub(crate) struct LossLedger {
    /// Runs since the last feedback.
    runs: LossRuns,
    others: PacketsWithoutData,
    windows: OpenUnits,
    segments: OpenUnits,
    chunks: OpenUnits,
    rounds: OpenUnits,
}

impl LossLedger {
    /// Adds sent packets; a window ends with the packet that fills `window` bytes.
    pub(crate) fn on_sent(&mut self, sent: Sent, window: u64) {
        self.others.on_sent(&sent);
        self.windows.on_sent(sent, |open, size| window.saturating_sub(open.bytes).div_ceil(size).max(1));
        self.segments.on_sent(sent, |open, _| SEGMENT_PACKETS - open.packets);
        self.chunks.on_sent(sent, |_, _| u64::MAX);
        self.rounds.on_sent(sent, |_, _| u64::MAX);
    }

    /// Ends a chunk or a round before packet `next_pn`.
    pub(crate) fn end(&mut self, unit: Unit, now: Time, next_pn: u64) {
        self.of(unit).end(now, next_pn);
    }

    /// Ends all windows at the end of the transmission; packets from `end_pn` on are unknown. If `needs_one`,
    /// at least one window exists afterwards.
    pub(crate) fn end_windows(&mut self, now: Time, end_pn: u64, needs_one: bool) {
        self.windows.cut(now, end_pn, needs_one);
    }

    /// Records as lost a packet sent at `sent_at` (wrapped microseconds).
    pub(crate) fn on_lost(&mut self, pn: u64, sent_at: u32) {
        let without_data = self.others.before(pn);
        self.runs.push(LostPacket { pn, sent_at, without_data });
        for unit in Unit::ALL {
            self.of(unit).on_lost(pn);
        }
    }

    /// Sets whether transmission windows have signatures from now on; if not, open windows lose theirs.
    pub(crate) fn record_signatures(&mut self, is_requested: bool) {
        self.windows.records = is_requested;
        self.windows.open.iter_mut().for_each(|open| open.has_all &= is_requested);
    }

    /// Returns the next unit whose outcome is known, and whether `signature` was set for it: only for
    /// transmission windows, if signatures are recorded and the window did not lose far too much.
    pub(crate) fn take_boundary(
        &mut self,
        now: Time,
        known: &Known,
        signature: &mut Signature,
    ) -> Option<(Boundary, bool)> {
        Unit::ALL.into_iter().find_map(|unit| self.of(unit).take(unit, now, known, signature))
    }

    /// Moves out the runs recorded since the last call, and continues with `empty`.
    pub(crate) fn swap_runs(&mut self, empty: &mut LossRuns) {
        empty.clear();
        std::mem::swap(&mut self.runs, empty);
    }

    /// Releases the memory of empty lists.
    pub(crate) fn release_idle(&mut self) {
        self.runs.release_idle();
        // Outstanding packets may still be found lost: keep the gaps.
        self.others.gaps.shrink_to_fit();
        for unit in Unit::ALL {
            self.of(unit).spare = Vec::new();
        }
    }

    fn of(&mut self, unit: Unit) -> &mut OpenUnits {
        match unit {
            Unit::Window => &mut self.windows,
            Unit::Segment => &mut self.segments,
            Unit::Chunk => &mut self.chunks,
            Unit::Round => &mut self.rounds,
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_diagnosis::Run;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn sent(millis: u64, first_pn: u64, packets: u64) -> Sent {
        Sent { now: at(millis), first_pn, packets, bytes: packets * 1_000 }
    }

    fn known(largest_pn: u64, millis: u64) -> Known {
        let sent_at = at(millis).as_wrapped_micros();
        Known { largest_pn, sent_at, reordering: Span::from_millis(2), in_flight: 0, all: false }
    }

    /// All boundaries known now.
    fn boundaries(ledger: &mut LossLedger, known: &Known) -> Vec<Boundary> {
        std::iter::from_fn(|| ledger.take_boundary(at(1_000), known, &mut Signature::new()))
            .map(|(end, _)| end)
            .collect()
    }

    #[test]
    fn segments_have_exactly_ten_thousand_packets_and_their_losses() {
        let mut ledger = LossLedger::default();
        for batch in 0..400 {
            ledger.on_sent(sent(batch, batch * 64, 64), u64::MAX);
        }
        for pn in [0, 9_999, 10_000, 10_001, 19_999, 20_000, 25_599] {
            ledger.on_lost(pn, 0);
        }
        let segments = boundaries(&mut ledger, &known(25_000, 400));
        let found: Vec<_> =
            segments.iter().map(|b| (b.unit, b.number, b.first_pn, b.packets, b.lost)).collect();
        assert_eq!(found, [(Unit::Segment, 0, 0, 10_000, 2), (Unit::Segment, 1, 10_000, 10_000, 3)]);
        assert!((segments[1].loss_rate() - 0.0003).abs() < 1e-12);
    }

    #[test]
    fn a_unit_is_evaluated_when_its_last_packet_can_no_longer_be_late() {
        let mut ledger = LossLedger::default();
        ledger.on_sent(sent(10, 0, 100), 100_000);
        ledger.on_sent(sent(11, 100, 1), 100_000);
        assert_eq!(boundaries(&mut ledger, &known(99, 10)), []);
        assert_eq!(boundaries(&mut ledger, &known(100, 11)), []);
        let evaluated = boundaries(&mut ledger, &known(200, 12));
        assert_eq!(
            (evaluated.len(), evaluated[0].unit, evaluated[0].packets, evaluated[0].bytes),
            (1, Unit::Window, 100, 100_000)
        );
    }

    /// The clock in packets wraps after 71.6 minutes.
    #[test]
    fn a_unit_of_the_previous_hour_is_evaluated() {
        for minutes in [40, 100] {
            let mut ledger = LossLedger::default();
            ledger.on_sent(sent(10, 0, 100), 100_000);
            let (acked, now) = (minutes * 60_000, at(minutes * 60_000 + 100));
            let known = known(200, acked);
            assert!(ledger.take_boundary(now, &known, &mut Signature::new()).is_some());
        }
    }

    #[test]
    fn rounds_and_chunks_end_where_marked_and_empty_ones_are_ignored() {
        let mut ledger = LossLedger::default();
        ledger.end(Unit::Round, at(0), 0);
        ledger.on_sent(sent(10, 0, 50), u64::MAX);
        ledger.end(Unit::Round, at(11), 50);
        ledger.end(Unit::Round, at(13), 51);
        ledger.on_sent(sent(15, 52, 7), u64::MAX);
        ledger.on_lost(49, 0);
        ledger.on_lost(51, 0);
        let evaluated = boundaries(&mut ledger, &known(51, 11));
        assert_eq!(
            (evaluated.len(), evaluated[0].unit, evaluated[0].packets, evaluated[0].lost),
            (1, Unit::Round, 50, 1)
        );
        ledger.end(Unit::Chunk, at(16), 59);
        assert_eq!(boundaries(&mut ledger, &Known { all: true, ..known(0, 0) })[0].packets, 57);
    }

    #[test]
    fn windows_have_signatures_if_requested() {
        for is_requested in [true, false] {
            let mut ledger = LossLedger::default();
            ledger.record_signatures(is_requested);
            // A packet without data, number 60, is sent in the first window.
            ledger.on_sent(sent(10, 0, 60), 100_000);
            ledger.on_sent(sent(11, 61, 100), 100_000);
            for pn in [7, 100, 5, 6, 101, 99] {
                ledger.on_lost(pn, 0);
            }
            let mut signature = Signature::new();
            let taken = ledger.take_boundary(at(50), &known(160, 20), &mut signature);
            let (end, has_signature) = taken.unwrap();
            assert_eq!((end.packets, end.lost, has_signature), (100, 5, is_requested));
            let run = |first, packets| Run { first, packets };
            let runs = if is_requested { vec![run(5, 3), run(99, 2)] } else { vec![] };
            assert_eq!((signature.packets(), signature.runs()), (101 * u64::from(is_requested), &runs[..]));
        }
    }

    #[test]
    fn loss_runs_account_for_packets_without_data() {
        let mut ledger = LossLedger::default();
        for (first, packets) in [(0, 10), (10, 5), (17, 3), (21, 4)] {
            ledger.on_sent(sent(first, first, packets), u64::MAX);
        }
        for pn in [13, 14, 17, 18, 19, 21] {
            ledger.on_lost(pn, 0);
        }
        let mut runs = LossRuns::default();
        ledger.swap_runs(&mut runs);
        let found: Vec<_> =
            runs.list().iter().map(|run| (run.first_pn, run.packets, run.without_data)).collect();
        assert_eq!(found, [(13, 2, 0), (17, 3, 2), (21, 1, 3)]);
    }

    /// It had one with the losses from before the change of the recipe.
    #[test]
    fn a_window_started_without_loss_records_has_no_signature() {
        let mut ledger = LossLedger::default();
        ledger.on_sent(sent(10, 0, 60), 100_000);
        ledger.on_lost(5, 0);
        ledger.record_signatures(true);
        ledger.on_sent(sent(11, 60, 140), 100_000);
        ledger.on_lost(70, 0);
        ledger.on_lost(150, 0);
        let mut signature = Signature::new();
        let mut take = |ledger: &mut LossLedger| {
            let (end, has_signature) = ledger.take_boundary(at(50), &known(200, 20), &mut signature).unwrap();
            (end.lost, has_signature)
        };
        assert_eq!(take(&mut ledger), (2, false));
        ledger.record_signatures(false);
        ledger.record_signatures(true);
        assert_eq!(take(&mut ledger), (1, false));
    }

    #[test]
    fn memory_is_bounded_during_silence() {
        let mut ledger = LossLedger::default();
        for batch in 0..100_000 {
            ledger.on_sent(sent(batch, batch * 10, 10), 10_000);
        }
        assert!(ledger.windows.open.len() <= MAX_OPEN && ledger.segments.open.len() <= MAX_OPEN);
        ledger.on_lost(3, 0);
        ledger.on_lost(999_999, 0);
        assert_eq!(ledger.windows.open.back().unwrap().lost, 1);
    }
}
