//! Means, scatter and confidence intervals. Random draws have a fixed seed, so equal runs give equal text.

use haul_base::Rng;

/// Bootstrap resamples: enough for stable ends of a 95 % interval (Efron and Tibshirani, 1993, chapter 13,
/// advise 1,000 or more).
const RESAMPLES: usize = 2_000;
const SEED: u64 = 20_061_112;

/// Lower and upper end of a 95 % interval.
pub(super) type Interval = (f64, f64);

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the median; the mean of the middle two for an even number.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.as_slice() {
        [] => f64::NAN,
        all if all.len().is_multiple_of(2) => f64::midpoint(all[half - 1], all[half]),
        all => all[half],
    }
}

/// Returns Kendall's rank correlation tau-b (Kendall, 1945) of pairs: 1 if both rank all in the same order.
/// `None` if one of them is constant. Two values that differ by at most the share `tie` of the larger one are
/// equal.
pub(super) fn kendall(pairs: &[(f64, f64)], tie: f64) -> Option<f64> {
    let sign = |a: f64, b: f64| {
        let is_tie = (a - b).abs() <= tie * a.abs().max(b.abs());
        if is_tie { 0 } else { a.total_cmp(&b) as i32 }
    };
    let (mut agree, mut in_x, mut in_y) = (0, 0, 0);
    for (at, first) in pairs.iter().enumerate() {
        for second in &pairs[..at] {
            let (x, y) = (sign(first.0, second.0), sign(first.1, second.1));
            agree += x * y;
            in_x += x.abs();
            in_y += y.abs();
        }
    }
    (in_x > 0 && in_y > 0).then(|| f64::from(agree) / (f64::from(in_x) * f64::from(in_y)).sqrt())
}

/// Returns the standard deviation of a sample; 0 for fewer than two values.
pub(super) fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Returns the 2.5 and 97.5 % percentiles.
fn percentiles(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.025), at(0.975))
}

/// Returns the 95 % percentile bootstrap interval of the mean.
pub(super) fn bootstrap_mean(values: &[f64]) -> Interval {
    let mut rng = Rng::from_seed(SEED);
    let mut draw = || values[rng.below(values.len() as u64) as usize];
    let resample = |_| (0..values.len()).map(|_| draw()).sum::<f64>() / values.len() as f64;
    percentiles((0..RESAMPLES).map(resample).collect())
}

/// Returns the slope of the least-squares line; `None` if all points have the same x.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let x = mean(&points.iter().map(|point| point.0).collect::<Vec<_>>());
    let y = mean(&points.iter().map(|point| point.1).collect::<Vec<_>>());
    let across: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (across > 0.0).then(|| both / across)
}

/// Returns the rank of each value; equal values get their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let is_equal = |at: &&usize| values[**at].total_cmp(&values[order[start]]).is_eq();
        let count = order[start..].iter().take_while(is_equal).count();
        for at in &order[start..start + count] {
            ranks[*at] = start as f64 + (count - 1) as f64 / 2.0;
        }
        start += count;
    }
    ranks
}

/// Returns Spearman's rank correlation; `None` if one of the two is constant.
pub(super) fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let of = |pick: fn(&(f64, f64)) -> f64| ranks(&pairs.iter().map(pick).collect::<Vec<_>>());
    let (x, y) = (of(|pair| pair.0), of(|pair| pair.1));
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum() };
    let scatter = (product(&x, &x) * product(&y, &y)).sqrt();
    (scatter > 0.0).then(|| product(&x, &y) / scatter)
}

