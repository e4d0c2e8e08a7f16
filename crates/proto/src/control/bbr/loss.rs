//! Which losses indicate congestion.
//!
//! The draft takes every loss for congestion: more than 2 % in a round trip while probing, any at all
//! otherwise. On a path with 15 % random loss the rate falls to nearly nothing. Our deviation, disabled by
//! `tolerates = 0`: the loss rate while no queue stands and the sender does not probe is the path's own
//! (*base*). Losses count as congestion only if
//! - they exceed the base by more than the threshold while the sender probes: then they grow with the bytes
//!   in flight, or
//! - they exceed the base while the round-trip time shows a queue, or
//! - they exceed the tolerated rate, whatever the queue.
//!
//! A policer or a queue of a few packets causes losses without delay, which could be mistaken for the path's
//! own: see [`trial`](super::trial).

/// Loss rule: see the module documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossRule {
    /// Loss rate that is too high while probing (the draft's `LossThresh`).
    threshold: f64,
    /// Highest loss rate that can be the path's own; 0 selects the draft's rule.
    tolerates: f64,
    /// Packets from which the base is estimated, and how many of them were lost. Older ones weigh less.
    packets: f64,
    lost: f64,
    /// Runs of losses among them.
    runs: f64,
    /// Loss rate that a trial has confirmed as the path's own.
    confirmed: f64,
    /// Counts since the last round after which nothing suggested a higher loss rate, and the evidence for it
    /// since then: the logarithm of a likelihood ratio.
    excess: LossCounts,
    evidence: f64,
}

/// Packet counts of a period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossCounts {
    pub(super) lost: u64,
    /// Packets marked "congestion experienced".
    pub(super) marked: u64,
    /// Packets whose outcome is known.
    pub(super) packets: u64,
    /// Runs of lost packets. 0 where it is not needed.
    pub(super) runs: u64,
}

/// The base is estimated over at least this many packets and this many rounds. Our choice.
const MEMORY_PACKETS: f64 = 500.0;
const MEMORY_ROUNDS: f64 = 4.0;

/// Maximum excess of the base over the rate confirmed by a trial. Our choice.
const UNCONFIRMED: f64 = 0.01;
/// A path with more losses than before loses this factor more, plus [`LossRule::threshold`]. Our choice.
const EXCESS_FACTOR: f64 = 1.5;
/// Sufficient evidence for that, as a logarithm: 1 in 150 by chance. Our choice.
const MIN_EVIDENCE: f64 = 5.0;

impl LossCounts {
    /// Whether significantly more than `share` of the packets were lost: two standard deviations plus one
    /// packet.
    pub(super) fn exceeds(self, share: f64) -> bool {
        let expected = self.packets as f64 * share;
        self.lost as f64 > expected + 2.0 * expected.sqrt() + 1.0
    }

