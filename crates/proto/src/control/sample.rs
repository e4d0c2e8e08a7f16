//! What a law is told.

use haul_base::{HostSample, Rate, Span, Time, Verdict};

use crate::rtt::RttEstimator;

/// A batch that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentBatch {
    /// When the batch left.
    pub now: Time,
    /// Packets of the batch.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// UDP payload bytes in flight, this batch included.
    pub in_flight: u64,
}

/// What the receiving end knows of itself. Counts are those since the look before.
#[derive(Clone, Copy, Debug)]
pub struct OwnHost {
    /// When it was looked at.
    pub now: Time,
    /// The load; totals are changes since the look before. `None` if only a deadline has come.
    pub host: Option<HostSample>,
    /// Data packets that were read.
    pub received: u64,
    /// Socket buffers that the kernel dropped.
    pub socket_drops: u64,
}

/// What one feedback packet brought, as every controller sees it. Counts are what this feedback adds; what was said
/// before is in earlier samples. They are no more than what was sent; rates, times and the rest are as the peer says,
/// who may be wrong or lie: whatever a law derives from them must stay bounded.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackSample<'a> {
    /// When it was processed.
    pub now: Time,
    /// Packets newly known to have arrived.
    pub acked_packets: u64,
    /// Packets newly declared lost. With `cause_aware`, those that the receiving host has lost are not among them.
    pub lost_packets: u64,
    /// Packets newly declared lost that `cause_aware` took out of `lost_packets`; 0 without it.
    pub host_lost_packets: u64,
    /// The losses as runs of packets that left consecutively. Without those that `cause_aware` took out if it
    /// took all.
    pub loss: &'a LossRuns,
    /// UDP payload bytes in flight after it.
    pub in_flight: u64,
    /// UDP payload bytes of a full packet at present.
    pub datagram: u64,
    /// UDP payload bytes of data packets sent since the session began, repeated ones included.
    pub sent_bytes: u64,
    /// Data packets sent since the session began, repeated ones included.
    pub sent_packets: u64,
    /// The packet number that the next packet will have: what leaves from now on has no lower one.
    pub next_pn: u64,
    /// The largest packet number known to have arrived: everything sent before it, but what is only late, has been
    /// judged.
    pub largest_acked_pn: u64,
    /// Round-trip time: latest, smoothed, and the minimum of the last 10 s; without the time for which packets waited
    /// to be read at either end.
    pub rtt: &'a RttEstimator,
    /// The rate at which data packets came to the receiver's kernel, by its clock, over about one round trip, UDP
    /// payload. Packets that the kernel dropped are not in it. `None` while too little is known, and for feedback that
    /// came late.
    pub arrival_rate: Option<Rate>,
    /// The rate at which the receiver read them, by its clock, over about one round trip. Lower than `arrival_rate`
    /// while its socket buffer fills, higher while it empties.
    pub drain_rate: Option<Rate>,
    /// How long the packet that came last waited in the receiver's socket before it was read. `None` for late feedback.
    pub read_delay: Option<Span>,
    /// How much longer than the least of the last 10 s the newest packet was under way to the receiver's kernel: what
    /// the queues of the way there hold. The difference of two clocks, so their drift over 10 s is in it.
    pub queue_delay: Option<Span>,
    /// How fast `queue_delay` grows, seconds per second, smoothed over 8 feedbacks; below 0 while it shrinks.
    pub delay_trend: f64,
    /// Mean number of packets in the buffers in which they were read (GRO). `None` if none was.
    pub gro_run: Option<f64>,
    /// Data packets that came to the receiver again.
    pub duplicates: u64,
    /// Socket buffers, each of one or more packets, that the receiver's kernel dropped because the socket was full.
    pub socket_drops: u64,
    /// Packets that came marked "congestion experienced" (RFC 3168).
    pub ecn_ce: u64,
    /// The receiving host's load, if it was looked at anew. Totals are changes since the sample before.
    pub host: Option<HostSample>,
    /// What the diagnosis says of the losses. `None` without one.
    pub verdict: Option<Verdict>,
    /// The report interval in force while data arrives.
    pub report_interval: Span,
    /// Whether the sender lately had less to send than it was allowed.
    pub app_limited: bool,
    /// Whether `arrival_rate` is unknown because the sender had no processor for a while, or nothing to send: what was
    /// acknowledged in that time says nothing of the path.
    pub sender_absent: bool,
}

