//! Inputs of a control law.

use haul_base::{HostSample, Rate, Span, Time, Verdict};

use crate::rtt::RttEstimator;

/// A batch that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentBatch {
    /// When the batch was sent.
    pub now: Time,
    /// Number of packets in the batch.
    pub packets: u64,
    /// UDP payload bytes of the batch.
    pub bytes: u64,
    /// UDP payload bytes in flight, this batch included.
    pub in_flight: u64,
}

/// Measurements of the receiver's own host. Counts are since the previous sample.
#[derive(Clone, Copy, Debug)]
pub struct LocalHostSample {
    /// When the sample was taken.
    pub now: Time,
    /// Load, with totals as differences to the previous sample. `None` if only a deadline was reached.
    pub host: Option<HostSample>,
    /// Data packets read.
    pub received: u64,
    /// Socket buffers dropped by the kernel.
    pub socket_drops: u64,
}

/// Contents of one feedback packet, as passed to every controller. Counts are increments since the previous
/// feedback and never exceed what was sent. Rates, times and the rest are as reported by the peer, which may
/// be wrong or lie: whatever a law derives from them must stay bounded.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackSample<'a> {
    /// When the feedback was processed.
    pub now: Time,
    /// Packets newly acknowledged.
    pub acked_packets: u64,
    /// Packets newly declared lost. With `cause_aware`, without those lost by the receiving host.
    pub lost_packets: u64,
    /// Packets newly declared lost that `cause_aware` removed from `lost_packets`; 0 without it.
    pub host_lost_packets: u64,
    /// The losses as runs of consecutively sent packets. Empty if `cause_aware` removed all of them.
    pub loss: &'a LossRuns,
    /// UDP payload bytes in flight after this feedback.
    pub in_flight: u64,
    /// Current UDP payload bytes of a full packet.
    pub datagram: u64,
    /// UDP payload bytes of all data packets sent in this session, retransmissions included.
    pub sent_bytes: u64,
    /// Data packets sent in this session, retransmissions included.
    pub sent_packets: u64,
    /// Next packet number: later packets have no lower one.
    pub next_pn: u64,
    /// Largest acknowledged packet number: except for late packets, the outcome of all earlier ones is known.
    pub largest_acked_pn: u64,
    /// Round-trip time: latest, smoothed, and minimum of the last 10 s; without the time that packets spent
    /// in the socket queues of both ends.
    pub rtt: &'a RttEstimator,
    /// Arrival rate of data packets at the receiver's kernel, by the receiver's clock, over about one round
    /// trip, UDP payload. Excludes packets dropped by the kernel. `None` while there is too little data, and
    /// for late feedback.
    pub arrival_rate: Option<Rate>,
    /// Rate at which the receiver read packets, by its clock, over about one round trip. Below `arrival_rate`
    /// while its socket buffer fills, above it while the buffer drains.
    pub drain_rate: Option<Rate>,
    /// Time for which the newest packet waited in the receiver's socket. `None` for late feedback.
    pub read_delay: Option<Span>,
    /// One-way delay of the newest packet to the receiver's kernel above the minimum of the last 10 s: the
    /// delay of the forward path's queues. A difference of two clocks, so it includes their drift over 10 s.
    pub queue_delay: Option<Span>,
    /// Growth of `queue_delay` in seconds per second, smoothed over 8 feedbacks; negative while it shrinks.
    pub delay_trend: f64,
    /// Mean number of packets per GRO buffer read. `None` if nothing was read.
    pub gro_run: Option<f64>,
    /// Duplicate data packets at the receiver.
    pub duplicates: u64,
    /// Socket buffers (one or more packets each) that the receiver's kernel dropped at a full socket.
    pub socket_drops: u64,
    /// Packets received with the mark "congestion experienced" (RFC 3168).
    pub ecn_ce: u64,
    /// Load of the receiving host, if there is a new sample. Totals are differences to the previous sample.
    pub host: Option<HostSample>,
    /// Diagnosis of the losses. `None` without one.
    pub verdict: Option<Verdict>,
    /// Current report interval while data arrives.
    pub report_interval: Span,
    /// Whether the sender recently had less data to send than it was allowed to.
    pub app_limited: bool,
    /// Whether `arrival_rate` is unknown because the sender had no processor or no data for a while:
    /// acknowledgements of that time say nothing about the path.
    pub sender_absent: bool,
}

