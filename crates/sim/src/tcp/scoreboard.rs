//! SACK scoreboard: outstanding, delivered and lost segments, and the delivery rate.

use std::collections::{BTreeSet, VecDeque};

use haul_base::{RangeSet, Span, Time};

use super::control::RateSample;
use super::wire::Ack;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SegmentState {
    InFlight,
    Lost,
    Delivered,
}

/// A segment that was sent and not yet cumulatively acknowledged.
#[derive(Clone, Copy, Debug)]
struct Segment {
    state: SegmentState,
    sent: Time,
    /// Number of the transmission that carried it last.
    transmission: u64,
    repeated: bool,
    /// `P.delivered`, `P.delivered_time`, `P.first_sent_time` of draft-cheng-iccrg-delivery-rate-estimation.
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
}

/// Result of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Outcome {
    /// Newly delivered segments.
    pub(super) delivered: u64,
    /// Whether the first outstanding segment has changed.
    pub(super) advanced: bool,
    /// Segments detected as lost.
    pub(super) lost: u64,
    /// Round-trip time of the latest segment that was sent only once.
    pub(super) rtt: Option<Span>,
    pub(super) rate: Option<RateSample>,
}

#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// Number of later transmissions that must arrive before one is considered lost.
    reordering: u64,
    base: u64,
    segments: VecDeque<Segment>,
    delivered_above: RangeSet,
    lost: BTreeSet<u64>,
    in_flight: u64,
    /// Transmissions in order, with their segments.
    order: VecDeque<(u64, u64)>,
    next_transmission: u64,
    latest_delivered: Option<u64>,
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
}

impl Scoreboard {
    pub(super) fn new(reordering: u64) -> Self {
        Self {
            reordering,
            base: 0,
            segments: VecDeque::new(),
            delivered_above: RangeSet::new(),
            lost: BTreeSet::new(),
            in_flight: 0,
            order: VecDeque::new(),
            next_transmission: 0,
            latest_delivered: None,
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent: Time::ZERO,
        }
    }

