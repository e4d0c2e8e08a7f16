//! Shared by window-based laws, so that each law is only its formula: slow start that ends before it
//! overshoots (`HyStart`++, RFC 9406), one reaction to the losses of a round trip (RFC 6582, RFC 9002,
//! section 7.3.2), growth by bytes acknowledged (RFC 3465), no growth of an unused window (RFC 9002, section
//! 7.8), a restart after idleness (RFC 5681, section 4.1) and after silence (RFC 9002, section 7.6), undone
//! if all packets were merely late (as in RFC 4015, section 3.2), and pacing (RFC 9002, section 7.7).
//!
//! Windows are in packets, as in the formulas of the papers. Congestion marks (ECN CE) count as losses (RFC
//! 9002, section 7.1).

use std::fmt::Debug;

use haul_base::{Rate, Span, Time};
use haul_stack::parameter;

use super::loss_events::LossEvents;
use super::{ControllerConfig, FeedbackSample, Limits, Permit, RateController, RateState, SentBatch};
use crate::longer_path::LongerPath;
use crate::rtt::RttEstimator;

parameter!(pub(super) initial_window: u64 in (2, 1_000_000) = "10", "packets in flight at the start (RFC 6928: 10)");
// Whether the law deviates from its source when a path becomes longer.
parameter!(pub(super) longer_path: bool = "true",
    "whether a sudden, lasting increase of the round-trip time counts as a longer path (the source: false)");

/// Maximum window in packets: more than any path holds.
pub(super) const MAX_PACKETS: f64 = 1e9;
/// Minimum window in packets (RFC 9002, section 7.2).
pub(super) const MIN_PACKETS: f64 = 2.0;
/// RFC 9002, section 7.7, recommends 1.25 windows per round trip; slow start doubles the window in one.
const PACING: f64 = 1.25;
const START_PACING: f64 = 2.0;
/// A window counts as used if this share of it was in flight. Our choice: with a larger share, pacing would
/// be taken for idleness.
const USED: f64 = 0.75;
/// Maximum compensation for report delay, in round trips. Our choice: reports are at most a round trip apart,
/// except for narrow return paths and round trips of less than some milliseconds.
const MAX_UNREPORTED: f64 = 1.0;
/// Probe timeouts in a row without feedback that are persistent congestion: the second comes after three
/// times the time of the first (RFC 9002, section 7.6.1).
const PERSISTENT: u32 = 2;
/// Share of the window that an idle sender remembers (RFC 7661, section 4.4.2, after RFC 2861).
const REMEMBERED: f64 = 0.75;

/// Contents of one feedback as passed to a formula.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowInput<'a> {
    pub(super) now: Time,
    /// Packets newly acknowledged; above 0.
    pub(super) acked: f64,
    pub(super) rtt: &'a RttEstimator,
    pub(super) sample: &'a FeedbackSample<'a>,
    /// Whether a round trip has ended since the last feedback.
    pub(super) is_round: bool,
    /// Whether the window is in use; otherwise the formula may only lower it.
    pub(super) is_used: bool,
}

/// Formula of a law. Windows are in packets.
pub(super) trait Formula: Debug + Send {
    /// Returns the window after an acknowledgement in congestion avoidance.
    fn avoid_congestion(&mut self, window: f64, input: &WindowInput<'_>) -> f64;

    /// Returns the window after a loss event.
    fn shrink(&mut self, window: f64) -> f64;

    /// Whether the window grows during recovery; RFC 9002, section 7.3.2, forbids it.
    fn grows_in_recovery(&self) -> bool {
        false
    }

    /// Slow start has ended without a loss: congestion avoidance starts with this window.
    fn begin(&mut self, window: f64) {
        let _ = window;
    }

    /// Observes a feedback in any phase.
    fn observe(&mut self, input: &WindowInput<'_>) {
        let _ = input;
    }
}

/// RFC 9406, sections 4.2 and 4.3: slow start becomes conservative when the round-trip time grows, and ends
/// if it stays high.
#[derive(Debug)]
struct HyStart {
    last_min: Span,
    current_min: Span,
    packets: u64,
    /// Minimum round-trip time when conservative slow start began, and the number of its rounds so far.
    conservative: Option<(Span, u32)>,
}

impl HyStart {
    const MIN_THRESHOLD: Span = Span::from_millis(4);
    const MAX_THRESHOLD: Span = Span::from_millis(16);
    const DIVISOR: u64 = 8;
    const SAMPLES: u64 = 8;
    const GROWTH_DIVISOR: f64 = 4.0;
    const ROUNDS: u32 = 5;

