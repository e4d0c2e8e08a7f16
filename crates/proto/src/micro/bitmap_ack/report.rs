//! Contents and timing of reports: cumulative counters and, per segment, the bitmap of arrivals.
//!
//! Every report describes the state at the time of sending, so losing one has no effect: the next one repeats
//! it. Changed segments come first; a few of the others are repeated in turn.

use haul_stack::choice;
use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_wire::packet::{BufferFull, FeedbackHeader, FeedbackWriter, SEGMENT_PACKETS, SEGMENT_WORDS};

use super::received::ReceivedBitmap;
use super::reverse_path::LONGEST;

/// Packets after which a report is sent before the interval ends: a few hundred, so that the window moves
/// often on a fast short path.
const EAGER_PACKETS: u32 = 512;
/// Divisor: gaps and packet counts shorten the interval at most to this fraction.
const EAGER_PART: u64 = 8;
/// As [`EAGER_PART`] for gaps, once the sender has requested fewer reports: it does not want more when
/// packets are lost.
const REQUESTED_EAGER_PART: u64 = 2;
/// Report interval while nothing arrives, unless twice the regular interval is longer.
const IDLE: Span = Span::from_millis(100);
/// Unchanged segments repeated in each report; `REPEATED_IDLE` in one sent while nothing arrives.
const REPEATED: usize = 2;
const REPEATED_IDLE: usize = 8;

/// Capacity of the queue, allocated by the first report: the maximum number of open segments.
const QUEUE: usize = 1_024;

/// A part of a segment to be reported: from word `from` on.
#[derive(Clone, Copy, Debug)]
struct Part {
    segment: u64,
    from: usize,
}

/// State of the reports.
#[derive(Debug)]
pub(super) struct Report {
    when: When,
    /// The recipe's interval.
    shortest: Span,
    /// The interval that the sender requests; zero before the first request.
    requested: Span,
    last_sent: Time,
    /// When a report last covered arrivals.
    last_stated: Time,
    /// Whether anything has arrived since.
    unstated: bool,
    /// When a report was last sent early because of a gap.
    last_early: Option<Time>,
    /// Data packets since the last report.
    unreported: u32,
    urgency: Urgency,
    largest_pn: Option<u64>,
    echo_timestamp: u32,
    echo_at: Time,
    /// When the kernel received the last data packet; `read_at`: when it was read.
    received_at: Time,
    read_at: Time,
    /// Parts that remain of the present round of reports.
    queue: VecDeque<Part>,
    /// Whether a round has started and its first packet is still to be written.
    started: bool,
    /// Whether the present round covers arrivals.
    stating: bool,
    /// Last unchanged segment that was repeated.
    cursor: u64,
}

/// Arrival times of packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalTimes {
    /// Arrival in the kernel.
    pub(super) at: Time,
    /// When this end read them.
    pub(super) read: Time,
}

/// Urgency of the next report; a higher level includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Routine,
    /// Something is missing: reported early once per interval, so that a lossy path is not flooded with
    /// reports.
    Gap,
    /// Something happened that should be reported early.
    Early,
    /// The sender waits for a report.
    Requested,
}

choice! {
    /// When the receiver reports what has arrived. Counters and the limit are sent at intervals in any case.
    pub enum When {
        /// At intervals while data arrives, and earlier when packets are missing.
        Interval = "interval",
        /// At the interval that the control law requests while data arrives, and never earlier.
        Law = "law",
        /// At the sender's request: after each segment of 10,000 packets, and when it has nothing more to
        /// send.
        Segment = "segment",
        /// At the sender's request: after each chunk of the object, and when it has nothing more to send.
        Chunk = "chunk",
        /// At the sender's request: when it has nothing more to send, which ends a round.
        Round = "round",
    }
}

impl When {
    /// Whether the receiver reports arrivals only at the sender's request.
    pub(super) fn is_on_request(self) -> bool {
        matches!(self, Self::Segment | Self::Chunk | Self::Round)
    }
}

impl Report {
    pub(super) fn new(now: Time, when: When, interval: Span) -> Self {
        Self {
            when,
            shortest: interval,
            requested: Span::ZERO,
            last_sent: now,
            last_stated: now,
            unstated: false,
            last_early: None,
            unreported: 0,
            urgency: Urgency::Routine,
            largest_pn: None,
            echo_timestamp: 0,
            echo_at: now,
            received_at: now,
            read_at: now,
            queue: VecDeque::new(),
            started: false,
            stating: true,
            cursor: 0,
        }
    }

    pub(super) fn on_data(&mut self, arrival: ArrivalTimes, pn: u64, timestamp: u32, gap: bool) {
        self.on_run(arrival, pn, timestamp, 1);
        if gap && self.when == When::Interval {
            self.urgency = self.urgency.max(Urgency::Gap);
        }
    }

