//! Tests whether losses depend on the sending rate. A policer (a token bucket) and a queue of a few packets
//! drop what exceeds their rate, without delay; a medium damages the same share of packets at every rate.

use haul_base::Rate;

use crate::dependence::{MAX_DEVIATIONS, MAX_EVIDENCE, evidence, onset};

/// An interval of consecutive packets and the rate at which they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentInterval {
    /// Sending rate, in any consistent unit.
    pub rate: Rate,
    /// Number of packets, lost ones included.
    pub packets: u64,
    /// Number of lost packets.
    pub lost: u64,
    /// Runs of consecutive lost packets.
    pub runs: u64,
}

/// Result of a test whether losses grow with the sending rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateFinding {
    /// Loss rate at low sending rates: that of the medium.
    pub medium_rate: f64,
    /// Sending rate from which on losses exceed `medium_rate`: the path drops what exceeds it. `None` if they
    /// do not significantly, or if the rates were too similar.
    pub onset: Option<Rate>,
}

/// Minimum number of lost packets for a test. Our choice.
const MIN_LOST: u64 = 16;
/// Slope of the loss rate over the sending rate, in standard deviations, from which on losses depend on it: 1
/// in 30,000 by chance, if runs of losses are independent. Our choice.
const SIGNIFICANT: f64 = 4.0;
/// The same, if only intervals are independent: 1 in 40 by chance. Our choice.
const CONSISTENT: f64 = 2.0;
/// Share of all packets that counts as sent at low rates. Our choice.
const LOW: f64 = 0.25;
/// Minimum ratio of high rates to the mean of low ones. Our choice: pacing varies by less.
const MIN_CONTRAST: f64 = 1.02;

impl RateFinding {
    /// Tests intervals. `order` is a reusable buffer.
    pub fn of(intervals: &[SentInterval], order: &mut Vec<(f64, usize)>) -> Self {
        let SentInterval { packets, lost, .. } = sum(intervals);
        if lost < MIN_LOST || !is_steep(intervals) {
            return Self::default();
        }
        order.clear();
        order.extend(intervals.iter().map(|interval| interval.rate.as_bps() as f64).zip(0..));
        order.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
        let low = Low::of(intervals, order, packets as f64 * LOW);
        let medium_rate = low.lost / low.packets.max(1.0);
        // At low rates one more packet may have been lost by chance.
        let usual = medium_rate.max(1.0 / low.packets.max(1.0));
        let least = low.mean_rate() * MIN_CONTRAST;
        let high = order.iter().rev().take_while(|(rate, _)| *rate > least);
        // A policer lets bursts pass: intervals without losses must not weigh more than those with losses.
        let bounded =
            |interval: &SentInterval| evidence(interval.packets, interval.lost, usual).max(-MAX_EVIDENCE);
        let onset = onset(high.map(|(_, at)| (*at, bounded(&intervals[*at]))));
        let onset = onset.map(|at| intervals[at].rate);
        Self { medium_rate, onset }
    }
}

fn sum(intervals: &[SentInterval]) -> SentInterval {
    intervals.iter().fold(SentInterval::default(), |sum, interval| SentInterval {
        packets: sum.packets + interval.packets,
        lost: sum.lost + interval.lost,
        runs: sum.runs + interval.runs,
        ..sum
    })
}

/// Whether the loss rate grows with the sending rate: the score test of a Poisson regression on the logarithm
/// of the rate, with packets as exposure and the variance of runs of geometric length. A second test without
/// outliers, with a variance estimated from the residuals (White, Econometrica 48, 1980), checks that many
/// intervals agree.
fn is_steep(intervals: &[SentInterval]) -> bool {
    let log = |interval: &SentInterval| (interval.rate.as_bps().max(1) as f64).ln();
    let SentInterval { packets, lost, runs, .. } = sum(intervals);
    let weighted: f64 = intervals.iter().map(|interval| log(interval) * interval.packets as f64).sum();
    let (mean, loss_rate) = (weighted / packets as f64, lost as f64 / packets as f64);
    let spread = 2.0 * lost as f64 / runs.max(1) as f64 - 1.0;
    let (mut all, mut bounded) = ((0.0, 0.0), (0.0, 0.0));
    for interval in intervals.iter().filter(|interval| interval.packets > 0) {
        let expected = loss_rate * interval.packets as f64;
        let deviation = (expected * spread).sqrt();
        let residual = (interval.lost as f64 - expected) / deviation;
        let weight = deviation * (log(interval) - mean);
        all = (all.0 + residual * weight, all.1 + weight * weight);
        let part = residual.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS) * weight;
        bounded = (bounded.0 + part, bounded.1 + part * part);
    }
    let is_over =
        |least: f64, (score, variance): (f64, f64)| variance > 0.0 && score > least * variance.sqrt();
    is_over(SIGNIFICANT, all) && is_over(CONSISTENT, bounded)
}

