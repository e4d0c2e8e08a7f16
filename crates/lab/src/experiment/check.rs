//! Checks of an experiment's results, and their verdicts.

use std::collections::BTreeMap;

use haul_diagnosis::clopper_pearson;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::classes;
use super::measure::{Quantity, label, number};
use super::results::{Cell, Results};
use super::stats::{
    Interval, block_bootstrap, bootstrap_mean, kendall, mean, median, rank_correlation, slope,
};
use super::suspension::Model;
use super::verdict::{Finding, Verdict};
use crate::sim::RunReport;

/// One check.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckSpec {
    /// Name of the check, for users.
    pub name: String,
    /// The paper's result, with its numbers.
    #[serde(default)]
    pub paper: String,
    /// Known deviation and its reason; printed with the verdict.
    #[serde(default)]
    pub why: String,
    /// Test.
    pub test: Test,
}

/// A number, or a range from minimum to maximum.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Expected {
    Number(f64),
    Between([f64; 2]),
}

impl Expected {
    /// Whether `value` is as expected, within the relative `tolerance`.
    fn has(self, value: f64, tolerance: f64) -> bool {
        let (low, high) = match self {
            Self::Number(number) => (number, number),
            Self::Between([low, high]) => (low, high),
        };
        let slack = |bound: f64| bound.abs() * tolerance;
        value >= low - slack(low) && value <= high + slack(high)
    }
}

/// Test of a check. Runs with equal seeds are compared pairwise; a difference is significant if the 95 %
/// bootstrap interval of its mean does not contain zero.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Test {
    /// One combination has a lower value than another. `ratio` is the quotient of the higher and the lower
    /// value; the lower one may have its own measure.
    Ordering {
        measure: Quantity,
        lower_measure: Option<Quantity>,
        lower: Table,
        higher: Table,
        ratio: Option<Expected>,
        #[serde(default)]
        tolerance: f64,
    },
    /// A mean has this value.
    Value {
        measure: Quantity,
        at: Table,
        expected: Expected,
        #[serde(default)]
        tolerance: f64,
    },
    /// A mean equals the prediction of RAPID+'s scheduler model, within `tolerance_us`.
    Suspension { measure: Quantity, at: Table, model: Model, tolerance_us: f64 },
    /// The share of `hits` among `trials`, over the runs of all combinations with these values, has a 95 %
    /// interval (Clopper and Pearson) within `bound` on the relevant side: its lower end if the minimum is
    /// above 0, otherwise its upper end. Without hits, a bound of 1 % needs 368 trials.
    Proportion { hits: Quantity, trials: Quantity, at: Table, bound: [f64; 2] },
    /// Classification of runs by value of `over`, with a measure per class in `named`: minimum F score.
    FScore { over: String, named: BTreeMap<String, Quantity>, at_least: f64 },
    /// Misclassification between host and queue by the signature, for kept windows with each value of `over`
    /// that lost their packets to one of them; and results of all windows, with 95 % intervals (Clopper and
    /// Pearson).
    Confusion {
        over: String,
        #[serde(default)]
        at: Table,
        limits: classes::Limits,
    },
    /// Attribution of lost packets in kept windows of real runs: minimum F score over the causes that
    /// occurred.
    PacketFScore {
        #[serde(default)]
        at: Table,
        at_least: f64,
    },
    /// Mean distance of the posterior of kept windows from the truth (maximum).
    Calibration {
        #[serde(default)]
        at: Table,
        at_most: f64,
    },
    /// Share of loss rate bins in which the complexity of kept windows, without outliers, is normal.
    Normality { at: Table, host: bool, at_least: f64 },
    /// The mean of the measure is nearest to a number among several measures.
    Nearest { measure: Quantity, others: Vec<Quantity>, at: Table, to: f64 },
    /// A mean is at least this share of the best of others. The interval is of the differences to this share.
    AtLeast { measure: Quantity, at: Table, share: f64, of: Vec<Table> },
    /// The medians of two combinations differ by at most this share of that of `like`.
    Alike { measure: Quantity, at: Table, like: Table, tolerance: f64 },
    /// Two groups of combinations rank the values of a key in the same order of medians, with a minimum
    /// Kendall tau-b. Medians that differ by at most the share `tie` of the larger one are equal.
    Ranking {
        measure: Quantity,
        over: String,
        at: Table,
        like: Table,
        at_least: f64,
        #[serde(default)]
        tie: f64,
    },
    /// The mean is at most `limit` up to a value of `x`, and higher beyond it.
    Knee { measure: Quantity, x: String, at: Table, after: toml::Value, limit: f64 },
    /// The means rise or fall with `x`; `slope` is per unit of `x` (bit/s, seconds, bytes, or the key's).
    Trend {
        measure: Quantity,
        x: String,
        at: Table,
        direction: Direction,
        slope: Option<Expected>,
        #[serde(default)]
        tolerance: f64,
    },
    /// Share of the times at which one recorded quantity rises through `threshold` and the other is no higher
    /// than in the preceding samples.
    MinimumAtOnset { x: String, y: String, at: Table, threshold: u64, at_least: f64 },
    /// Minimum of Spearman's rank correlation of two recorded quantities over time. The interval is from a
    /// bootstrap with blocks of `block` samples.
    Correlation { x: String, y: String, at: Table, at_least: f64, block: usize },
}

