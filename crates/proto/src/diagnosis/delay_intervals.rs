//! Delays and losses of the last seconds, as intervals of packets between feedbacks.

use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_diagnosis::{DelayFinding, DelayInterval, DelayScratch};

use super::kernel::Claim;
use crate::control::FeedbackSample;

/// Number of intervals remembered: 10 s of the longest ones. Our choice.
const MAX_INTERVALS: usize = 1_024;
/// Minimum number of intervals for a test after a restart. Our choice: 1 to 2.5 s.
const MIN_TESTED: usize = 256;
/// Feedbacks are combined until an interval lasts half a round trip, in which a queue changes little, within
/// these limits. Our choice.
const SHORTEST: Span = Span::from_millis(1);
const LONGEST: Span = Span::from_millis(10);
/// Minimum time between tests of the losses, as a test sorts all intervals.
const BETWEEN_TESTS: Span = Span::from_millis(100);
/// Standard deviations by which a medium may exceed its mean loss by chance. Our choice.
pub(super) const CHANCE: f64 = 3.0;

/// An interval, with its start and its last packet number.
#[derive(Clone, Copy, Debug)]
struct Ended {
    interval: DelayInterval,
    began: Time,
    last_pn: u64,
}

/// Intervals: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct DelayIntervals {
    list: VecDeque<Ended>,
    /// Delay of the previous feedback.
    before: Option<Span>,
    tested_at: Option<Time>,
    has_restarted: bool,
    /// Intervals begun since the losses were settled.
    unsettled: usize,
    finding: DelayFinding,
    /// Kept for their memory.
    tested: Vec<DelayInterval>,
    scratch: DelayScratch,
}

impl DelayIntervals {
    /// Drops the delays, because the path has become longer. The medium's loss rate is assumed unchanged
    /// until there are [`MIN_TESTED`] new intervals.
    pub(super) fn restart(&mut self) {
        self.list.clear();
        (self.before, self.has_restarted, self.finding.onset) = (None, true, None);
    }

    /// Returns the finding of the last test.
    pub(super) fn finding(&self) -> DelayFinding {
        self.finding
    }

    /// Whether the packet was sent when the queue was too short to drop it, as far as known. False in a
    /// interval of excessive losses: the queue may have filled in it.
    pub(super) fn is_before_onset(&self, pn: u64) -> bool {
        self.finding.onset.is_some() && self.is_of_medium(pn)
    }

    /// As [`is_before_onset`](Self::is_before_onset), but also true if no delay is known from which on a
    /// queue drops: for intervals that have all been tested.
    pub(super) fn is_of_medium(&self, pn: u64) -> bool {
        let DelayFinding { medium_rate, onset, .. } = self.finding;
        self.of(pn).filter(|_| medium_rate > 0.0).is_some_and(|interval| {
            onset.is_none_or(|onset| interval.delay < onset) && !self.loses_more_than_medium(&interval)
        })
    }

    /// Whether the interval of the packet has lost more than the medium would.
    pub(super) fn is_excessive(&self, pn: u64) -> bool {
        self.of(pn).is_some_and(|interval| self.loses_more_than_medium(&interval))
    }

    fn of(&self, pn: u64) -> Option<DelayInterval> {
        let at = self.list.partition_point(|ended| ended.last_pn < pn);
        self.list.get(at).or(self.list.back()).map(|ended| ended.interval)
    }

    fn loses_more_than_medium(&self, interval: &DelayInterval) -> bool {
        let expected = self.finding.medium_rate * interval.packets as f64;
        interval.lost as f64 > 1.0 + expected + CHANCE * expected.sqrt()
    }

    /// Adds the packets of a feedback. The round-trip time is used as the delay: the same clock measures
    /// sending and acknowledgement. `lost` of them were lost to no host and no outage: all but those that the
    /// claim explains.
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>, lost: u64, claim: &Claim) {
        if !sample.rtt.is_measured() {
            return;
        }
        let delay = sample.rtt.latest();
        let interval = DelayInterval {
            delay: self.before.replace(delay).map_or(delay, |before| (before + delay) / 2),
            packets: sample.acked_packets + lost,
            lost: 0,
        };
        self.add(sample, interval);
        if lost > 0 {
            self.add_losses(sample, lost, claim);
        }
    }

    fn add(&mut self, sample: &FeedbackSample<'_>, new: DelayInterval) {
        let shortest = (sample.rtt.smoothed() / 2).clamp(SHORTEST, LONGEST);
        if let Some(last) = self.list.back_mut().filter(|last| sample.now.since(last.began) < shortest) {
            let interval = &mut last.interval;
            let packets = interval.packets + new.packets;
            let weight = new.packets as f64 / packets.max(1) as f64;
            interval.delay = interval.delay.mul_f64(1.0 - weight) + new.delay.mul_f64(weight);
            (interval.packets, last.last_pn) = (packets, sample.largest_acked_pn);
            return;
        }
        if self.list.len() == MAX_INTERVALS {
            self.list.pop_front();
        }
        self.unsettled += 1;
        self.list.push_back(Ended { interval: new, began: sample.now, last_pn: sample.largest_acked_pn });
    }

    /// Adds losses to the intervals in which they were sent; unlisted ones to the last.
    fn add_losses(&mut self, sample: &FeedbackSample<'_>, lost: u64, claim: &Claim) {
        let mut remaining = lost;
        for (run, explained) in sample.loss.list().iter().zip(claim.explained()) {
            let at = self.list.partition_point(|ended| ended.last_pn < run.first_pn);
            let packets = (run.packets - explained).min(remaining);
            if let Some(ended) = self.list.get_mut(at) {
                ended.interval.lost += packets;
                remaining -= packets;
            }
        }
        if let Some(last) = self.list.back_mut() {
            last.interval.lost += remaining;
        }
    }

    /// Removes this many of the latest losses, which were the host's.
    pub(super) fn discount_losses(&mut self, mut lost: u64) {
        for ended in self.list.iter_mut().rev() {
            let forgiven = lost.min(ended.interval.lost);
            ended.interval.lost -= forgiven;
            lost -= forgiven;
        }
    }

    /// Whether everything remembered is newer than [`settle`](Self::settle), and about to be replaced.
    pub(super) fn is_settling_due(&self) -> bool {
        self.unsettled >= MAX_INTERVALS
    }

    /// Records that everything remembered was used to re-examine losses.
    pub(super) fn settle(&mut self) {
        self.unsettled = 0;
    }

    /// Whether another test is due.
    pub(super) fn is_test_due(&self, now: Time) -> bool {
        self.tested_at.is_none_or(|tested_at| now.since(tested_at) >= BETWEEN_TESTS)
    }

    /// Tests the intervals. `empty` is the path's delay without a queue, as far as known.
    pub(super) fn test(&mut self, now: Time, empty: Span) {
        self.tested_at = Some(now);
        if self.has_restarted && self.list.len() < MIN_TESTED {
            return;
        }
        self.tested.clear();
        // Reserve as much as the list has, so that the buffers grow together with it.
        self.tested.reserve(self.list.len().next_power_of_two());
        self.tested.extend(self.list.iter().map(|ended| ended.interval));
        self.finding = DelayFinding::of(&self.tested, empty, &mut self.scratch);
    }
}