    /// Returns the first unacknowledged segment.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Returns the first segment never sent.
    pub(super) fn next_new(&self) -> u64 {
        self.base + self.segments.len() as u64
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn is_idle(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the first lost segment not yet retransmitted.
    pub(super) fn first_lost(&self) -> Option<u64> {
        self.lost.first().copied()
    }

    /// Registers the transmission of `segment`: a lost one, or the next new one.
    pub(super) fn on_sent(&mut self, now: Time, segment: u64) {
        if self.in_flight == 0 {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        let record = Segment {
            state: SegmentState::InFlight,
            sent: now,
            transmission: self.next_transmission,
            repeated: segment < self.next_new(),
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
        };
        self.order.push_back((self.next_transmission, segment));
        self.next_transmission += 1;
        self.in_flight += 1;
        if record.repeated {
            self.lost.remove(&segment);
            self.segments[(segment - self.base) as usize] = record;
        } else {
            self.segments.push_back(record);
        }
    }

    pub(super) fn on_ack(&mut self, now: Time, ack: &Ack) -> Outcome {
        let mut outcome = Outcome::default();
        let mut latest: Option<Segment> = None;
        for block in ack.blocks() {
            let mut segment = block.start.max(self.base);
            let end = block.end.min(self.next_new());
            while segment < end {
                if let Some(known) = self.delivered_above.containing(segment) {
                    segment = known.end;
                    continue;
                }
                self.deliver(now, segment, &mut outcome, &mut latest);
                segment += 1;
            }
            self.delivered_above.insert(block.start.max(self.base)..end.max(self.base));
        }
        let upto = ack.next.min(self.next_new());
        outcome.advanced = upto > self.base;
        while self.base < upto {
            self.deliver(now, self.base, &mut outcome, &mut latest);
            self.segments.pop_front();
            self.base += 1;
        }
        self.delivered_above.remove(0..self.base);
        if let Some(latest) = latest {
            outcome.rate = self.rate(now, &latest);
            outcome.rtt = (!latest.repeated).then(|| now.since(latest.sent));
        }
        outcome.lost = self.find_losses();
        outcome
    }

    fn deliver(&mut self, now: Time, segment: u64, outcome: &mut Outcome, latest: &mut Option<Segment>) {
        let record = &mut self.segments[(segment - self.base) as usize];
        match record.state {
            SegmentState::Delivered => return,
            SegmentState::InFlight => self.in_flight -= 1,
            SegmentState::Lost => {
                self.lost.remove(&segment);
            }
        }
        record.state = SegmentState::Delivered;
        outcome.delivered += 1;
        self.delivered += 1;
        self.delivered_at = now;
        self.latest_delivered = self.latest_delivered.max(Some(record.transmission));
        if latest.is_none_or(|latest| record.transmission > latest.transmission) {
            *latest = Some(*record);
        }
    }

    /// Returns the delivery rate since `latest` was sent: segments delivered, divided by the longer of the
    /// sending and acknowledging intervals (section 3.3 of the draft).
    fn rate(&mut self, now: Time, latest: &Segment) -> Option<RateSample> {
        self.first_sent = latest.sent;
        let sending = latest.sent.since(latest.first_sent);
        let acknowledging = now.since(latest.delivered_at);
        let interval = sending.max(acknowledging);
        let delivered = self.delivered - latest.delivered;
        (interval > Span::ZERO).then_some(RateSample {
            delivered,
            interval,
            prior_delivered: latest.delivered,
        })
    }

    /// Detects losses: a transmission is lost when one at least `reordering` transmissions later has arrived.
    fn find_losses(&mut self) -> u64 {
        let Some(latest) = self.latest_delivered else { return 0 };
        let mut lost = 0;
        while let Some(&(transmission, segment)) = self.order.front() {
            if transmission + self.reordering > latest {
                break;
            }
            self.order.pop_front();
            lost += u64::from(self.mark_lost(transmission, segment));
        }
        lost
    }

    /// Marks the segment as lost if this was its last transmission and it has not arrived.
    fn mark_lost(&mut self, transmission: u64, segment: u64) -> bool {
        let Some(index) = segment.checked_sub(self.base) else { return false };
        let Some(record) = self.segments.get_mut(index as usize) else { return false };
        if record.state != SegmentState::InFlight || record.transmission != transmission {
            return false;
        }
        record.state = SegmentState::Lost;
        self.in_flight -= 1;
        self.lost.insert(segment);
        true
    }

    /// Marks everything in flight as lost, after a retransmission timeout.
    pub(super) fn lose_all(&mut self) -> u64 {
        let before = self.in_flight;
        while let Some((transmission, segment)) = self.order.pop_front() {
            self.mark_lost(transmission, segment);
        }
        before - self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn sent(count: u64) -> Scoreboard {
        let mut board = Scoreboard::new(3);
        for segment in 0..count {
            board.on_sent(at(segment), segment);
        }
        board
    }

    #[test]
    fn three_later_arrivals_indicate_a_loss() {
        let mut board = sent(6);
        let mut ack = Ack::new(1);
        ack.push(2..4);
        let outcome = board.on_ack(at(20), &ack);
        assert_eq!((outcome.delivered, outcome.lost), (3, 0));
        ack = Ack::new(1);
        ack.push(2..5);
        let outcome = board.on_ack(at(21), &ack);
        assert_eq!((outcome.delivered, outcome.lost, board.first_lost()), (1, 1, Some(1)));
        // 5 is in flight.
        assert_eq!(board.in_flight(), 1);
    }

    #[test]
    fn a_lost_retransmission_is_detected() {
        let mut board = sent(6);
        let mut ack = Ack::new(0);
        ack.push(1..5);
        board.on_ack(at(20), &ack);
        board.on_sent(at(20), 0);
        assert_eq!(board.first_lost(), None);
        (6..10).for_each(|segment| board.on_sent(at(21), segment));
        ack = Ack::new(0);
        ack.push(1..9);
        assert_eq!(board.on_ack(at(40), &ack).lost, 1);
        assert_eq!(board.first_lost(), Some(0));
        assert_eq!(board.on_ack(at(60), &Ack::new(10)).delivered, 2);
        assert!(board.is_idle() && board.in_flight() == 0 && board.first_lost().is_none());
    }

    #[test]
    fn the_rate_is_arrivals_over_the_longer_interval() {
        let mut board = Scoreboard::new(3);
        (0..10).for_each(|segment| board.on_sent(at(0), segment));
        // One acknowledgement per 2 ms from 50 ms on.
        for segment in 0..10 {
            board.on_ack(at(50 + 2 * segment), &Ack::new(segment + 1));
            board.on_sent(at(50 + 2 * segment), 10 + segment);
        }
        // Segment 10 was sent at 50 ms, after one delivery; at 100 ms it is the eleventh: ten more in 50 ms.
        let rate = board.on_ack(at(100), &Ack::new(11)).rate.unwrap();
        assert_eq!((rate.delivered, rate.interval, rate.prior_delivered), (10, Span::from_millis(50), 1));
    }

    #[test]
    fn acknowledgements_of_unsent_packets_are_harmless() {
        let mut board = sent(3);
        let mut ack = Ack::new(2);
        ack.push(1_000..2_000);
        assert_eq!(board.on_ack(at(5), &ack).delivered, 2);
        assert_eq!(board.on_ack(at(6), &Ack::new(u64::MAX / 2)).delivered, 1);
        assert_eq!(board.next_new(), 3);
        assert_eq!(board.lose_all(), 0);
    }
}