/// Returns the 95 % interval of [`rank_correlation`] by a moving-block bootstrap (Künsch, 1989): samples
/// adjacent in time are not independent, so blocks of `block` samples are drawn together.
pub(super) fn block_bootstrap(pairs: &[(f64, f64)], block: usize) -> Option<Interval> {
    let block = block.clamp(1, pairs.len().max(1));
    let starts = (pairs.len() + 1).checked_sub(block)? as u64;
    let mut rng = Rng::from_seed(SEED);
    let resample = |_| {
        let mut drawn = Vec::with_capacity(pairs.len() + block);
        while drawn.len() < pairs.len() {
            let start = rng.below(starts) as usize;
            drawn.extend_from_slice(&pairs[start..start + block]);
        }
        rank_correlation(&drawn[..pairs.len()])
    };
    let found: Vec<f64> = (0..RESAMPLES).filter_map(resample).collect();
    (found.len() > RESAMPLES / 2).then(|| percentiles(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, by: f64) -> bool {
        (a - b).abs() <= by
    }

    #[test]
    fn the_interval_of_a_mean_has_the_theoretical_width() {
        let mut rng = Rng::from_seed(7);
        let values: Vec<f64> = (0..400).map(|_| rng.next_f64()).collect();
        let (low, high) = bootstrap_mean(&values);
        // A uniform number has a standard deviation of 1 / sqrt(12); the mean of 400 has 5 % of that.
        let width = 2.0 * 1.96 / 12f64.sqrt() / 20.0;
        assert!(near(high - low, width, width * 0.15), "{low} to {high}");
        assert!(low < mean(&values) && mean(&values) < high);
        assert!(near(deviation(&values), 1.0 / 12f64.sqrt(), 0.02));
    }

    #[test]
    fn rank_correlation_ignores_the_shape_and_ties_share_a_rank() {
        let pairs: Vec<(f64, f64)> = (0..50).map(|n| (f64::from(n), f64::from(n).exp2())).collect();
        assert_eq!(rank_correlation(&pairs), Some(1.0));
        let inverted: Vec<(f64, f64)> = pairs.iter().map(|(x, y)| (*x, -y)).collect();
        assert_eq!(rank_correlation(&inverted), Some(-1.0));
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        assert_eq!(rank_correlation(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn only_unrelated_series_have_an_interval_around_zero() {
        let mut rng = Rng::from_seed(3);
        let unrelated: Vec<(f64, f64)> = (0..300).map(|_| (rng.next_f64(), rng.next_f64())).collect();
        let (low, high) = block_bootstrap(&unrelated, 10).unwrap();
        assert!(low < 0.0 && high > 0.0, "{low} to {high}");
        let related: Vec<(f64, f64)> = unrelated.iter().map(|(x, y)| (*x, x + 0.3 * y)).collect();
        let (low, _) = block_bootstrap(&related, 10).unwrap();
        assert!(low > 0.8, "{low}");
    }

    #[test]
    fn kendall_counts_pairs_in_the_same_order() {
        assert_eq!(kendall(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0)], 0.0), Some(1.0));
        assert_eq!(kendall(&[(1.0, 9.0), (2.0, 8.0), (3.0, 7.0)], 0.0), Some(-1.0));
        // One of ten pairs is reversed.
        let inverted = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0), (5.0, 5.0)];
        assert!(near(kendall(&inverted, 0.0).unwrap(), 0.8, 1e-12));
        assert_eq!(kendall(&[(1.0, 1.0), (1.0, 2.0)], 0.0), None);
        // Values within 2 % are unordered: one of three pairs is tied on the left.
        let close = [(100.0, 2.0), (99.0, 3.0), (50.0, 1.0)];
        assert!(near(kendall(&close, 0.02).unwrap(), 2.0 / 6.0_f64.sqrt(), 1e-12));
        assert!(near(kendall(&close, 0.0).unwrap(), 1.0 / 3.0, 1e-12));
        assert!(
            near(median(&[4.0, 1.0, 3.0, 2.0]), 2.5, 1e-12) && near(median(&[9.0, 1.0, 2.0]), 2.0, 1e-12)
        );
    }

    #[test]
    fn a_slope_is_that_of_the_line() {
        assert!(near(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]).unwrap(), 2.0, 1e-12));
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