/// Direction of a trend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    Rises,
    Falls,
}

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckResult {
    pub name: String,
    pub verdict: Verdict,
    /// The paper's values.
    pub paper: String,
    pub ours: String,
    /// 95 % interval of the decisive difference.
    pub interval: Option<Interval>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl CheckSpec {
    /// Returns the combinations that the check refers to.
    #[cfg(test)]
    pub(super) fn cells(&self) -> Vec<&Table> {
        match &self.test {
            Test::Ordering { lower, higher, .. } => vec![lower, higher],
            Test::Alike { at, like, .. } | Test::Ranking { at, like, .. } => vec![at, like],
            Test::FScore { .. } => Vec::new(),
            Test::AtLeast { at, of, .. } => std::iter::once(at).chain(of).collect(),
            Test::Value { at, .. }
            | Test::Suspension { at, .. }
            | Test::Proportion { at, .. }
            | Test::PacketFScore { at, .. }
            | Test::Confusion { at, .. }
            | Test::Calibration { at, .. }
            | Test::Normality { at, .. }
            | Test::Nearest { at, .. }
            | Test::Knee { at, .. }
            | Test::Trend { at, .. }
            | Test::MinimumAtOnset { at, .. }
            | Test::Correlation { at, .. } => vec![at],
        }
    }

    /// Evaluates the check.
    pub(super) fn assess(&self, results: &Results) -> Result<CheckResult, String> {
        let found = match &self.test {
            Test::Ordering { measure, lower_measure, lower, higher, ratio, tolerance } => {
                let measures = (lower_measure.as_ref().unwrap_or(measure), measure);
                ordering(results, measures, (lower, higher), *ratio, *tolerance)
            }
            Test::Value { measure, at, expected, tolerance } => {
                value(results.cell(at)?, measure, *expected, *tolerance)
            }
            Test::Suspension { measure, at, model, tolerance_us } => {
                suspension(results.cell(at)?, measure, model, *tolerance_us).map(Verdict::simple)
            }
            Test::Proportion { hits, trials, at, bound } => proportion(results, (hits, trials), at, *bound),
            Test::FScore { over, named, at_least } => {
                classes::f_score(results, over, named, *at_least).map(Verdict::simple)
            }
            Test::Confusion { over, at, limits } => classes::confusion(results, over, at, limits),
            Test::PacketFScore { at, at_least } => {
                classes::packet_f_score(results, at, *at_least).map(Verdict::simple)
            }
            Test::Calibration { at, at_most } => {
                classes::calibration(results, at, *at_most).map(Verdict::simple)
            }
            Test::Normality { at, host, at_least } => {
                classes::normality(results, at, *host, *at_least).map(Verdict::simple)
            }
            Test::Nearest { measure, others, at, to } => nearest(results.cell(at)?, measure, others, *to),
            Test::AtLeast { measure, at, share, of } => at_least(results, measure, (at, of), *share),
            Test::Alike { measure, at, like, tolerance } => alike(results, measure, (at, like), *tolerance),
            Test::Ranking { measure, over, at, like, at_least, tie } => {
                ranking(results, measure, over, (at, like), (*at_least, *tie))
            }
            Test::Knee { measure, x, at, after, limit } => knee(results, measure, (x, at), after, *limit),
            Test::Trend { measure, x, at, direction, slope, tolerance } => {
                trend(results, measure, (x, at), *direction, slope.map(|slope| (slope, *tolerance)))
            }
            Test::MinimumAtOnset { x, y, at, threshold, at_least } => {
                minimum_at_onset(results.cell(at)?, (x, y), *threshold, *at_least)
            }
            Test::Correlation { x, y, at, at_least, block } => {
                correlation(results.cell(at)?, (x, y), *at_least, *block)
            }
        };
        let (verdict, ours, interval) = found.map_err(|error| format!("check `{}`: {error}", self.name))?;
        let (name, paper) = (self.name.clone(), self.paper.clone());
        Ok(CheckResult { name, verdict, paper, ours, interval, why: self.why.clone() })
    }
}

/// Formats a number with about four significant digits.
fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 1e9 => format!("{:.3} G", value / 1e9),
        _ if size >= 1e6 => format!("{:.1} M", value / 1e6),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 0.01 || size == 0.0 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

fn ordering(
    results: &Results,
    (low, high): (&Quantity, &Quantity),
    (lower, higher): (&Table, &Table),
    ratio: Option<Expected>,
    tolerance: f64,
) -> Result<Finding, String> {
    let (low, high) = (results.cell(lower)?.of(low)?, results.cell(higher)?.of(high)?);
    let differences: Vec<f64> = high.iter().zip(&low).map(|(high, low)| high - low).collect();
    let interval = bootstrap_mean(&differences);
    let found = mean(&high) / mean(&low);
    let is_expected = ratio.is_none_or(|ratio| ratio.has(found, tolerance));
    let ours = format!("{} and {}: ratio {found:.3}", digits(mean(&low)), digits(mean(&high)));
    Ok((Verdict::of(interval.0 > 0.0, is_expected), ours, Some(interval)))
}

fn value(cell: &Cell, measure: &Quantity, expected: Expected, tolerance: f64) -> Result<Finding, String> {
    let values = cell.of(measure)?;
    let found = mean(&values);
    let is_expected = expected.has(found, tolerance);
    let verdict = if is_expected { Verdict::Reproduced } else { Verdict::Differs };
    Ok((verdict, digits(found), Some(bootstrap_mean(&values))))
}

fn suspension(
    cell: &Cell,
    measure: &Quantity,
    model: &Model,
    tolerance_us: f64,
) -> Result<(bool, String), String> {
    let (found, predicted) = (mean(&cell.of(measure)?), model.predicted()?.as_secs_f64());
    let difference = (found - predicted).abs() * 1e6;
    let ours = format!("{:.3} ms; the model says {:.3}", found * 1e3, predicted * 1e3);
    Ok((difference <= tolerance_us, ours))
}

fn proportion(
    results: &Results,
    (hits, trials): (&Quantity, &Quantity),
    at: &Table,
    [least, most]: [f64; 2],
) -> Result<Finding, String> {
    let (mut hit, mut tried) = (0.0, 0.0);
    for cell in results.select(at) {
        hit += cell.of(hits)?.iter().sum::<f64>();
        tried += cell.of(trials)?.iter().sum::<f64>();
    }
    if tried < 1.0 {
        return Err(format!("no `{}` in the runs with {at}", trials.text));
    }
    let share = clopper_pearson(hit as u64, tried as u64);
    let is_within = if least > 0.0 { share.low >= least } else { share.high <= most };
    let is_expected = (least..=most).contains(&share.found);
    let verdict = Verdict::of_bound(is_expected, is_within);
    Ok((verdict, format!("{hit:.0} of {tried:.0}: {}", digits(share.found)), Some((share.low, share.high))))
}

fn nearest(cell: &Cell, measure: &Quantity, others: &[Quantity], to: f64) -> Result<Finding, String> {
    let found = mean(&cell.of(measure)?);
    let others = others
        .iter()
        .map(|other| Ok((&other.text, mean(&cell.of(other)?))))
        .collect::<Result<Vec<_>, String>>()?;
    let is_nearest = others.iter().all(|(_, other)| (found - to).abs() <= (other - to).abs());
    let last = |text: &str| text.rsplit('.').next().unwrap_or_default().to_owned();
    let words = others
        .iter()
        .map(|(text, other)| format!("{} {other:.3}", last(text)))
        .collect::<Vec<_>>()
        .join(", ");
    let ours = format!("{} {found:.4}; {words}; target {to}", last(&measure.text));
    Ok((if is_nearest { Verdict::Reproduced } else { Verdict::Differs }, ours, None))
}

fn at_least(
    results: &Results,
    measure: &Quantity,
    (at, others): (&Table, &[Table]),
    share: f64,
) -> Result<Finding, String> {
    let of = |at: &Table| results.cell(at)?.of(measure);
    let ours = of(at)?;
    let others = others.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let best = others.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).filter(|best| mean(best) > 0.0);
    let best = best.ok_or_else(|| format!("all values of `{}` to compare with are zero", measure.text))?;
    let differences: Vec<f64> = ours.iter().zip(best).map(|(ours, best)| ours - share * best).collect();
    let interval = bootstrap_mean(&differences);
    let (found, best) = (mean(&ours), mean(best));
    let is_within = differences.len() > 1 && interval.0 >= 0.0;
    let verdict = Verdict::of_bound(found >= share * best, is_within);
    Ok((
        verdict,
        format!("{} and {}: {:.2} of it", digits(found), digits(best), found / best),
        Some(interval),
    ))
}