    const fn new() -> Self {
        Self { last_min: Span::MAX, current_min: Span::MAX, packets: 0, conservative: None }
    }

    /// Ends a round; returns whether slow start ends.
    fn on_round(&mut self) -> bool {
        (self.last_min, self.current_min, self.packets) = (self.current_min, Span::MAX, 0);
        if let Some((_, rounds)) = &mut self.conservative {
            *rounds += 1;
        }
        self.conservative.is_some_and(|(_, rounds)| rounds >= Self::ROUNDS)
    }

    /// Returns the divisor of slow start's growth. A round-trip sample counts once per packet acknowledged.
    fn growth_divisor(&mut self, rtt: Span, packets: u64) -> f64 {
        self.current_min = self.current_min.min(rtt);
        self.packets = self.packets.saturating_add(packets);
        if self.packets >= Self::SAMPLES && self.last_min < Span::MAX {
            match self.conservative {
                Some((base, _)) if self.current_min < base => self.conservative = None,
                None if self.current_min >= self.last_min + self.threshold() => {
                    self.conservative = Some((self.current_min, 0));
                }
                _ => {}
            }
        }
        if self.conservative.is_some() { Self::GROWTH_DIVISOR } else { 1.0 }
    }

    fn threshold(&self) -> Span {
        (self.last_min / Self::DIVISOR).max(Self::MIN_THRESHOLD).min(Self::MAX_THRESHOLD)
    }
}

/// State before a silence, restored if all packets were merely late.
#[derive(Clone, Copy, Debug)]
struct Silence {
    window: f64,
    threshold: f64,
    /// First packet number sent after the reaction to the silence.
    next_pn: u64,
}

/// A window-based law.
#[derive(Debug)]
pub(super) struct Windowed<F> {
    formula: F,
    ceiling: Option<Rate>,
    initial: f64,
    window: f64,
    /// Slow-start threshold; infinite before the first event.
    threshold: f64,
    events: LossEvents,
    hystart: HyStart,
    datagram: f64,
    rtt: Span,
    /// Longest delay of the report of a received packet.
    unreported: Span,
    /// The round ends when this packet is acknowledged.
    round_end_pn: u64,
    /// Peak bytes in flight of this round and of the previous one.
    peak: u64,
    peak_before: u64,
    idle_after: Span,
    /// When a packet was last sent or acknowledged.
    active_at: Option<Time>,
    silence: Option<Silence>,
    /// Lower bound of the next packet number: excludes packets without data sent since the last feedback.
    next_pn: u64,
    in_recovery: bool,
    /// `None` if slow start is never restarted.
    path: Option<LongerPath>,
}

impl<F: Formula> Windowed<F> {
    /// Creates the law in slow start with a window of `initial_window` packets.
    pub(super) fn new(formula: F, initial_window: u64, config: &ControllerConfig) -> Self {
        let initial = initial_window as f64;
        Self {
            formula,
            ceiling: config.ceiling,
            initial,
            window: initial,
            threshold: f64::INFINITY,
            events: LossEvents::default(),
            hystart: HyStart::new(),
            datagram: 1_472.0,
            rtt: config.initial_rtt,
            unreported: Span::ZERO,
            round_end_pn: 0,
            peak: 0,
            peak_before: 0,
            idle_after: Span::from_secs(1),
            active_at: None,
            silence: None,
            next_pn: 0,
            in_recovery: false,
            path: None,
        }
    }

    /// If `longer_path`, slow start is restarted when the round-trip time has more than doubled: the capacity
    /// of the path is then as unknown as at the start. The sources grow at their usual pace instead: Reno
    /// from 34 to 340 packets in 300 round trips.
    pub(super) fn with_longer_path(self, longer_path: bool) -> Self {
        Self { path: longer_path.then(LongerPath::default), ..self }
    }

    fn in_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Whether a round has ended: a packet sent after the end of the previous one was acknowledged.
    fn is_round(&mut self, sample: &FeedbackSample<'_>) -> bool {
        if sample.largest_acked_pn < self.round_end_pn {
            return false;
        }
        self.round_end_pn = sample.next_pn;
        (self.peak_before, self.peak) = (self.peak, sample.in_flight);
        true
    }

