//! Tables as Markdown.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use super::cases::{Measure, TcpCase, UdpCase};
use super::figures::{Arrivals, Series};
use crate::outcome::Outcome;
use crate::problem::{Problem, While};

/// A case with all its measurements.
#[derive(Debug)]
pub(super) struct Measured<C, T> {
    pub(super) case: C,
    pub(super) simulated: Vec<T>,
    /// The emulator's runs repeated in the simulator, with the actual sending times.
    pub(super) replayed: Vec<T>,
    pub(super) emulated: Vec<T>,
}

/// Writes all samples of all runs.
pub(super) fn write_samples(file: &Path, tcp: &[Measured<TcpCase, Series>]) -> Result<(), Problem> {
    let entry = |line: &Measured<TcpCase, Series>| serde_json::json!({ "case": line.case.name(), "simulated": line.simulated, "emulated": line.emulated });
    let all: Vec<_> = tcp.iter().map(entry).collect();
    let text = serde_json::to_vec(&all).map_err(|e| Problem::failed(e.to_string(), ""))?;
    std::fs::write(file, text).while_doing(&format!("cannot write {}", file.display()))
}

/// Formats the median, with minimum and maximum in brackets if they differ.
fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { return String::new() };
    let formatted = |value: f64| format!("{value:.digits$}");
    let (middle, least, most) = (formatted(median(&sorted)), formatted(*least), formatted(*most));
    if least == most { middle } else { format!("{middle} ({least}-{most})") }
}

/// Returns the median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted {
        [] => f64::NAN,
        _ if sorted.len().is_multiple_of(2) => f64::midpoint(sorted[half - 1], sorted[half]),
        _ => sorted[half],
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    median(&values)
}

const fn unit(what: Measure) -> (&'static str, usize) {
    match what {
        Measure::Median => ("median delay, ms", 3),
        Measure::P99 => ("99 % delay, ms", 3),
        Measure::MeanWait => ("mean queueing delay, ms", 3),
        Measure::Loss => ("lost, %", 3),
        Measure::MeanRun => ("mean burst length", 3),
    }
}

/// Formats theory, simulated and emulated values.
pub(super) fn udp(lines: &[Measured<UdpCase, Arrivals>]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n| UDP | | theory | simulated | simulated, with the emulator's send times | emulated | lost outside the path |\n|---|---|---|---|---|---|---|\n",
    );
    for line in lines {
        for (what, theory) in &line.case.measures {
            let (name, digits) = unit(*what);
            let all =
                |runs: &[Arrivals]| runs.iter().map(|run| run.measure(&line.case, *what)).collect::<Vec<_>>();
            let theory = theory.map_or(String::new(), |theory| format!("{theory:.digits$}"));
            let _ = writeln!(
                text,
                "| {} | {name} | {theory} | {} | {} | {} | {} |",
                line.case.name,
                spread(&all(&line.simulated), digits),
                spread(&all(&line.replayed), digits),
                spread(&all(&line.emulated), digits),
                line.emulated.iter().map(|run| run.foreign).sum::<u64>(),
            );
        }
    }
    text
}

