//! Random decisions and random time spans.

use haul_base::{Bytes, Probability, Rng, Span};
use serde::{Deserialize, Serialize};

use crate::math;
use crate::parcel::Parcel;

/// A probability prepared for frequent draws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    /// Draws below this value are hits, in units of 2^-53.
    threshold: u64,
}

impl Chance {
    pub(crate) fn new(p: Probability) -> Self {
        Self { threshold: (p.get() * (1u64 << 53) as f64) as u64 }
    }

    pub(crate) fn hits(self, rng: &mut Rng) -> bool {
        self.threshold != 0 && rng.next_u64() >> 11 < self.threshold
    }

    /// Draws for each packet of the parcel; bit `i` is set if packet `i` is hit.
    pub(crate) fn draw(self, rng: &mut Rng, parcel: &Parcel) -> u64 {
        if self.threshold == 0 {
            return 0;
        }
        parcel.indices().fold(0, |hit, index| hit | u64::from(self.hits(rng)) << index)
    }
}

/// Distribution of a random time span.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Constant.
    Constant(#[serde(with = "crate::text")] Span),
    /// Uniform from zero to this.
    Uniform(#[serde(with = "crate::text")] Span),
    /// Normal (the sum of twelve uniform numbers), never negative.
    Normal {
        /// Mean of the distribution.
        #[serde(with = "crate::text")]
        mean: Span,
        /// Standard deviation.
        #[serde(with = "crate::text")]
        deviation: Span,
    },
    /// Exponential with this mean.
    Exponential(#[serde(with = "crate::text")] Span),
    /// Pareto: heavy-tailed.
    Pareto {
        /// Mean of the distribution.
        #[serde(with = "crate::text")]
        mean: Span,
        /// Tail index, above 1. Smaller values have heavier tails; below 2 the variance is infinite.
        shape: f64,
    },
}

/// Draws a uniform number in `(0, 1]`.
fn positive_uniform(rng: &mut Rng) -> f64 {
    1.0 - rng.next_f64()
}

/// Draws an exponentially distributed number with mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    -math::ln(positive_uniform(rng))
}

/// Draws a Pareto-distributed number with mean 1 and tail index `shape` above 1.
pub(crate) fn pareto(rng: &mut Rng, shape: f64) -> f64 {
    (shape - 1.0) / shape * math::pow(positive_uniform(rng), -1.0 / shape)
}

impl Distribution {
    /// Draws a span.
    pub fn draw(&self, rng: &mut Rng) -> Span {
        match *self {
            Self::Constant(span) => span,
            Self::Uniform(most) => Span::from_nanos(rng.below(most.as_nanos().saturating_add(1))),
            Self::Normal { mean, deviation } => {
                let twelve = (0..12).fold(0.0, |sum, _| sum + rng.next_f64());
                let nanos = mean.as_nanos() as f64 + (twelve - 6.0) * deviation.as_nanos() as f64;
                Span::from_nanos(nanos.max(0.0) as u64)
            }
            Self::Exponential(mean) => scale(mean, exponential(rng)),
            Self::Pareto { mean, shape } => scale(mean, pareto(rng, shape)),
        }
    }

    /// Describes invalid parameters, if there are any.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self {
            Self::Pareto { shape, .. } if *shape <= 1.0 || !shape.is_finite() => {
                Some("the shape of a Pareto distribution must be above 1, or it has no mean")
            }
            _ => None,
        }
    }
}

fn scale(mean: Span, factor: f64) -> Span {
    Span::from_nanos((mean.as_nanos() as f64 * factor) as u64)
}

/// Draws a Pareto-distributed number of bytes with this mean.
pub(crate) fn pareto_bytes(rng: &mut Rng, mean: Bytes, shape: f64) -> u64 {
    ((mean.0 as f64 * pareto(rng, shape)) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(distribution: Distribution, draws: u64) -> f64 {
        let mut rng = Rng::from_seed(9);
        (0..draws).map(|_| distribution.draw(&mut rng).as_millis_f64()).sum::<f64>() / draws as f64
    }

    #[test]
    fn means_match_the_configuration() {
        let ten = Span::from_millis(10);
        let n = 200_000;
        assert!((mean_of(Distribution::Constant(ten), 10) - 10.0).abs() < 1e-9);
        // Tolerances of five standard errors: 10/sqrt(12 n), 1/sqrt(n), 10/sqrt(n).
        assert!((mean_of(Distribution::Uniform(ten), n) - 5.0).abs() < 0.033);
        let normal = Distribution::Normal { mean: ten, deviation: Span::from_millis(1) };
        assert!((mean_of(normal, n) - 10.0).abs() < 0.012);
        assert!((mean_of(Distribution::Exponential(ten), n) - 10.0).abs() < 0.12);
        let pareto = Distribution::Pareto { mean: ten, shape: 3.0 };
        assert!((mean_of(pareto, n) - 10.0).abs() < 0.1);
    }

    #[test]
    fn probabilities_of_one_and_zero_are_exact() {
        let mut rng = Rng::from_seed(1);
        let chance = |p| Chance::new(Probability::new(p).unwrap());
        assert!((0..1_000).all(|_| chance(1.0).hits(&mut rng)));
        assert!(!(0..1_000).any(|_| chance(0.0).hits(&mut rng)));
    }
}