    fn unreported_bytes(&self) -> u64 {
        unreported_bytes(self.window * self.datagram, self.unreported, self.rtt)
    }

    fn is_used(&self) -> bool {
        let allowed = self.window * self.datagram + self.unreported_bytes() as f64;
        self.peak.max(self.peak_before) as f64 + self.datagram >= USED * allowed
    }

    fn on_event(&mut self, next_pn: u64) {
        self.window = self.formula.shrink(self.window).clamp(MIN_PACKETS, MAX_PACKETS);
        self.threshold = self.window;
        self.events.close(next_pn);
    }

    /// Handles the first acknowledgement after silence. If it is for a packet sent before the reaction and
    /// nothing was lost, packets were only late, as on a path that has become longer.
    fn end_silence(&mut self, silence: Silence, sample: &FeedbackSample<'_>) {
        if sample.lost_packets == 0 && sample.largest_acked_pn < silence.next_pn {
            (self.window, self.threshold) = (silence.window, silence.threshold);
        } else {
            self.events.close(sample.next_pn);
        }
    }

    fn on_acked(&mut self, input: &WindowInput<'_>) {
        self.formula.observe(input);
        if self.in_recovery && !self.formula.grows_in_recovery() {
            return;
        }
        if self.in_start() {
            self.start(input);
            if !self.in_start() {
                self.formula.begin(self.window);
            }
        } else {
            let target = self.formula.avoid_congestion(self.window, input);
            self.window = if input.is_used { target } else { target.min(self.window) };
            self.threshold = self.threshold.min(self.window);
        }
        self.window = self.window.clamp(MIN_PACKETS, MAX_PACKETS);
    }

    fn start(&mut self, input: &WindowInput<'_>) {
        let is_first = self.threshold.is_infinite();
        if is_first && input.is_round && self.hystart.on_round() {
            self.threshold = self.window;
            return;
        }
        let packets = input.acked as u64;
        let divisor = if is_first { self.hystart.growth_divisor(input.rtt.latest(), packets) } else { 1.0 };
        if input.is_used {
            self.window += input.acked / divisor;
        }
        if self.window >= self.threshold {
            self.window = self.threshold;
        }
    }
}

/// Returns the bytes that a window sends during the report delay: they have arrived but are not reported yet.
/// The formulas assume immediate acknowledgements.
pub(super) fn unreported_bytes(window: f64, unreported: Span, rtt: Span) -> u64 {
    let round_trips = unreported.as_secs_f64() / rtt.as_secs_f64().max(1e-6);
    (window * round_trips.min(MAX_UNREPORTED)) as u64
}

impl<F: Formula> RateController for Windowed<F> {
    fn permit(&self) -> Permit {
        let gain = if self.in_start() { START_PACING } else { PACING };
        let ceiling = self.ceiling.unwrap_or(Rate::MAX);
        let limits = Limits::of_window(self.window * self.datagram, self.rtt, gain, ceiling);
        Permit::Go(Limits { unreported: self.unreported_bytes(), ..limits })
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.rtt = rtt.smoothed();
        self.window = (rate.bytes_in(self.rtt) as f64 / self.datagram).clamp(self.initial, MAX_PACKETS);
        self.threshold = self.window;
    }

    fn on_sent(&mut self, sent: &SentBatch) {
        self.peak = self.peak.max(sent.in_flight);
        self.next_pn += sent.packets;
        let was_idle = sent.in_flight <= sent.bytes;
        if was_idle && self.active_at.is_some_and(|at| sent.now.since(at) > self.idle_after) {
            // Knowledge of the path is outdated.
            self.threshold = self.threshold.max(REMEMBERED * self.window);
            self.window = self.window.min(self.initial);
        }
        self.active_at = Some(sent.now);
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        (self.datagram, self.rtt) = (sample.datagram.max(1) as f64, sample.rtt.smoothed());
        self.unreported = sample.report_interval;
        self.idle_after = sample.rtt.probe_timeout(Span::ZERO);
        let acked = sample.acked_packets as f64;
        if acked > 0.0 {
            // Waiting for a report is not idleness.
            self.active_at = Some(sample.now);
            if let Some(silence) = self.silence.take() {
                self.end_silence(silence, sample);
            }
        }
        self.next_pn = sample.next_pn;
        let is_used = !sample.app_limited && self.is_used();
        let is_round = self.is_round(sample);
        // The reaction to silence covers losses detected during it.
        if self.silence.is_none() && self.events.is_new_or_marked(sample) {
            self.on_event(sample.next_pn);
        }
        self.in_recovery = self.events.in_recovery(sample);
        if self.path.as_mut().is_some_and(|path| path.has_doubled(sample)) {
            (self.threshold, self.hystart) = (f64::INFINITY, HyStart::new());
        }
        if acked > 0.0 {
            self.on_acked(&WindowInput {
                now: sample.now,
                acked,
                rtt: sample.rtt,
                sample,
                is_round,
                is_used,
            });
        }
    }