    /// Records `packets` packets without a gap; the last has number `pn` and `timestamp`.
    pub(super) fn on_run(&mut self, arrival: ArrivalTimes, pn: u64, timestamp: u32, packets: u32) {
        if self.largest_pn.is_none_or(|largest| pn > largest) {
            self.largest_pn = Some(pn);
            self.echo_timestamp = timestamp;
            self.echo_at = arrival.at;
        }
        (self.received_at, self.read_at) = (arrival.at, arrival.read);
        self.unreported += packets;
        self.unstated = true;
        if self.when == When::Interval && self.unreported >= EAGER_PACKETS {
            self.report_early();
        }
    }

    /// Makes the next report early.
    pub(super) fn report_early(&mut self) {
        self.urgency = self.urgency.max(Urgency::Early);
    }

    /// Records the sender's request for a report on what it sent before `timestamp`.
    pub(super) fn on_round(&mut self, arrival: ArrivalTimes, pn: u64, timestamp: u32) {
        self.on_data(arrival, pn, timestamp, false);
        self.urgency = Urgency::Requested;
    }

    /// Sets the recipe's interval.
    pub(super) fn set_interval(&mut self, interval: Span) {
        self.shortest = interval;
    }

    /// Sets the interval that the sender requests.
    pub(super) fn on_requested(&mut self, interval: Span) {
        self.requested = interval.min(LONGEST);
    }

    fn interval(&self) -> Span {
        self.requested.max(self.shortest)
    }

    /// Whether the present round of reports has remaining parts.
    pub(super) fn has_more(&self) -> bool {
        !self.queue.is_empty()
    }

    /// When the next round of reports is due.
    pub(super) fn due(&self) -> Time {
        if self.started || self.urgency == Urgency::Requested || !self.queue.is_empty() {
            self.last_sent
        } else if self.urgency == Urgency::Early {
            self.last_sent + self.interval() / EAGER_PART
        } else if self.urgency == Urgency::Gap {
            let part = if self.requested > self.shortest { REQUESTED_EAGER_PART } else { EAGER_PART };
            let early = self.last_sent + self.interval() / part;
            let routine = self.last_sent + self.interval();
            self.last_early.map_or(early, |last| early.max(last + self.interval()).min(routine))
        } else if self.unstated && self.when == When::Law {
            self.last_stated + self.interval()
        } else if self.unreported > 0 {
            self.last_sent + self.interval()
        } else {
            self.last_sent + IDLE.max(self.interval() * 2)
        }
    }

    /// Starts a round if one is due; returns whether there is a packet to write.
    pub(super) fn start(&mut self, now: Time, received: &mut ReceivedBitmap) -> bool {
        if self.started || !self.queue.is_empty() {
            return true;
        }
        if now < self.due() {
            return false;
        }
        let idle = self.unreported == 0;
        self.stating = self.urgency == Urgency::Requested
            || match self.when {
                When::Interval => true,
                When::Law => now >= self.last_stated + self.interval(),
                When::Segment | When::Chunk | When::Round => false,
            };
        if self.stating {
            (self.last_stated, self.unstated) = (now, false);
            self.select(received, if idle { REPEATED_IDLE } else { REPEATED });
        }
        if self.urgency == Urgency::Gap && now < self.last_sent + self.interval() {
            self.last_early = Some(now);
        }
        self.last_sent = now;
        self.unreported = 0;
        self.urgency = Urgency::Routine;
        self.started = true;
        true
    }

    fn select(&mut self, received: &mut ReceivedBitmap, repeated: usize) {
        if self.queue.capacity() == 0 {
            self.queue.reserve(QUEUE);
        }
        let first = received.complete_below() / SEGMENT_PACKETS;
        let last = received.highest().div_ceil(SEGMENT_PACKETS);
        for segment in first..last {
            if received.take_dirty(segment) {
                self.queue.push_back(Part { segment, from: 0 });
            }
        }
        let open = last.saturating_sub(first) as usize;
        let changed = self.queue.len();
        for _ in 0..repeated.min(open - changed.min(open)) {
            self.cursor = if (first..last).contains(&(self.cursor + 1)) { self.cursor + 1 } else { first };
            self.queue.push_back(Part { segment: self.cursor, from: 0 });
        }
    }

    /// Returns a header with the fields known here.
    pub(super) fn header(&self, now: Time, received: &ReceivedBitmap) -> FeedbackHeader {
        let received_at = self.received_at.as_wrapped_micros();
        // Rounded to microseconds like both timestamps, so that their sum is the time of reading.
        let read_delay_us = self.read_at.as_wrapped_micros().wrapping_sub(received_at);
        if !self.stating {
            let sent_at = now.as_wrapped_micros();
            return FeedbackHeader { received_at, read_delay_us, sent_at, ..FeedbackHeader::default() };
        }
        FeedbackHeader {
            largest_pn: self.largest_pn.unwrap_or(0),
            echo_timestamp: self.echo_timestamp,
            echo_delay_us: u32::try_from(now.since(self.echo_at).as_micros()).unwrap_or(u32::MAX),
            received_at,
            read_delay_us,
            sent_at: now.as_wrapped_micros(),
            complete_below: received.complete_below(),
            highest: received.highest(),
            ..FeedbackHeader::default()
        }
    }

