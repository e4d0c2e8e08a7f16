//! Outages: periods in which nothing arrived. They are recognised by when the lost packets were sent, not by
//! their number: a window-based law only sends its window, and then probes.

use std::collections::VecDeque;

use haul_base::Span;

use super::kernel::Claim;
use crate::control::{FeedbackSample, LossRun};

/// Minimum length of an outage, beside a round trip. Our choice.
const MIN_OUTAGE: Span = Span::from_millis(100);
/// The lost packets must span at least this share of that length: the last packets before a pause, sent
/// together, do not prove an outage. Our choice: a window is sent within a round trip.
const MIN_SHARE: f64 = 0.2;
/// Minimum number of lost packets. Our choice.
const MIN_PACKETS: u64 = 4;
/// If a feedback has at most one arrival per this many losses, the packets sent between the losses did not
/// arrive either, and are found lost later. Our choice.
const LOST_PER_ARRIVED: u64 = 8;

/// Number of feedbacks whose newest packets are kept. Our choice: those of the seconds before the losses.
const MAX_ARRIVED: usize = 256;

/// Consecutive lost packets: none sent between them is known to have arrived.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Its first run, and the time from the sending of that run's first packet to that of the last packet.
    first: LossRun,
    duration: Span,
    packets: u64,
    end_pn: u64,
    /// Numbers of packets without data before its end.
    without_data: u64,
}

impl Chain {
    fn of(run: LossRun) -> Self {
        let LossRun { duration, packets, without_data, .. } = run;
        Self { first: run, duration, packets, end_pn: run.end_pn(), without_data }
    }

    /// Whether a run is within the chain, or no data packet was sent between them.
    fn is_continued_by(&self, run: &LossRun) -> bool {
        let is_within = self.first.first_pn <= run.first_pn && run.first_pn < self.end_pn;
        is_within || self.is_followed_by(run)
    }

    /// Whether no data packet was sent between the chain and a later run.
    fn is_followed_by(&self, run: &LossRun) -> bool {
        let others = run.without_data.saturating_sub(self.without_data);
        run.first_pn >= self.end_pn && run.first_pn - self.end_pn <= others
    }

    /// Appends a later run.
    fn add(&mut self, run: &LossRun) {
        let duration = self.first.until(run.sent_at) + run.duration;
        (self.duration, self.without_data) = (self.duration.max(duration), run.without_data);
        (self.packets, self.end_pn) = (self.packets + run.packets, run.end_pn());
    }

    /// Whether it is an outage, if the next packet that arrived was sent `later` after its first packet.
    fn is_outage(&self, least: Span, later: Span) -> bool {
        self.packets >= MIN_PACKETS && self.duration >= least.mul_f64(MIN_SHARE) && later >= least
    }
}

/// Packets known to have arrived: the newest one of each feedback, in order.
#[derive(Debug, Default)]
struct Arrived(VecDeque<u64>);

impl Arrived {
    fn add(&mut self, sample: &FeedbackSample<'_>) {
        let pn = sample.largest_acked_pn;
        if sample.acked_packets > 0 && self.0.back().is_none_or(|newest| *newest < pn) {
            if self.0.len() == MAX_ARRIVED {
                self.0.pop_front();
            }
            self.0.push_back(pn);
        }
    }

    /// Whether one of them was sent between a chain and a later run.
    fn is_between(&self, chain: &Chain, run: &LossRun) -> bool {
        let index = self.0.partition_point(|pn| *pn < chain.end_pn);
        self.0.get(index).is_some_and(|pn| *pn < run.first_pn)
    }
}

/// Outages: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Outages {
    arrived: Arrived,
    /// The last outage: its losses that are detected late follow there.
    last: Option<Chain>,
    /// Indices of a feedback's runs in sending order. Kept for its memory.
    order: Vec<u32>,
}

