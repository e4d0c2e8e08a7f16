//! The diagnosis of a transfer that runs: why its packets were lost, told from the signature of each transmission
//! window (dickens-classifier), from what the receiver's kernel says that it dropped (weaker: what no socket saw), and
//! from the queue of the path. It is formed before the control law hears of the losses.

mod kernel;
mod losses;
mod outage;
mod queue;
mod rates;
mod stretches;
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
    /// What the diagnosis may use.
    pub enum Evidence {
        /// All of it.
        All = "on",
        /// Nothing: no loss has a cause.
        None = "off",
        /// The pattern of the losses alone, as in the paper.
        Signature = "signature",
        /// What the receiver's kernel says, and what the path shows.
        Kernel = "kernel",
        /// What the path shows alone: its delay, its marks, and when the lost packets left.
        Delay = "delay",
    }
}

/// The words of [`Evidence`], and what each lets the diagnosis use, for people.
pub const EVIDENCE: [(&str, &str); 5] = [
    ("on", "All evidence there is"),
    ("off", "None"),
    ("signature", "The pattern of losses only"),
    ("kernel", "The receiver's kernel and the path's queue only"),
    ("delay", "The path only: its delay, its marks, and when lost packets left"),
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

/// One transmission window as the diagnosis saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct DiagnosedWindow {
    /// Its number, from 0.
    pub number: u64,
    /// The packet number of its first packet: with a position in the signature added, that of any other.
    pub first_pn: u64,
    /// Which of its packets were lost. Empty if that was not recorded: the evidence was changed in the middle of the
    /// window, or more than 65,535 packets were lost.
    pub signature: Signature,
    /// What is measured of that.
    pub sample: Sample,
    /// What the signature alone says.
    pub by_signature: Diagnosis,
    /// Lost packets by cause, of all evidence.
    pub counts: CauseCounts,
    /// What each of the lost packets is put down to; at the edges of a window some are of the window before or after.
    /// Runs beyond [`LossRuns::MOST`](crate::control::LossRuns::MOST) in one window are counted, but not listed.
    pub attributions: Vec<Attribution>,
}

/// What was found of a window.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) sample: Sample,
    pub(crate) by_signature: Diagnosis,
    pub(crate) counts: CauseCounts,
    pub(crate) attributions: Vec<Attribution>,
}

/// Transmission windows that lost something, by what the signature said of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// The receiving host has lost it.
    pub host: u64,
    /// The network has lost it.
    pub network: u64,
    /// Neither was certain.
    pub inconclusive: u64,
    /// Their loss rate cannot be told by.
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

/// A signature is not believed that puts a window on the host of which the path's queue and outages explain more than
/// this share: an outage, and bursts that a short queue drops whole, look like a receiver that did not read. Our
/// choice.
const CONTESTED: f64 = 0.2;

/// Whether the path explains so much of a window's losses.
fn is_contested(counts: &CauseCounts) -> bool {
    let by_path = counts.of(Cause::Congestion) + counts.of(Cause::Outage);
    by_path as f64 > CONTESTED * counts.whole() as f64
}

/// Where the kernel has dropped more than this share of a window, it counts what its host loses, and the signature adds
/// nothing. Our choice.
const COUNTED: f64 = 0.2;
/// Where it counts buffers of several packets, it is known only on average of how many. Of a window that the signature
/// puts on the host, losses that nothing else explains are the host's too, up to this share of those that the count
/// explains. Our choice: dropped buffers hold a fiftieth more than those that are read.
const UNCOUNTED: f64 = 0.05;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Diagnostician {
    evidence: Evidence,
    /// `None`: the shipped one.
    model: Option<Arc<Model>>,
    words: Words,
    kernel: Kernel,
    /// What it and an outage have lost of the last feedback.
    claim: Claim,
    outages: Outages,
    queue: Queue,
    rates: SentRates,
    /// Windows with too few losses to tell.
    joined: Joined,
    /// The cause by the last telling signature.
    by_signature: Cause,
    /// Packets that have left since, of windows that have ended.
    since_told: u64,
    /// Losses whose window has not ended.
    present: Losses,
    /// Of these, those that the receiver's kernel has dropped.
    by_kernel: u64,
    /// Losses of windows that have.
    past: CauseCounts,
    /// The verdict on what was lost last.
    verdict: Option<Verdict>,
    windows: WindowCounts,
}

