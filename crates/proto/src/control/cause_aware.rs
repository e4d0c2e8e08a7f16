//! `cause_aware`: any law without the losses of the receiving host. They are no congestion: they are removed
//! from the law's feedback, and the host's drain rate bounds the rate instead (dickens-classifier, section on
//! the use of the diagnosis).

use haul_base::{Cause, Rate, Span, Time, Verdict};

use crate::delivery_rate::DeliveryMeter;
use crate::longer_path::LongerPath;
use crate::rtt::{RttEstimator, WindowedMin};

use super::loss_events::LossEvents;
use super::{Boundary, FeedbackSample, Limits, LossRuns, Permit, RateController, RateState, burst_for};

/// From this probability on, a loss counts entirely as the host's (dickens-classifier: no reduction from
/// P(CPU) = 0.95 on).
const CERTAIN_SHARE: f64 = 0.95;
/// Read delay, besides half a round trip, that shows that the host still lags behind.
const MIN_READ_DELAY: Span = Span::from_millis(10);
/// Growth of the bound per round trip without a loss of the host. Our choice: a host that is busy at
/// intervals loses little, and one that has become idle is fully used within 3 s at 100 ms.
const RECOVERY: f64 = 1.125;
/// Maximum of the bound as a multiple of the recent rate of acknowledgements: data sent under one bound is
/// acknowledged a round trip later, when the bound has grown twice.
const AHEAD: f64 = RECOVERY * RECOVERY;
/// After a first loss the bound is the highest rate acknowledged within this time. Our choice: longer than a
/// host is usually suspended.
const RECENT: Span = Span::from_secs(1);
/// Shortest time over which the rate of acknowledgements is measured, as they may arrive bunched.
const MIN_STRETCH: Span = Span::from_millis(100);
/// The path has a standing queue if its queueing delay exceeds this share of the shortest round trip, and
/// [`MIN_READ_DELAY`]. Our choice: bursts and probes of any law cause less.
const STANDING: f64 = 0.25;
/// A shorter queue stands if it delayed every packet of a round trip by this time and by a share of the
/// longest recent delay: a queue too short for longer delays still drops packets. Our choice: under jitter,
/// some packets pass without delay.
const MIN_HELD: Span = Span::from_millis(2);
const SHARE_OF_LONGEST: f64 = 0.25;
/// Window of the longest queueing delay.
const LONGEST_MEMORY: Span = Span::from_secs(10);
/// Shortest period in which every packet must be delayed: it contains several reports.
const MIN_HELD_FOR: Span = Span::from_millis(20);
/// Number of losses over which the share with a queue is averaged. Our choice.
const REMEMBERED_LOSSES: f64 = 64.0;
/// Time without losses after which a host no longer bounds the rate. Our choice: otherwise a sender that
/// cannot reach the bound, for lack of processor time or data, would stay bound for ever by what it has sent.
const BOUND_TIMEOUT: Span = Span::from_secs(2);
/// Lowest bound: a host that drains nothing for a moment does not stop the sender.
const MIN_BOUND: Rate = Rate::from_bps(100_000);

/// Whether the path has a queue, judged by the sender's own round-trip times.
#[derive(Debug)]
struct StandingQueue {
    path: LongerPath,
    /// Shortest queueing delay since `rotated_at` and in the half round trip before it.
    shortest: [Span; 2],
    rotated_at: Time,
    /// Longest queueing delay, negated.
    longest: WindowedMin,
    standing_at: Option<Time>,
    /// Share of the last losses that were reported while the queue stood.
    share_of_losses: f64,
}

impl Default for StandingQueue {
    fn default() -> Self {
        Self {
            path: LongerPath::default(),
            shortest: [Span::ZERO; 2],
            rotated_at: Time::ZERO,
            longest: WindowedMin::new(LONGEST_MEMORY),
            standing_at: None,
            share_of_losses: 0.0,
        }
    }
}

impl StandingQueue {
    /// Whether every packet of the last half to whole round trip was delayed, possibly by a short queue.
    fn delays_all(&mut self, now: Time, round_trip: Span, queue_delay: Span) -> bool {
        if now.since(self.rotated_at) > round_trip.max(MIN_HELD_FOR) / 2 {
            (self.shortest, self.rotated_at) = ([queue_delay, self.shortest[0]], now);
        }
        self.shortest[0] = self.shortest[0].min(queue_delay);
        let nanos = i64::try_from(queue_delay.as_nanos()).unwrap_or(i64::MAX);
        let longest = Span::from_nanos(self.longest.on_value(now, -nanos).unsigned_abs());
        self.shortest[0].min(self.shortest[1]) >= longest.mul_f64(SHARE_OF_LONGEST).max(MIN_HELD)
    }

