//! BBR version 1 (draft-cardwell-iccrg-bbr-congestion-control-00; details from `tcp_bbr.c`).
//!
//! Not implemented: long-term bandwidth sampling, which detects policers.

use std::collections::VecDeque;

use haul_base::{Rate, Rng, Span, Time};

use super::aggregation::Aggregation;
use super::{AckSample, Control, LossSample};

/// Constants of BBR; gains in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BbrConfig {
    /// Gain in start-up: 2 / ln 2.
    pub high_gain: u32,
    /// Ratio of the window to the bandwidth-delay product in `PROBE_BW`: 2.
    pub window_gain: u32,
    /// Length of the bandwidth's maximum filter, round trips: 10.
    pub bandwidth_rounds: u64,
    /// Length of the round-trip time's minimum filter: 10 s.
    pub rtt_window: Span,
    /// Time for which the queue is drained to measure the round-trip time: 200 ms.
    pub probe_rtt: Span,
    /// Margin below the bandwidth, in thousandths: 10.
    pub margin: u32,
    /// Seed of the initial phase of bandwidth probing.
    pub seed: u64,
}

impl Default for BbrConfig {
    fn default() -> Self {
        Self {
            high_gain: 2_885,
            window_gain: 2_000,
            bandwidth_rounds: 10,
            rtt_window: Span::from_secs(10),
            probe_rtt: Span::from_millis(200),
            margin: 10,
            seed: 0,
        }
    }
}

/// Gains of the eight phases of `PROBE_BW`.
const CYCLE: [u32; 8] = [1_250, 750, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000];
/// Minimum window (`bbr_cwnd_min_target`).
const MIN_WINDOW: u64 = 4;
/// The pipe is full when the bandwidth has grown by less than 25 % in three round trips.
const FULL_GROWTH: u32 = 1_250;
const FULL_ROUNDS: u32 = 3;
/// Data handed over at once, as time at the pacing rate (`sk_pacing_shift`) and in segments
/// (`bbr_tso_segs_goal`).
const BURST: Span = Span::from_millis(1);
const BURST_SEGMENTS: (u64, u64) = (2, 43);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth { phase: usize, since: Time },
    ProbeRtt { done: Option<(Time, u64)> },
}

/// Sends at the delivery rate and keeps little more than the bandwidth-delay product in flight.
#[derive(Clone, Debug)]
pub struct Bbr {
    config: BbrConfig,
    wire_bytes: u32,
    initial: u64,
    mode: Mode,
    /// Candidates of the maximum filter: round and rate, rates falling.
    bandwidths: VecDeque<(u64, Rate)>,
    round: u64,
    min_rtt: Option<Span>,
    min_rtt_at: Time,
    full_bandwidth: Rate,
    full_rounds: u32,
    window: u64,
    prior_window: u64,
    /// Round until which only delivered segments are replaced (packet conservation).
    conserve_until: Option<u64>,
    recovering: bool,
    pacing: Rate,
    aggregation: Aggregation,
    rng: Rng,
}

fn gained(rate: Rate, permille: u32) -> Rate {
    Rate::from_bps((u128::from(rate.as_bps()) * u128::from(permille) / 1_000) as u64)
}

impl Bbr {
    /// Creates the law in start-up, with `initial` segments of `wire_bytes`.
    pub fn new(config: BbrConfig, initial: u64, wire_bytes: u32) -> Self {
        // `bbr_init_pacing_rate_from_rtt`: assumes a round-trip time of 1 ms.
        let first = Rate::from_transfer(initial * u64::from(wire_bytes), Span::from_millis(1));
        Self {
            config,
            wire_bytes,
            initial,
            mode: Mode::Startup,
            bandwidths: VecDeque::new(),
            round: 0,
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            full_bandwidth: Rate::ZERO,
            full_rounds: 0,
            window: initial,
            prior_window: 0,
            conserve_until: None,
            recovering: false,
            pacing: gained(first, config.high_gain),
            aggregation: Aggregation::default(),
            rng: Rng::from_seed(config.seed),
        }
    }

    /// Returns the maximum delivery rate of the last rounds.
    pub fn bandwidth(&self) -> Option<Rate> {
        self.bandwidths.front().map(|&(_, rate)| rate)
    }

