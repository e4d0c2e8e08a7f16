//! CUBIC (RFC 9438): after a loss event the window follows `C (t - K)^3 + W_max`, a cubic of the time since
//! the event, so that its growth does not depend on the round-trip time. `K = cbrt((W_max - cwnd_epoch) / C)`
//! (section 4.2).
//!
//! - Each acknowledged packet moves the window by `(target - cwnd) / cwnd`; the target is the cubic one round
//!   trip ahead, clamped to 1 to 1.5 windows (sections 4.2, 4.4, 4.5).
//! - While TCP Reno's window would be larger, it is used instead (4.3): it grows by `3 (1 - b) / (1 + b)` per
//!   round trip, and by 1 from `cwnd_prior` on.
//! - Fast convergence releases bandwidth to newer flows (4.7). A stage that starts without a loss has `K = 0`
//!   (4.8, 4.10).
//! - `t` excludes time in which the window was not used, and recovery (4.2, 5.8).
//!
//! With one loss per `1/p` packets and a constant `W_max`, the mean window is
//! `(C (3 + b) / (4 (1 - b)))^(1/4) (RTT / p)^(3/4)`, or `sqrt(1.5 / p)` if that is more (section 5.1).
//! `W_max` converges slowly: the plateau is flat, so a window too large by the share `e` falls by about
//! `0.56 e^3` per epoch (the first term of the epoch's integral), and an excess of 9 % is still 6 % after 140
//! epochs. Fast convergence mistakes each of those losses for a newer flow, so the mean approaches the
//! formula from below: 7 % less after 100 epochs at p = 1e-4 and 100 ms, 4 % after 300. The derivation
//! ignores that recovery takes a round trip: 1 % for epochs of 50 round trips, 6 % for epochs of 10.
//!
//! Not implemented: the response to spurious losses (4.9), as late packets are not declared lost, and
//! reducing the bytes in flight instead of the window (4.6), as an unused window does not grow.

use haul_base::Time;
use haul_stack::{Configuration as _, configuration};

use super::LawRegistration;
use super::window::{Formula, WindowInput, Windowed, initial_window, longer_path};

configuration! {
    /// Parameters of `cubic`.
    pub struct CubicConfig: "cubic" {
        initial_window: u64 = initial_window;
        scale: f64 in (0.001, 1_000.0) = "0.4", "packets per second cubed (the RFC's C: 0.4)";
        decrease: f64 in (0.1, 0.99) = "0.7", "factor of the window after a loss event (the RFC: 0.7)";
        fast_convergence: bool = "true", "whether a loss below the last maximum lowers the next maximum further (fast convergence)";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "cubic",
    version: 1,
    summary: "a window that is a cubic function of the time since the last loss",
    source: "CUBIC (RFC 9438)",
    parameters: CubicConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: CubicConfig = parameters.read();
        let law = Windowed::new(Cubic::new(&parameters), parameters.initial_window, config);
        Ok(Box::new(law.with_longer_path(parameters.longer_path)))
    },
};

/// Limit of the target, in windows (RFC 9438, section 4.2).
const MAX_GROWTH: f64 = 1.5;

#[derive(Debug)]
struct Cubic {
    scale: f64,
    beta: f64,
    fast_convergence: bool,
    /// Window before the last reduction, or less due to fast convergence.
    w_max: f64,
    epoch: Option<Epoch>,
    updated_at: Option<Time>,
    /// Seconds between the last two feedbacks.
    since_update: f64,
}

/// A stage of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    w_max: f64,
    /// Seconds until the cubic reaches `w_max`.
    k: f64,
    /// Seconds of the stage during which the window was used.
    elapsed: f64,
    /// Window that TCP Reno would have.
    w_est: f64,
    /// Window before the reduction.
    prior: f64,
}

impl Cubic {
    fn new(parameters: &CubicConfig) -> Self {
        Self {
            scale: parameters.scale,
            beta: parameters.decrease,
            fast_convergence: parameters.fast_convergence,
            w_max: 0.0,
            epoch: None,
            updated_at: None,
            since_update: 0.0,
        }
    }

