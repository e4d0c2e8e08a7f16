//! Verdicts compared with the truth: F scores, calibration of the posterior, normality of the complexity.

use std::collections::BTreeMap;

use haul_base::Cause;
use haul_diagnosis::{Bin, Confusion, Model, bins, clopper_pearson};
use serde::Deserialize;
use toml::Table;

use super::measure::{Quantity, label};
use super::results::Results;
use super::verdict::{Finding, Verdict};
use crate::sim::real::Labels;

/// Whether a check holds, and its values as text.
type Found = (bool, String);

/// Checks the lowest F score (harmonic mean of recall and precision) of the classes. `named` has, for each
/// class, the measure that is 1 in runs classified so; a class is a value of `over` up to its comma.
pub(super) fn f_score(
    results: &Results,
    over: &str,
    named: &BTreeMap<String, Quantity>,
    at_least: f64,
) -> Result<Found, String> {
    let mut all = 0;
    let mut counts: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    for cell in &results.cells {
        let value = cell.value(over).map(label).ok_or_else(|| format!("runs have no `{over}`"))?;
        let truth = value.split(", ").next().unwrap_or_default();
        all += cell.runs.len();
        for (class, measure) in named {
            let called: f64 = cell.of(measure)?.iter().sum();
            let [right, missed, false_alarms] = counts.entry(class).or_default();
            if class == truth {
                *right += called;
                *missed += cell.runs.len() as f64 - called;
            } else {
                *false_alarms += called;
            }
        }
    }
    let least = counts.values().map(|of| f(*of)).fold(1.0, f64::min);
    let each: Vec<String> = counts.iter().map(|(class, of)| format!("{class} {:.3}", f(*of))).collect();
    Ok((least >= at_least, format!("F over {all} runs: {}", each.join(", "))))
}

/// Limits for the shares of misclassified and unclassified windows.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    /// Share of all windows in range that are misclassified.
    wrong: f64,
    /// Upper bound of its interval.
    wrong_bound: Option<f64>,
    /// Share for each single value; if exceeded, the check is undecided while the interval reaches below.
    wrong_each: Option<f64>,
    /// Share that is inconclusive.
    inconclusive: Option<f64>,
}

impl Limits {
    /// Judges whether the shares are within the limits, and whether significantly.
    fn assess(&self, all: &Confusion, each: &[Confusion]) -> Verdict {
        let wrong = |of: &Confusion| clopper_pearson(of.wrong, of.in_range());
        let inconclusive = clopper_pearson(all.inconclusive, all.in_range()).found;
        let is_below = |share: f64, most: Option<f64>| most.is_none_or(|most| share <= most);
        let is_met = wrong(all).found <= self.wrong
            && is_below(inconclusive, self.inconclusive)
            && each.iter().all(|of| is_below(wrong(of).low, self.wrong_each));
        let is_within = is_below(wrong(all).high, self.wrong_bound)
            && each.iter().all(|of| is_below(wrong(of).found, self.wrong_each));
        Verdict::of_bound(is_met, is_within)
    }
}

/// Classification of the windows of one cause, by value of `over`: by the signature, and by all evidence.
pub(super) fn confusion(
    results: &Results,
    over: &str,
    at: &Table,
    limits: &Limits,
) -> Result<Finding, String> {
    let mut all = Confusion::default();
    let (mut each, mut lines) = (Vec::new(), Vec::new());
    for value in results.values_of(over, at) {
        let mut at = at.clone();
        at.insert(over.to_owned(), value.clone());
        let (mut by_signature, mut by_all) = (Confusion::default(), Confusion::default());
        for window in results.windows(&at) {
            let Some(cause) = window.cause() else { continue };
            by_signature.add(cause, &window.by_signature());
            if let Some(labels) = &window.labels {
                by_all.add(cause, &labels.verdict());
            }
        }
        all.merge(&by_signature);
        each.push(by_signature);
        let by_all = (by_all.in_range() > 0).then(|| format!("; by all evidence {}", described(&by_all)));
        let words = [described(&by_signature), by_all.unwrap_or_default()].concat();
        lines.push(format!("\n{:18}{}: {words}", "", label(&value)));
    }
    if all.in_range() == 0 {
        return Err(format!("no window was classified in the runs with {at}"));
    }
    Ok((limits.assess(&all, &each), described(&all) + &lines.concat(), None))
}

/// Formats a confusion with its intervals, in percent.
fn described(of: &Confusion) -> String {
    let share = |hits| {
        let share = clopper_pearson(hits, of.in_range());
        let [found, low, high] = [share.found, share.low, share.high].map(|share| share * 100.0);
        format!("{found:.2} % ({low:.2} to {high:.2})")
    };
    let out = if of.out_of_range > 0 { format!(", {} out of range", of.out_of_range) } else { String::new() };
    format!(
        "of {} windows correct {}, wrong {}, inconclusive {}{out}",
        of.in_range(),
        share(of.correct),
        share(of.wrong),
        share(of.inconclusive)
    )
}

