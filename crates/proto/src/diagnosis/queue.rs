//! The path's queue as evidence: losses at a full queue are congestion, those without one are the medium's.

use haul_base::{Cause, Span, Time};
use haul_diagnosis::Dependence;

use super::delay_intervals::{CHANCE, DelayIntervals};
use super::kernel::Claim;
use super::losses::Losses;
use crate::control::{FeedbackSample, LossRun};
use crate::longer_path::LongerPath;

/// A queueing delay that never exceeded this is none: the sender's own bursts cause as much.
const MIN_QUEUE: Span = Span::from_millis(1);
/// A queue that drops has at least this share of the longest recent delay. Early drops (RED, `CoDel`) occur
/// at much less: with 0.5, a tenth of those of `CoDel` were attributed to the medium. Our choice.
const FULL_SHARE: f64 = 0.25;
/// The longest delay is remembered for one to two times this long.
const MEMORY: Span = Span::from_secs(10);
/// Maximum number of the medium's losses that may be left to claim. Our choice.
const MAX_UNCLAIMED: f64 = 8.0;
/// Maximum number of runs kept until it is known whether a medium loses, too. Our choice.
const MAX_DEFERRED: usize = 1_024;

/// Evidence of the queue: see the module documentation.
#[derive(Debug)]
pub(super) struct Queue {
    intervals: DelayIntervals,
    /// Expected losses of the medium among packets that had a queue, by its loss rate without one, that were
    /// not claimed yet; at most [`MAX_UNCLAIMED`].
    random: f64,
    /// Losses since the last settlement that count as congestion while it is unknown whether a medium loses.
    deferred: Vec<LossRun>,
    /// Packets with a known outcome since the last settlement, and those marked "congestion experienced".
    reported: u64,
    marked: u64,
    /// Longest delay since `rotated_at`, and in the period before.
    deepest: [Span; 2],
    rotated_at: Time,
    /// Longest delay of the last half to whole round trip, as losses are detected that much later.
    recent: [Span; 2],
    recent_rotated_at: Time,
    path: LongerPath,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            intervals: DelayIntervals::default(),
            random: 0.0,
            deferred: Vec::new(),
            reported: 0,
            marked: 0,
            deepest: [Span::ZERO; 2],
            rotated_at: Time::ZERO,
            recent: [Span::ZERO; 2],
            recent_rotated_at: Time::ZERO,
            path: LongerPath::default(),
        }
    }
}

