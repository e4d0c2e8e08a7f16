//! BBR, version 3 (draft-ietf-ccwg-bbr): the rate and the window follow from a model of the path, its recent
//! bandwidth and minimum round-trip time; losses, marks and rare probes correct the model.
//!
//! Names follow the draft, `bw_shortterm` as [`ShortTerm`] and so on. Differences, and why:
//! - Bandwidth samples are rates of arrival by the receiver's clock, over about a round trip, and at most
//!   1.05 times the sending rate: late or bunched feedback does not distort them, so the draft's sampling
//!   from acknowledgements is not needed.
//! - Feedback comes at intervals, so windows include the data sent in one interval beside the bandwidth-delay
//!   product (the draft's "offload budget" for receivers that acknowledge rarely), and `extra_acked` covers
//!   what exceeds it.
//! - A round without congestion and without a queue lifts the short-term bounds, which the draft keeps until
//!   the next probe: with capacity that varies within a second, only the lowest would remain.
//! - The path's own losses do not count, and the rate is raised to compensate for them: see [`loss`].
//!   `tolerates = 0` disables this.
//! - A round-trip time that stays above the minimum for two rounds and 0.4 s triggers a short extra
//!   `ProbeRTT`, which the draft suggests for route changes. If it is still long with little in flight, the
//!   path has become longer: the minimum is replaced at once, not after 10 s, the bounds learnt on the old
//!   path are dropped, and the bandwidth is kept for one more probe, as the old path's window has since
//!   limited the delivery rate; if it is more than twice as long, that probe comes at once. If it falls, the
//!   queue was our own: the bandwidth becomes the rate delivered through that queue. The next bandwidth probe
//!   stays due when it was, unless the last one was too high; then it is postponed, at most six times in a
//!   row. Soon after, only a round-trip time that has doubled again triggers such a probe. A bandwidth probe
//!   ends for it, too, if the window of such a probe cannot cause a queue of that length. `rtt_rise = 0`
//!   disables this.
//! - `ProbeBW_REFILL` lasts until the pipe is full, where the draft has one round: with the window of a path
//!   a tenth as long one round is not enough, and bursts that `ProbeBW_UP` sends into an empty pipe lose
//!   packets at a volume that the path holds easily.
//! - When `ProbeBW_UP` has found half as much again, the model of the path is void and Startup restarts.
//! - While packets are few, Startup's window also grows as in slow start ([`SLOW_START_WINDOWS`]).
//! - The next probe is due after as many rounds as the path holds packets, without those that only await a
//!   report.
//! - `ProbeBW_DOWN` lasts at least a round, and until it is known whether losses stop at the lower rate: see
//!   [`trial`].
//! - Bytes in flight before an outage say nothing about the path after it. Spurious losses are not undone,
//!   and the volume at which losses began is taken at the start of the round trip, not interpolated: reports
//!   do not say which packet was late.

mod cycle;
mod history;
mod loss;
mod model;
mod parameters;
mod phase;
mod probe_rtt;
mod round_trip;
mod state;
#[cfg(test)]
mod tests;
mod trial;

use haul_base::{Rate, Span, Time};

use haul_stack::Configuration as _;

use super::{
    ControllerConfig, FeedbackSample, LawRegistration, Limits, MIN_RATE, Permit, RateController, RateState,
    SentBatch, burst_for, short_burst_for,
};
use crate::longer_path::LongerPath;
use crate::rtt::RttEstimator;
use history::{History, Mark};
use loss::{LossCounts, LossRule};
use model::{Aggregation, Plateau, ShortTerm, TwoSlotMax, volume};
pub use parameters::BbrConfig;
use phase::{Phase, STARTUP_PACING};
use round_trip::RoundTrip;
use state::{Acks, Counts, Cycle, Pauses, PolicerSearch, Rounds, RttProbe, Settings};

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "bbr",
    version: 1,
    summary: "sends at the measured bandwidth of the path, and probes for more and for the minimum round trip",
    source: "BBR, version 3 (draft-ietf-ccwg-bbr)",
    parameters: BbrConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Bbr::new(&parameters.read(), config))),
};