/// Checks the lowest F score of the causes of lost packets in kept windows of real runs.
pub(super) fn packet_f_score(results: &Results, at: &Table, at_least: f64) -> Result<Found, String> {
    let (counts, all) = packet_counts(results.windows(at).filter_map(|window| window.labels.as_ref()));
    let least = counts.values().map(|of| f(*of)).reduce(f64::min);
    let least = least.ok_or_else(|| format!("no packet was lost in real runs with {at}"))?;
    let each: Vec<String> = counts.iter().map(|(cause, of)| format!("{cause} {:.4}", f(*of))).collect();
    Ok((least >= at_least, format!("F over {all} packets: {}", each.join(", "))))
}

/// Returns, for each cause that occurred: packets attributed correctly, attributed to others, and attributed
/// to it wrongly; and the total number of lost packets.
fn packet_counts<'a>(windows: impl Iterator<Item = &'a Labels>) -> (BTreeMap<&'static str, [f64; 3]>, u64) {
    let mut counts: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    let mut all = 0;
    for labels in windows {
        all += labels.truth.total();
        for cause in Cause::ALL {
            let (truth, attributed, right) =
                (labels.truth.of(cause), labels.attributed.of(cause), labels.right.of(cause));
            let found = [right, truth - right, attributed - right].map(|packets| packets as f64);
            let count = counts.entry(cause.name()).or_default();
            count.iter_mut().zip(found).for_each(|(sum, packets)| *sum += packets);
        }
    }
    counts.retain(|_, [right, missed, _]| *right + *missed > 0.0);
    (counts, all)
}

/// Returns the F score from true positives, false negatives and false positives.
fn f([right, missed, wrong]: [f64; 3]) -> f64 {
    2.0 * right / (2.0 * right + missed + wrong).max(1.0)
}

/// Number of bins of the posterior.
const POSTERIORS: usize = 10;

/// Windows in a bin of the posterior.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reliability {
    /// Weight: each cause has half of the total, as in the prior.
    pub weight: f64,
    /// Mean posterior.
    pub posterior: f64,
    /// Share that the host lost.
    pub by_host: f64,
}

/// Returns the observed frequency of host losses for each bin of the posterior.
pub(super) fn reliability(results: &Results, at: &Table) -> Vec<Reliability> {
    let pairs = results.windows(at).filter_map(|window| Some((window.p_host?, window.by_host?)));
    reliability_of(&pairs.collect::<Vec<_>>())
}

/// As above, from pairs of posterior and whether the host lost.
fn reliability_of(pairs: &[(f64, bool)]) -> Vec<Reliability> {
    let count = |truth: bool| pairs.iter().filter(|(_, by_host)| *by_host == truth).count().max(1) as f64;
    let weights = [0.5 / count(false), 0.5 / count(true)];
    let mut found = [Reliability::default(); POSTERIORS];
    for &(posterior, by_host) in pairs {
        let bin = &mut found[((posterior * POSTERIORS as f64) as usize).min(POSTERIORS - 1)];
        let weight = weights[usize::from(by_host)];
        bin.weight += weight;
        bin.posterior += weight * posterior;
        bin.by_host += weight * f64::from(u8::from(by_host));
    }
    let mean = |bin: &Reliability| Reliability {
        weight: bin.weight,
        posterior: bin.posterior / bin.weight,
        by_host: bin.by_host / bin.weight,
    };
    found.iter().filter(|bin| bin.weight > 0.0).map(mean).collect()
}

/// Checks that the posterior's mean distance from the truth (expected calibration error) is at most
/// `at_most`.
pub(super) fn calibration(results: &Results, at: &Table, at_most: f64) -> Result<Found, String> {
    let found = reliability(results, at);
    if found.is_empty() {
        return Err(format!("no window was classified in the runs with {at}"));
    }
    let error: f64 = found.iter().map(|bin| bin.weight * (bin.posterior - bin.by_host).abs()).sum();
    Ok((error <= at_most, format!("mean distance {error:.4} over {} bins", found.len())))
}

/// Significance level at which normality is rejected.
const LEVEL: f64 = 0.05;

