//! Loss diagnosis of a running transfer, from the loss signature of each transmission window
//! (dickens-classifier), from the drops reported by the receiver's kernel (weaker: drops before the socket),
//! and from the path's queue. It runs before the control law gets the losses.

mod delay_intervals;
mod kernel;
mod losses;
mod outage;
mod queue;
mod rates;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use haul_base::{Cause, CauseCounts, Time, Verdict};
use haul_diagnosis::{Diagnosis, Joined, Model, Sample, Signature, Words};
use haul_stack::choice;

use crate::control::{Boundary, FeedbackSample, LossRun};
use crate::micro::events::DroppedGap;
use kernel::{Claim, Kernel};
pub use losses::Attribution;
use losses::{Losses, OtherLosses};
use outage::Outages;
use queue::Queue;
use rates::SentRates;

choice! {
    /// Evidence that the diagnosis may use.
    pub enum Evidence {
        /// All evidence.
        All = "on",
        /// None: losses have no cause.
        None = "off",
        /// The pattern of the losses only, as in the paper.
        Signature = "signature",
        /// The receiver's kernel and the path.
        Kernel = "kernel",
        /// The path only: its delay, its marks, and when the lost packets were sent.
        Delay = "delay",
    }
}

/// Names of [`Evidence`], with descriptions for users.
pub const EVIDENCE: [(&str, &str); 5] = [
    ("on", "All available evidence"),
    ("off", "None"),
    ("signature", "Only the pattern of losses"),
    ("kernel", "Only the receiver's kernel and the path's queue"),
    ("delay", "Only the path: its delay, ECN marks, and when lost packets were sent"),
];

impl Evidence {
    fn has_signature(self) -> bool {
        matches!(self, Self::Signature | Self::All)
    }

    fn has_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::All)
    }

    fn has_path(self) -> bool {
        matches!(self, Self::Kernel | Self::Delay | Self::All)
    }
}

/// Diagnosis of one transmission window.
#[derive(Clone, Debug, PartialEq)]
pub struct DiagnosedWindow {
    /// Index of the window, from 0.
    pub number: u64,
    /// Packet number of its first packet: add a position in the signature to get that of another.
    pub first_pn: u64,
    /// Which of its packets were lost. Empty if that was not recorded: the evidence was changed in the middle
    /// of the window, or more than 65,535 packets were lost.
    pub signature: Signature,
    /// Measures of the signature.
    pub sample: Sample,
    /// Diagnosis by the signature alone.
    pub by_signature: Diagnosis,
    /// Lost packets by cause, by all evidence.
    pub counts: CauseCounts,
    /// Attribution of each lost packet; at the edges of a window some belong to the previous or next one.
    /// Runs beyond [`LossRuns::MAX_RUNS`](crate::control::LossRuns::MAX_RUNS) in a window are counted, but
    /// not listed.
    pub attributions: Vec<Attribution>,
}

/// Findings about a window.
#[derive(Clone, Debug)]
pub(crate) struct WindowFindings {
    pub(crate) sample: Sample,
    pub(crate) by_signature: Diagnosis,
    pub(crate) counts: CauseCounts,
    pub(crate) attributions: Vec<Attribution>,
}

/// Transmission windows with losses, by the diagnosis of the signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// Windows attributed to the receiving host.
    pub host: u64,
    /// Windows attributed to the network.
    pub network: u64,
    /// Windows without a certain cause.
    pub inconclusive: u64,
    /// Windows whose loss rate is outside the model's range.
    pub out_of_range: u64,
}

impl WindowCounts {
    fn add(&mut self, diagnosis: &Diagnosis) {
        let count = match (diagnosis.metric, diagnosis.cause()) {
            (None, _) => &mut self.out_of_range,
            (_, Cause::ReceiverHost) => &mut self.host,
            (_, Cause::Congestion) => &mut self.network,
            _ => &mut self.inconclusive,
        };
        *count += 1;
    }
}

/// A signature that attributes a window to the host is ignored if the path's queue and outages explain more
/// than this share of its losses: an outage, and bursts dropped whole by a short queue, look like a receiver
/// that did not read. Our choice.
const CONTESTED_SHARE: f64 = 0.2;

