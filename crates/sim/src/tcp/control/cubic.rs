//! CUBIC (RFC 9438) with `HyStart`.

use haul_base::{Rate, Span, Time};

use super::hystart::{Hystart, HystartConfig};
use super::{AckSample, Control, LossSample};

/// Constants of CUBIC.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CubicConfig {
    /// `C`, in segments per cubic second: 0.4 (RFC 9438, section 5).
    pub c: f64,
    /// Factor applied to the window on a loss: 0.7.
    pub beta: f64,
    /// Whether a shrinking flow releases more bandwidth (fast convergence, section 4.7).
    pub fast_convergence: bool,
    /// Whether the Reno-friendly region grows by one segment per round trip above the window before the last
    /// loss (section 4.3). Linux's `tcp_cubic.c` does not do so.
    pub reno_above: bool,
    /// Minimum growth per round trip, as a share of the window, for a flow that has left slow start without a
    /// loss: 1/20 in Linux, none in the RFC.
    pub exploring: f64,
    /// How slow start ends before a loss; `None` if it does not.
    pub hystart: Option<HystartConfig>,
}

impl Default for CubicConfig {
    fn default() -> Self {
        Self {
            c: 0.4,
            beta: 0.7,
            fast_convergence: true,
            reno_above: false,
            exploring: 0.05,
            hystart: Some(HystartConfig::default()),
        }
    }
}

/// Minimum window after a loss (section 4.6).
const MIN_WINDOW: f64 = 2.0;

/// Returns the cube root of a non-negative number by Newton's method: the four basic operations give the same
/// result everywhere, a library's `cbrt` does not.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = x.max(1.0);
    for _ in 0..200 {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        // Started from above, the sequence falls until rounding stops it.
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

/// Returns `K`: seconds of an epoch from window `start` until the window is `max` again (equation 2).
pub fn cubic_k(max: f64, start: f64, c: f64) -> f64 {
    cube_root((max - start) / c)
}

/// Returns `W_cubic(t)`: the window `t` seconds into an epoch (equation 1).
pub fn cubic_window(t: f64, k: f64, max: f64, c: f64) -> f64 {
    let past = t - k;
    c * past * past * past + max
}

/// The time between two losses.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    k: f64,
    /// Window of the plateau.
    origin: f64,
    /// Reno's window in the same situation (section 4.3).
    estimate: f64,
}

/// Window as a cubic function of the time since the last loss.
#[derive(Clone, Debug)]
pub struct Cubic {
    config: CubicConfig,
    window: f64,
    threshold: f64,
    /// Plateau determined by the last loss; zero before the first one.
    max: f64,
    /// Window before the last loss.
    prior: f64,
    least_rtt: Option<Span>,
    epoch: Option<Epoch>,
    hystart: Option<Hystart>,
}

impl Cubic {
    /// Creates the law in slow start, with `initial` segments.
    pub fn new(config: CubicConfig, initial: u64) -> Self {
        Self {
            config,
            window: initial as f64,
            threshold: f64::INFINITY,
            max: 0.0,
            prior: 0.0,
            least_rtt: None,
            epoch: None,
            hystart: config.hystart.map(Hystart::new),
        }
    }

    fn slow_start(&mut self, ack: &AckSample) {
        self.window = (self.window + ack.acked as f64).min(self.threshold.max(self.window));
        let window = self.window as u64;
        let ends = |hystart: &mut Hystart| hystart.on_ack(ack.now, ack.rtt, ack.round_start, window);
        if self.hystart.as_mut().is_some_and(ends) {
            self.threshold = self.window;
        }
    }

    fn avoidance(&mut self, ack: &AckSample) {
        let CubicConfig { c, beta, reno_above, exploring, .. } = self.config;
        let acked = ack.acked as f64;
        let epoch = self.epoch.get_or_insert_with(|| {
            // No loss has shown a maximum above this window, so the plateau is here.
            let origin = self.max.max(self.window);
            Epoch { start: ack.now, k: cubic_k(origin, self.window, c), origin, estimate: self.window }
        });
        let t = ack.now.since(epoch.start).as_secs_f64();
        // Section 4.3: as fast as Reno with this decrease factor.
        let alpha =
            if reno_above && epoch.estimate >= self.prior { 1.0 } else { 3.0 * (1.0 - beta) / (1.0 + beta) };
        epoch.estimate += alpha * acked / self.window;
        let step = if cubic_window(t, epoch.k, epoch.origin, c) < epoch.estimate {
            epoch.estimate - self.window
        } else {
            // Sections 4.4 and 4.5: target the function's value one round trip ahead, at most 1.5 times the
            // window. Linux uses the minimum round-trip time for this.
            let ahead = t + self.least_rtt.unwrap_or(Span::ZERO).as_secs_f64();
            let target = cubic_window(ahead, epoch.k, epoch.origin, c).clamp(self.window, 1.5 * self.window);
            acked * (target - self.window) / self.window
        };
        let least = if self.max > 0.0 { 0.0 } else { exploring };
        self.window += step.max(acked * least);
    }

    fn reduce(&mut self) {
        // Windows are whole segments: on a lossy path they are only a few segments.
        self.window = self.window.floor();
        self.epoch = None;
        self.prior = self.window;
        self.max = if self.config.fast_convergence && self.window < self.max {
            self.window * f64::midpoint(1.0, self.config.beta)
        } else {
            self.window
        };
        // The epsilon prevents 0.7 * 10 from being rounded down to 6.
        self.threshold = (self.window * self.config.beta + 1e-6).floor().max(MIN_WINDOW);
    }
}