    /// Adds a sample; returns whether a queue stood during the last round trip, as losses are detected that
    /// much later than they happen.
    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) -> bool {
        let longer = self.path.longer_round_trip(sample);
        let Some(shortest) = self.path.shortest() else { return false };
        let (now, smoothed) = (sample.now, sample.rtt.smoothed());
        let queue_delay = self.path.without(sample, longer);
        let delays_all = self.delays_all(now, smoothed, queue_delay);
        if delays_all || queue_delay > shortest.mul_f64(STANDING).max(MIN_READ_DELAY) {
            self.standing_at = Some(now);
        }
        let is_standing = self.standing_at.is_some_and(|standing_at| now.since(standing_at) <= smoothed);
        let kept = (1.0 - 1.0 / REMEMBERED_LOSSES).powf(sample.lost_packets as f64);
        self.share_of_losses = self.share_of_losses * kept + if is_standing { 1.0 - kept } else { 0.0 };
        is_standing
    }
}

/// A law whose feedback excludes the losses of the receiving host.
///
/// A peer may claim anything about its host. So nothing is excluded while the path has a queue: there the law
/// would have to slow down anyway, and flows that share the queue keep their share. The bound also stays
/// within the rate acknowledged recently.
///
/// A host that is absent for a moment (suspended, or without a core) loses the packets in flight, and is as
/// fast as before when it returns. A slow host keeps losing. So a first loss bounds the rate by the highest
/// rate acknowledged recently, and only losses of packets sent after that loss was known bound it by the
/// host's current drain rate.
#[derive(Debug)]
pub struct CauseAware {
    law: Box<dyn RateController>,
    verdict: Option<Verdict>,
    queue: StandingQueue,
    /// Bound set by the host's last loss event, raised each round trip since.
    bound: Option<Rate>,
    /// Losses of packets sent before an event was known belong to it.
    events: LossEvents,
    /// Until this time, losses of the host belong to the last event.
    event_until: Option<Time>,
    /// When the host last lost a packet.
    lost_at: Time,
    /// When the bound next grows.
    next_growth: Time,
    /// Fractional packet still to be removed from the losses.
    remainder: f64,
    acks: DeliveryMeter,
    acked_bytes: u64,
    /// Rate of acknowledgements by the sender's own clock. Whatever a peer claims of its host, the bound
    /// stays below the recent maximum of this rate: that much passed the network.
    acknowledged: Option<Rate>,
    /// Maximum over [`RECENT`], negated.
    most_acknowledged: WindowedMin,
}

/// Returns the share of losses attributed to the host.
fn host_share(verdict: Option<Verdict>) -> f64 {
    let share = verdict.map_or(0.0, |verdict| verdict.share(Cause::ReceiverHost));
    if share >= CERTAIN_SHARE { 1.0 } else { share }
}

impl CauseAware {
    /// Wraps a law.
    pub fn new(law: Box<dyn RateController>) -> Self {
        Self {
            law,
            verdict: None,
            queue: StandingQueue::default(),
            bound: None,
            events: LossEvents::default(),
            event_until: None,
            lost_at: Time::ZERO,
            next_growth: Time::ZERO,
            remainder: 0.0,
            acks: DeliveryMeter::default(),
            acked_bytes: 0,
            acknowledged: None,
            most_acknowledged: WindowedMin::new(RECENT),
        }
    }

    /// Returns the highest rate acknowledged recently.
    fn measure(&mut self, sample: &FeedbackSample<'_>) -> Option<Rate> {
        let bytes = sample.acked_packets.saturating_mul(sample.datagram);
        self.acked_bytes = self.acked_bytes.saturating_add(bytes);
        let (at, span) = (sample.now.as_wrapped_micros(), sample.rtt.smoothed().max(MIN_STRETCH));
        self.acknowledged = self.acks.on_feedback(at, self.acked_bytes, span).or(self.acknowledged);
        let bps = i64::try_from(self.acknowledged?.as_bps()).unwrap_or(i64::MAX);
        Some(Rate::from_bps(self.most_acknowledged.on_value(sample.now, -bps).unsigned_abs()))
    }

    fn set_bound(&mut self, sample: &FeedbackSample<'_>, lost_by_host: u64, most: Option<Rate>) {
        let tolerated = (sample.rtt.smoothed() / 2).max(MIN_READ_DELAY);
        let is_late = self.bound.is_some() && sample.read_delay.is_none_or(|delay| delay > tolerated);
        if lost_by_host > 0 || is_late {
            self.on_host_event(sample, lost_by_host > 0, most);
        } else if let Some(bound) =
            self.bound.filter(|_| sample.now >= self.next_growth && sample.lost_packets == 0)
        {
            self.next_growth = sample.now + sample.rtt.smoothed();
            let most = most.map_or(Rate::MAX, |most| most.mul_f64(AHEAD).max(MIN_BOUND));
            let grown = bound.mul_f64(RECOVERY).min(most);
            let is_in_force = sample.now.since(self.lost_at) < BOUND_TIMEOUT + sample.rtt.smoothed() * 2;
            self.bound = Some(grown).filter(|&grown| is_in_force && grown < self.law.state().rate);
        }
    }