/// Whether the path explains that much of a window's losses.
fn is_contested(counts: &CauseCounts) -> bool {
    let by_path = counts.of(Cause::Congestion) + counts.of(Cause::Outage);
    by_path as f64 > CONTESTED_SHARE * counts.total() as f64
}

/// If the kernel has dropped more than this share of a window's losses, it counts its host's losses, and the
/// signature adds nothing. Our choice.
const MIN_COUNTED_SHARE: f64 = 0.2;
/// If it counts buffers of several packets, only their mean size is known. In a window that the signature
/// attributes to the host, otherwise unexplained losses are the host's, too, up to this share of those
/// explained by the count. Our choice: dropped buffers hold 2 % more packets than those read.
const MAX_UNCOUNTED_SHARE: f64 = 0.05;

/// The diagnosis: see the module documentation.
#[derive(Debug)]
pub(crate) struct Diagnostician {
    evidence: Evidence,
    /// `None`: the built-in model.
    model: Option<Arc<Model>>,
    words: Words,
    kernel: Kernel,
    /// Losses of the last feedback due to the kernel and to outages.
    claim: Claim,
    outages: Outages,
    queue: Queue,
    rates: SentRates,
    /// Windows with too few losses for a diagnosis of their own.
    joined: Joined,
    /// Cause by the last conclusive signature.
    by_signature: Cause,
    /// Packets of completed windows since then.
    packets_since_verdict: u64,
    /// Losses whose window has not ended.
    present: Losses,
    /// Of these, those dropped by the receiver's kernel.
    by_kernel: u64,
    /// Losses of completed windows.
    past: CauseCounts,
    /// Verdict on the latest losses.
    verdict: Option<Verdict>,
    windows: WindowCounts,
}

impl Diagnostician {
    /// Creates a diagnosis without observations.
    pub(crate) fn new(evidence: Evidence) -> Self {
        Self {
            evidence,
            model: None,
            words: Model::shipped().words(),
            kernel: Kernel::default(),
            claim: Claim::default(),
            outages: Outages::default(),
            queue: Queue::default(),
            rates: SentRates::default(),
            joined: Joined::default(),
            by_signature: Cause::Inconclusive,
            packets_since_verdict: 0,
            present: Losses::default(),
            by_kernel: 0,
            past: CauseCounts::default(),
            verdict: None,
            windows: WindowCounts::default(),
        }
    }

    /// Replaces the built-in model, if `model` is given.
    pub(crate) fn with_model(self, model: Option<Arc<Model>>) -> Self {
        let Some(model) = model else { return self };
        Self { words: model.words(), model: Some(model), ..self }
    }

    /// Changes the evidence to use. Verdicts by the previous evidence are dropped.
    pub(crate) fn set_evidence(&mut self, evidence: Evidence) {
        if self.evidence != evidence {
            (self.verdict, self.by_signature) = (None, Cause::Inconclusive);
            self.evidence = evidence;
        }
    }

    /// Whether signatures are needed.
    pub(crate) fn needs_signatures(&self) -> bool {
        self.evidence != Evidence::None
    }

    /// Returns the counts of windows so far.
    pub(crate) fn windows(&self) -> WindowCounts {
        self.windows
    }

    /// Returns all lost packets so far by cause.
    pub(crate) fn counts(&self) -> CauseCounts {
        let mut counts = self.past;
        counts.merge(self.present.counts());
        counts
    }

    /// Adds a gap in which the receiver's kernel has dropped packets.
    pub(crate) fn on_gap(&mut self, now: Time, gap: DroppedGap) {
        self.kernel.on_gap(now, gap);
    }

    /// Sets whether the attribution of each run is kept.
    pub(crate) fn list_runs(&mut self, is_listed: bool) {
        self.present.list_runs(is_listed);
    }

    /// Releases memory kept for the next feedback.
    pub(crate) fn release_idle(&mut self) {
        self.claim = Claim::default();
        self.present.release_idle();
        self.outages.release_idle();
        self.rates.release_idle();
    }