/// A run of consecutive lost packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossRun {
    /// Number of the first packet.
    pub first_pn: u64,
    /// Number of packets in the run, at least 1.
    pub packets: u64,
    /// When the first packet was sent, wrapped microseconds of the sender's clock.
    pub sent_at: u32,
    /// Time from the sending of the first packet to that of the last.
    pub duration: Span,
    /// Packets without data that were sent before the run, as far as they are remembered.
    pub without_data: u64,
}

impl LossRun {
    fn of(lost: LostPacket) -> Self {
        let LostPacket { pn, sent_at, without_data } = lost;
        Self { first_pn: pn, packets: 1, sent_at, duration: Span::ZERO, without_data }
    }

    /// Returns the packet number after the last packet.
    pub fn end_pn(&self) -> u64 {
        self.first_pn + self.packets
    }

    /// Returns the time from the sending of the run's first packet to `sent_at` (wrapped microseconds).
    pub(crate) fn until(&self, sent_at: u32) -> Span {
        Span::from_micros(sent_at.wrapping_sub(self.sent_at).cast_signed().max(0).unsigned_abs().into())
    }
}

/// A packet declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostPacket {
    /// Packet number of the lost transmission.
    pub(crate) pn: u64,
    /// When it was sent, wrapped microseconds of the sender's clock.
    pub(crate) sent_at: u32,
    /// Packets without data sent before it.
    pub(crate) without_data: u64,
}

/// Losses as runs. Packets with consecutive numbers form one run; control packets sent in between split it.
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
    /// Maximum length of the list of runs. A feedback reports at most the packets outstanding, so all its
    /// runs are listed, unless a sender went on without feedback; runs beyond that are only counted.
    pub const MAX_RUNS: usize = 1 << 16;
    /// Returns an empty set of losses.
    pub fn none() -> &'static Self {
        static NONE: LossRuns = LossRuns {
            list: Vec::new(),
            count: 0,
            longest: 0,
            packets: 0,
            last: LossRun { first_pn: 0, packets: 0, sent_at: 0, duration: Span::ZERO, without_data: 0 },
            end_pn: 0,
        };
        &NONE
    }

    /// Returns the number of runs.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of packets in the longest run.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns the total number of packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the runs, up to [`LossRuns::MAX_RUNS`], in the order of detection: roughly the sending order.
    pub fn list(&self) -> &[LossRun] {
        &self.list
    }

    /// Adds a packet.
    pub(crate) fn push(&mut self, lost: LostPacket) {
        let LostPacket { pn, sent_at, .. } = lost;
        let is_complete = self.count == self.list.len() as u64;
        if self.count > 0 && pn == self.last.end_pn() {
            self.last.packets += 1;
            self.last.duration = self.last.duration.max(self.last.until(sent_at));
            if let Some(last) = self.list.last_mut().filter(|_| is_complete) {
                *last = self.last;
            }
        } else {
            self.last = LossRun::of(lost);
            self.count += 1;
            if self.list.len() < Self::MAX_RUNS {
                self.list.push(self.last);
            }
        }
        self.packets += 1;
        self.longest = self.longest.max(self.last.packets);
        self.end_pn = self.end_pn.max(pn.saturating_add(1));
    }

    /// Appends the runs of `later`, detected after these. A run that continues there counts as two.
    pub(crate) fn append(&mut self, later: &Self) {
        let room = Self::MAX_RUNS - self.list.len();
        self.list.extend_from_slice(&later.list[..later.list.len().min(room)]);
        self.count += later.count;
        self.packets += later.packets;
        self.longest = self.longest.max(later.longest);
        self.end_pn = self.end_pn.max(later.end_pn);
        if later.count > 0 {
            self.last = later.last;
        }
    }

    /// Returns the packet number after the newest lost packet; 0 without losses.
    pub(crate) fn end_pn(&self) -> u64 {
        self.end_pn
    }

    /// Clears the runs but keeps the list's memory.
    pub(crate) fn clear(&mut self) {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        *self = Self { list, ..Self::default() };
    }

    /// Releases the memory of an empty list.
    pub(crate) fn release_idle(&mut self) {
        self.list.shrink_to_fit();
    }
}