/// The draft's `PacingMarginPercent` of 1.
const PACING_MARGIN: f64 = 0.99;
/// The draft's `MinPipeCwnd`, in packets.
const MIN_PIPE: u64 = 4;
/// Loss rate of a round without a queue from which on bursts are shortened for a while, as the bottleneck's
/// buffer may not hold them. Our choice: a queue of five packets at 100 Mbit/s lost 29 % of the default
/// bursts.
const BURST_LOSS: f64 = 0.02;
const SHORT_BURSTS_DURATION: Span = Span::from_secs(60);
/// The draft's `BBRStartupFullLossCnt`: runs of losses in a round.
const STARTUP_LOSS_RUNS: u64 = 6;
/// Startup also ends when this many reports in a row show a queue on the forward path. The draft has no such
/// exit; `HyStart`++ (RFC 9406, section 4.2) takes 8 round-trip samples, and a report is a sample of many
/// packets. Without it a queue of one bandwidth-delay product overflows by 2 to 3 % of 100 MB at 1 Gbit/s.
const STARTUP_QUEUED: u32 = 4;
/// Below this many initial windows Startup's window also grows by the bytes acknowledged, as in slow start
/// (RFC 9002, section 7.3.1), while it is full and there is no queue and no loss: few packets are sent as a
/// burst and a pause, whose rate over a round trip is underestimated. Our choice: more makes nothing faster.
const SLOW_START_WINDOWS: u64 = 8;
/// The draft: rounds after which Drain ends in any case.
const DRAIN_ROUNDS: u32 = 3;
/// Ratio of arrival to sending rate that is possible because the pacer lets a late sender catch up.
const CATCH_UP: f64 = 1.05;
/// Longer silence between feedbacks is no interval. Our choice.
const MAX_INTERVAL: Span = Span::from_millis(200);
/// Probe timeouts in a row that count as an outage (RFC 9002, section 7.6.1: persistent congestion).
const OUTAGE: u32 = 2;

/// The law: see the module documentation.
#[derive(Debug)]
pub(super) struct Bbr {
    settings: Settings,
    initial_rtt: Span,
    /// Time between feedbacks: the requested one, or more if they come less often.
    interval: Span,
    phase: Phase,
    cycle: Cycle,
    history: History,
    loss: LossRule,
    policer: PolicerSearch,
    /// Bursts are short until then.
    short_bursts_until: Time,
    round_trip: RoundTrip,
    max_bandwidth: TwoSlotMax<Rate>,
    short_term: ShortTerm,
    /// The draft's `inflight_longterm`, UDP payload bytes.
    long_term: Option<u64>,
    aggregation: Aggregation,
    plateau: Plateau,
    /// Whether the pipe has been full (the draft's `full_bw_reached`).
    is_filled: bool,
    /// Consecutive feedbacks that show a queue.
    queued_samples: u32,
    rtt_probe: RttProbe,
    /// Detects a round-trip time that grew in one step, unlike one due to a queue.
    longer_path: LongerPath,
    /// No extra probe of the round trip before this.
    raise_blocked_until: Time,
    pacing: Rate,
    /// Highest pacing rate of this and the previous round.
    paced: TwoSlotMax<Rate>,
    window: u64,
    /// Window before `ProbeRTT`.
    prior_window: u64,
    datagram: u64,
    counts: Counts,
    next_pn: u64,
    rounds: Rounds,
    in_flight: u64,
    pauses: Pauses,
    app_limited: bool,
    rtt: Span,
}

