//! TFRC (RFC 5348): the rate of TCP Reno at the loss event rate, by the equation of section 3.1.
//!
//! ```text
//! X = s / (R sqrt(2 b p / 3) + t_RTO (3 sqrt(3 b p / 8)) p (1 + 32 p^2)),  t_RTO = 4 R, b = 1
//! ```
//!
//! Loss intervals as in section 5.4; what other equations share is in [`super::equation`]. Not implemented,
//! as the RFC permits: history discounting (section 5.5) and oscillation reduction (section 4.5). The limit
//! of twice the receive rate (section 4.3), which the RFC requires, is missing, too: instead, the window
//! bounds the bytes in flight on a path that delivers less.

use haul_stack::{Configuration as _, configuration};

use super::LawRegistration;
use super::equation::{Equation, Response};
use super::window::{MAX_PACKETS, initial_window, longer_path};

configuration! {
    /// Parameters of `tfrc`.
    pub struct TfrcConfig: "tfrc" {
        initial_window: u64 = initial_window;
        intervals: usize in (2, 1_000) = "8", "loss intervals averaged (RFC 5348: 8)";
        timeout: f64 in (1.0, 100.0) = "4", "TCP's retransmission timeout in round trips (RFC 5348: 4)";
        longer_path: bool = longer_path;
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "tfrc",
    version: 1,
    summary: "the rate of TCP Reno at the long-term loss rate, smoothed",
    source: "RFC 5348",
    parameters: TfrcConfig::PARAMETERS,
    build: |parameters, config| {
        let parameters: TfrcConfig = parameters.read();
        let response = Tfrc { timeout: parameters.timeout };
        Ok(Box::new(
            Equation::new(response, parameters.intervals, parameters.initial_window, config)
                .with_longer_path(parameters.longer_path),
        ))
    },
};

#[derive(Debug)]
struct Tfrc {
    /// Timeout in round trips.
    timeout: f64,
}

impl Response for Tfrc {
    fn window(&self, p: f64) -> f64 {
        let timeouts = self.timeout * 3.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p);
        // A window of less than one packet is a correspondingly low rate.
        (1.0 / ((2.0 * p / 3.0).sqrt() + timeouts)).clamp(0.001, MAX_PACKETS)
    }

    /// Bisects the exponent, as the window falls with `p`.
    fn loss_for(&self, window: f64) -> f64 {
        let (mut low, mut high) = (-12.0, 0.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.window(10f64.powf(middle)) > window { low = middle } else { high = middle }
        }
        10f64.powf(high)
    }

    fn phase(&self, _: f64) -> &'static str {
        "equation"
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Rate, Span};

    use super::super::testing::{Harness, PathModel, assert_near, built};
    use super::*;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    /// RFC 5348, section 3.1, for s = 1 packet and R = 1 s.
    fn equation(p: f64) -> f64 {
        1.0 / ((2.0 * p / 3.0).sqrt() + 12.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p.powi(2)))
    }

    #[test]
    fn the_equation_and_its_inverse_agree() {
        let tfrc = Tfrc { timeout: 4.0 };
        // At rare losses it equals Reno's; at 1 % the timeouts cost 9 %.
        assert_near(tfrc.window(1e-6), 1.5e6f64.sqrt(), 1e-4);
        assert_near(tfrc.window(0.01), 11.23, 1e-3);
        for p in [1e-6, 1e-4, 1e-2, 0.1, 0.5] {
            assert_near(tfrc.window(p), equation(p), 1e-9);
            assert_near(tfrc.loss_for(tfrc.window(p)), p, 1e-6);
        }
    }

    #[test]
    fn the_rate_matches_the_equation_for_periodic_losses() {
        for n in [100, 1_000, 10_000, 100_000] {
            let mut run = Harness::new(built("tfrc", &[], UNBOUNDED), PathModel::lossy(n));
            let expected = equation(1.0 / n as f64);
            run.run_for(Span::from_secs_f64(20.0 + 14.0 * n as f64 / expected * 0.1));
            let steady = run.measure(Span::from_secs(60));
            let in_flight = steady.mean_rate.bytes_in(Span::from_millis(100)) as f64 / 1_472.0;
            assert_near(in_flight, expected, 0.05);
        }
    }
}