    /// Evaluates the cubic at this time after the start of the epoch.
    fn cubic(&self, epoch: &Epoch, seconds: f64) -> f64 {
        self.scale * (seconds - epoch.k).powi(3) + epoch.w_max
    }

    /// Returns TCP Reno's window after an acknowledgement of `acked` packets.
    fn estimate(&self, epoch: &Epoch, window: f64, acked: f64) -> f64 {
        let alpha = if epoch.w_est < epoch.prior { 3.0 * (1.0 - self.beta) / (1.0 + self.beta) } else { 1.0 };
        epoch.w_est + alpha * acked / window
    }
}

impl Formula for Cubic {
    fn observe(&mut self, input: &WindowInput<'_>) {
        let before = self.updated_at.replace(input.now).unwrap_or(input.now);
        self.since_update = input.now.since(before).as_secs_f64();
    }

    fn begin(&mut self, window: f64) {
        self.epoch = Some(Epoch { w_max: window, k: 0.0, elapsed: 0.0, w_est: window, prior: window });
    }

    fn avoid_congestion(&mut self, window: f64, input: &WindowInput<'_>) -> f64 {
        if !input.is_used {
            return window;
        }
        if self.epoch.is_none() {
            self.begin(window);
        }
        let Some(mut epoch) = self.epoch else { return window };
        epoch.elapsed += self.since_update;
        epoch.w_est = self.estimate(&epoch, window, input.acked);
        self.epoch = Some(epoch);
        if self.cubic(&epoch, epoch.elapsed) < epoch.w_est {
            return window.max(epoch.w_est);
        }
        let ahead = self.cubic(&epoch, epoch.elapsed + input.rtt.smoothed().as_secs_f64());
        let target = ahead.clamp(window, MAX_GROWTH * window);
        // One feedback can acknowledge more than a window, but the window never exceeds the target.
        window + (target - window) * (input.acked / window).min(1.0)
    }

    fn shrink(&mut self, window: f64) -> f64 {
        let is_newer_flow = self.fast_convergence && window < self.w_max;
        self.w_max = if is_newer_flow { window * f64::midpoint(1.0, self.beta) } else { window };
        let reduced = window * self.beta;
        let k = ((self.w_max - reduced) / self.scale).cbrt();
        self.epoch = Some(Epoch { w_max: self.w_max, k, elapsed: 0.0, w_est: reduced, prior: window });
        reduced
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};

