//! TCP Reno's response as used by QUIC (RFC 5681, RFC 6582; RFC 9002, section 7): the window grows by one
//! packet per round trip and halves after a loss event. With one loss per `1/p` packets the mean window is
//! `sqrt(3 / (2 p))` (with RFC 5681's growth by bytes acknowledged: `b` = 1 in the formula of Mathis et al.,
//! 1997).

use haul_stack::{Configuration as _, configuration};

use super::LawRegistration;
use super::window::{Formula, WindowInput, Windowed, initial_window, longer_path};

configuration! {
    /// Parameters of `reno`.
    pub struct RenoConfig: "reno" {
        initial_window: u64 = initial_window;
        increase: f64 in (0.001, 1_000.0) = "1", "window increase per round trip, in packets";
        decrease: f64 in (0.01, 0.99) = "0.5", "factor of the window after a loss event";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "reno",
    version: 1,
    summary: "one more packet per round trip, half the window after a loss",
    source: "RFC 5681, RFC 6582 and RFC 9002, section 7",
    parameters: RenoConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: RenoConfig = parameters.read();
        let formula = Reno { increase: parameters.increase, decrease: parameters.decrease };
        Ok(Box::new(
            Windowed::new(formula, parameters.initial_window, config)
                .with_longer_path(parameters.longer_path),
        ))
    },
};

#[derive(Debug)]
struct Reno {
    increase: f64,
    decrease: f64,
}

impl Formula for Reno {
    fn avoid_congestion(&mut self, window: f64, input: &WindowInput<'_>) -> f64 {
        window + self.increase * input.acked / window
    }

    fn shrink(&mut self, window: f64) -> f64 {
        window * self.decrease
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};

    use super::super::testing::{Harness, PathModel, assert_near, built};

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    #[test]
    fn renos_window_is_the_square_root_of_three_over_two_p() {
        for n in [1_000, 10_000, 100_000] {
            let expected = (1.5 * n as f64).sqrt();
            let mut run = Harness::new(built("reno", &[], UNBOUNDED), PathModel::lossy(n));
            run.run_for(Span::from_secs_f64(expected * 2.0));
            run.reductions.clear();
            let steady = run.measure(Span::from_secs_f64(expected * 2.0));
            assert_near(steady.mean_window.unwrap(), expected, 0.05);
            assert!(run.window_cuts().len() > 5, "{:?}", run.window_cuts().len());
            for cut in &run.window_cuts() {
                assert_near(cut.window_factor().unwrap(), 0.5, 1e-3);
            }
        }
    }
}
