//! Scalable TCP (Kelly, CCR 33(2), 2003): `w += a` per acknowledged packet, `w -= b w` after a loss event, so
//! that recovery takes the same number of round trips at every rate.
//!
//! With one loss per `1/p` packets the window before a loss is `(a / b) / p`, 0.08 / p, and its time average
//! is lower by the factor `b / -ln(1 - b)`, 0.0749 / p. Both hold if packets acknowledged during recovery
//! count, which they do here: the derivation counts them, while the paper's text is unclear ("a round trip in
//! which congestion has not been detected"). Below the legacy window it behaves as Reno (section 3 of the
//! paper).

use haul_stack::{Configuration as _, configuration};

use super::LawRegistration;
use super::window::{Formula, WindowInput, Windowed, initial_window, longer_path};

configuration! {
    /// Parameters of `scalable`.
    pub struct ScalableConfig: "scalable" {
        initial_window: u64 = initial_window;
        gain: f64 in (0.0001, 1.0) = "0.01", "growth per acknowledged packet (the paper's a)";
        reduction: f64 in (0.01, 0.99) = "0.125", "relative decrease of the window after a loss (the paper's b)";
        legacy_window: f64 in (0.0, 1e6) = "16", "window in packets up to which it responds as TCP Reno";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "scalable",
    version: 1,
    summary: "increases by 0.01 packets per acknowledged packet, decreases by an eighth after losses",
    source: "Scalable TCP (Kelly, CCR 33(2), 2003)",
    parameters: ScalableConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: ScalableConfig = parameters.read();
        let formula = Scalable {
            gain: parameters.gain,
            reduction: parameters.reduction,
            legacy: parameters.legacy_window,
        };
        Ok(Box::new(
            Windowed::new(formula, parameters.initial_window, config)
                .with_longer_path(parameters.longer_path),
        ))
    },
};

#[derive(Debug)]
struct Scalable {
    gain: f64,
    reduction: f64,
    legacy: f64,
}

impl Formula for Scalable {
    fn avoid_congestion(&mut self, window: f64, input: &WindowInput<'_>) -> f64 {
        let gain = if window > self.legacy { self.gain } else { 1.0 / window };
        window + gain * input.acked
    }

    fn shrink(&mut self, window: f64) -> f64 {
        window * if window > self.legacy { 1.0 - self.reduction } else { 0.5 }
    }

    fn grows_in_recovery(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};

    use super::super::testing::{Harness, PathModel, assert_near, built};

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    #[test]
    fn the_window_before_a_loss_is_a_over_b_p_and_each_loss_reduces_it_by_an_eighth() {
        for n in [1_000, 10_000, 100_000] {
            let mut run = Harness::new(built("scalable", &[], UNBOUNDED), PathModel::lossy(n));
            run.run_for(Span::from_secs(60));
            run.reductions.clear();
            let steady = run.measure(Span::from_secs(60));
            let expected = 0.01 / 0.125 * n as f64;
            assert_near(steady.mean_window.unwrap(), expected * 0.125 / -(0.875f64.ln()), 0.05);
            assert!(run.window_cuts().len() > 20, "{}", run.window_cuts().len());
            for cut in &run.window_cuts() {
                assert_near(cut.before.window.unwrap() as f64 / 1_472.0, expected, 0.05);
                assert_near(cut.window_factor().unwrap(), 0.875, 2e-3);
            }
        }
    }

    #[test]
    fn below_the_legacy_window_it_behaves_like_reno() {
        let mut run = Harness::new(built("scalable", &[], UNBOUNDED), PathModel::lossy(20));
        run.run_for(Span::from_secs(30));
        run.reductions.clear();
        run.run_for(Span::from_secs(30));
        assert!(!run.window_cuts().is_empty());
        assert!(
            run.window_cuts().iter().all(|cut| cut.window_factor().unwrap() < 0.55),
            "{:?}",
            run.reductions
        );
    }
}