impl Bbr {
    fn new(parameters: &BbrConfig, config: &ControllerConfig) -> Self {
        let datagram = 1_472;
        let settings = Settings::new(parameters, config, datagram);
        let initial_window = settings.initial_window;
        let mut law = Self {
            settings,
            initial_rtt: config.initial_rtt.max(Span::from_micros(1)),
            interval: config.feedback_interval,
            phase: Phase::Startup,
            cycle: Cycle::new(parameters.probe_wait),
            history: History::default(),
            loss: LossRule::new(parameters.loss_threshold, parameters.tolerates),
            policer: PolicerSearch::default(),
            short_bursts_until: Time::ZERO,
            round_trip: RoundTrip::new(parameters.probe_rtt_interval),
            max_bandwidth: TwoSlotMax::default(),
            short_term: ShortTerm::default(),
            long_term: None,
            aggregation: Aggregation::default(),
            plateau: Plateau::default(),
            is_filled: false,
            queued_samples: 0,
            rtt_probe: RttProbe::default(),
            longer_path: LongerPath::default(),
            raise_blocked_until: Time::ZERO,
            pacing: MIN_RATE,
            paced: TwoSlotMax::default(),
            window: initial_window,
            prior_window: initial_window,
            datagram,
            counts: Counts::default(),
            next_pn: 0,
            rounds: Rounds::default(),
            in_flight: 0,
            pauses: Pauses::default(),
            app_limited: false,
            rtt: config.initial_rtt,
        };
        // The draft's `InitPacingRate`, with the time for which data is in flight until its feedback arrives.
        let nominal = Rate::from_transfer(initial_window, law.loop_time());
        law.pacing = law.bounded(nominal.mul_f64(STARTUP_PACING));
        law.paced.on_value(law.pacing);
        law
    }

    fn bounded(&self, rate: Rate) -> Rate {
        rate.max(MIN_RATE).min(self.settings.ceiling)
    }

    fn min_rtt(&self) -> Span {
        self.round_trip.least(self.initial_rtt)
    }

    /// Returns the time for which data is in flight until its feedback arrives.
    fn loop_time(&self) -> Span {
        self.min_rtt() + self.interval
    }

    /// The draft's `bw`: bandwidth of the path; zero while unknown.
    fn bandwidth(&self) -> Rate {
        let most = self.max_bandwidth.get();
        self.short_term.bandwidth.map_or(most, |bound| bound.min(most))
    }

    fn min_pipe(&self) -> u64 {
        MIN_PIPE * self.datagram
    }

    /// The draft's `Inflight(gain)`: target of the bytes in flight.
    fn target(&self, gain: f64) -> u64 {
        volume(self.bandwidth(), gain, self.loop_time()).max(self.min_pipe())
    }

    /// The draft's `TargetInflight`.
    fn target_in_flight(&self) -> u64 {
        self.target(1.0).min(self.window)
    }

    /// The draft's `InflightWithHeadroom`.
    fn with_headroom(&self) -> Option<u64> {
        let reduce = |bound: u64| {
            let headroom = ((bound as f64 * self.settings.headroom) as u64).max(self.datagram);
            bound.saturating_sub(headroom).max(self.min_pipe())
        };
        self.long_term.map(reduce)
    }

    fn burst(&self) -> u64 {
        let is_short = self.pauses.feedback_at < self.short_bursts_until;
        if is_short { short_burst_for(self.pacing) } else { burst_for(self.pacing) }
    }

    /// Returns the time that the bottleneck takes to send a burst: such a delay shows no queue.
    fn serialization(&self) -> Span {
        let bandwidth = self.bandwidth();
        if bandwidth == Rate::ZERO { Span::ZERO } else { bandwidth.time_for(burst_for(self.pacing)) }
    }

    /// Whether the window was recently full (the draft's `is_cwnd_limited`).
    fn is_window_full(&self) -> bool {
        self.rounds.is_full[0] || self.rounds.is_full[1]
    }

