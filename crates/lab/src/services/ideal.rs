//! Turn-around time of the recipe `msg` under ideal conditions: its repeat policy knows the path, the round
//! trip is constant, hosts take no time, and losses are independent.

/// Minimum margin of a timeout above the round trip, and timeouts before they double, as in `positive_ack`.
const GRANULARITY_MS: f64 = 0.5;
const LINEAR: i32 = 6;
/// Longer runs of losses are negligible.
const MOST: i32 = 40;

/// Round-trip time, and loss probability in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ideal {
    rtt_ms: f64,
    loss: f64,
}

impl Ideal {
    pub(super) fn new(rtt_ms: f64, loss: f64) -> Self {
        Self { rtt_ms, loss }
    }

    /// Returns the time from transmission `k` of a packet to the next, milliseconds.
    fn wait(self, k: i32) -> f64 {
        (self.rtt_ms + GRANULARITY_MS) * f64::from(1 << (k - LINEAR).clamp(0, 20))
    }

    /// Returns the mean, milliseconds: a round trip, plus the expected retransmission waits in both
    /// directions.
    pub(super) fn mean(self) -> f64 {
        let late: f64 = (1..MOST).map(|k| self.loss.powi(k) * self.wait(k)).sum();
        self.rtt_ms + 2.0 * late
    }

    /// Returns the `q`-quantile of turn-around times, milliseconds.
    pub(super) fn quantile(self, q: f64) -> f64 {
        let late = |lost: i32| (1..=lost).map(|k| self.wait(k)).sum::<f64>();
        let turn = |there: i32, back: i32| {
            let share = (1.0 - self.loss).powi(2) * self.loss.powi(there + back);
            (self.rtt_ms + late(there) + late(back), share)
        };
        let mut turns: Vec<_> =
            (0..MOST).flat_map(|there| (0..MOST).map(move |back| turn(there, back))).collect();
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut below = 0.0;
        let reaches = |&&(_, share): &&(f64, f64)| {
            below += share;
            below >= q - 1e-12
        };
        turns.iter().find(reaches).map_or(f64::INFINITY, |turn| turn.0)
    }
}

/// Table that compares `msg` with its ideal.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    lines: Vec<String>,
}

impl Comparison {
    /// Adds a row: a point of the table, a carrier, and its mean and 99 % quantile, milliseconds.
    pub(super) fn add(&mut self, (rtt_ms, percent): (u64, f64), name: &str, [mean, p99]: [f64; 2]) {
        let ideal = Ideal::new(rtt_ms as f64, percent / 100.0);
        let (best, best_p99) = (ideal.mean(), ideal.quantile(0.99));
        self.lines.push(format!(
            "| {rtt_ms} | {percent}% | {name} | {mean:.3} | {best:.3} | {:.3} | {p99:.2} | {best_p99:.2} | {:.3} |",
            mean / best,
            p99 / best_p99
        ));
    }

    /// Prints the table, unless it is empty because `msg` was not measured.
    pub(super) fn print(&self) {
        if self.lines.is_empty() {
            return;
        }
        println!(
            "\nCompared with the ideal of the retransmission policy, ms: only the path takes time, and losses are independent\n"
        );
        println!("| RTT ms | loss each way | carrier | mean | ideal | ratio | 99 % | ideal | ratio |");
        println!("|---|---|---|---|---|---|---|---|---|\n{}", self.lines.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use haul_proto::config::PositiveAckConfig;
    use haul_proto::presets::preset;

    use super::*;

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-3
    }

    #[test]
    fn without_loss_the_ideal_is_the_round_trip() {
        let ideal = Ideal::new(60.0, 0.0);
        assert!(is_near(ideal.mean(), 60.0) && is_near(ideal.quantile(0.99), 60.0));
    }

    /// The simulated turn-around times of `docs/performance.md` are compared with these values.
    #[test]
    fn the_ideal_matches_the_simulators_reference() {
        for (rtt, loss, mean, p99) in [
            (1.0, 0.01, 1.030, 2.5),
            (1.0, 0.02, 1.061, 2.5),
            (1.0, 0.10, 1.333, 4.0),
            (60.0, 0.05, 66.368, 120.5),
            (60.0, 0.10, 73.444, 181.0),
        ] {
            let ideal = Ideal::new(rtt, loss);
            assert!(is_near(ideal.mean(), mean), "{ideal:?}: {}", ideal.mean());
            assert!(is_near(ideal.quantile(0.99), p99), "{ideal:?}: {}", ideal.quantile(0.99));
        }
    }

    /// By integration: the mean of a thousand quantiles equals the mean.
    #[test]
    fn the_quantiles_match_the_mean() {
        for loss in [0.05, 0.3] {
            let ideal = Ideal::new(1.0, loss);
            let drawn: f64 = (0..1_000).map(|n| ideal.quantile((f64::from(n) + 0.5) / 1_000.0)).sum();
            let mean = drawn / 1_000.0;
            assert!((mean / ideal.mean() - 1.0).abs() < 0.01, "{mean} and {}", ideal.mean());
        }
    }

    #[test]
    fn the_policy_matches_the_recipe() {
        let recipe = preset("msg").unwrap().unwrap();
        let PositiveAckConfig { granularity, linear } = recipe.configuration().unwrap();
        assert_eq!((granularity.as_secs_f64() * 1e3, i32::from(linear)), (GRANULARITY_MS, LINEAR));
    }
}