fn alike(
    results: &Results,
    measure: &Quantity,
    (at, like): (&Table, &Table),
    tolerance: f64,
) -> Result<Finding, String> {
    let of = |at: &Table| results.cell(at)?.of(measure).map(|values| median(&values));
    let (found, reference) = (of(at)?, of(like)?);
    let ours = format!("{} and {}: {:.3} of it", digits(found), digits(reference), found / reference);
    let is_alike = Expected::Number(reference).has(found, tolerance);
    Ok((if is_alike { Verdict::Reproduced } else { Verdict::Differs }, ours, None))
}

fn ranking(
    results: &Results,
    measure: &Quantity,
    over: &str,
    (at, like): (&Table, &Table),
    (at_least, tie): (f64, f64),
) -> Result<Finding, String> {
    let mut pairs = Vec::new();
    let mut ours = Vec::new();
    for cell in results.select(at) {
        let value = cell.value(over).ok_or_else(|| format!("`{over}` is not varied"))?;
        let mut reference_at = like.clone();
        reference_at.insert(over.to_owned(), value.clone());
        let pair = (median(&cell.of(measure)?), median(&results.cell(&reference_at)?.of(measure)?));
        ours.push(format!("{}: {} and {}", label(value), digits(pair.0), digits(pair.1)));
        pairs.push(pair);
    }
    let tau = kendall(&pairs, tie).ok_or("one of the two orders has only ties")?;
    let verdict = if tau >= at_least { Verdict::Reproduced } else { Verdict::Differs };
    Ok((verdict, format!("tau {tau:.2} ({})", ours.join("; ")), None))
}

