//! Sending rates of the last seconds with the losses at each without a queue: a policer drops what exceeds
//! its rate.

use std::collections::VecDeque;

use haul_base::{Cause, CauseCounts, Rate, Span, Time};
use haul_diagnosis::{RateFinding, SentInterval};

use super::kernel::Claim;
use super::losses::{Losses, Share};
use crate::control::FeedbackSample;

/// Number of intervals remembered: 20 s of the shortest ones. Our choice.
const MAX_INTERVALS: usize = 1_024;
/// An interval lasts half a round trip, within these limits. Our choice: pacer bursts are at most 3 ms apart.
const SHORTEST: Span = Span::from_millis(20);
const LONGEST: Span = Span::from_millis(100);
/// An interval longer than this multiple has no rate: there was no feedback, or nothing was sent. Our choice.
const SILENCE: u64 = 4;
/// Round trips after which the outcome of packets is known. Our choice.
const KNOWN_AFTER: u64 = 2;
/// Minimum time between tests of the losses, as a test sorts all intervals.
const BETWEEN_TESTS: Span = Span::from_millis(100);

/// Unexplained losses of an interval: in the current window, and in past ones.
#[derive(Clone, Copy, Debug, Default)]
struct Random {
    present: u64,
    past: u64,
}

/// An interval and its packet numbers.
#[derive(Clone, Copy, Debug)]
struct Sent {
    interval: SentInterval,
    first_pn: u64,
    end_pn: u64,
    ended: Time,
    random: Random,
    /// Losses left to the medium.
    medium_losses: u64,
}

/// The current interval.
#[derive(Clone, Copy, Debug)]
struct Open {
    began: Time,
    first_pn: u64,
    lost: u64,
    runs: u64,
    random: Random,
}

impl Open {
    fn begin(sample: &FeedbackSample<'_>) -> Self {
        Self { began: sample.now, first_pn: sample.next_pn, lost: 0, runs: 0, random: Random::default() }
    }
}

/// Sending rates: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct SentRates {
    list: VecDeque<Sent>,
    open: Option<Open>,
    /// Fraction of a packet still to be left to the medium.
    remainder: f64,
    /// Newest loss that was not examined together with all losses of its interval.
    newest: Option<u64>,
    tested_at: Option<Time>,
    finding: RateFinding,
    /// Kept for their memory.
    tested: Vec<SentInterval>,
    order: Vec<(f64, usize)>,
}

impl SentRates {
    /// Whether the path drops what exceeds a rate.
    pub(super) fn has_onset(&self) -> bool {
        self.finding.onset.is_some()
    }