impl Control for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn on_ack(&mut self, ack: &AckSample) {
        self.least_rtt = self.least_rtt.into_iter().chain(ack.rtt).min();
        if ack.recovering || !ack.window_limited {
            return;
        }
        if self.window < self.threshold {
            self.slow_start(ack);
        } else {
            self.avoidance(ack);
        }
    }

    fn on_loss(&mut self, _: &LossSample) {
        self.reduce();
        self.window = self.threshold;
    }

    fn on_recovered(&mut self, _: Time) {}

    fn on_timeout(&mut self, _: Time) {
        self.reduce();
        self.window = 1.0;
    }

    fn window(&self) -> u64 {
        (self.window as u64).max(1)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    fn phase(&self) -> &'static str {
        if self.window < self.threshold { "slow start" } else { "avoidance" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_matches_the_rfc() {
        // W_max 100, loss to 70: K = cbrt(30 / 0.4) = 4.2172.
        let k = cubic_k(100.0, 70.0, 0.4);
        assert!((k - 4.217_163).abs() < 1e-6, "{k}");
        let literals =
            [(0.0, 70.0), (2.0, 95.640_34), (4.217_163, 100.0), (6.217_163, 103.2), (14.217_163, 500.0)];
        for (t, window) in literals {
            let got = cubic_window(t, k, 100.0, 0.4);
            assert!((got - window).abs() < 0.001, "{t} s: {got}, not {window}");
        }
    }

    #[test]
    fn cube_roots_are_correct_and_never_of_negative_numbers() {
        for x in [1e-9, 0.5, 1.0, 8.0, 27.0, 75.0, 1e6, 1e12] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-12, "{x}: {root}");
        }
        assert!(cube_root(-1.0).abs() < f64::EPSILON);
    }

    fn ack(now: Time, acked: u64) -> AckSample {
        let rtt = Some(Span::from_millis(100));
        AckSample {
            now,
            acked,
            rtt,
            srtt: rtt,
            lost: 0,
            in_flight: 0,
            delivered: 0,
            rate: None,
            round_start: false,
            recovering: false,
            window_limited: true,
        }
    }

    #[test]
    fn the_window_follows_the_function() {
        let mut cubic = Cubic::new(CubicConfig { hystart: None, ..CubicConfig::default() }, 1_000);
        cubic.on_loss(&LossSample { now: Time::ZERO, in_flight: 900, acked: 1 });
        assert_eq!(cubic.window(), 700);
        // 100 acknowledgements per second, each of 0.1 windows.
        let k = cubic_k(1_000.0, 700.0, 0.4);
        for n in 0..1_500u64 {
            let now = Time::ZERO + Span::from_millis(10 * n);
            let acked = cubic.window() / 10;
            cubic.on_ack(&ack(now, acked));
            let t = 0.01 * n as f64;
            if n > 50 {
                let expected = cubic_window(t + 0.1, k, 1_000.0, 0.4);
                let error = cubic.window() as f64 / expected - 1.0;
                assert!(error.abs() < 0.02, "{t} s: {} for {expected}", cubic.window());
            }
        }
    }

    #[test]
    fn without_a_loss_the_window_grows_by_5_percent_per_round_trip() {
        let config = CubicConfig { hystart: None, ..CubicConfig::default() };
        // 5 % of 100, or the 0.53 segments that the Reno-friendly region adds.
        for (exploring, window) in [(0.05, 104), (0.0, 100)] {
            let mut cubic = Cubic::new(CubicConfig { exploring, ..config }, 100);
            cubic.threshold = 100.0;
            // 100 acknowledgements in a round trip of 0.1 s; so near its plateau the function itself adds
            // nothing.
            (0..100).for_each(|n| cubic.on_ack(&ack(Time::ZERO + Span::from_millis(n), 1)));
            assert_eq!(cubic.window(), window);
        }
        // After a loss it follows the function.
        let mut cubic = Cubic::new(config, 1_000);
        cubic.on_loss(&LossSample { now: Time::ZERO, in_flight: 900, acked: 1 });
        cubic.on_ack(&ack(Time::ZERO + Span::from_secs(9), 700));
        assert!(cubic.window() < 735, "{}", cubic.window());
    }

    #[test]
    fn the_reno_friendly_part_is_slower_than_reno_by_default() {
        // 10 segments, a loss, then 60 round trips of 1 ms, in which the function stays flat.
        for (reno_above, least, most) in [(false, 36, 39), (true, 60, 66)] {
            let config = CubicConfig { hystart: None, reno_above, ..CubicConfig::default() };
            let mut cubic = Cubic::new(config, 10);
            cubic.on_loss(&LossSample { now: Time::ZERO, in_flight: 9, acked: 1 });
            assert_eq!(cubic.window(), 7);
            for n in 0..60 {
                let acked = cubic.window();
                cubic.on_ack(&ack(Time::ZERO + Span::from_millis(n), acked));
            }
            // 7 + 60 * 0.529 = 38.8; above 10, one segment per round trip.
            assert!((least..=most).contains(&cubic.window()), "{}", cubic.window());
        }
    }

    #[test]
    fn a_shrinking_flow_yields_capacity_to_others() {
        let loss = LossSample { now: Time::ZERO, in_flight: 0, acked: 0 };
        let mut cubic = Cubic::new(CubicConfig::default(), 100);
        cubic.on_loss(&loss);
        assert!((cubic.max - 100.0).abs() < 1e-9);
        cubic.on_loss(&loss);
        // 70 is below 100: the plateau will be at 70 * 0.85.
        assert!((cubic.max - 59.5).abs() < 1e-9 && cubic.window() == 49);
    }
}