/// Checks the share of loss rate bins in which the Shapiro-Wilk test does not reject that the complexity,
/// without outliers, is normally distributed around the shipped curve.
pub(super) fn normality(results: &Results, at: &Table, host: bool, at_least: f64) -> Result<Found, String> {
    let model = Model::shipped();
    let curve = if host { &model.host.complexity } else { &model.network.complexity };
    let points: Vec<(f64, f64)> =
        results.windows(at).filter_map(|window| Some((window.loss_rate, window.complexity?))).collect();
    let bins = bins(&points, curve);
    let passes = |of: fn(&Bin) -> Option<haul_diagnosis::Normality>| {
        let tested: Vec<_> = bins.iter().filter_map(of).collect();
        (tested.iter().filter(|normality| normality.p >= LEVEL).count(), tested.len())
    };
    let (all, of_all) = passes(|bin| bin.normality);
    let (inner, of_inner) = passes(|bin| bin.normality_without_outliers);
    if of_inner == 0 {
        return Err(format!("too few windows in the runs with {at}"));
    }
    let ours = format!("normal in {all} of {of_all} bins, without outliers in {inner} of {of_inner}");
    Ok((inner as f64 / of_inner as f64 >= at_least, ours))
}

#[cfg(test)]
mod tests {
    use haul_base::CauseCounts;

    use super::*;

    #[test]
    fn f_counts_false_negatives_and_false_positives() {
        assert!((f([90.0, 10.0, 0.0]) - 180.0 / 190.0).abs() < 1e-9);
        assert!((f([90.0, 0.0, 30.0]) - 180.0 / 210.0).abs() < 1e-9);
        assert!(f([0.0, 5.0, 0.0]) < 1e-9 && f([5.0, 0.0, 0.0]) > 1.0 - 1e-9);
    }

    #[test]
    fn confusions_are_described_with_their_intervals() {
        let of = Confusion { correct: 998, wrong: 2, inconclusive: 0, out_of_range: 3 };
        let expected = "of 1000 windows correct 99.80 % (99.28 to 99.98), wrong 0.20 % (0.02 to 0.72), \
                        inconclusive 0.00 % (0.00 to 0.37), \
                        3 out of range";
        assert_eq!(described(&of), expected);
    }

    #[test]
    fn results_within_chance_are_undecided() {
        let limits = Limits {
            wrong: 0.002,
            wrong_bound: Some(0.0035),
            wrong_each: Some(0.01),
            inconclusive: Some(0.02),
        };
        let of = |correct, wrong, inconclusive| Confusion { correct, wrong, inconclusive, out_of_range: 0 };
        let sum = |each: &[Confusion]| {
            each.iter().fold(Confusion::default(), |mut all, of| {
                all.merge(of);
                all
            })
        };
        for (each, verdict) in [
            ([of(1_998, 2, 0), of(2_000, 0, 0)], Verdict::Reproduced),
            // Too few windows: the interval reaches above 0.35 %.
            ([of(100, 0, 0), of(100, 0, 0)], Verdict::Undecided),
            ([of(98, 2, 0), of(4_000, 0, 0)], Verdict::Undecided),
            ([of(90, 10, 0), of(9_000, 0, 0)], Verdict::Differs),
            ([of(1_900, 0, 100), of(2_000, 0, 0)], Verdict::Differs),
            ([of(1_990, 10, 0), of(2_000, 0, 0)], Verdict::Differs),
        ] {
            assert_eq!(limits.assess(&sum(&each), &each), verdict, "{each:?}");
        }
    }

    #[test]
    fn packets_count_for_their_true_and_their_attributed_cause() {
        let counts = |host, random| {
            let mut counts = CauseCounts::default();
            counts.add(Cause::ReceiverHost, host);
            counts.add(Cause::Random, random);
            counts
        };
        let windows = [
            Labels { truth: counts(90, 0), attributed: counts(80, 10), right: counts(79, 0) },
            Labels { truth: counts(10, 0), attributed: counts(11, 0), right: counts(10, 0) },
        ];
        let (found, all) = packet_counts(windows.iter());
        // No random losses: packets attributed to them are missing elsewhere.
        assert_eq!((found, all), (BTreeMap::from([("receiver_host", [89.0, 11.0, 2.0])]), 100));
    }

    #[test]
    fn causes_have_equal_weight_for_any_number_of_windows() {
        // Of 100 windows of the host and 10 of the network, 10 % of each are misclassified.
        let windows = |count: usize, by_host: bool, posterior: f64| vec![(posterior, by_host); count];
        let pairs =
            [windows(90, true, 0.9), windows(10, true, 0.1), windows(9, false, 0.1), windows(1, false, 0.9)];
        let bins = reliability_of(&pairs.concat());
        let found: Vec<_> = bins.iter().map(|bin| (bin.weight, bin.posterior, bin.by_host)).collect();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!(found.len(), 2);
        assert!(near(found[0].0, 0.5) && near(found[0].1, 0.1) && near(found[0].2, 0.1), "{found:?}");
        assert!(near(found[1].0, 0.5) && near(found[1].1, 0.9) && near(found[1].2, 0.9), "{found:?}");
    }
}