    /// Adds what was sent since the previous feedback. An app-limited sender may have sent only the bursts
    /// that a policer drops, so its mean rate is meaningless.
    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        let Some(open) = self.open else {
            self.open = Some(Open::begin(sample));
            return;
        };
        let shortest = (sample.rtt.smoothed() / 2).clamp(SHORTEST, LONGEST);
        let (duration, packets) =
            (sample.now.since(open.began), sample.next_pn.saturating_sub(open.first_pn));
        if duration < shortest {
            return;
        }
        self.open = Some(Open::begin(sample));
        if packets == 0 || sample.app_limited || duration > shortest * SILENCE {
            return;
        }
        if self.list.len() == MAX_INTERVALS {
            self.list.pop_front();
        }
        let rate = Rate::from_transfer(packets.saturating_mul(sample.datagram), duration);
        let interval = SentInterval { rate, packets, lost: open.lost.min(packets), runs: open.runs };
        let (first_pn, random) = (open.first_pn, open.random);
        self.list.push_back(Sent {
            interval,
            first_pn,
            end_pn: sample.next_pn,
            ended: sample.now,
            random,
            medium_losses: 0,
        });
    }

    /// Adds losses without a queue, except those explained by the claim.
    pub(super) fn add_losses(&mut self, sample: &FeedbackSample<'_>, claim: &Claim) {
        if claim.unnamed() > 0 {
            return;
        }
        // Allocate everything with the first loss.
        self.list.reserve(MAX_INTERVALS - self.list.len());
        for (run, explained) in sample.loss.list().iter().zip(claim.explained()) {
            let packets = run.packets.saturating_sub(explained);
            if packets > 0 {
                self.newest = self.newest.max(Some(run.first_pn));
                self.add(run.first_pn, packets);
            }
        }
    }

    /// Adds a run of losses to the interval in which it was sent.
    fn add(&mut self, pn: u64, packets: u64) {
        if let Some(open) = self.open.as_mut().filter(|open| open.first_pn <= pn) {
            (open.lost, open.runs) = (open.lost + packets, open.runs + 1);
            open.random.present += packets;
        } else if let Some(sent) = self.find(pn) {
            let interval = &mut sent.interval;
            (interval.lost, interval.runs) =
                ((interval.lost + packets).min(interval.packets), interval.runs + 1);
            sent.random.present += packets;
        }
    }

    fn find(&mut self, pn: u64) -> Option<&mut Sent> {
        let at = self.list.partition_point(|sent| sent.end_pn <= pn);
        self.list.get_mut(at).filter(|sent| sent.first_pn <= pn)
    }

    /// Re-examines losses that count as random, at intervals: of the current window, and of `past` ones.
    pub(super) fn review(
        &mut self,
        sample: &FeedbackSample<'_>,
        present: &mut Losses,
        past: &mut CauseCounts,
    ) {
        let is_due = self.tested_at.is_none_or(|at| sample.now.since(at) >= BETWEEN_TESTS);
        if is_due && self.newest.is_some() {
            self.tested_at = Some(sample.now);
            let known = sample.now - sample.rtt.smoothed() * KNOWN_AFTER;
            self.test(known);
            self.attribute(known, present, past);
            let is_known = |sent: &Sent| sent.ended <= known;
            let end_pn = self.list.iter().rev().find(|sent| is_known(sent)).map(|sent| sent.end_pn);
            self.newest = self.newest.filter(|&newest| end_pn.is_none_or(|end_pn| newest >= end_pn));
        }
    }

    /// Handles the end of a window.
    pub(super) fn end_window(&mut self) {
        let open = self.open.iter_mut().map(|open| &mut open.random);
        for random in self.list.iter_mut().map(|sent| &mut sent.random).chain(open) {
            random.past += std::mem::take(&mut random.present);
        }
    }

    /// Releases memory kept for the next feedback.
    pub(super) fn release_idle(&mut self) {
        (self.tested, self.order) = (Vec::new(), Vec::new());
    }

    /// Tests the intervals that had ended at `known`.
    fn test(&mut self, known: Time) {
        self.tested.clear();
        self.tested.reserve(MAX_INTERVALS);
        self.order.clear();
        self.order.reserve(MAX_INTERVALS);
        self.tested.extend(self.list.iter().take_while(|sent| sent.ended <= known).map(|sent| sent.interval));
        self.finding = RateFinding::of(&self.tested, &mut self.order);
    }

    /// Attributes the losses of intervals above the policer's rate to congestion, except as many as the
    /// medium is expected to lose; which ones is unknown.
    fn attribute(&mut self, known: Time, present: &mut Losses, past: &mut CauseCounts) {
        let RateFinding { medium_rate, onset: Some(onset) } = self.finding else { return };
        let mut exceeding = Vec::new();
        for sent in self.list.iter_mut().take_while(|sent| sent.ended <= known) {
            let random = std::mem::take(&mut sent.random);
            let all = random.present + random.past;
            if sent.interval.rate < onset || all == 0 {
                sent.random = random;
                continue;
            }
            let expected = medium_rate * sent.interval.packets as f64 - sent.medium_losses as f64;
            self.remainder += expected.clamp(0.0, all as f64);
            let medium_losses = (self.remainder as u64).min(all);
            self.remainder -= medium_losses as f64;
            sent.medium_losses += medium_losses;
            let part = 1.0 - medium_losses as f64 / all as f64;
            let of_past = (random.past as f64 * part).round() as u64;
            past.attribute_some(Cause::Random, Cause::Congestion, of_past);
            let packets = (all - medium_losses).saturating_sub(of_past).min(random.present);
            exceeding.push(Share { first_pn: sent.first_pn, end_pn: sent.end_pn, packets, part });
        }
        present.attribute_shares(Cause::Random, Cause::Congestion, &exceeding);
    }
}