/// Kind of unit into which the transmission is divided, in sending order. A retransmission belongs to the
/// unit in which it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A transmission window of `rate_control.unit_window` bytes (FOBS: 100 MB).
    Window,
    /// 10,000 packets.
    Segment,
    /// From the first packet of one chunk of the object to that of the next, to within a batch.
    Chunk,
    /// A blast round: all packets sent before the sender waits for the list of missing ones
    /// (`bitmap_ack.when = "round"`).
    Round,
}

impl Unit {
    /// All kinds of units.
    pub const ALL: [Self; 4] = [Self::Window, Self::Segment, Self::Chunk, Self::Round];
}

/// A unit of the transmission has ended and the outcome of its packets is known, about a round trip after its
/// last packet was sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boundary {
    /// Kind of unit.
    pub unit: Unit,
    /// Index among the units of this kind, from 0. Has gaps only if units are dropped after a long silence.
    pub number: u64,
    /// Packet number of its first packet.
    pub first_pn: u64,
    /// Data packets sent in it.
    pub packets: u64,
    /// UDP payload bytes of these packets.
    pub bytes: u64,
    /// Packets lost. With `cause_aware`, without those lost by the receiving host.
    pub lost: u64,
    /// When its first packet was sent.
    pub began: Time,
    /// When its last packet was sent.
    pub ended: Time,
    /// When its outcome became known.
    pub now: Time,
    /// Diagnosis of its losses. `None` without one; the sender's own covers transmission windows only.
    pub verdict: Option<Verdict>,
}

impl Boundary {
    /// Whether most of it was sent from packet `pn` on: a law that changed its rate there can judge by it.
    pub fn mostly_after(&self, pn: u64) -> bool {
        self.first_pn.saturating_add(self.packets / 2) >= pn
    }

    /// Returns the share of its packets that were lost, 0 to 1.
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
    fn a_run_has_its_packets_send_times_across_a_clock_wrap() {
        let mut runs = LossRuns::default();
        for (pn, sent_at) in [(5, u32::MAX - 9), (6, u32::MAX), (7, 90), (9, 95)] {
            runs.push(LostPacket { pn, sent_at, without_data: 0 });
        }
        let of = |run: &LossRun| (run.sent_at, run.duration.as_micros());
        assert_eq!(runs.list().iter().map(of).collect::<Vec<_>>(), [(u32::MAX - 9, 100), (95, 0)]);
    }

    /// Retransmissions are detected first, by their place in the object, though their numbers are higher.
    #[test]
    fn the_newest_lost_packet_can_be_found_before_others() {
        assert_eq!(of([900, 901, 20, 30]).end_pn(), 902);
        let mut both = of([900]);
        both.append(&of([7]));
        assert_eq!(both.end_pn(), 901);
        both.clear();
        assert_eq!(both.end_pn(), 0);
    }

    #[test]
    fn above_the_limit_only_counts_are_kept() {
        let most = LossRuns::MAX_RUNS as u64;
        let mut runs = of((0..most + 10).map(|n| 2 * n));
        runs.push(lost(2 * (most + 9) + 1));
        assert_eq!(
            (runs.list().len(), runs.count(), runs.packets()),
            (LossRuns::MAX_RUNS, most + 10, most + 11)
        );
        assert_eq!(runs.list().last(), Some(&LossRun::of(lost(2 * (most - 1)))));
        let mut both = of([1]);
        both.append(&runs);
        assert_eq!((both.list().len(), both.count()), (LossRuns::MAX_RUNS, most + 11));
    }
}