/// Formats goodput of each flow, retransmissions and round-trip times.
pub(super) fn tcp(lines: &[Measured<TcpCase, Series>]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n| TCP | goodput simulated, Mbit/s | simulated, the emulator's seeds | emulated | simulated / emulated | retransmitted, % | emulated | srtt simulated, ms | emulated |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for line in lines {
        let from = line.case.warm_up;
        let goodput = |runs: &[Series], flow: usize| -> Vec<f64> {
            runs.iter().map(|run| run.goodput(flow, from).as_bps() as f64 / 1e6).collect()
        };
        let again = |runs: &[Series]| runs.iter().map(|run| 100.0 * run.repeated(from)).collect::<Vec<_>>();
        let srtt = |runs: &[Series]| runs.iter().map(|run| run.srtt_ms(from)).collect::<Vec<_>>();
        for flow in 0..line.case.laws.len() {
            let (simulated, emulated) = (goodput(&line.simulated, flow), goodput(&line.emulated, flow));
            let _ = write!(text, "| {}", line.case.name());
            if line.case.laws.len() > 1 {
                let _ = write!(text, ": {} {}", line.case.laws[flow].name(), flow + 1);
            }
            let same = simulated.get(..emulated.len()).unwrap_or_default().to_vec();
            let _ = write!(
                text,
                " | {} | {} | {}",
                spread(&simulated, 2),
                spread(&same, 2),
                spread(&emulated, 2)
            );
            let ratio = middle(same) / middle(emulated);
            let ratio = if ratio.is_finite() { format!("{ratio:.2}") } else { String::new() };
            let _ = writeln!(
                text,
                " | {ratio} | {} | {} | {} | {} |",
                spread(&again(&line.simulated), 3),
                spread(&again(&line.emulated), 3),
                spread(&srtt(&line.simulated), 1),
                spread(&srtt(&line.emulated), 1),
            );
        }
    }
    text
}

/// Maximum relative deviation of simulated values from theory, and of goodput from the emulator's.
const NEAR: f64 = 0.1;

/// Adds the results of the UDP cases, and claims about the deviation of simulated medians from theory.
pub(super) fn check_udp(lines: &[Measured<UdpCase, Arrivals>], outcome: &mut Outcome) {
    for line in lines {
        for (what, theory) in &line.case.measures {
            let all =
                |runs: &[Arrivals]| runs.iter().map(|run| run.measure(&line.case, *what)).collect::<Vec<_>>();
            let (simulated, emulated) = (all(&line.simulated), all(&line.emulated));
            let (name, middle) =
                (format!("{}: {}", line.case.name, unit(*what).0), middle(simulated.clone()));
            let row = json!({ "name": name, "theory": theory, "simulated": simulated, "emulated": emulated });
            outcome.row("udp", row);
            if let Some(theory) = theory.filter(|theory| *theory > 0.0) {
                let is_met = (middle / theory - 1.0).abs() <= NEAR;
                outcome.claim(name, format!("theory {theory:.3}"), format!("{middle:.3}"), is_met);
            }
        }
    }
}

/// Adds the goodput of each TCP flow, and the claim that the total on most paths agrees with the emulator.
/// How two flows share a path is random, and single cases may deviate.
pub(super) fn check_tcp(lines: &[Measured<TcpCase, Series>], outcome: &mut Outcome) {
    let mut ratios = Vec::new();
    for line in lines {
        let from = line.case.warm_up;
        let goodput = |run: &Series| -> Vec<f64> {
            (0..line.case.laws.len()).map(|flow| run.goodput(flow, from).as_bps() as f64).collect()
        };
        let all = |runs: &[Series]| runs.iter().map(goodput).collect::<Vec<_>>();
        let total_goodput =
            |runs: &[Series]| middle(runs.iter().map(|run| goodput(run).iter().sum()).collect());
        let (simulated, emulated) = (all(&line.simulated), all(&line.emulated));
        let name = line.case.name();
        outcome.row("tcp", json!({ "name": name, "simulated_bps": simulated, "emulated_bps": emulated }));
        if !line.emulated.is_empty() {
            ratios.push(total_goodput(&line.simulated) / total_goodput(&line.emulated));
        }
    }
    if !ratios.is_empty() {
        let far = ratios.iter().filter(|ratio| (*ratio - 1.0).abs() > NEAR).count();
        let ours = format!("{far} of {} paths differ by more than 10 %", ratios.len());
        outcome.claim("TCP: simulated goodput matches the emulator's", "", ours, far * 10 <= ratios.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_and_both_extremes() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0-3.0)");
        assert_eq!(spread(&[1.0, 2.0], 2), "1.50 (1.00-2.00)");
        assert_eq!(spread(&[1.0, 1.0], 0), "1");
        assert_eq!(spread(&[], 0), "");
    }
}
