//! The Shapiro-Wilk test of normality.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};

/// The result of the test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Normality {
    /// The statistic W, up to 1; the lower, the less normal.
    pub w: f64,
    /// Probability of a W this low for normally distributed numbers.
    pub p: f64,
}

/// Sample sizes for which the approximation is valid.
const COUNTS: std::ops::RangeInclusive<usize> = 3..=5_000;

/// `c[0] + c[1] x + c[2] x^2 ...`
fn polynomial(c: &[f64], x: f64) -> f64 {
    c.iter().rev().fold(0.0, |sum, factor| sum * x + factor)
}

/// Returns the weights of the upper half of the sorted numbers, outermost first (Royston 1992: normal scores,
/// the outer ones from polynomials in 1/sqrt(n)).
fn weights(n: usize, normal: &Normal) -> Vec<f64> {
    if n == 3 {
        return vec![0.5f64.sqrt()];
    }
    let score = |i: usize| -normal.inverse_cdf((i as f64 + 0.625) / (n as f64 + 0.25));
    let scores: Vec<f64> = (0..n / 2).map(score).collect();
    let squares = 2.0 * scores.iter().map(|m| m * m).sum::<f64>();
    let u = 1.0 / (n as f64).sqrt();
    let outer = [
        polynomial(&[0.0, 0.221_157, -0.147_981, -2.071_190, 4.434_685, -2.706_056], u),
        polynomial(&[0.0, 0.042_981, -0.293_762, -1.752_461, 5.682_633, -3.582_633], u),
    ];
    let count = if n > 5 { 2 } else { 1 };
    let mut weights: Vec<f64> = (0..count).map(|i| outer[i] + scores[i] / squares.sqrt()).collect();
    let rest = |all: f64, values: &[f64]| all - 2.0 * values[..count].iter().map(|v| v * v).sum::<f64>();
    let scale = (rest(squares, &scores) / rest(1.0, &weights)).sqrt();
    weights.extend(scores[count..].iter().map(|m| m / scale));
    weights
}

/// Returns the probability of a W this low (Royston 1995, algorithm AS R94).
fn probability(w: f64, n: usize, normal: &Normal) -> f64 {
    if n == 3 {
        let p = 6.0 / std::f64::consts::PI * (w.sqrt().asin() - std::f64::consts::FRAC_PI_3);
        return p.clamp(0.0, 1.0);
    }
    let (y, n) = ((1.0 - w).ln(), n as f64);
    let (y, mean, deviation) = if n <= 11.0 {
        let gamma = polynomial(&[-2.273, 0.459], n);
        if y >= gamma {
            return 0.0;
        }
        let deviation = polynomial(&[1.3822, -0.778_57, 0.062_767, -0.002_032_2], n).exp();
        (-(gamma - y).ln(), polynomial(&[0.544, -0.399_78, 0.025_054, -6.714e-4], n), deviation)
    } else {
        let x = n.ln();
        let deviation = polynomial(&[-0.4803, -0.082_676, 0.003_030_2], x).exp();
        (y, polynomial(&[-1.5861, -0.310_82, -0.083_751, 0.003_891_5], x), deviation)
    };
    normal.sf((y - mean) / deviation)
}

/// Tests 3 to 5,000 numbers that are not all equal; returns `None` for others.
pub fn shapiro_wilk(numbers: &[f64]) -> Option<Normality> {
    let n = numbers.len();
    let mut ordered = numbers.to_vec();
    ordered.sort_by(f64::total_cmp);
    let (least, most) = (ordered.first()?, ordered.last()?);
    let is_spread = most - least > 1e-12 * most.abs().max(1e-300);
    if !COUNTS.contains(&n) || !is_spread || !ordered.iter().all(|number| number.is_finite()) {
        return None;
    }
    let normal = Normal::standard();
    let weighted =
        weights(n, &normal).into_iter().zip(0..).map(|(a, i)| a * (ordered[n - 1 - i] - ordered[i]));
    let mean = ordered.iter().sum::<f64>() / n as f64;
    let squares: f64 = ordered.iter().map(|x| (x - mean).powi(2)).sum();
    let w = (weighted.sum::<f64>().powi(2) / squares).min(1.0);
    Some(Normality { w, p: probability(w, n, &normal) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers easily given to other implementations: the fractional parts of multiples of the golden ratio.
    fn golden(n: usize) -> Vec<f64> {
        (1..=n).map(|i| (i as f64 * 0.618_033_988_749_894_9).fract()).collect()
    }

    #[test]
    fn shapiro_wilk_agrees_with_other_implementations() {
        // The weights of 11 men from the paper of 1965, and non-normal numbers; W and p from SciPy 1.17.
        let men = vec![148.0, 154.0, 158.0, 160.0, 161.0, 162.0, 166.0, 170.0, 182.0, 195.0, 236.0];
        for (numbers, w, p) in [
            (men, 0.788_814_78, 0.006_703_81),
            (golden(3), 0.981_762_75, 0.741_291_87),
            (golden(4), 0.999_968_23, 0.999_917_28),
            (golden(5), 0.980_207_15, 0.935_723_97),
            (golden(12), 0.968_023_92, 0.889_038_98),
            (golden(100), 0.953_955_70, 0.001_525_928_4),
            (golden(5_000), 0.954_898_92, 9.363_454_7e-37),
        ] {
            let found = shapiro_wilk(&numbers).unwrap();
            assert!((found.w - w).abs() < 1e-5, "{}: {found:?}", numbers.len());
            assert!((found.p - p).abs() < 1e-4 * p.max(0.01), "{}: {found:?}", numbers.len());
        }
    }

    #[test]
    fn normal_samples_pass_and_bimodal_ones_do_not() {
        let normal = Normal::standard();
        let scores: Vec<f64> = (1..200).map(|i| normal.inverse_cdf(f64::from(i) / 200.0)).collect();
        assert!(shapiro_wilk(&scores).unwrap().p > 0.99);
        let heaps: Vec<f64> = (0..200).map(|i| f64::from(i % 2) * 10.0 + f64::from(i) / 1_000.0).collect();
        assert!(shapiro_wilk(&heaps).unwrap().p < 1e-9);
    }

    #[test]
    fn untestable_samples_are_refused() {
        for numbers in [vec![], vec![1.0, 2.0], vec![3.0; 50], vec![1.0, f64::NAN, 2.0], golden(5_001)] {
            assert_eq!(shapiro_wilk(&numbers), None, "{}", numbers.len());
        }
    }
}