/// Returns the combinations along a key, each with the key's value as a number, in ascending order.
fn along<'a>(results: &'a Results, x: &str, at: &'a Table) -> Result<Vec<(f64, &'a Cell)>, String> {
    let place = |cell: &'a Cell| {
        let value = cell.value(x).ok_or_else(|| format!("`{x}` is not varied"))?;
        number(value).map(|number| (number, cell)).ok_or_else(|| format!("{value} is no number"))
    };
    let mut cells = results.select(at).map(place).collect::<Result<Vec<_>, _>>()?;
    cells.sort_by(|a, b| a.0.total_cmp(&b.0));
    if cells.windows(2).any(|pair| pair[0].0.total_cmp(&pair[1].0).is_eq()) {
        return Err(format!("several combinations with {at} have the same value of `{x}`"));
    }
    Ok(cells)
}

fn knee(
    results: &Results,
    measure: &Quantity,
    (x, at): (&str, &Table),
    after: &toml::Value,
    limit: f64,
) -> Result<Finding, String> {
    let after = number(after).ok_or("`after` is no number")?;
    let mut is_met = true;
    let mut ours = Vec::new();
    for (place, cell) in along(results, x, at)? {
        let found = mean(&cell.of(measure)?);
        is_met &= (found <= limit) == (place <= after * (1.0 + 1e-9));
        ours.push(format!("{}: {}", digits(place), digits(found)));
    }
    Ok((Verdict::of(is_met, is_met), ours.join("; "), None))
}