    use super::super::testing::{Harness, Loss, PathModel, assert_near, built, literal_sample};
    use super::*;
    use crate::rtt::RttEstimator;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);
    const RTT: Span = Span::from_millis(100);

    fn cubic(settings: &[(&str, &str)]) -> Cubic {
        Cubic::new(&LAW.parameters(settings).unwrap().read())
    }

    /// Acknowledges one window per round trip, `count` times; returns the window after each.
    fn rounds(law: &mut Cubic, begin: f64, rtt: Span, count: u64, is_used: bool) -> Vec<f64> {
        let mut estimator = RttEstimator::new(rtt);
        estimator.on_sample(Time::ZERO, rtt);
        let start = *law.updated_at.get_or_insert(Time::ZERO);
        let mut window = begin;
        let round = |n| {
            let now = start + rtt * n;
            let sample = literal_sample(now, &estimator);
            let input =
                WindowInput { now, acked: window, rtt: &estimator, sample: &sample, is_round: true, is_used };
            law.observe(&input);
            window = law.avoid_congestion(window, &input);
            window
        };
        (1..=count).map(round).collect()
    }

    #[test]
    fn cubic_returns_to_the_maximum_after_k_and_is_flat_around_it() {
        let mut law = cubic(&[]);
        let begin = law.shrink(1_000.0);
        assert_near(begin, 700.0, 1e-12);
        let epoch = law.epoch.unwrap();
        assert_near(epoch.k, (300.0f64 / 0.4).cbrt(), 1e-12);
        assert_near(law.cubic(&epoch, 0.0), 700.0, 1e-9);
        let windows = rounds(&mut law, begin, RTT, 180, true);
        // Each is the cubic's value a round trip later, which is when it is used.
        for (n, window) in windows.iter().enumerate() {
            let seconds = (n + 2) as f64 * 0.1;
            assert_near(*window, 0.4 * (seconds - epoch.k).powi(3) + 1_000.0, 1e-9);
        }
    }

    #[test]
    fn cubic_grows_by_at_most_half_per_round_trip() {
        let mut law = cubic(&[("scale", "1000")]);
        let begin = law.shrink(100.0);
        let windows = rounds(&mut law, begin, Span::from_secs(1), 5, true);
        assert_near(windows[0], 105.0, 1e-9);
        assert!(windows.windows(2).all(|pair| pair[1] <= pair[0] * 1.5 + 1e-9), "{windows:?}");
    }

    #[test]
    fn in_the_reno_friendly_region_cubic_grows_like_reno_and_faster_from_the_old_window_on() {
        let mut law = cubic(&[]);
        let begin = law.shrink(20.0);
        let windows = rounds(&mut law, begin, Span::from_millis(1), 40, true);
        let alpha = 3.0 * 0.3 / 1.7;
        assert_near(windows[9], 14.0 + 10.0 * alpha, 0.01);
        let above: Vec<_> = windows.iter().filter(|&&window| window > 21.0).collect();
        assert!(above.len() > 20, "{windows:?}");
        for pair in above.windows(2) {
            assert_near(pair[1] - pair[0], 1.0, 1e-9);
        }
    }

    #[test]
    fn a_loss_below_the_last_maximum_leaves_capacity_to_newer_flows() {
        for (fast, expected) in [("true", 68.0), ("false", 80.0)] {
            let mut law = cubic(&[("fast_convergence", fast)]);
            law.shrink(100.0);
            assert_near(law.shrink(80.0), 56.0, 1e-12);
            assert_near(law.w_max, expected, 1e-12);
            law.shrink(90.0);
            assert_near(law.w_max, 90.0, 1e-12);
        }
    }

    #[test]
    fn application_limited_time_is_not_part_of_the_epoch() {
        let (mut busy, mut idle) = (cubic(&[]), cubic(&[]));
        let begin = busy.shrink(1_000.0);
        idle.shrink(1_000.0);
        let expected = rounds(&mut busy, begin, RTT, 40, true);
        let first = rounds(&mut idle, begin, RTT, 20, true);
        let between = rounds(&mut idle, first[19], RTT, 500, false);
        assert_eq!(between, vec![first[19]; 500]);
        assert_near(rounds(&mut idle, first[19], RTT, 20, true)[19], expected[39], 1e-9);
    }

    #[test]
    fn an_epoch_without_a_loss_grows_from_its_first_window() {
        let mut law = cubic(&[]);
        law.shrink(5_000.0);
        law.begin(1_000.0);
        let windows = rounds(&mut law, 1_000.0, RTT, 100, true);
        assert_near(windows[98], 1_000.0 + 0.4 * 10f64.powi(3), 1e-9);
        // The same without a preceding slow start.
        assert_eq!(rounds(&mut cubic(&[]), 1_000.0, RTT, 100, true), windows);
    }

    /// Mean window of the last 60 of `epochs` epochs of `n` packets, after 20 of `first`: the cubic
    /// integrated in steps of 1/100 round trip, plus a round trip of recovery.
    fn integrated(first: f64, n: f64, rtt: f64, window: f64, epochs: usize) -> f64 {
        let (mut w_max, mut sum, mut time) = (window, 0.0, 0.0);
        for epoch in 0..20 + epochs {
            let packets = if epoch < 20 { first } else { n };
            let k = (0.3 * w_max / 0.4f64).cbrt();
            let (mut sent, mut at, mut window) = (0.7 * w_max, 0.0, 0.7 * w_max);
            while sent < packets {
                at += rtt / 100.0;
                window = 0.4 * (at - k).powi(3) + w_max;
                sent += window / 100.0;
            }
            w_max = window;
            if epoch + 60 >= 20 + epochs {
                sum += packets * rtt;
                time += at + rtt;
            }
        }
        sum / time
    }

    /// A law in the middle of a transfer over a path with one loss per `n` packets.
    fn running(settings: &[(&str, &str)], n: u64, rtt: Span, window: f64) -> Harness {
        let mut law = built("cubic", settings, UNBOUNDED);
        let mut estimator = RttEstimator::new(rtt);
        estimator.on_sample(Time::ZERO, rtt);
        law.take_over(Rate::from_transfer((window * 1_472.0) as u64, rtt), &estimator);
        Harness::new(law, PathModel { rtt, ..PathModel::lossy(n) })
    }

    fn mean_window(run: &mut Harness, epoch: Span, epochs: u64) -> f64 {
        run.measure(epoch * epochs).mean_window.unwrap()
    }

    /// RFC 9438, section 5.1.
    fn of_rfc(n: u64, rtt: Span) -> f64 {
        (0.4 * (3.0 + 0.7) / (4.0 * (1.0 - 0.7f64))).powf(0.25) * (rtt.as_secs_f64() * n as f64).powf(0.75)
    }

    #[test]
    fn cubics_mean_window_matches_the_integral_of_an_epoch() {
        for (n, share) in [(10_000, 0.6), (10_000, 1.5), (100_000, 0.6), (100_000, 1.5)] {
            let first = n as f64 * share;
            let (begin, expected) = (of_rfc(first as u64, RTT), of_rfc(n, RTT));
            let epoch = RTT.mul_f64(n as f64 / expected);
            let mut run = running(&[("fast_convergence", "false")], first as u64, RTT, begin);
            run.run_for(RTT.mul_f64(20.0 * first / begin));
            run.path.loss = Loss::EachNth(n);
            let mut off = f64::INFINITY;
            for epochs in [60, 120, 180, 240] {
                let found = mean_window(&mut run, epoch, 60);
                // Reports are sent every 2 ms: on average a packet waits half of that.
                let exact = integrated(first, n as f64, 0.101, begin / 0.925, epochs);
                assert_near(found, exact, 0.025);
                let before = std::mem::replace(&mut off, (found / expected - 1.0).abs());
                assert!(off < before, "{off} {before}");
            }
            assert!(off < 0.07, "{off}");
        }
    }

    #[test]
    fn with_fast_convergence_cubics_mean_window_is_that_of_the_rfc() {
        for n in [10_000, 100_000] {
            let expected = of_rfc(n, RTT);
            let epoch = RTT.mul_f64(n as f64 / expected);
            for begin in [0.5, 1.0, 3.0] {
                let mut run = running(&[], n, RTT, begin * expected);
                run.run_for(epoch * 200);
                let found = mean_window(&mut run, epoch, 200);
                assert_near(found, expected, 0.05);
            }
        }
    }

    #[test]
    fn where_reno_has_more_cubic_has_renos_mean_window() {
        for (n, millis) in [(1_000, 10), (10_000, 10), (100_000, 10), (1_000, 100)] {
            let (rtt, expected) = (Span::from_millis(millis), (1.5 * n as f64).sqrt());
            assert!(expected > of_rfc(n, rtt));
            let epoch = rtt.mul_f64(n as f64 / expected);
            let mut run = running(&[], n, rtt, expected);
            run.run_for(epoch * 50);
            assert_near(mean_window(&mut run, epoch, 50), expected, 0.05);
        }
    }

    #[test]
    fn a_bottleneck_is_used_and_each_loss_reduces_by_30_percent() {
        let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(40), 1.0);
        let mut run = Harness::new(built("cubic", &[], Rate::from_mbps(1_000)), path);
        run.run_for(Span::from_secs(30));
        run.reductions.clear();
        let steady = run.measure(Span::from_secs(120));
        assert!(steady.goodput > Rate::from_mbps(98), "{steady:?}");
        // Only the last 10,000 cuts are kept, including those of pacing.
        assert!(run.window_cuts().len() > 2, "{:?}", run.window_cuts().len());
        run.window_cuts().iter().for_each(|cut| assert_near(cut.window_factor().unwrap(), 0.7, 1e-3));
    }
}
