//! Accuracy of diagnoses.

use haul_base::Cause;
use serde::Serialize;
use statrs::distribution::{Beta, ContinuousCDF};

use crate::Diagnosis;

/// A proportion, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proportion {
    /// Observed share, 0 to 1; 0 without trials.
    pub found: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Returns the exact 95 % confidence interval of a binomial proportion (Clopper and Pearson, 1934): quantiles
/// of beta distributions. `hits` above `trials` count as `trials`.
pub fn clopper_pearson(hits: u64, trials: u64) -> Proportion {
    let hits = hits.min(trials);
    let (k, n) = (hits as f64, trials as f64);
    let quantile = |a: f64, b: f64, q| Beta::new(a, b).map(|beta| beta.inverse_cdf(q));
    Proportion {
        found: k / n.max(1.0),
        low: if hits == 0 { 0.0 } else { quantile(k, n - k + 1.0, 0.025).unwrap_or(0.0) },
        high: if hits == trials { 1.0 } else { quantile(k + 1.0, n - k, 0.975).unwrap_or(1.0) },
    }
}

/// Counts of the diagnoses of windows with one true cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Confusion {
    /// The diagnosis was correct.
    pub correct: u64,
    /// The diagnosis was the other cause.
    pub wrong: u64,
    /// Neither cause was certain enough.
    pub inconclusive: u64,
    /// The loss rate was outside the model's range.
    pub out_of_range: u64,
}

impl Confusion {
    /// Counts a window whose losses had the cause `truth`.
    pub fn add(&mut self, truth: Cause, diagnosis: &Diagnosis) {
        let count = match (diagnosis.metric, diagnosis.cause()) {
            (None, _) => &mut self.out_of_range,
            (_, Cause::Inconclusive) => &mut self.inconclusive,
            (_, cause) if cause == truth => &mut self.correct,
            _ => &mut self.wrong,
        };
        *count += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.correct += other.correct;
        self.wrong += other.wrong;
        self.inconclusive += other.inconclusive;
        self.out_of_range += other.out_of_range;
    }

    /// Returns the number of windows in the model's range.
    pub fn in_range(&self) -> u64 {
        self.correct + self.wrong + self.inconclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;

    #[test]
    fn intervals_match_published_tables() {
        // R: binom.test(k, n)$conf.int
        for (hits, trials, low, high) in [
            (0, 10, 0.0, 0.308_497_1),
            (10, 10, 0.691_502_9, 1.0),
            (2, 1_000, 0.000_242_299_1, 0.007_205_773),
            (50, 100, 0.398_321_1, 0.601_678_9),
        ] {
            let found = clopper_pearson(hits, trials);
            assert!(
                (found.low - low).abs() < 2e-6 && (found.high - high).abs() < 2e-6,
                "{hits}/{trials}: {found:?}"
            );
        }
        assert_eq!(clopper_pearson(0, 0), Proportion { found: 0.0, low: 0.0, high: 1.0 });
    }

    #[test]
    fn windows_are_counted_by_verdict() {
        let diagnosis = |metric, p_host| Diagnosis { metric, p_host };
        let mut host = Confusion::default();
        let by = Some(Metric::Complexity);
        for diagnosis in [
            diagnosis(by, 1.0),
            diagnosis(by, 0.95),
            diagnosis(by, 0.02),
            diagnosis(by, 0.5),
            diagnosis(None, 0.5),
        ] {
            host.add(Cause::ReceiverHost, &diagnosis);
        }
        let expected = Confusion { correct: 2, wrong: 1, inconclusive: 1, out_of_range: 1 };
        assert_eq!((host, host.in_range()), (expected, 4));
    }
}