/// Consecutive lost packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossRun {
    /// Number of the first.
    pub first_pn: u64,
    /// Packets of the run, at least 1.
    pub packets: u64,
    /// When the first of them left, wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// How long after it the last of them left.
    pub lasted: Span,
    /// Numbers before them that packets without data had, as far as these are remembered.
    pub without_data: u64,
}

impl LossRun {
    fn of(lost: LostPacket) -> Self {
        let LostPacket { pn, sent_at, without_data } = lost;
        Self { first_pn: pn, packets: 1, sent_at, lasted: Span::ZERO, without_data }
    }

    /// The number behind the last.
    pub fn end_pn(&self) -> u64 {
        self.first_pn + self.packets
    }

    /// How much later than its first packet one left that was sent at this time, wrapped microseconds.
    pub(crate) fn until(&self, sent_at: u32) -> Span {
        Span::from_micros(sent_at.wrapping_sub(self.sent_at).cast_signed().max(0).unsigned_abs().into())
    }
}

/// A packet that is taken for lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostPacket {
    /// Packet number of the lost transmission.
    pub(crate) pn: u64,
    /// When it left, wrapped microseconds of the sender's clock.
    pub(crate) sent_at: u32,
    /// Numbers before it that packets without data had.
    pub(crate) without_data: u64,
}

/// Losses as runs. Packets count as one run if their numbers follow on each other; those of control packets between
/// them part a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossRuns {
    list: Vec<LossRun>,
    count: u64,
    longest: u64,
    packets: u64,
    last: LossRun,
    end_pn: u64,
}

impl LossRuns {
    /// Runs that are listed at most. A feedback has no more than were outstanding, and its runs are all listed unless a
    /// sender had heard nothing while it went on sending; of further ones only the counts are kept.
    pub const MOST: usize = 1 << 16;
    /// No losses.
    pub fn none() -> &'static Self {
        static NONE: LossRuns = LossRuns {
            list: Vec::new(),
            count: 0,
            longest: 0,
            packets: 0,
            last: LossRun { first_pn: 0, packets: 0, sent_at: 0, lasted: Span::ZERO, without_data: 0 },
            end_pn: 0,
        };
        &NONE
    }

    /// How many runs there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Packets of the longest.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Packets of all.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// All of them, up to [`LossRuns::MOST`], in the order in which they were found: about that of sending.
    pub fn list(&self) -> &[LossRun] {
        &self.list
    }

    /// Adds one packet.
    pub(crate) fn push(&mut self, lost: LostPacket) {
        let LostPacket { pn, sent_at, .. } = lost;
        let is_complete = self.count == self.list.len() as u64;
        if self.count > 0 && pn == self.last.end_pn() {
            self.last.packets += 1;
            self.last.lasted = self.last.lasted.max(self.last.until(sent_at));
            if let Some(last) = self.list.last_mut().filter(|_| is_complete) {
                *last = self.last;
            }
        } else {
            self.last = LossRun::of(lost);
            self.count += 1;
            if self.list.len() < Self::MOST {
                self.list.push(self.last);
            }
        }
        self.packets += 1;
        self.longest = self.longest.max(self.last.packets);
        self.end_pn = self.end_pn.max(pn.saturating_add(1));
    }

    /// Adds those of `later`, which were found after these. A run that goes on in them counts as two.
    pub(crate) fn append(&mut self, later: &Self) {
        let room = Self::MOST - self.list.len();
        self.list.extend_from_slice(&later.list[..later.list.len().min(room)]);
        self.count += later.count;
        self.packets += later.packets;
        self.longest = self.longest.max(later.longest);
        self.end_pn = self.end_pn.max(later.end_pn);
        if later.count > 0 {
            self.last = later.last;
        }
    }

    /// The number behind the newest packet among them; 0 without losses.
    pub(crate) fn end_pn(&self) -> u64 {
        self.end_pn
    }

    /// Forgets all but the memory of the list.
    pub(crate) fn clear(&mut self) {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        *self = Self { list, ..Self::default() };
    }

    /// Gives the memory of an empty list back.
    pub(crate) fn release_idle(&mut self) {
        self.list.shrink_to_fit();
    }
}

/// A stretch of the transmission, by the order in which packets leave. What leaves again counts where it leaves again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A transmission window: so many bytes as `rate_control.unit_window` says (FOBS: 100 MB).
    Window,
    /// 10,000 packets.
    Segment,
    /// From the first packet of one chunk of the object to that of the next, to within a batch.
    Chunk,
    /// A blast round: all that leaves before the sender waits for what is missing (`bitmap_ack.when = "round"`).
    Round,
}

