//! FAST TCP (Wei, Jin, Low, Hegde: IEEE/ACM Transactions on Networking 14(6), 2006, equation 3): each round
//! trip `w = min(2 w, (1 - g) w + g (baseRTT / RTT w + a))`. In equilibrium each flow has `a` packets in the
//! queue.
//!
//! `baseRTT` is the minimum round-trip time, as in the paper, with one deviation. A round-trip time that
//! doubles in one step and stays so for a second and four round trips belongs to a longer path
//! ([`LongerPath`]): no queue fills so fast. Then slow start runs until a queue shows. After 10 s without
//! feedback the base is measured anew, as by a new flow. `longer_path = false` disables both. Losses halve
//! the window, as in the authors' implementation. `RTT` is the smoothed round-trip time; the paper only says
//! that it is an average.

use haul_base::{Span, Time};
use haul_stack::{Configuration as _, configuration};

use super::LawRegistration;
use super::window::{Formula, WindowInput, Windowed, initial_window, longer_path};
use crate::longer_path::LongerPath;
use crate::rtt::MIN_RTT_WINDOW;

configuration! {
    /// Parameters of `fast`.
    pub struct FastConfig: "fast" {
        initial_window: u64 = initial_window;
        alpha: f64 in (1.0, 1e6) = "200", "packets kept in the queue (the paper's a)";
        gamma: f64 in (0.01, 1.0) = "0.5", "fraction of the way to the target window per round trip";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "fast",
    version: 1,
    summary: "keeps a given number of its packets in the queue, measured by the round-trip time",
    source: "FAST TCP (Wei et al., IEEE/ACM Trans. Networking 14(6), 2006)",
    parameters: FastConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: FastConfig = parameters.read();
        let formula = Fast {
            alpha: parameters.alpha,
            gamma: parameters.gamma,
            base: Span::MAX,
            update_at: Time::ZERO,
            sampled_at: Time::ZERO,
            path: parameters.longer_path.then(LongerPath::default),
            in_slow_start: false,
        };
        Ok(Box::new(Windowed::new(formula, parameters.initial_window, config)))
    },
};

/// Extra delay that shows a queue, as a fraction of the path's delay (RFC 9406, section 4.2).
const QUEUE_DIVISOR: u64 = 8;

#[derive(Debug)]
struct Fast {
    alpha: f64,
    gamma: f64,
    base: Span,
    update_at: Time,
    sampled_at: Time,
    /// `None` if the base is the overall minimum.
    path: Option<LongerPath>,
    /// The path has become longer: the window doubles each round trip until a queue shows.
    in_slow_start: bool,
}

impl Fast {
    fn next(&self, window: f64, base: f64, rtt: f64) -> f64 {
        let target = base / rtt * window + self.alpha;
        ((1.0 - self.gamma) * window + self.gamma * target).min(2.0 * window)
    }
}

impl Formula for Fast {
    fn observe(&mut self, input: &WindowInput<'_>) {
        let silent = input.now.since(std::mem::replace(&mut self.sampled_at, input.now));
        if let Some(path) = &mut self.path {
            if silent > MIN_RTT_WINDOW {
                self.base = Span::MAX;
            } else if let Some(rise) = path.rise(input.sample).filter(|rise| rise.at_once > self.base) {
                (self.base, self.in_slow_start) = (self.base + rise.delay, true);
            }
        }
        self.base = self.base.min(input.rtt.latest()).max(Span::from_micros(1));
        self.in_slow_start &= input.rtt.latest() <= self.base + self.base / QUEUE_DIVISOR;
    }

    fn avoid_congestion(&mut self, window: f64, input: &WindowInput<'_>) -> f64 {
        if input.now < self.update_at {
            return window;
        }
        let rtt = input.rtt.smoothed().max(self.base);
        self.update_at = input.now + rtt;
        if self.in_slow_start {
            return 2.0 * window;
        }
        self.next(window, self.base.as_secs_f64(), rtt.as_secs_f64())
    }

    fn shrink(&mut self, window: f64) -> f64 {
        self.in_slow_start = false;
        window / 2.0
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;

    use super::super::testing::{Harness, PathModel, assert_near, built};
    use super::*;

    #[test]
    fn the_update_is_that_of_the_paper() {
        let (base, update_at, sampled_at) = (Span::MAX, Time::ZERO, Time::ZERO);
        let fast =
            Fast { alpha: 200.0, gamma: 0.5, base, update_at, sampled_at, path: None, in_slow_start: false };
        assert_near(fast.next(1_000.0, 0.1, 0.125), 500.0 + 0.5 * (800.0 + 200.0), 1e-9);
        assert_near(fast.next(10.0, 0.1, 0.1), 20.0, 1e-9);
        assert_near(fast.next(1_000.0, 0.1, 0.1), 1_100.0, 1e-9);
    }

    #[test]
    fn in_equilibrium_alpha_packets_are_queued_and_none_is_lost() {
        for (alpha, mbps) in [(50.0, 100), (200.0, 1_000)] {
            let path = PathModel::bottleneck(Rate::from_mbps(mbps), Span::from_millis(50), 1.0);
            let alpha_text = alpha.to_string();
            let law = built("fast", &[("alpha", &alpha_text)], Rate::from_mbps(100_000));
            let mut run = Harness::new(law, path.clone());
            run.run_for(Span::from_secs(60));
            let steady = run.measure(Span::from_secs(60));
            let queued = steady.mean_rtt.saturating_sub(path.rtt).as_secs_f64()
                * path.capacity.as_bps() as f64
                / 8.0
                / 1_472.0;
            assert_near(queued, alpha, 0.05);
            assert_eq!(steady.lost, 0);
            assert!(steady.goodput > path.capacity.mul_f64(0.99), "{steady:?}");
        }
    }

    /// Share of 20 Mbit/s from 3 to 6 s after the round-trip time has grown from 20 to 200 ms, with the
    /// sender silent for `silent` before.
    fn on_longer_path(longer_path: &str, silent: Span) -> f64 {
        let path = PathModel::bottleneck(Rate::from_mbps(20), Span::from_millis(20), 20.0);
        let law = built("fast", &[("longer_path", longer_path), ("alpha", "20")], Rate::from_mbps(100));
        let mut run = Harness::new(law, path.clone());
        run.run_for(Span::from_secs(10));
        run.now += silent;
        run.path.rtt = path.rtt * 10;
        run.run_for(Span::from_secs(3));
        run.measure(Span::from_secs(3)).goodput.as_bps() as f64 / path.capacity.as_bps() as f64
    }

    #[test]
    fn a_longer_path_is_filled_again_but_the_papers_rule_sees_a_queue() {
        assert!(on_longer_path("true", Span::ZERO) > 0.8);
        assert!(on_longer_path("false", Span::ZERO) < 0.3);
    }

    #[test]
    fn losses_halve_the_window() {
        let mut run = Harness::new(built("fast", &[], Rate::from_mbps(1_000_000)), PathModel::lossy(100_000));
        run.run_for(Span::from_secs(60));
        run.reductions.clear();
        run.run_for(Span::from_secs(60));
        assert!(!run.window_cuts().is_empty());
        run.window_cuts().iter().for_each(|cut| assert_near(cut.window_factor().unwrap(), 0.5, 1e-3));
    }
}