impl Queue {
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.marked += sample.ecn_ce;
        let Some(delay) = sample.queue_delay else { return };
        // By a single clock, and remembered for longer: the peer's clock may drift or be set.
        let longer = self.path.longer_round_trip(sample);
        let longer = if sample.rtt.is_measured() { longer } else { delay };
        let known = self.path.added();
        let delay = self.path.without(sample, longer);
        if self.path.added() > known {
            (self.deepest, self.recent) = ([Span::ZERO; 2], [Span::ZERO; 2]);
            self.intervals.restart();
        }
        if sample.now.since(self.recent_rotated_at) > sample.rtt.smoothed() / 2 {
            self.recent = [Span::ZERO, self.recent[0]];
            self.recent_rotated_at = sample.now;
        }
        self.recent[0] = self.recent[0].max(delay);
        if sample.now.since(self.rotated_at) > MEMORY {
            self.deepest = [Span::ZERO, self.deepest[0]];
            self.rotated_at = sample.now;
        }
        self.deepest[0] = self.deepest[0].max(delay);
    }

    /// Returns the cause of losses that are due to neither a host nor an outage.
    pub(super) fn cause(&self, sample: &FeedbackSample<'_>) -> Cause {
        let finding = self.intervals.finding();
        let is_of_queue = finding.dependence == Dependence::Dependent && finding.medium_rate <= 0.0;
        if sample.ecn_ce > 0 || self.is_full() || is_of_queue { Cause::Congestion } else { Cause::Random }
    }

    /// Whether a queue may have dropped the packets that are found lost now.
    fn is_full(&self) -> bool {
        let deepest = self.deepest[0].max(self.deepest[1]);
        let now = self.recent[0].max(self.recent[1]);
        deepest > MIN_QUEUE && now >= deepest.mul_f64(FULL_SHARE)
    }

    /// Counts losses due to neither a host nor an outage. A medium also loses packets while there is a queue.
    pub(super) fn count(&mut self, sample: &FeedbackSample<'_>, lost: u64, claim: &Claim) {
        self.reported += sample.acked_packets + lost;
        // If not all of the host's losses are identified, no loss can be assigned to its interval.
        self.intervals.on_feedback(sample, if claim.unnamed() == 0 { lost } else { 0 }, claim);
        if lost > 0 && self.intervals.is_test_due(sample.now) {
            self.test(sample.now);
        }
        if self.is_full() && !self.is_before_onset(sample.largest_acked_pn) {
            let packets = (sample.acked_packets + lost) as f64;
            self.random = (self.random + packets * self.intervals.finding().medium_rate).min(MAX_UNCLAIMED);
        }
    }

    fn test(&mut self, now: Time) {
        let empty = self.path.shortest().unwrap_or(Span::MAX) + self.path.added();
        self.intervals.test(now, empty);
    }

    /// Removes losses that turned out to be neither the medium's nor a queue's.
    pub(super) fn discount_losses(&mut self, lost: u64) {
        self.intervals.discount_losses(lost);
    }

    /// Whether losses must be settled before the delays at their time are dropped.
    pub(super) fn is_settling_due(&self) -> bool {
        self.intervals.is_settling_due()
    }

    /// Corrects the causes of the losses since the last call, at the end of a window or when due, by the
    /// delays of later packets, which were not known when each loss was attributed. `is_policed`: the path
    /// drops what exceeds a rate, without a queue.
    pub(super) fn settle(&mut self, now: Time, is_policed: bool, losses: &mut Losses) {
        let (packets, marked) = (std::mem::take(&mut self.reported), std::mem::take(&mut self.marked));
        self.intervals.settle();
        if losses.unsettled(Cause::Random) + losses.unsettled(Cause::Congestion) > 0 {
            self.test(now);
            self.correct(packets, marked > 0 || is_policed, losses);
        }
        self.deferred.clear();
        losses.settle();
    }

    /// Corrects unsettled losses by how losses depend on the delay. `is_otherwise_known`: a path that marks
    /// packets, or drops what exceeds a rate, is congested without a delay.
    fn correct(&mut self, packets: u64, is_otherwise_known: bool, losses: &mut Losses) {
        let finding = self.intervals.finding();
        match finding.dependence {
            Dependence::Independent if !is_otherwise_known => {
                losses.attribute_unsettled(Cause::Congestion, Cause::Random, u64::MAX);
                // A queue may have been full for a moment.
                self.deferred.retain(|run| self.intervals.is_excessive(run.first_pn));
                losses.attribute_runs(Cause::Random, Cause::Congestion, &mut self.deferred);
            }
            Dependence::Dependent => {
                let expected = packets as f64 * finding.medium_rate;
                let random = losses.unsettled(Cause::Random) as f64;
                if random > expected + CHANCE * expected.sqrt() {
                    let excess = (random - expected).round() as u64;
                    losses.attribute_unsettled(Cause::Random, Cause::Congestion, excess);
                }
                self.attribute_early(losses);
            }
            _ => self.attribute_early(losses),
        }
    }

    /// Losses that count as congestion for now are attributed to the medium if they occurred at delays too
    /// short for the queue to drop, as far as known, and their intervals have lost no more than it would.
    fn attribute_early(&mut self, losses: &mut Losses) {
        self.deferred.retain(|run| self.intervals.is_of_medium(run.first_pn));
        losses.attribute_runs(Cause::Congestion, Cause::Random, &mut self.deferred);
    }

    /// Whether the packet was sent when the queue was too short to drop it, as far as known.
    pub(super) fn is_before_onset(&self, pn: u64) -> bool {
        self.intervals.is_before_onset(pn)
    }

    /// Keeps losses that count as congestion for now, to be re-examined by [`settle`](Self::settle).
    pub(super) fn defer(&mut self, runs: impl Iterator<Item = LossRun>) {
        if self.intervals.finding().medium_rate <= 0.0 {
            let room = MAX_DEFERRED - self.deferred.len();
            self.deferred.extend(runs.take(room));
        }
    }

    /// Returns how many of the losses at a full queue were the medium's.
    pub(super) fn claim_random(&mut self, lost: u64) -> u64 {
        let claimed = lost.min(self.random.round() as u64);
        self.random -= claimed as f64;
        claimed
    }
}