    /// Writes one report and returns its length. Parts that do not fit stay for the next packet.
    pub(super) fn write(
        &mut self,
        body: &mut [u8],
        header: &FeedbackHeader,
        received: &ReceivedBitmap,
    ) -> usize {
        self.started = false;
        let Ok(mut writer) = FeedbackWriter::new(body, header) else {
            return 0;
        };
        while let Some(part) = self.queue.front_mut() {
            if write_part(&mut writer, part, received).is_err() {
                break;
            }
            self.queue.pop_front();
        }
        writer.finish()
    }
}

/// Writes as much of `part` as fits and advances it; `Err` if some is left.
fn write_part(
    writer: &mut FeedbackWriter<'_>,
    part: &mut Part,
    received: &ReceivedBitmap,
) -> Result<(), BufferFull> {
    let Some(segment) = received.segment(part.segment) else {
        return Ok(());
    };
    let number = part.segment as u32;
    let complete_words = segment.first_incomplete_word();
    if part.from < complete_words {
        writer.push_received(number, 0, complete_words)?;
        part.from = complete_words;
    }
    let is_earlier = part.segment < received.highest() / SEGMENT_PACKETS;
    let end =
        if is_earlier { SEGMENT_WORDS } else { (received.highest() % SEGMENT_PACKETS).div_ceil(64) as usize };
    while part.from < end {
        let words = writer.words_left().min(end - part.from);
        if words == 0 {
            return Err(BufferFull);
        }
        writer.push(number, part.from, &segment.bits()[part.from..part.from + words])?;
        part.from += words;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use haul_wire::packet::FeedbackView;
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Span = Span::from_millis(2);

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    fn arrival(us: u64) -> ArrivalTimes {
        ArrivalTimes { at: at(us), read: at(us) }
    }

    /// Every word reported in one round, as (segment, word) -> bits.
    fn round(
        report: &mut Report,
        now: Time,
        received: &mut ReceivedBitmap,
        size: usize,
    ) -> Vec<(u64, usize, u64)> {
        let mut words = Vec::new();
        while report.start(now, received) {
            let header = report.header(now, received);
            let mut body = vec![0; size];
            let len = report.write(&mut body, &header, received);
            let view = FeedbackView::parse(&body[..len]).unwrap();
            for block in view.blocks() {
                let first = block.first_word;
                words.extend((0..block.words).map(|i| (u64::from(block.segment), first + i, block.word(i))));
            }
        }
        words
    }

    #[test]
    fn reports_follow_the_interval_and_are_early_after_a_gap() {
        let mut report = Report::new(at(0), When::Interval, INTERVAL);
        assert_eq!(report.due(), at(100_000));
        report.on_data(arrival(50), 1, 0, false);
        assert_eq!(report.due(), at(2_000));
        report.on_data(arrival(60), 3, 0, true);
        assert_eq!(report.due(), at(250));
    }

    #[test]
    fn many_packets_make_reports_immediate() {
        let mut report = Report::new(at(0), When::Interval, INTERVAL);
        for pn in 0..u64::from(EAGER_PACKETS) {
            report.on_data(arrival(10), pn, 0, false);
        }
        assert_eq!(report.due(), at(250));
    }

    #[test]
    fn the_newest_transmission_is_echoed_not_the_last_arrival() {
        let mut report = Report::new(at(0), When::Interval, INTERVAL);
        report.on_data(arrival(10), 7, 700, false);
        report.on_data(arrival(20), 5, 500, false);
        let header = report.header(at(110), &ReceivedBitmap::new());
        assert_eq!((header.largest_pn, header.echo_timestamp, header.echo_delay_us), (7, 700, 100));
    }

    #[test]
    fn the_time_in_the_socket_buffer_is_the_receivers_delay() {
        let mut report = Report::new(at(0), When::Interval, INTERVAL);
        report.on_data(ArrivalTimes { at: at(1_000), read: at(1_400) }, 7, 700, false);
        let header = report.header(at(1_500), &ReceivedBitmap::new());
        assert_eq!((header.received_at, header.read_delay_us, header.echo_delay_us), (1_000, 400, 500));
    }

    proptest! {
        #[test]
        fn a_round_reports_all_changes_correctly(
            missing in prop::collection::btree_set(0u64..32_000, 0..3_000),
            size in 200usize..1_500,
        ) {
            let mut received = ReceivedBitmap::new();
            let mut report = Report::new(at(0), When::Interval, INTERVAL);
            for seq in (0..32_000).filter(|s| !missing.contains(s)) {
                received.insert(seq);
                report.on_data(arrival(1), seq, 0, false);
            }
            let below = received.complete_below();
            let stated = round(&mut report, at(5_000), &mut received, size);
            let mut seen = std::collections::HashMap::new();
            for (segment, word, bits) in stated {
                for bit in 0..64 {
                    let index = word as u64 * 64 + bit;
                    if index < SEGMENT_PACKETS {
                        seen.insert(segment * SEGMENT_PACKETS + index, bits >> bit & 1 == 1);
                    }
                }
            }
            for seq in below..received.highest() {
                prop_assert_eq!(seen.get(&seq), Some(&!missing.contains(&seq)), "packet {}", seq);
            }
        }
    }
}