impl Outages {
    /// Marks, in the claim, the losses of a feedback that are due to an outage.
    pub(super) fn find(&mut self, sample: &FeedbackSample<'_>, claim: &mut Claim) {
        self.arrived.add(sample);
        let runs = sample.loss.list();
        if runs.is_empty() {
            return;
        }
        self.order.clear();
        self.order.extend(0..runs.len() as u32);
        self.order.sort_unstable_by_key(|at| runs[*at as usize].first_pn);
        let least = MIN_OUTAGE.max(sample.rtt.min());
        // The newest packet that has arrived was sent a round trip ago.
        let newest = (sample.now - sample.rtt.latest()).as_wrapped_micros();
        let end_pn = runs.iter().map(LossRun::end_pn).max().unwrap_or_default();
        // All that has arrived may have been sent after the losses.
        let is_newer = sample.acked_packets <= (sample.largest_acked_pn + 1).saturating_sub(end_pn);
        let is_silent = is_newer || sample.acked_packets * LOST_PER_ARRIVED <= sample.lost_packets;
        let mut from = 0;
        while from < self.order.len() {
            let (chain, to) = self.chain(runs, from, |chain, run| {
                chain.is_followed_by(run) || (is_silent && !self.arrived.is_between(chain, run))
            });
            let later = if to < self.order.len() { chain.duration } else { chain.first.until(newest) };
            let is_continued = self.last.is_some_and(|last| last.is_continued_by(&chain.first));
            if is_continued || chain.is_outage(least, later) {
                self.last = Some(
                    self.last.filter(|last| is_continued && last.end_pn > chain.end_pn).unwrap_or(chain),
                );
                for at in self.order[from..to].iter().map(|at| *at as usize) {
                    claim.mark_outage(at, &runs[at]);
                }
            }
            from = to;
        }
    }

    /// Returns the chain that begins at this index of the order, and the index after its end.
    fn chain(
        &self,
        runs: &[LossRun],
        from: usize,
        is_continued: impl Fn(&Chain, &LossRun) -> bool,
    ) -> (Chain, usize) {
        let at = |place: usize| runs[self.order[place] as usize];
        let mut chain = Chain::of(at(from));
        let mut to = from + 1;
        while to < self.order.len() && is_continued(&chain, &at(to)) {
            chain.add(&at(to));
            to += 1;
        }
        (chain, to)
    }

    /// Releases memory kept for the next feedback.
    pub(super) fn release_idle(&mut self) {
        self.order = Vec::new();
        self.arrived.0.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Time;

    use super::*;
    use crate::control::testing::{feedback, lost_packet};
    use crate::control::{LossRuns, LostPacket};
    use crate::rtt::RttEstimator;

    /// How many of the losses of a feedback are attributed to an outage. One packet is sent per millisecond,
    /// acknowledged 20 ms later, and numbered by that millisecond.
    fn found(of: &mut Outages, millis: u64, acked: u64, lost: &[u64]) -> u64 {
        let (mut rtt, mut loss) = (RttEstimator::new(Span::from_millis(100)), LossRuns::default());
        rtt.on_sample(Time::ZERO, Span::from_millis(20));
        for &pn in lost {
            loss.push(LostPacket { sent_at: 1_000 * pn as u32, ..lost_packet(pn) });
        }
        let sample = feedback(Time::ZERO + Span::from_millis(millis), &rtt, acked, loss.packets(), None);
        let mut claim = Claim::default();
        of.find(&FeedbackSample { loss: &loss, largest_acked_pn: millis - 20, ..sample }, &mut claim);
        claim.in_outages()
    }

    #[test]
    fn losses_with_arrivals_in_between_are_no_outage() {
        let mut of = Outages::default();
        for millis in (100..400).step_by(10) {
            assert_eq!(found(&mut of, millis, 10, &[]), 0);
        }
        assert_eq!(found(&mut of, 410, 0, &[195, 245, 295, 345]), 0);
        assert_eq!(found(&mut of, 900, 0, &[421, 541, 661, 781]), 4);
    }

    /// The window was sent within 60 ms; of the probes of a second, whose parts have two numbers each, one
    /// number is known.
    #[test]
    fn a_window_and_the_probes_after_it_are_one_outage_also_if_much_arrives_at_its_end() {
        let lost: Vec<_> = (100..160).chain([400, 700, 1_100]).collect();
        assert_eq!(found(&mut Outages::default(), 1_250, 30, &lost), 63);
    }
}