    /// Returns the minimum round-trip time of the filter window.
    pub fn min_rtt(&self) -> Option<Span> {
        self.min_rtt
    }

    fn is_full(&self) -> bool {
        self.full_rounds >= FULL_ROUNDS
    }

    fn pacing_gain(&self) -> u32 {
        match self.mode {
            Mode::Startup => self.config.high_gain,
            Mode::Drain => 1_000_000 / self.config.high_gain,
            Mode::ProbeBandwidth { phase, .. } => CYCLE[phase],
            Mode::ProbeRtt { .. } => 1_000,
        }
    }

    fn window_gain(&self) -> u32 {
        match self.mode {
            Mode::Startup | Mode::Drain => self.config.high_gain,
            Mode::ProbeBandwidth { .. } => self.config.window_gain,
            Mode::ProbeRtt { .. } => 1_000,
        }
    }

    /// Returns the bandwidth-delay product times a gain, in segments.
    fn product(&self, gain: u32) -> u64 {
        match (self.bandwidth(), self.min_rtt) {
            (Some(bandwidth), Some(rtt)) => {
                gained(bandwidth, gain).bytes_in(rtt).div_ceil(u64::from(self.wire_bytes))
            }
            _ => self.initial,
        }
    }

    /// Returns the target for segments in flight at that gain: the product plus three times the data handed
    /// over at once, for the sender's bursts and delayed acknowledgements (`bbr_inflight`,
    /// `bbr_quantization_budget`).
    fn target(&self, gain: u32) -> u64 {
        let (least, most) = BURST_SEGMENTS;
        let bytes = self.pacing.bytes_in(BURST);
        let burst = (bytes / u64::from(self.wire_bytes)).clamp(least, most);
        let even = (self.product(gain) + 3 * burst).next_multiple_of(2);
        even + if matches!(self.mode, Mode::ProbeBandwidth { phase: 0, .. }) { 2 } else { 0 }
    }

    fn take_bandwidth(&mut self, ack: &AckSample) {
        self.round += u64::from(ack.round_start);
        let Some(sample) = ack.rate else { return };
        // An interval shorter than the round-trip time measures an acknowledgement burst, not a rate.
        if self.min_rtt.is_some_and(|rtt| sample.interval < rtt) {
            return;
        }
        let rate = Rate::from_transfer(sample.delivered * u64::from(self.wire_bytes), sample.interval);
        while self.bandwidths.back().is_some_and(|&(_, lower)| lower <= rate) {
            self.bandwidths.pop_back();
        }
        self.bandwidths.push_back((self.round, rate));
        let oldest = self.round.saturating_sub(self.config.bandwidth_rounds);
        while self.bandwidths.front().is_some_and(|&(round, _)| round < oldest) {
            self.bandwidths.pop_front();
        }
    }

    fn check_full(&mut self, ack: &AckSample) {
        let Some(bandwidth) = self.bandwidth() else { return };
        if !ack.round_start || self.is_full() {
            return;
        }
        if bandwidth >= gained(self.full_bandwidth, FULL_GROWTH) {
            (self.full_bandwidth, self.full_rounds) = (bandwidth, 0);
        } else {
            self.full_rounds += 1;
        }
    }

    fn probe_bandwidth(&mut self, now: Time) {
        // Any phase but the draining one (`bbr_reset_probe_bw_mode`).
        let phase = match self.rng.below(7) as usize {
            0 => 0,
            n => n + 1,
        };
        self.mode = Mode::ProbeBandwidth { phase, since: now };
    }

    fn advance(&mut self, ack: &AckSample) {
        match self.mode {
            Mode::Startup if self.is_full() => self.mode = Mode::Drain,
            Mode::Drain if ack.in_flight <= self.target(1_000) => self.probe_bandwidth(ack.now),
            Mode::ProbeBandwidth { phase, since } => {
                let long = self.min_rtt.is_some_and(|rtt| ack.now.since(since) > rtt);
                let next = match CYCLE[phase] {
                    1_000 => long,
                    gain if gain > 1_000 => long && (ack.lost > 0 || ack.in_flight >= self.target(gain)),
                    _ => long || ack.in_flight <= self.target(1_000),
                };
                if next {
                    self.mode = Mode::ProbeBandwidth { phase: (phase + 1) % CYCLE.len(), since: ack.now };
                }
            }
            _ => {}
        }
    }