    /// Adds a feedback's counts; returns the mark of its newest packet, and whether a round has ended.
    fn count(&mut self, sample: &FeedbackSample<'_>) -> (Mark, bool) {
        self.datagram = sample.datagram.max(1);
        self.in_flight = sample.in_flight;
        self.rtt = sample.rtt.smoothed();
        self.app_limited = sample.app_limited;
        self.next_pn = sample.next_pn;
        let gap =
            sample.now.since(std::mem::replace(&mut self.pauses.feedback_at, sample.now)).min(MAX_INTERVAL);
        self.interval = ((self.interval * 7 + gap) / 8).max(sample.report_interval);
        if sample.acked_packets > 0 && std::mem::take(&mut self.pauses.in_outage) {
            (self.pauses.ignore_below, self.policer.steady_pn, self.policer.trial) =
                (sample.next_pn, sample.next_pn, None);
            self.pauses.is_restart = true;
        }
        let mark = self.history.of(sample.largest_acked_pn);
        self.counts.delivered = self.counts.delivered.saturating_add(sample.acked_packets);
        self.rounds.totals.acked = self.rounds.totals.acked.saturating_add(sample.acked_packets);
        if sample.largest_acked_pn >= self.pauses.ignore_below {
            self.counts.lost = self.counts.lost.saturating_add(sample.lost_packets);
            self.counts.marked = self.counts.marked.saturating_add(sample.ecn_ce);
            self.rounds.totals.lost = self.rounds.totals.lost.saturating_add(sample.lost_packets);
            self.rounds.totals.steady = self.rounds.totals.steady.and(self.steady_losses(sample));
            self.rounds.totals.marked = self.rounds.totals.marked.saturating_add(sample.ecn_ce);
            self.rounds.totals.runs = self.rounds.totals.runs.saturating_add(sample.loss.count());
        }
        (mark, sample.largest_acked_pn >= self.rounds.end_pn)
    }

    /// Updates the bandwidth from this feedback (the draft's `UpdateMaxBw`), raised by the path's own losses.
    fn on_rate(&mut self, sample: &FeedbackSample<'_>, mark: &Mark) {
        let volume = self.counts.delivered.saturating_sub(mark.delivered).saturating_mul(self.datagram);
        // The receiver's rate is known after a round trip; until then, use the rate of acknowledgements.
        let acked = || {
            if sample.sender_absent {
                Rate::ZERO
            } else {
                Rate::from_transfer(volume, sample.now.since(mark.at))
            }
        };
        let arrived = sample.arrival_rate.unwrap_or_else(acked);
        if arrived > Rate::ZERO {
            self.policer.arrival_rate = Some(arrived);
        }
        let sent = arrived.mul_f64(1.0 / (1.0 - self.loss.base_loss_rate(self.since(mark))));
        let rate = sent.min(self.paced.get().mul_f64(CATCH_UP));
        self.rounds.latest = (self.rounds.latest.0.max(rate), self.rounds.latest.1.max(volume));
        if rate > Rate::ZERO && (!sample.app_limited || rate >= self.max_bandwidth.get()) {
            self.max_bandwidth.on_value(rate);
        }
    }

    /// Starts a new round with the next packet.
    fn start_round(&mut self) {
        self.rounds.end_pn = self.next_pn;
    }

    /// Ends a round: judges its losses and whether sending faster still increases the delivery rate.
    fn on_round(&mut self) {
        self.start_round();
        self.cycle.on_round();
        self.rounds.count = self.rounds.count.wrapping_add(1);
        let serialization = self.serialization();
        self.round_trip.on_round(self.pauses.feedback_at, serialization, self.settings.rtt_rise);
        let is_queued = self.round_trip.is_queued(serialization);
        let totals = std::mem::take(&mut self.rounds.totals);
        let packets = totals.acked.saturating_add(totals.lost);
        let counts = LossCounts { lost: totals.lost, marked: totals.marked, packets, runs: totals.runs };
        self.rounds.last = std::mem::take(&mut self.rounds.latest);
        if !is_queued && counts.exceeds(BURST_LOSS) {
            self.short_bursts_until = self.pauses.feedback_at + SHORT_BURSTS_DURATION;
        }
        if self.phase.is_probing() {
            self.check_startup_losses(counts, totals.runs, is_queued);
        } else {
            self.set_short_term_bounds(counts, is_queued);
            let steady = LossCounts { packets, ..totals.steady };
            let has_queue = is_queued || self.round_trip.has_standing_queue();
            self.check_losses(steady, !has_queue && self.is_filled && self.cycle.is_clean());
        }
        if !self.app_limited && self.rounds.last.0 > Rate::ZERO {
            self.plateau.on_round(self.rounds.last.0);
        }
        self.aggregation.on_round(!self.is_filled);
        self.paced.advance();
        self.paced.on_value(self.pacing);
        self.rounds.is_full = [false, self.rounds.is_full[0]];
    }

