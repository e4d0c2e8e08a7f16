//! The delays and losses of the last seconds, as stretches of packets between feedbacks.

use std::collections::VecDeque;

use haul_base::{Span, Time};
use haul_diagnosis::{DelayFinding, DelayScratch, Stretch};

use super::kernel::Claim;
use crate::control::FeedbackSample;

/// Stretches that are remembered: 10 s with the longest ones. Our choice.
const REMEMBERED: usize = 1_024;
/// After a restart fewer stretches are not tested. Our choice: 1 to 2.5 s.
const LEAST_TESTED: usize = 256;
/// Feedbacks are taken together until a stretch lasts half of a round trip, in which a queue changes little, but no
/// less and no more than this. Our choice.
const SHORTEST: Span = Span::from_millis(1);
const LONGEST: Span = Span::from_millis(10);
/// Losses are tested anew after this time at the soonest: a test sorts all stretches.
const BETWEEN_TESTS: Span = Span::from_millis(100);
/// A medium loses more than its mean by so many standard deviations by chance. Our choice.
pub(super) const CHANCE: f64 = 3.0;

/// A stretch, and where it ends.
#[derive(Clone, Copy, Debug)]
struct Ended {
    stretch: Stretch,
    began: Time,
    last_pn: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    list: VecDeque<Ended>,
    /// The delay of the feedback before.
    before: Option<Span>,
    tested_at: Option<Time>,
    has_restarted: bool,
    /// Stretches that have begun since the losses were settled.
    unsettled: usize,
    finding: DelayFinding,
    /// Kept for their memory.
    tested: Vec<Stretch>,
    scratch: DelayScratch,
}

impl Stretches {
    /// Forgets the delays, because the path has become longer. What its medium loses is taken to be the same until
    /// [`LEAST_TESTED`] new stretches tell.
    pub(super) fn restart(&mut self) {
        self.list.clear();
        (self.before, self.has_restarted, self.finding.onset) = (None, true, None);
    }

    /// What they said when they were tested last.
    pub(super) fn finding(&self) -> DelayFinding {
        self.finding
    }

    /// Whether the packet left when the queue was too short to drop it, as far as is known. Not in a stretch of
    /// excessive losses: the queue may have filled in it.
    pub(super) fn is_before_onset(&self, pn: u64) -> bool {
        self.finding.onset.is_some() && self.is_mediums(pn)
    }

    /// The same, and where no delay is known from which a queue drops: of stretches that have all been tested.
    pub(super) fn is_mediums(&self, pn: u64) -> bool {
        let DelayFinding { medium_rate, onset, .. } = self.finding;
        self.of(pn).filter(|_| medium_rate > 0.0).is_some_and(|stretch| {
            onset.is_none_or(|onset| stretch.delay < onset) && !self.loses_more_than_medium(&stretch)
        })
    }

    /// Whether the stretch of the packet has lost more than the medium would.
    pub(super) fn is_excessive(&self, pn: u64) -> bool {
        self.of(pn).is_some_and(|stretch| self.loses_more_than_medium(&stretch))
    }

    fn of(&self, pn: u64) -> Option<Stretch> {
        let at = self.list.partition_point(|ended| ended.last_pn < pn);
        self.list.get(at).or(self.list.back()).map(|ended| ended.stretch)
    }

    fn loses_more_than_medium(&self, stretch: &Stretch) -> bool {
        let expected = self.finding.medium_rate * stretch.packets as f64;
        stretch.lost as f64 > 1.0 + expected + CHANCE * expected.sqrt()
    }

    /// Takes the packets of a feedback. The round trip is the delay: the same clock tells when a packet leaves and when
    /// it is acknowledged. `lost` of them were lost to no host and no outage: all but those that the claim explains.
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>, lost: u64, claim: &Claim) {
        if !sample.rtt.is_measured() {
            return;
        }
        let delay = sample.rtt.latest();
        let stretch = Stretch {
            delay: self.before.replace(delay).map_or(delay, |before| (before + delay) / 2),
            packets: sample.acked_packets + lost,
            lost: 0,
        };
        self.add(sample, stretch);
        if lost > 0 {
            self.lose(sample, lost, claim);
        }
    }

    fn add(&mut self, sample: &FeedbackSample<'_>, new: Stretch) {
        let shortest = (sample.rtt.smoothed() / 2).clamp(SHORTEST, LONGEST);
        if let Some(last) = self.list.back_mut().filter(|last| sample.now.since(last.began) < shortest) {
            let stretch = &mut last.stretch;
            let packets = stretch.packets + new.packets;
            let weight = new.packets as f64 / packets.max(1) as f64;
            stretch.delay = stretch.delay.mul_f64(1.0 - weight) + new.delay.mul_f64(weight);
            (stretch.packets, last.last_pn) = (packets, sample.largest_acked_pn);
            return;
        }
        if self.list.len() == REMEMBERED {
            self.list.pop_front();
        }
        self.unsettled += 1;
        self.list.push_back(Ended { stretch: new, began: sample.now, last_pn: sample.largest_acked_pn });
    }

    /// Puts losses into the stretches in which they left; those that are not listed into the last.
    fn lose(&mut self, sample: &FeedbackSample<'_>, lost: u64, claim: &Claim) {
        let mut left = lost;
        for (run, explained) in sample.loss.list().iter().zip(claim.explained()) {
            let at = self.list.partition_point(|ended| ended.last_pn < run.first_pn);
            let packets = (run.packets - explained).min(left);
            if let Some(ended) = self.list.get_mut(at) {
                ended.stretch.lost += packets;
                left -= packets;
            }
        }
        if let Some(last) = self.list.back_mut() {
            last.stretch.lost += left;
        }
    }

    /// So many of the losses last heard of were the host's.
    pub(super) fn forgive(&mut self, mut lost: u64) {
        for ended in self.list.iter_mut().rev() {
            let forgiven = lost.min(ended.stretch.lost);
            ended.stretch.lost -= forgiven;
            lost -= forgiven;
        }
    }

    /// Whether all that is remembered has come since [`settle`](Self::settle): the next stretch replaces the first of
    /// them.
    pub(super) fn is_settling_due(&self) -> bool {
        self.unsettled >= REMEMBERED
    }

    /// What is remembered was used for the last time to look at losses again.
    pub(super) fn settle(&mut self) {
        self.unsettled = 0;
    }

    /// Whether the last test was some time ago.
    pub(super) fn is_test_due(&self, now: Time) -> bool {
        self.tested_at.is_none_or(|tested_at| now.since(tested_at) >= BETWEEN_TESTS)
    }

    /// Tests them. `empty` is the delay of the path without a queue, as far as it is known.
    pub(super) fn test(&mut self, now: Time, empty: Span) {
        self.tested_at = Some(now);
        if self.has_restarted && self.list.len() < LEAST_TESTED {
            return;
        }
        self.tested.clear();
        // As much as the list has: what grows with it grows when it does.
        self.tested.reserve(self.list.len().next_power_of_two());
        self.tested.extend(self.list.iter().map(|ended| ended.stretch));
        self.finding = DelayFinding::of(&self.tested, empty, &mut self.scratch);
    }
}