    fn take_rtt(&mut self, ack: &AckSample) {
        let expired = ack.now.since(self.min_rtt_at) > self.config.rtt_window;
        if let Some(rtt) = ack.rtt
            && (expired || self.min_rtt.is_none_or(|least| rtt <= least))
        {
            (self.min_rtt, self.min_rtt_at) = (Some(rtt), ack.now);
        }
        if expired && !matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.prior_window = self.saved_window();
            self.mode = Mode::ProbeRtt { done: None };
        }
        let Mode::ProbeRtt { done } = self.mode else { return };
        match done {
            None if ack.in_flight <= MIN_WINDOW => {
                self.mode = Mode::ProbeRtt { done: Some((ack.now + self.config.probe_rtt, self.round + 1)) };
            }
            Some((until, round)) if ack.now > until && self.round >= round => {
                self.min_rtt_at = ack.now;
                self.window = self.window.max(self.prior_window);
                if self.is_full() {
                    self.probe_bandwidth(ack.now);
                } else {
                    self.mode = Mode::Startup;
                }
            }
            _ => {}
        }
    }

    fn saved_window(&self) -> u64 {
        if self.recovering || matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.prior_window.max(self.window)
        } else {
            self.window
        }
    }

    fn set_pacing(&mut self, ack: &AckSample) {
        let Some(bandwidth) = self.bandwidth() else {
            if let Some(rtt) = ack.srtt {
                let first = Rate::from_transfer(self.window * u64::from(self.wire_bytes), rtt);
                self.pacing = gained(first, self.config.high_gain);
            }
            return;
        };
        let rate = gained(gained(bandwidth, self.pacing_gain()), 1_000 - self.config.margin.min(999));
        if self.is_full() || rate > self.pacing {
            self.pacing = rate;
        }
    }

    fn set_window(&mut self, ack: &AckSample) {
        if ack.lost > 0 {
            self.window = self.window.saturating_sub(ack.lost).max(1);
        }
        let mut target = self.target(self.window_gain());
        if let Some(bandwidth) = self.bandwidth().filter(|_| self.is_full()) {
            target += self.aggregation.allowance(bandwidth, self.wire_bytes);
        }
        if self.conserve_until.is_some_and(|round| self.round < round) {
            self.window = self.window.max(ack.in_flight + ack.acked);
        } else {
            self.conserve_until = None;
            if self.is_full() {
                self.window = (self.window + ack.acked).min(target);
            } else if self.window < target || ack.delivered < self.initial {
                self.window += ack.acked;
            }
        }
        self.window = self.window.max(MIN_WINDOW);
    }
}

impl Control for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn on_ack(&mut self, ack: &AckSample) {
        self.take_bandwidth(ack);
        if let Some(bandwidth) = self.bandwidth() {
            self.aggregation.on_ack(ack, bandwidth, self.wire_bytes, self.window);
        }
        self.advance(ack);
        self.check_full(ack);
        self.take_rtt(ack);
        self.set_pacing(ack);
        self.set_window(ack);
    }

    fn on_loss(&mut self, loss: &LossSample) {
        self.prior_window = self.saved_window();
        self.recovering = true;
        self.conserve_until = Some(self.round + 1);
        self.window = (loss.in_flight + loss.acked).max(MIN_WINDOW);
    }

    fn on_recovered(&mut self, _: Time) {
        self.recovering = false;
        self.conserve_until = None;
        self.window = self.window.max(self.prior_window);
    }

    fn on_timeout(&mut self, _: Time) {
        self.prior_window = self.saved_window();
        self.recovering = true;
        self.conserve_until = None;
        self.full_bandwidth = Rate::ZERO;
        self.window = 1;
    }

    fn window(&self) -> u64 {
        match self.mode {
            Mode::ProbeRtt { .. } => self.window.min(MIN_WINDOW),
            _ => self.window,
        }
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.pacing)
    }

    fn reduces_in_proportion(&self) -> bool {
        false
    }

    fn phase(&self) -> &'static str {
        match self.mode {
            Mode::Startup => "start-up",
            Mode::Drain => "drain",
            Mode::ProbeBandwidth { .. } => "probe bandwidth",
            Mode::ProbeRtt { .. } => "probe round-trip time",
        }
    }
}