    fn on_silence(&mut self, _: Time, count: u32) {
        if count < PERSISTENT || self.silence.is_some() {
            return;
        }
        let (window, threshold) = (self.window, self.threshold);
        self.silence = Some(Silence { window, threshold, next_pn: self.next_pn });
        self.threshold = self.formula.shrink(self.window).clamp(MIN_PACKETS, MAX_PACKETS);
        self.window = MIN_PACKETS;
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = match () {
            () if self.silence.is_some() => "silence",
            () if self.in_start() => "slow start",
            () if self.in_recovery => "recovery",
            () => "avoidance",
        };
        let Permit::Go(limits) = self.permit() else { return RateState { phase, rate: super::MIN_RATE } };
        RateState { phase, rate: limits.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_near, built, feedback};
    use super::*;

    const RTT: Span = Span::from_millis(40);

    /// Window in packets after a window of 50 was sent, reported at once after `unreported`, and more was
    /// sent after `pause`.
    fn window_after(unreported: Span, pause: Span) -> f64 {
        let (mut law, mut rtt) = (built("reno", &[], Rate::from_mbps(10_000)), RttEstimator::new(RTT));
        let start = Time::ZERO + Span::from_secs(1);
        rtt.on_sample(start, RTT);
        law.take_over(Rate::from_transfer(50 * 1_472, RTT), &rtt);
        let reported = start + RTT + unreported;
        law.on_sent(&SentBatch { now: start, packets: 50, bytes: 50 * 1_472, in_flight: 50 * 1_472 });
        law.on_feedback(&FeedbackSample {
            next_pn: 50,
            largest_acked_pn: 49,
            ..feedback(reported, &rtt, 50, 0, None)
        });
        law.on_sent(&SentBatch { now: reported + pause, packets: 1, bytes: 1_472, in_flight: 1_472 });
        let Permit::Go(limits) = law.permit() else { panic!("held") };
        (limits.window.unwrap() / 1_472) as f64
    }

    #[test]
    fn only_idle_senders_restart_from_the_initial_window() {
        assert_near(window_after(Span::ZERO, Span::ZERO), 51.0, 1e-9);
        assert_near(window_after(Span::ZERO, RTT * 5), 10.0, 1e-9);
        assert_near(window_after(RTT * 5, Span::ZERO), 51.0, 1e-9);
    }

    /// Window in packets if, after 50 packets, two probes and silence, this packet is acknowledged.
    fn after_silence(arrived: u64, lost: u64) -> f64 {
        let (mut law, mut rtt) = (built("reno", &[], Rate::from_mbps(10_000)), RttEstimator::new(RTT));
        let start = Time::ZERO + Span::from_secs(1);
        rtt.on_sample(start, RTT);
        law.take_over(Rate::from_transfer(50 * 1_472, RTT), &rtt);
        let at = |millis| start + Span::from_millis(millis);
        let sent = |now, packets| SentBatch { now, packets, bytes: packets * 1_472, in_flight: 50 * 1_472 };
        law.on_sent(&sent(start, 50));
        law.on_silence(at(100), 1);
        law.on_sent(&sent(at(100), 1));
        law.on_silence(at(300), 2);
        law.on_sent(&sent(at(300), 1));
        let sample = feedback(at(400), &rtt, 1, lost, None);
        law.on_feedback(&FeedbackSample { next_pn: 52, largest_acked_pn: arrived, ..sample });
        let Permit::Go(limits) = law.permit() else { panic!("held") };
        (limits.window.unwrap() / 1_472) as f64
    }

    #[test]
    fn silence_without_losses_indicates_a_longer_path() {
        assert!(after_silence(0, 0) >= 50.0);
        // What was sent since says nothing about what was sent before.
        assert!(after_silence(51, 0) < 5.0);
        assert!(after_silence(1, 1) < 5.0);
    }
}