    /// Returns the verdict on the losses in a feedback, or on the latest ones if it has none.
    pub(crate) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) -> Option<Verdict> {
        self.queue.on_feedback(sample);
        self.rates.on_feedback(sample);
        self.kernel.on_feedback(sample);
        self.claim.clear();
        if self.evidence.has_kernel() {
            self.kernel.claim(sample, &mut self.claim);
        }
        if self.evidence.has_path() {
            self.outages.find(sample, &mut self.claim);
        }
        let by_host = self.claim.packets();
        let in_outages = self.claim.in_outages().min(sample.lost_packets - by_host);
        let others = sample.lost_packets - by_host - in_outages;
        self.queue.count(sample, others, &self.claim);
        if self.evidence == Evidence::None {
            return self.verdict;
        }
        if sample.lost_packets > 0 {
            let mut others = self.attribute_others(sample, others);
            others.in_outage.add(self.cause_of_outages(sample), in_outages);
            let early = self.claim_early(others.of(Cause::Random));
            others.attribute_early(early);
            let queue = &self.queue;
            self.present.add(sample.loss, &self.claim, &others, |run| queue.is_before_onset(run.first_pn));
            self.by_kernel += by_host;
            let mut lost = others.total();
            lost.add(Cause::ReceiverHost, by_host);
            self.verdict = lost.verdict();
        }
        // The host is sampled only from time to time: its drops may have been detected as losses earlier.
        let early = self.claim_early(self.present.counts().of(Cause::Random));
        self.present.attribute_some(Cause::Random, Cause::ReceiverHost, early);
        self.rates.review(sample, &mut self.present, &mut self.past);
        if self.queue.is_settling_due() {
            self.settle(sample.now);
        }
        self.verdict
    }

    /// Returns how many otherwise unexplained losses the host reports as dropped before a socket. Never
    /// losses of a queue.
    fn claim_early(&mut self, unexplained: u64) -> u64 {
        if !self.evidence.has_kernel() {
            return 0;
        }
        let early = self.kernel.claim_early(unexplained);
        self.queue.discount_losses(early);
        early
    }

    /// Nothing arrives at the socket while a path is down: if the kernel dropped recently, it dropped more
    /// than its buffer count suggests.
    fn cause_of_outages(&self, sample: &FeedbackSample<'_>) -> Cause {
        let has_dropped = self.evidence.has_kernel() && self.kernel.has_dropped_recently(sample);
        if has_dropped { Cause::ReceiverHost } else { Cause::Outage }
    }

    /// Attributes the losses of a feedback that neither a socket nor an outage explains.
    fn attribute_others(&mut self, sample: &FeedbackSample<'_>, others: u64) -> OtherLosses {
        let mut lost = OtherLosses::default();
        match self.other_cause(sample) {
            Cause::Congestion if self.evidence.has_path() => {
                let before_onset = self.before_onset(sample);
                let at_queue = others - before_onset;
                let by_medium = self.queue.claim_random(at_queue);
                lost.before_onset.add(Cause::Random, before_onset);
                lost.others.add(Cause::Random, by_medium);
                lost.others.add(Cause::Congestion, at_queue - by_medium);
                self.defer(sample);
            }
            cause => {
                if cause == Cause::Random && self.evidence.has_path() {
                    self.rates.add_losses(sample, &self.claim);
                }
                lost.others.add(cause, others);
            }
        }
        lost
    }

    /// Keeps a feedback's losses at a queue for re-examination at the end of the window, if the host's among
    /// them are identified.
    fn defer(&mut self, sample: &FeedbackSample<'_>) {
        if sample.ecn_ce == 0 && self.claim.unnamed() == 0 {
            let runs = sample.loss.list().iter().zip(self.claim.explained());
            let rest = runs.map(|(run, explained)| LossRun { packets: run.packets - explained, ..*run });
            self.queue.defer(rest.filter(|run| run.packets > 0));
        }
    }

    /// Returns how many of a feedback's losses were sent when the queue was too short to drop them, without
    /// those explained by a socket or an outage. 0 if the queue also marks packets, or if the socket's drops
    /// are not identified.
    fn before_onset(&self, sample: &FeedbackSample<'_>) -> u64 {
        if sample.ecn_ce > 0 || self.claim.unnamed() > 0 {
            return 0;
        }
        let runs = sample.loss.list().iter().zip(self.claim.explained());
        let before = runs.filter(|(run, _)| self.queue.is_before_onset(run.first_pn));
        before.map(|(run, explained)| run.packets - explained).sum()
    }

    /// Returns the cause of losses that the receiver's kernel does not explain.
    fn other_cause(&self, sample: &FeedbackSample<'_>) -> Cause {
        let by_queue = self.queue.cause(sample);
        match (self.evidence, self.by_signature) {
            (Evidence::Signature, cause) => cause,
            // The host may lose packets that its kernel does not count, or its peer does not report; a full
            // queue is the better explanation.
            (Evidence::All, Cause::ReceiverHost) if by_queue == Cause::Random && !self.rates.has_onset() => {
                Cause::ReceiverHost
            }
            _ => by_queue,
        }
    }

    /// Handles the end of a transmission window; without a recorded signature, `signature` is empty. Sets the
    /// verdict of the boundary.
    pub(crate) fn on_window(&mut self, end: &mut Boundary, signature: &Signature) -> WindowFindings {
        let sample = Sample::of(signature, &mut self.words);
        let by_signature = if self.evidence.has_signature() && sample.packets > 0 {
            let model = self.model.as_deref().unwrap_or_else(|| Model::shipped());
            self.joined.classify(model, &sample, signature, &mut self.words)
        } else {
            Diagnosis::NOTHING
        };
        self.remember(&by_signature, sample.packets);
        if sample.lost > 0 {
            self.windows.add(&by_signature);
        }
        self.settle(end.now);
        self.rates.end_window();
        let (counts, attributions) = self.close(&by_signature);
        // Feedback reports losses when they are detected, a window when all of it is known: at the edges they
        // differ.
        let by_last = (sample.lost > 0).then(|| Verdict::of(self.by_signature));
        end.verdict = counts.verdict().or(by_last);
        self.verdict = end.verdict.or(self.verdict);
        WindowFindings { sample, by_signature, counts, attributions }
    }

    /// Re-examines the losses since the last call.
    fn settle(&mut self, now: Time) {
        if self.evidence.has_path() {
            self.queue.settle(now, self.rates.has_onset(), &mut self.present);
        }
    }

    /// Whether there are losses of a window that has not ended.
    pub(crate) fn has_unreported_losses(&self) -> bool {
        self.present.counts().total() > 0
    }

    /// Remembers the verdict of a signature for the following losses, for as long as losses are remembered.
    fn remember(&mut self, diagnosis: &Diagnosis, packets: u64) {
        if diagnosis.metric.is_some() {
            (self.by_signature, self.packets_since_verdict) = (diagnosis.cause(), 0);
            return;
        }
        self.packets_since_verdict = self.packets_since_verdict.saturating_add(packets);
        if self.packets_since_verdict > Joined::MAX_PACKETS {
            self.by_signature = Cause::Inconclusive;
        }
    }

    /// Attributes the losses of a window that has ended, given its signature's diagnosis.
    fn close(&mut self, by_signature: &Diagnosis) -> (CauseCounts, Vec<Attribution>) {
        let present = &mut self.present;
        let counts = *present.counts();
        let by_kernel = std::mem::take(&mut self.by_kernel) as f64;
        let is_counted = self.kernel.end_window() || by_kernel > MIN_COUNTED_SHARE * counts.total() as f64;
        if by_signature.metric.is_some() {
            let cause = by_signature.cause();
            match self.evidence {
                Evidence::Signature => {
                    for other in Cause::ALL {
                        present.attribute(other, cause);
                    }
                }
                Evidence::All if is_counted || is_contested(&counts) => {
                    self.by_signature = Cause::Inconclusive;
                    let is_remainder_small =
                        counts.of(Cause::Random) as f64 <= MAX_UNCOUNTED_SHARE * by_kernel;
                    if cause == Cause::ReceiverHost && is_remainder_small && self.kernel.counts_groups() {
                        present.attribute(Cause::Random, cause);
                    }
                }
                // Random losses are those without another explanation.
                Evidence::All if cause == Cause::ReceiverHost => present.attribute(Cause::Random, cause),
                _ => {}
            }
        }
        let (counts, attributions) = present.take();
        self.past.merge(&counts);
        (counts, attributions)
    }
}