    /// The draft's `AdaptLowerBoundsFromCongestion`, but a round without congestion and queue lifts the
    /// bounds.
    fn set_short_term_bounds(&mut self, counts: LossCounts, is_queued: bool) {
        if !self.loss.is_congestion(counts, is_queued) {
            if !is_queued {
                self.short_term = ShortTerm::default();
            }
        } else if self.cycle.is_clean() {
            // Losses of a probe are judged with the probe.
            self.short_term.lower(
                (self.max_bandwidth.get(), self.window),
                self.rounds.last,
                self.settings.beta,
            );
        }
    }

    /// The draft's `CheckStartupHighLoss`.
    fn check_startup_losses(&mut self, counts: LossCounts, runs: u64, is_queued: bool) {
        let is_majority = counts.lost >= STARTUP_LOSS_RUNS && 4 * counts.lost > counts.packets;
        let is_significant = runs >= STARTUP_LOSS_RUNS || is_majority || counts.marked > 0;
        if self.phase == Phase::Startup && is_significant && self.loss.ends_startup(counts, is_queued) {
            self.is_filled = true;
            self.long_term = Some(self.target(1.0).max(self.rounds.last.1));
        }
    }

    /// Ends Startup and Drain (the draft's `CheckStartupDone` and `CheckDrainDone`).
    fn leave_startup(&mut self, sample: &FeedbackSample<'_>) {
        let now = sample.now;
        if self.phase == Phase::Startup {
            let least = self.round_trip.queue_threshold(self.serialization());
            // If delays varied as much before, at a quarter of the rate, this is jitter.
            let is_longer = self.round_trip.is_longer(sample.rtt.latest());
            let is_queued = is_longer && sample.queue_delay.is_some_and(|delay| delay > least);
            self.queued_samples = if is_queued { self.queued_samples + 1 } else { 0 };
            self.is_filled |= self.plateau.is_reached() || self.queued_samples >= STARTUP_QUEUED;
            if self.is_filled {
                self.phase = Phase::Drain;
                self.cycle.acks = Acks::Stopping;
                self.rounds.drain_until = self.rounds.count.wrapping_add(DRAIN_ROUNDS);
            }
        }
        let is_over = self.rounds.count.wrapping_sub(self.rounds.drain_until).cast_signed() > 0;
        if self.phase == Phase::Drain && (self.in_flight <= self.target(1.0) || is_over) {
            self.enter_down(now);
        }
    }

    /// The draft's `SetPacingRate`.
    fn set_pacing(&mut self) {
        let bandwidth = self.paced_bandwidth();
        if bandwidth == Rate::ZERO {
            return;
        }
        let is_from_idle = self.pauses.is_restart && self.phase.is_probe_bw();
        let gain = if is_from_idle { 1.0 } else { self.phase.gains().0 };
        let rate = self.bounded(bandwidth.mul_f64(gain * PACING_MARGIN));
        // The initial guess applies until a window has been acknowledged.
        let is_measured = !self.app_limited
            && self.counts.delivered.saturating_mul(self.datagram) >= self.settings.initial_window;
        if self.is_filled || is_measured || rate > self.pacing {
            self.pacing = rate;
        }
        self.paced.on_value(self.pacing);
    }

    /// The draft's `UpdateMaxInflight`.
    fn max_in_flight(&self) -> u64 {
        let bandwidth = self.bandwidth();
        if bandwidth == Rate::ZERO {
            return self.settings.initial_window;
        }
        let gain = self.phase.gains().1.max(1.0);
        // Packets that await a report need no gain.
        // In Startup the bandwidth grows, and a volume above the last estimate is not aggregation.
        let extra = if self.is_filled { self.aggregation.extra() } else { 0 };
        let at_once = volume(bandwidth, 1.0, self.interval).max(extra);
        let target = volume(bandwidth, gain, self.min_rtt()) + at_once;
        let more = if self.phase == Phase::Up { 2 * self.datagram } else { 0 };
        target.max(burst_for(self.pacing)).max(self.min_pipe()) + more
    }

    /// Whether Startup's window may grow beyond the model's.
    fn is_slow_start(&self, latest: Span) -> bool {
        let is_small = self.window < SLOW_START_WINDOWS * self.settings.initial_window;
        let has_no_queue = latest <= self.min_rtt() + self.round_trip.queue_threshold(Span::ZERO);
        is_small && has_no_queue && self.counts.lost == 0 && self.is_window_full()
    }