impl Unit {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Window, Self::Segment, Self::Chunk, Self::Round];
}

/// A stretch of the transmission has ended, and the outcome of its packets is known: about a round trip after the last
/// of them left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boundary {
    /// What has ended.
    pub unit: Unit,
    /// Which one of its kind, from 0. Without gaps, but that stretches are dropped if nothing is heard for very long.
    pub number: u64,
    /// Number of its first packet.
    pub first_pn: u64,
    /// Data packets that left in it.
    pub packets: u64,
    /// Their UDP payload bytes.
    pub bytes: u64,
    /// How many of the packets were lost. With `cause_aware`, without those that the receiving host has lost.
    pub lost: u64,
    /// When its first packet left.
    pub began: Time,
    /// When its last packet left.
    pub ended: Time,
    /// When its outcome became known.
    pub now: Time,
    /// What the diagnosis says of its losses. `None` without one; the sender's own speaks of transmission windows only.
    pub verdict: Option<Verdict>,
}

impl Boundary {
    /// Whether most of it left with packet `pn` or later: a law that changed its rate there can judge by it.
    pub fn mostly_after(&self, pn: u64) -> bool {
        self.first_pn.saturating_add(self.packets / 2) >= pn
    }

    /// The share of its packets that were lost, 0 to 1.
    pub fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(pn: u64) -> LostPacket {
        LostPacket { pn, ..LostPacket::default() }
    }

    fn of(pns: impl IntoIterator<Item = u64>) -> LossRuns {
        let mut runs = LossRuns::default();
        pns.into_iter().for_each(|pn| runs.push(lost(pn)));
        runs
    }

    #[test]
    fn losses_are_runs_and_all_are_listed() {
        let run = |first_pn, packets| LossRun { first_pn, packets, ..LossRun::default() };
        let mut runs = of([5, 6, 7, 20, 30, 31]);
        assert_eq!(runs.list(), [run(5, 3), run(20, 1), run(30, 2)]);
        assert_eq!((runs.count(), runs.longest(), runs.packets()), (3, 3, 6));
        (0..100).for_each(|n| runs.push(lost(100 + 2 * n)));
        assert_eq!((runs.count(), runs.list().len(), runs.packets()), (103, 103, 106));
        let mut both = of([1]);
        assert_eq!((both.end_pn(), LossRuns::none().end_pn()), (2, 0));
        both.append(&runs);
        both.append(LossRuns::none());
        assert_eq!((both.count(), both.packets(), both.longest(), both.end_pn()), (104, 107, 3, 299));
        assert_eq!((both.list()[0], &both.list()[1..]), (run(1, 1), runs.list()));
        runs.clear();
        runs.push(lost(299));
        assert_eq!((runs.list(), runs.longest()), (&[run(299, 1)][..], 1));
    }

    #[test]
    fn a_run_knows_when_its_packets_left_across_the_wrap_of_the_clock() {
        let mut runs = LossRuns::default();
        for (pn, sent_at) in [(5, u32::MAX - 9), (6, u32::MAX), (7, 90), (9, 95)] {
            runs.push(LostPacket { pn, sent_at, without_data: 0 });
        }
        let of = |run: &LossRun| (run.sent_at, run.lasted.as_micros());
        assert_eq!(runs.list().iter().map(of).collect::<Vec<_>>(), [(u32::MAX - 9, 100), (95, 0)]);
    }

    /// Packets that leave again are found first, by their place in the object, though their numbers are higher.
    #[test]
    fn the_newest_lost_packet_need_not_be_the_one_that_was_found_last() {
        assert_eq!(of([900, 901, 20, 30]).end_pn(), 902);
        let mut both = of([900]);
        both.append(&of([7]));
        assert_eq!(both.end_pn(), 901);
        both.clear();
        assert_eq!(both.end_pn(), 0);
    }

    #[test]
    fn beyond_the_bound_only_the_counts_are_kept() {
        let most = LossRuns::MOST as u64;
        let mut runs = of((0..most + 10).map(|n| 2 * n));
        runs.push(lost(2 * (most + 9) + 1));
        assert_eq!((runs.list().len(), runs.count(), runs.packets()), (LossRuns::MOST, most + 10, most + 11));
        assert_eq!(runs.list().last(), Some(&LossRun::of(lost(2 * (most - 1)))));
        let mut both = of([1]);
        both.append(&runs);
        assert_eq!((both.list().len(), both.count()), (LossRuns::MOST, most + 11));
    }
}