/// Packets sent at low rates.
struct Low {
    packets: f64,
    lost: f64,
    /// Sum of their rates.
    rates: f64,
}

impl Low {
    /// Takes the `packets` sent at the lowest rates.
    fn of(intervals: &[SentInterval], order: &[(f64, usize)], packets: f64) -> Self {
        let mut low = Self { packets: 0.0, lost: 0.0, rates: 0.0 };
        for (rate, at) in order {
            if low.packets >= packets {
                break;
            }
            let interval = &intervals[*at];
            low.packets += interval.packets as f64;
            low.lost += interval.lost as f64;
            low.rates += rate * interval.packets as f64;
        }
        low
    }

    fn mean_rate(&self) -> f64 {
        self.rates / self.packets.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;
    use proptest::prelude::*;

    use super::*;

    const POLICED: f64 = 100.0;

    /// Intervals of 100 packets and more, at 90 to 125 % of 100 Mbit/s, mostly 97; `lost` maps rate to loss.
    fn sent(seed: u64, intervals: usize, lost: impl Fn(f64) -> f64) -> Vec<SentInterval> {
        let mut rng = Rng::from_seed(seed);
        let mut interval = |n: usize| {
            let mbps = match n % 20 {
                0 => 90.0,
                1 | 2 => 125.0,
                _ => 97.0,
            };
            let packets = mbps as u64;
            let lost = (0..packets).filter(|_| rng.chance(lost(mbps))).count() as u64;
            SentInterval { rate: Rate::from_bps((mbps * 1e6) as u64), packets, lost, runs: lost }
        };
        (0..intervals).map(&mut interval).collect()
    }

    fn policer(rate: f64) -> f64 {
        (1.0 - POLICED / rate).max(0.0)
    }

    fn of(intervals: &[SentInterval]) -> RateFinding {
        RateFinding::of(intervals, &mut Vec::new())
    }

    #[test]
    fn losses_above_a_rate_indicate_a_policer_also_beside_a_medium() {
        let onset = |found: RateFinding| found.onset.map(|rate| rate.as_bps() / 1_000_000);
        let found = of(&sent(1, 200, policer));
        assert_eq!((onset(found), found.medium_rate), (Some(125), 0.0));
        let found = of(&sent(1, 400, |rate| policer(rate) + 0.01));
        assert_eq!(onset(found), Some(125));
        assert!((found.medium_rate - 0.01).abs() < 0.004, "{found:?}");
    }

    #[test]
    fn constant_rates_and_few_losses_are_inconclusive() {
        let constant: Vec<SentInterval> = sent(1, 400, |_| 0.2)
            .into_iter()
            .map(|one| SentInterval { rate: Rate::from_mbps(120), ..one })
            .collect();
        assert_eq!(of(&constant), RateFinding::default());
        assert_eq!(of(&[]), RateFinding::default());
        assert_eq!(of(&sent(1, 4, policer)), RateFinding::default());
    }

    /// A burst at a high rate is one event, however many packets it has.
    #[test]
    fn one_burst_at_a_high_rate_is_inconclusive() {
        let mut intervals = sent(1, 200, |_| 0.0);
        (intervals[21].lost, intervals[21].runs) = (100, 1);
        assert_eq!(of(&intervals), RateFinding::default());
    }

    proptest! {
        #[test]
        fn a_medium_is_not_a_policer(seed in 0..10_000u64, loss in 0.001..0.3f64, intervals in 10..600usize) {
            prop_assert_eq!(of(&sent(seed, intervals, |_| loss)).onset, None);
        }

        #[test]
        fn a_medium_that_loses_bursts_is_not_a_policer(seed in 0..10_000u64, share in 0.001..0.2f64, intervals in 10..600usize) {
            let mut rng = Rng::from_seed(seed + 1);
            let mut lossy = sent(seed, intervals, |_| 0.0);
            lossy.iter_mut().filter(|_| rng.chance(share)).for_each(|one| (one.lost, one.runs) = (one.packets / 2, 1));
            prop_assert_eq!(of(&lossy).onset, None);
        }

        #[test]
        fn a_policer_is_found(seed in 0..10_000u64, loss in 0.0..0.02f64, intervals in 300..600usize) {
            let onset = of(&sent(seed, intervals, |rate| policer(rate) + loss)).onset;
            prop_assert_eq!(onset, Some(Rate::from_mbps(125)));
        }

        #[test]
        fn findings_are_finite_for_any_input(
            counts in prop::collection::vec((0..u64::MAX >> 20, 0..1_000_000u64, 0..1_000_000u64), 0..100),
        ) {
            let intervals: Vec<SentInterval> = counts
                .iter()
                .map(|&(bps, packets, lost)| SentInterval { rate: Rate::from_bps(bps), packets, lost: lost.min(packets), runs: lost.min(packets) / 2 })
                .collect();
            let found = of(&intervals);
            prop_assert!((0.0..=1.0).contains(&found.medium_rate));
        }
    }
}