fn trend(
    results: &Results,
    measure: &Quantity,
    (x, at): (&str, &Table),
    direction: Direction,
    expected: Option<(Expected, f64)>,
) -> Result<Finding, String> {
    let cells = along(results, x, at)?;
    let columns = cells
        .iter()
        .map(|(place, cell)| cell.of(measure).map(|values| (*place, values)))
        .collect::<Result<Vec<_>, _>>()?;
    let seeds = columns.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
    let of_seed = |seed: usize| {
        slope(&columns.iter().map(|(place, values)| (*place, values[seed])).collect::<Vec<_>>())
    };
    let slopes: Vec<f64> = (0..seeds).filter_map(of_seed).collect();
    if slopes.is_empty() {
        return Err(format!("`{x}` has fewer than two values"));
    }
    let (interval, found) = (bootstrap_mean(&slopes), mean(&slopes));
    let is_ordered = match direction {
        Direction::Rises => interval.0 > 0.0,
        Direction::Falls => interval.1 < 0.0,
    };
    let is_expected = expected.is_none_or(|(slope, tolerance)| slope.has(found, tolerance));
    let means = columns.iter().map(|(place, values)| format!("{}: {}", digits(*place), digits(mean(values))));
    let ours = format!("slope {} ({})", digits(found), means.collect::<Vec<_>>().join("; "));
    Ok((Verdict::of(is_ordered, is_expected), ours, Some(interval)))
}

/// Samples compared before an onset, and tolerated ratio: an onset can be anywhere in its sampling interval.
const BEFORE: usize = 3;
const ABOVE: f64 = 1.05;

/// Whether `low` is no higher at each rise of `high` through `threshold` than before.
fn minima(low: &[u64], high: &[u64], threshold: u64) -> Vec<f64> {
    let rises = |at: &usize| high[*at] >= threshold && high[*at - 1] < threshold;
    let is_least = |at: usize| {
        let lowest = low[at].min(low[at - 1]) as f64;
        let before = low[at - BEFORE..at].iter().min().copied().unwrap_or(0) as f64;
        f64::from(u8::from(lowest <= before * ABOVE))
    };
    (BEFORE..low.len().min(high.len())).filter(rises).map(is_least).collect()
}

fn minimum_at_onset(
    cell: &Cell,
    (x, y): (&str, &str),
    threshold: u64,
    at_least: f64,
) -> Result<Finding, String> {
    let mut found = Vec::new();
    for run in &cell.runs {
        found.extend(minima(recorded(run, x)?, recorded(run, y)?, threshold));
    }
    if found.is_empty() {
        return Err(format!("`{y}` never rises through {threshold}"));
    }
    let share = mean(&found);
    let ours = format!("{:.1} % of {} times", share * 100.0, found.len());
    let verdict = if share >= at_least { Verdict::Reproduced } else { Verdict::Differs };
    Ok((verdict, ours, Some(bootstrap_mean(&found))))
}

fn recorded<'a>(run: &'a RunReport, name: &str) -> Result<&'a [u64], String> {
    let series = run.recorded(name).map(|(_, values)| values);
    series.ok_or_else(|| format!("`{name}` was not recorded"))
}

fn correlation(cell: &Cell, (x, y): (&str, &str), at_least: f64, block: usize) -> Result<Finding, String> {
    let mut pairs = Vec::new();
    for run in &cell.runs {
        let (x, y) = (recorded(run, x)?, recorded(run, y)?);
        pairs.extend(x.iter().zip(y).map(|(x, y)| (*x as f64, *y as f64)));
    }
    let found = rank_correlation(&pairs).ok_or("one of the two never changes")?;
    let interval = block_bootstrap(&pairs, block).ok_or("too few changes for an interval")?;
    let ours = format!("{found:.2} over {} samples", pairs.len());
    Ok((Verdict::of(interval.0 > 0.0, found >= at_least), ours, Some(interval)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_values_have_their_tolerance() {
        assert!(Expected::Number(10.0).has(11.9, 0.2) && !Expected::Number(10.0).has(12.1, 0.2));
        assert!(Expected::Number(-10.0).has(-11.9, 0.2) && !Expected::Number(-10.0).has(-12.1, 0.2));
        assert!(Expected::Between([1.0, 2.0]).has(2.0, 0.0) && !Expected::Between([1.0, 2.0]).has(2.1, 0.0));
    }

    #[test]
    fn minimum_at_onset_holds_for_a_saw_tooth_and_not_for_noise() {
        let waits = [0, 0, 0, 900, 1_000, 0, 0, 0, 0, 950, 0];
        let falls = [50, 40, 30, 20, 60, 55, 50, 40, 30, 25, 60];
        assert_eq!(minima(&falls, &waits, 500), [1.0, 1.0]);
        let rises = [10, 20, 30, 40, 60, 10, 20, 30, 40, 50, 60];
        assert_eq!(minima(&rises, &waits, 500), [0.0, 0.0]);
    }
}