    /// The draft's `SetCwnd`.
    fn set_window(&mut self, sample: &FeedbackSample<'_>) {
        let acked = sample.acked_packets.saturating_mul(self.datagram);
        let most = self.max_in_flight();
        let is_starting = self.counts.delivered.saturating_mul(self.datagram) < self.settings.initial_window;
        let grown = self.window.saturating_add(acked);
        if self.is_filled {
            self.window = grown.min(most);
        } else if self.window < most || is_starting || self.is_slow_start(sample.rtt.latest()) {
            self.window = grown;
        }
        let cap = match self.phase {
            Phase::Startup | Phase::Drain => None,
            Phase::Cruise | Phase::ProbeRtt => self.with_headroom(),
            Phase::Down | Phase::Refill | Phase::Up => self.long_term,
        };
        // The bound is the bytes in flight when losses began, when the fewest packets awaited a report; such
        // packets load no queue.
        let unreported = volume(self.bandwidth(), 1.0, self.interval);
        let cap = cap.map_or(u64::MAX, |cap| cap.saturating_add(unreported));
        let cap = cap.min(self.short_term.in_flight.unwrap_or(u64::MAX));
        self.window = self.window.min(cap).max(self.min_pipe());
        if self.phase == Phase::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
    }

    fn mark(&self, sample: &FeedbackSample<'_>) -> Mark {
        Mark {
            pn: sample.next_pn,
            at: sample.now,
            delivered: self.counts.delivered,
            lost: self.counts.lost,
            marked: self.counts.marked,
            in_flight: self.in_flight,
        }
    }
}

impl RateController for Bbr {
    fn permit(&self) -> Permit {
        Permit::Go(Limits {
            rate: self.pacing,
            window: Some(self.window),
            unreported: 0,
            burst: self.burst(),
        })
    }

    fn on_sent(&mut self, sent: &SentBatch) {
        let was_empty = sent.in_flight <= sent.bytes;
        if was_empty && self.app_limited && sent.now.since(self.pauses.sent_at) > self.rtt {
            self.pauses.is_restart = true;
            self.aggregation.restart(sent.now);
            self.set_pacing();
        }
        self.pauses.sent_at = sent.now;
        self.history.on_sent(sent.now, sent.in_flight);
        self.rounds.is_full[0] |= sent.in_flight.saturating_add(2 * self.datagram) > self.window;
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        if sample.acked_packets == 0 && sample.lost_packets == 0 && sample.ecn_ce == 0 {
            return;
        }
        let (mark, is_round) = self.count(sample);
        self.on_rate(sample, &mark);
        self.watch_trial(sample);
        self.longer_path.rise(sample);
        let is_due = self.round_trip.on_sample(sample.now, sample.rtt.latest(), self.serialization());
        let bytes = sample.acked_packets.saturating_mul(self.datagram);
        self.aggregation.on_acked(sample.now, bytes, self.bandwidth(), self.window);
        if is_round {
            self.on_round();
        }
        self.leave_startup(sample);
        self.advance_cycle(sample, &mark, is_round);
        self.check_probe_rtt(sample, is_due, is_round);
        self.set_pacing();
        self.set_window(sample);
        self.history.record(self.mark(sample), self.rtt);
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.initial_rtt = rtt.min().max(Span::from_micros(1));
        self.rtt = rtt.smoothed();
        self.max_bandwidth.reset(rate);
        self.is_filled = true;
        self.phase = Phase::Cruise;
        self.pacing = self.bounded(rate);
        self.paced.on_value(self.pacing);
        self.window = self.max_in_flight();
    }

    fn on_silence(&mut self, _: Time, count: u32) {
        self.pauses.in_outage |= count >= OUTAGE;
    }

    fn allows_rare_reports(&self) -> bool {
        true
    }

    fn ceiling(&self) -> Option<Rate> {
        Some(self.settings.ceiling).filter(|&ceiling| ceiling < Rate::MAX)
    }

    fn state(&self) -> RateState {
        RateState { phase: self.phase.name(), rate: self.pacing }
    }
}
