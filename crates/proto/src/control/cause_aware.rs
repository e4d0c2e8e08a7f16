//! `cause_aware`: any law, without the losses of the receiving host. They are no congestion: they are taken out of the law's
//! feedback, and the rate at which the host drains bounds the rate instead (dickens-classifier, section on the use of
//! the diagnosis).

use crate::delivery_rate::DeliveryMeter;
use crate::rtt::{RttEstimator, WindowedMin};
use haul_base::{Cause, Rate, Span, Time, Verdict};

use super::loss_events::LossEvents;
use super::{Boundary, FeedbackSample, Limits, LossRuns, Permit, RateController, RateState, burst_for};

/// From this share on all of a loss counts as the host's (dickens-classifier: no reduction from P(CPU) = 0.95 on).
const CERTAIN: f64 = 0.95;
/// Packets that wait this long to be read, and for half a round trip, show that the host is still behind.
const LEAST_READ_DELAY: Span = Span::from_millis(10);
/// Growth of the bound in each round trip without a loss of the host. Our choice: a host that is busy at intervals loses
/// little, and one that has become idle is used fully within 3 s at 100 ms.
const RECOVERY: f64 = 1.125;
/// The bound after a first loss is the highest rate that was acknowledged in this time. Our choice: longer than a host is
/// usually suspended.
const RECENT: Span = Span::from_secs(1);
/// The shortest stretch over which acknowledgements make a rate: those that come in a bunch are no rate.
const LEAST_STRETCH: Span = Span::from_millis(100);
/// The lowest bound: a host that drains nothing for a moment does not stop the sender.
const LEAST: Rate = Rate::from_bps(100_000);

static NONE: LossRuns = LossRuns::NONE;

/// A law whose feedback leaves out the losses of the receiving host.
///
/// A host that is absent for a moment (suspended, or without a core) loses what is under way, and is as fast as before when
/// it returns. One that is slow goes on losing. So a first loss bounds the rate by the most that was acknowledged recently, and
/// only losses of packets that left after it was known bound it by what the host drains now.
#[derive(Debug)]
pub struct CauseAware {
    law: Box<dyn RateController>,
    verdict: Option<Verdict>,
    /// The bound that the last loss event of the host has set, grown with each round trip since.
    bound: Option<Rate>,
    /// Losses of packets that left before an event was known are part of it.
    events: LossEvents,
    /// Until then what the host loses belongs to the last event.
    event_until: Option<Time>,
    /// When the bound grows next.
    grows_at: Time,
    /// The fraction of a packet that is still to be taken out.
    rest: f64,
    acks: DeliveryMeter,
    acked_bytes: u64,
    /// The rate at which packets are acknowledged, by the sender's own clock. Whatever a peer claims of its host, the bound is
    /// no higher than the most of it recently: that much has passed the network.
    acknowledged: Option<Rate>,
    /// Of [`RECENT`], negated.
    most_acknowledged: WindowedMin,
}

/// The share of losses that is the host's.
fn host_share(verdict: Option<Verdict>) -> f64 {
    let share = verdict.map_or(0.0, |verdict| verdict.share(Cause::ReceiverHost));
    if share >= CERTAIN { 1.0 } else { share }
}

impl CauseAware {
    /// Wraps a law.
    pub fn new(law: Box<dyn RateController>) -> Self {
        Self {
            law,
            verdict: None,
            bound: None,
            events: LossEvents::default(),
            event_until: None,
            grows_at: Time::ZERO,
            rest: 0.0,
            acks: DeliveryMeter::default(),
            acked_bytes: 0,
            acknowledged: None,
            most_acknowledged: WindowedMin::new(RECENT),
        }
    }

    /// Gives the highest rate that was acknowledged recently.
    fn measure(&mut self, sample: &FeedbackSample<'_>) -> Option<Rate> {
        let bytes = sample.acked_packets.saturating_mul(sample.datagram);
        self.acked_bytes = self.acked_bytes.saturating_add(bytes);
        let (at, span) = (sample.now.as_wrapped_micros(), sample.rtt.smoothed().max(LEAST_STRETCH));
        self.acknowledged = self.acks.on_feedback(at, self.acked_bytes, span).or(self.acknowledged);
        let bps = i64::try_from(self.acknowledged?.as_bps()).unwrap_or(i64::MAX);
        Some(Rate::from_bps(self.most_acknowledged.on_value(sample.now, -bps).unsigned_abs()))
    }

    fn set_bound(&mut self, sample: &FeedbackSample<'_>, lost_by_host: u64, most: Option<Rate>) {
        let tolerated = (sample.rtt.smoothed() / 2).max(LEAST_READ_DELAY);
        let is_behind = self.bound.is_some() && sample.read_delay.is_none_or(|delay| delay > tolerated);
        if lost_by_host > 0 || is_behind {
            self.on_host_event(sample, lost_by_host > 0, most);
        } else if let Some(bound) = self.bound.filter(|_| sample.now >= self.grows_at) {
            self.grows_at = sample.now + sample.rtt.smoothed();
            let grown = bound.mul_f64(RECOVERY);
            self.bound = Some(grown).filter(|&grown| grown < self.law.state().rate);
        }
    }

    /// The host has lost packets, or reads them late.
    fn on_host_event(&mut self, sample: &FeedbackSample<'_>, is_loss: bool, most: Option<Rate>) {
        let round_trip = sample.rtt.smoothed();
        let is_known = self.event_until.is_some_and(|until| sample.now < until);
        self.grows_at = sample.now + round_trip;
        self.event_until = Some(sample.now + round_trip * 2);
        self.bound = self.bound.into_iter().chain(most.map(|most| most.max(LEAST))).min();
        let goes_on = if is_loss { self.events.is_new(sample) } else { !self.events.in_recovery(sample) };
        if !is_known {
            self.events.close(sample.next_pn);
        } else if let Some(drain) = sample.drain_rate.filter(|_| goes_on) {
            self.bound = Some(drain.min(most.unwrap_or(drain)).max(LEAST));
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl RateController for CauseAware {
    super::forward_to_law!();

    fn permit(&self) -> Permit {
        let permit = self.law.permit();
        let (Permit::Go(limits), Some(bound)) = (permit, self.bound) else { return permit };
        if limits.rate <= bound {
            return permit;
        }
        Permit::Go(Limits { rate: bound, burst: limits.burst.min(burst_for(bound)), ..limits })
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.verdict = sample.verdict;
        let most = self.measure(sample);
        let exact = sample.lost_packets as f64 * host_share(self.verdict) + self.rest;
        let by_host = (exact as u64).min(sample.lost_packets);
        self.rest = (exact - by_host as f64).clamp(0.0, 1.0);
        let lost_packets = sample.lost_packets - by_host;
        let loss = if lost_packets == 0 { &NONE } else { sample.loss };
        self.law.on_feedback(&FeedbackSample { lost_packets, host_lost_packets: by_host, loss, ..*sample });
        self.set_bound(sample, by_host, most);
    }

    fn on_boundary(&mut self, end: &Boundary) {
        let by_host = (end.lost as f64 * host_share(end.verdict.or(self.verdict))).round() as u64;
        self.law.on_boundary(&Boundary { lost: end.lost.saturating_sub(by_host), ..*end });
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.law.take_over(rate, rtt);
    }

    fn on_silence(&mut self, now: Time, count: u32) {
        self.law.on_silence(now, count);
    }

    fn state(&self) -> RateState {
        let state = self.law.state();
        match self.bound.filter(|&bound| bound < state.rate) {
            Some(rate) => RateState { phase: "host", rate },
            None => state,
        }
    }
}