impl Diagnostician {
    /// One that has seen nothing.
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
            since_told: 0,
            present: Losses::default(),
            by_kernel: 0,
            past: CauseCounts::default(),
            verdict: None,
            windows: WindowCounts::default(),
        }
    }

    /// The same with signatures that are judged by this model, if there is one, in place of the shipped one.
    pub(crate) fn with_model(self, model: Option<Arc<Model>>) -> Self {
        let Some(model) = model else { return self };
        Self { words: model.words(), model: Some(model), ..self }
    }

    /// Other evidence from now on. What was told by the evidence before is no verdict any longer.
    pub(crate) fn set_evidence(&mut self, evidence: Evidence) {
        if self.evidence != evidence {
            (self.verdict, self.by_signature) = (None, Cause::Inconclusive);
            self.evidence = evidence;
        }
    }

    /// Whether it needs signatures.
    pub(crate) fn wants_signatures(&self) -> bool {
        self.evidence != Evidence::None
    }

    /// The windows so far.
    pub(crate) fn windows(&self) -> WindowCounts {
        self.windows
    }

    /// All lost packets so far by cause.
    pub(crate) fn counts(&self) -> CauseCounts {
        let mut counts = self.past;
        counts.merge(self.present.counts());
        counts
    }

    /// The receiver tells where its kernel has dropped packets.
    pub(crate) fn on_gap(&mut self, now: Time, gap: DroppedGap) {
        self.kernel.on_gap(now, gap);
    }

    /// Whether it keeps what each run of losses is put down to.
    pub(crate) fn list_runs(&mut self, is_listed: bool) {
        self.present.list_runs(is_listed);
    }

    /// Gives back memory that is kept for the next feedback.
    pub(crate) fn release_idle(&mut self) {
        self.claim = Claim::default();
        self.present.release_idle();
        self.outages.release_idle();
        self.rates.release_idle();
    }

    /// The verdict on the losses that a feedback brings, or on the last ones if it brings none.
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
            let mut others = self.put_down(sample, others);
            others.in_outage.add(self.cause_of_outages(sample), in_outages);
            let early = self.claim_early(others.of(Cause::Random));
            others.attribute_early(early);
            let queue = &self.queue;
            self.present.add(sample.loss, &self.claim, &others, |run| queue.is_before_onset(run.first_pn));
            self.by_kernel += by_host;
            let mut lost = others.whole();
            lost.add(Cause::ReceiverHost, by_host);
            self.verdict = lost.verdict();
        }
        // A host is looked at now and then: what it dropped may have been missed before.
        let early = self.claim_early(self.present.counts().of(Cause::Random));
        self.present.attribute_some(Cause::Random, Cause::ReceiverHost, early);
        self.rates.review(sample, &mut self.present, &mut self.past);
        if self.queue.is_settling_due() {
            self.settle(sample.now);
        }
        self.verdict
    }

    /// Of so many losses that nothing else explains, those that the host says that it dropped before a socket saw them.
    /// Never those of a queue.
    fn claim_early(&mut self, unexplained: u64) -> u64 {
        if !self.evidence.has_kernel() {
            return 0;
        }
        let early = self.kernel.claim_early(unexplained);
        self.queue.forgive(early);
        early
    }

    /// Nothing comes to the socket while a path is down: if the kernel dropped lately, it dropped more than its count
    /// of buffers let expect.
    fn cause_of_outages(&self, sample: &FeedbackSample<'_>) -> Cause {
        let has_dropped = self.evidence.has_kernel() && self.kernel.has_dropped_lately(sample);
        if has_dropped { Cause::ReceiverHost } else { Cause::Outage }
    }

    /// The losses of a feedback that neither a socket nor an outage explains, by cause.
    fn put_down(&mut self, sample: &FeedbackSample<'_>, others: u64) -> OtherLosses {
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
                    self.rates.lose(sample, &self.claim);
                }
                lost.others.add(cause, others);
            }
        }
        lost
    }

    /// Keeps a feedback's losses at a queue for a second look at the end of the window, if the host's among them are
    /// known.
    fn defer(&mut self, sample: &FeedbackSample<'_>) {
        if sample.ecn_ce == 0 && self.claim.unnamed() == 0 {
            let runs = sample.loss.list().iter().zip(self.claim.explained());
            let rest = runs.map(|(run, explained)| LossRun { packets: run.packets - explained, ..*run });
            self.queue.defer(rest.filter(|run| run.packets > 0));
        }
    }

    /// How many packets of a feedback's losses left when the queue was too short to drop them; those that a socket or
    /// an outage explains do not count. 0 where the queue also marks packets, or where it is not known which ones the
    /// socket has dropped.
    fn before_onset(&self, sample: &FeedbackSample<'_>) -> u64 {
        if sample.ecn_ce > 0 || self.claim.unnamed() > 0 {
            return 0;
        }
        let runs = sample.loss.list().iter().zip(self.claim.explained());
        let before = runs.filter(|(run, _)| self.queue.is_before_onset(run.first_pn));
        before.map(|(run, explained)| run.packets - explained).sum()
    }

    /// What losses that the receiver's kernel does not know of were lost to.
    fn other_cause(&self, sample: &FeedbackSample<'_>) -> Cause {
        let by_queue = self.queue.cause(sample);
        match (self.evidence, self.by_signature) {
            (Evidence::Signature, cause) => cause,
            // A host that loses where its kernel does not count, or whose peer does not say; a full queue explains
            // losses better.
            (Evidence::All, Cause::ReceiverHost) if by_queue == Cause::Random && !self.rates.has_onset() => {
                Cause::ReceiverHost
            }
            _ => by_queue,
        }
    }

    /// A transmission window has ended; without a signature that is empty. Its verdict goes into the boundary.
    pub(crate) fn on_window(&mut self, end: &mut Boundary, signature: &Signature) -> Told {
        let sample = Sample::of(signature, &mut self.words);
        let by_signature = if self.evidence.has_signature() && sample.packets > 0 {
            let model = self.model.as_deref().unwrap_or_else(|| Model::shipped());
            self.joined.judge(model, &sample, signature, &mut self.words)
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
        // Feedback tells of losses when it finds them, and of a window when all of it is known: at the edges they
        // differ.
        let by_last = (sample.lost > 0).then(|| Verdict::of(self.by_signature));
        end.verdict = counts.verdict().or(by_last);
        self.verdict = end.verdict.or(self.verdict);
        Told { sample, by_signature, counts, attributions }
    }

    /// Looks again at the losses since it was done last.
    fn settle(&mut self, now: Time) {
        if self.evidence.has_path() {
            self.queue.settle(now, self.rates.has_onset(), &mut self.present);
        }
    }

    /// Whether some losses are of no window that has ended.
    pub(crate) fn has_untold_losses(&self) -> bool {
        self.present.counts().whole() > 0
    }

    /// Remembers what a signature has told for the losses that follow, for as long as losses are remembered.
    fn remember(&mut self, told: &Diagnosis, packets: u64) {
        if told.metric.is_some() {
            (self.by_signature, self.since_told) = (told.cause(), 0);
            return;
        }
        self.since_told = self.since_told.saturating_add(packets);
        if self.since_told > Joined::MOST_PACKETS {
            self.by_signature = Cause::Inconclusive;
        }
    }

    /// The losses of a window that has ended, now that its signature is known.
    fn close(&mut self, by_signature: &Diagnosis) -> (CauseCounts, Vec<Attribution>) {
        let present = &mut self.present;
        let counts = *present.counts();
        let by_kernel = std::mem::take(&mut self.by_kernel) as f64;
        let is_counted = self.kernel.end_window() || by_kernel > COUNTED * counts.whole() as f64;
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
                    let is_rest = counts.of(Cause::Random) as f64 <= UNCOUNTED * by_kernel;
                    if cause == Cause::ReceiverHost && is_rest && self.kernel.counts_groups() {
                        present.attribute(Cause::Random, cause);
                    }
                }
                // Random losses are those for which nothing else was found.
                Evidence::All if cause == Cause::ReceiverHost => present.attribute(Cause::Random, cause),
                _ => {}
            }
        }
        let (counts, attributions) = present.take();
        self.past.merge(&counts);
        (counts, attributions)
    }
}