    /// The host has lost packets or reads them late.
    fn on_host_event(&mut self, sample: &FeedbackSample<'_>, is_loss: bool, most: Option<Rate>) {
        let round_trip = sample.rtt.smoothed();
        let is_known = self.event_until.is_some_and(|until| sample.now < until);
        self.next_growth = sample.now + round_trip;
        self.lost_at = if is_loss { sample.now } else { self.lost_at };
        self.event_until = Some(sample.now + round_trip * 2);
        self.bound = self.bound.into_iter().chain(most.map(|most| most.max(MIN_BOUND))).min();
        let should_reduce =
            if is_loss { self.events.is_new(sample) } else { !self.events.in_recovery(sample) };
        if !is_known {
            self.events.close(sample.next_pn);
        } else if let Some(drain) = sample.drain_rate.filter(|_| should_reduce) {
            self.bound = Some(drain.min(most.unwrap_or(drain)).max(MIN_BOUND));
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
        let share = if self.queue.on_feedback(sample) { 0.0 } else { host_share(self.verdict) };
        let exact = sample.lost_packets as f64 * share + self.remainder;
        let by_host = (exact as u64).min(sample.lost_packets);
        self.remainder = (exact - by_host as f64).clamp(0.0, 1.0);
        let lost_packets = sample.lost_packets - by_host;
        let loss = if lost_packets == 0 { LossRuns::none() } else { sample.loss };
        self.law.on_feedback(&FeedbackSample { lost_packets, host_lost_packets: by_host, loss, ..*sample });
        self.set_bound(sample, by_host, most);
    }

    fn on_boundary(&mut self, end: &Boundary) {
        let share = host_share(end.verdict.or(self.verdict)) * (1.0 - self.queue.share_of_losses);
        let by_host = (end.lost as f64 * share).round() as u64;
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

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, PathModel, built, feedback, measure_together};
    use super::*;

    const CAPACITY: Rate = Rate::from_mbps(100);

    /// A flow through a queue of this many round trips of 20 ms, whose peer blames its host for all losses.
    fn flow(law: &str, queue: f64, verdict: Option<Verdict>) -> Harness {
        let path = PathModel::bottleneck(CAPACITY, Span::from_millis(20), queue);
        let law = CauseAware::new(built(law, &[], Rate::from_mbps(10_000)));
        Harness::new(Box::new(law), PathModel { verdict, ..path })
    }

    /// Rate of a Reno flow beside one of `law`, Mbit/s.
    fn share_of_reno(law: &str, queue: f64, verdict: Option<Verdict>) -> f64 {
        let mut flows = [flow(law, queue, verdict), flow("reno", queue, None)];
        measure_together(&mut flows, Span::from_secs(20));
        measure_together(&mut flows, Span::from_secs(100))[1].goodput.as_bps() as f64 / 1e6
    }

    /// Like a sender that gets a processor only at times: it sends at a third of the bound.
    #[test]
    fn an_application_limited_sender_is_not_bound_forever() {
        let mut law = CauseAware::new(built("fixed", &[], CAPACITY));
        let (mut rtt, verdict) =
            (RttEstimator::new(Span::from_millis(20)), Some(Verdict::of(Cause::ReceiverHost)));
        let mut bound_at = |millis: u64, lost| {
            let now = Time::ZERO + Span::from_millis(millis);
            rtt.on_sample(now, Span::from_millis(20));
            let Permit::Go(limits) = law.permit() else { panic!("held") };
            let acked = limits.rate.mul_f64(1.0 / 3.0).bytes_in(Span::from_millis(10)) / 1_472;
            let read_delay = Some(Span::ZERO);
            let sample = feedback(now, &rtt, acked, lost, None);
            law.on_feedback(&FeedbackSample { verdict, read_delay, next_pn: millis, ..sample });
            law.bound
        };
        for millis in (1_000..2_000).step_by(10) {
            assert_eq!(bound_at(millis, 0), None);
        }
        assert!(bound_at(2_000, 5).is_some());
        for millis in (2_010..3_900).step_by(10) {
            assert!(bound_at(millis, 0).is_some_and(|bound| bound < CAPACITY), "{millis}");
        }
        assert_eq!(bound_at(4_100, 0), None);
    }

    /// Also with a queue shorter than the delay that shows a host that reads late.
    #[test]
    fn a_peer_that_falsely_blames_its_host_takes_no_more_from_others() {
        let false_verdict = Some(Verdict::of(Cause::ReceiverHost));
        for law in ["reno", "cubic", "highspeed", "bbr", "sabul"] {
            for queue in [0.2, 0.4, 1.0] {
                let [honest, lying] = [None, false_verdict].map(|verdict| share_of_reno(law, queue, verdict));
                assert!(lying > 0.8 * honest, "{law}, {queue}: {lying} instead of {honest} Mbit/s");
            }
            let alone = flow(law, 1.0, false_verdict).measure(Span::from_secs(60));
            assert!(alone.loss_rate() < 0.03, "{law}: {alone:?}");
        }
    }
}