    /// Returns the sum of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            lost: self.lost.saturating_add(other.lost),
            marked: self.marked.saturating_add(other.marked),
            packets: self.packets.saturating_add(other.packets),
            runs: self.runs.saturating_add(other.runs),
        }
    }

    /// Returns the mean length of the runs of losses: packets lost together are one event.
    pub(super) fn mean_run(self) -> f64 {
        self.lost.max(1) as f64 / self.runs.clamp(1, self.lost.max(1)) as f64
    }

    pub(super) fn loss_rate(self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

impl LossRule {
    pub(super) fn new(threshold: f64, tolerates: f64) -> Self {
        Self {
            threshold,
            tolerates,
            packets: 0.0,
            lost: 0.0,
            runs: 0.0,
            confirmed: 0.0,
            excess: LossCounts::default(),
            evidence: 0.0,
        }
    }

    pub(super) fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Returns the path's own loss rate.
    pub(super) fn base(&self) -> f64 {
        self.learned_rate().min(self.confirmed + UNCONFIRMED).min(self.tolerates)
    }

    fn learned_rate(&self) -> f64 {
        self.lost / self.packets.max(1.0)
    }

    /// Returns the current loss rate, the base or a significantly higher one, and its mean run length.
    pub(super) fn present(&self) -> (f64, f64) {
        if self.has_excess() {
            return (self.excess.loss_rate(), self.excess.mean_run());
        }
        (self.base(), (self.lost / self.runs.max(1.0)).max(1.0))
    }

    /// Returns the share of a round trip's packets that were lost by the path itself.
    pub(super) fn base_loss_rate(&self, counts: LossCounts) -> f64 {
        self.base().min(counts.loss_rate())
    }

    /// Whether too much was lost in a round trip while probing (the draft's `IsInflightTooHigh`).
    pub(super) fn is_too_high(&self, counts: LossCounts) -> bool {
        let limit = counts.packets as f64 * self.threshold;
        if self.tolerates == 0.0 {
            return (counts.lost + counts.marked) as f64 > limit;
        }
        counts.marked as f64 > limit || counts.exceeds(self.base() + self.threshold)
    }

    /// Whether a round without probing shows congestion. RFC 9002, section 7.1: marks count as losses.
    pub(super) fn is_congestion(&self, counts: LossCounts, is_queued: bool) -> bool {
        if self.tolerates == 0.0 || counts.marked > 0 {
            return counts.lost + counts.marked > 0;
        }
        counts.exceeds(self.tolerates) || (is_queued && counts.exceeds(self.base()))
    }

    /// Whether the losses show that Startup has filled the path.
    pub(super) fn ends_startup(&self, counts: LossCounts, is_queued: bool) -> bool {
        let is_tolerated = self.tolerates > 0.0 && !is_queued && !counts.exceeds(self.tolerates);
        self.is_too_high(counts) && (!is_tolerated || counts.marked > 0)
    }

    /// Learns from a round without a queue and without probing. Returns whether the path loses more than
    /// before: Page's cumulative sum test (Biometrika 41, 1954) of two Poisson processes. A round above the
    /// tolerated loss rate shows congestion or an outage, and says nothing about the path's own losses.
    pub(super) fn learn(&mut self, counts: LossCounts) -> bool {
        if counts.exceeds(self.tolerates) {
            self.forget_excess();
            return false;
        }
        let packets = counts.packets as f64;
        let memory = MEMORY_PACKETS.max(MEMORY_ROUNDS * packets);
        let kept = memory / (memory + packets);
        self.packets = self.packets * kept + packets;
        self.lost = self.lost * kept + counts.lost as f64;
        self.runs = self.runs * kept + counts.runs as f64;
        self.confirmed = self.confirmed.min(self.learned_rate() + UNCONFIRMED);
        let expected_rate = self.confirmed + UNCONFIRMED;
        let excess_rate = expected_rate * EXCESS_FACTOR + self.threshold;
        self.excess = self.excess.and(counts);
        self.evidence +=
            counts.lost as f64 * (excess_rate / expected_rate).ln() - packets * (excess_rate - expected_rate);
        if self.evidence <= 0.0 {
            self.forget_excess();
        }
        self.has_excess()
    }

    fn has_excess(&self) -> bool {
        self.tolerates > 0.0 && self.evidence >= MIN_EVIDENCE * self.excess.mean_run()
    }

    fn forget_excess(&mut self) {
        (self.excess, self.evidence) = (LossCounts::default(), 0.0);
    }

    /// A trial has lost as much: the losses are the path's own.
    pub(super) fn confirm(&mut self, counts: LossCounts) {
        self.learn(counts);
        self.confirmed = self.learned_rate().max(counts.loss_rate());
        self.forget_excess();
    }

    /// A trial has lost much less: the sender's rate caused the earlier losses.
    pub(super) fn refute(&mut self, counts: LossCounts) {
        (self.packets, self.lost, self.runs) =
            (counts.packets as f64, counts.lost as f64, counts.runs as f64);
        self.confirmed = self.confirmed.min(self.learned_rate());
        self.forget_excess();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(lost: u64, packets: u64) -> LossCounts {
        LossCounts { lost, marked: 0, packets, runs: lost }
    }

    fn rule() -> LossRule {
        LossRule::new(0.02, 0.25)
    }

    #[test]
    fn losses_above_the_paths_own_rate_are_congestion() {
        let mut rule = rule();
        assert!(rule.is_too_high(counts(150, 1_000)), "not known yet");
        rule.confirm(counts(150, 1_000));
        (0..20).for_each(|_| assert!(!rule.learn(counts(150, 1_000))));
        assert!((rule.base() - 0.15).abs() < 1e-9, "{}", rule.base());
        assert!(!rule.is_too_high(counts(170, 1_000)) && rule.is_too_high(counts(230, 1_000)));
        assert!(
            !rule.is_congestion(counts(170, 1_000), true) && rule.is_congestion(counts(230, 1_000), true)
        );
        assert!(
            !rule.is_congestion(counts(230, 1_000), false) && rule.is_congestion(counts(300, 1_000), false)
        );
    }

    #[test]
    fn the_drafts_rule_counts_any_loss() {
        let mut rule = LossRule::new(0.02, 0.0);
        rule.confirm(counts(150, 1_000));
        assert!(rule.base() < 1e-12, "{}", rule.base());
        assert!(rule.is_congestion(counts(1, 1_000), false) && !rule.is_congestion(counts(0, 1_000), true));
        assert!(rule.is_too_high(counts(21, 1_000)) && !rule.is_too_high(counts(20, 1_000)));
        assert!(rule.ends_startup(counts(21, 1_000), false));
    }

    #[test]
    fn startup_ends_on_losses_with_a_queue_or_on_very_many_losses() {
        let rule = rule();
        assert!(rule.ends_startup(counts(100, 1_000), true) && !rule.ends_startup(counts(100, 1_000), false));
        assert!(rule.ends_startup(counts(400, 1_000), false) && !rule.ends_startup(counts(5, 1_000), true));
    }

    #[test]
    fn marks_are_never_the_paths_own() {
        let rule = rule();
        let marked = |marked| LossCounts { marked, ..counts(0, 1_000) };
        assert!(rule.is_congestion(marked(1), false) && rule.is_too_high(marked(21)));
        assert!(!rule.is_too_high(marked(20)) && rule.ends_startup(marked(21), false));
    }

    #[test]
    fn losses_are_the_paths_own_only_if_a_trial_confirms_them() {
        let mut rule = rule();
        assert!(rule.learn(counts(200, 1_000)) && rule.base() <= UNCONFIRMED, "{rule:?}");
        assert!((rule.present().0 - 0.2).abs() < 1e-9, "{rule:?}");
        rule.refute(counts(0, 300));
        assert!(rule.base() < 1e-12 && rule.present().0 < 1e-12, "{rule:?}");
        assert!(rule.learn(counts(200, 1_000)), "{rule:?}");
        rule.confirm(counts(60, 300));
        assert!(rule.base() > 0.15 && !rule.learn(counts(200, 1_000)), "{rule:?}");
        (0..100).for_each(|_| assert!(!rule.learn(counts(0, 1_000))));
        assert!(rule.base() < 0.001, "{rule:?}");
        assert!(rule.learn(counts(200, 1_000)), "it has lost nothing for long: {rule:?}");
    }

    #[test]
    fn losses_of_one_run_are_one_event() {
        let mut rule = rule();
        assert!(!rule.learn(LossCounts { runs: 2, ..counts(60, 1_000) }), "{rule:?}");
        assert!(rule.learn(counts(60, 1_000)), "{rule:?}");
    }

    #[test]
    fn the_drafts_rule_needs_no_trial() {
        assert!(!LossRule::new(0.02, 0.0).learn(counts(200, 1_000)));
    }

    #[test]
    fn a_few_packets_are_no_evidence() {
        let rule = rule();
        assert!(!rule.is_too_high(counts(2, 30)) && rule.is_too_high(counts(4, 30)));
    }
}
