//! The measurements and their output tables.

use std::path::PathBuf;

use serde_json::json;

use super::emulated::{Emulator, PathConfig};
use super::figures::quantile;
use super::job::{Carrier, Job, Stream, StreamResult};
use super::points::{Points, ROUNDS};
use crate::outcome::{Claim, Outcome};
use crate::problem::{Problem, While};

const RATE: u64 = 200_000_000;
/// Rate of the second of two streams, bits per second.
const SLOWER: u64 = 150_000_000;
/// Rate to which its receiver changes it.
const CHANGED: u64 = 100_000_000;
const MESSAGE: usize = 1_400;
/// Loss on paths for streams.
const LOSS: &str = "0.01%";
/// Round-trip time of the path on which streams are compared.
const RTT_MS: u64 = 60;

/// Maximum message size of the sensor preset.
const SENSOR_MESSAGE: usize = 1_000;

fn mbit(bps: f64) -> String {
    format!("{:.1}", bps / 1e6)
}

fn stream(carrier: &Carrier, millis: u64, lane: u16) -> Stream {
    let message = if *carrier == Carrier::Recipe("sensor".to_owned()) { SENSOR_MESSAGE } else { MESSAGE };
    Stream { carrier: carrier.clone(), rate_bps: Some(RATE), millis, message, change: None, lane }
}

fn preset(name: &str) -> Carrier {
    Carrier::Recipe(name.to_owned())
}

/// Measures 200 Mbit/s streams over round-trip times (figure 8 of the paper).
pub(super) fn rates(lab: &Emulator, points: &Points, outcome: &mut Outcome) -> Result<(), Problem> {
    let millis = (8_000.0 * points.share) as u64;
    println!("\n## Mbit/s of messages, 200 requested, path 1 Gbit/s, loss 0.01 %\n");
    println!(
        "| RTT ms | viz | msg | sensor | TCP with kernel defaults | TCP with large windows |\n|---|---|---|---|---|---|"
    );
    for &rtt_ms in points.rtt.as_deref().unwrap_or(&[0, 20, 60, 100, 200]) {
        let path = |untuned| PathConfig { rtt_ms, rate: "1Gbit", loss: LOSS.to_owned(), untuned };
        let mut jobs = Vec::new();
        for (carrier, untuned) in [
            (preset("viz"), false),
            (preset("msg"), false),
            (preset("sensor"), false),
            (Carrier::Tcp, true),
            (Carrier::Tcp, false),
        ] {
            jobs.push((path(untuned), Job::Streams(vec![stream(&carrier, millis, 0)])));
        }
        let mut cells = vec![Vec::new(); jobs.len()];
        for round in 0..points.rounds_or_default(1) {
            for ((path, job), cell) in jobs.iter().zip(&mut cells) {
                cell.extend(lab.run_round(round, path, job)?.load::<Vec<StreamResult>>("b.json")?);
            }
        }
        check_rates(rtt_ms, &cells, outcome);
        let cells: Vec<_> = cells.iter().map(|results| rate_cell(results)).collect();
        println!("| {rtt_ms} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// Adds a row of medians, and claims from the paper's figure 8: our services reach the requested rate (minus
/// headers, which the rate includes), and TCP without large windows does not on a long path.
fn check_rates(rtt_ms: u64, cells: &[Vec<StreamResult>], outcome: &mut Outcome) {
    let medians: Vec<f64> =
        cells.iter().map(|results| median(results, |results| results.goodput_bps)).collect();
    let [viz, msg, sensor, untuned, tcp] = medians[..] else { return };
    outcome.row(
        "rates",
        json!({ "rtt_ms": rtt_ms, "viz": viz, "msg": msg, "sensor": sensor, "tcp_untuned": untuned, "tcp": tcp }),
    );
    let least = viz.min(msg).min(sensor);
    let ours = format!("viz {}, msg {}, sensor {} Mbit/s", mbit(viz), mbit(msg), mbit(sensor));
    let is_met = least >= 0.94 * RATE as f64;
    outcome.claim(
        format!("each service reaches its rate at {rtt_ms} ms"),
        "200 Mbit/s, 0 to 100 ms",
        ours,
        is_met,
    );
    if rtt_ms >= 100 {
        outcome.claims.push(Claim {
            name: format!("TCP with kernel defaults has less at {rtt_ms} ms"),
            paper: "collapses".to_owned(),
            ours: format!("{} Mbit/s", mbit(untuned)),
            is_met: untuned < least / 2.0,
            why: "Linux now tunes its windows automatically: 200 Mbit/s at an RTT of 100 ms, and half of it at 200 ms.",
        });
    }
}

/// Returns the median over the rounds.
fn median<'s>(results: impl IntoIterator<Item = &'s StreamResult>, of: impl Fn(&StreamResult) -> f64) -> f64 {
    quantile(&mut results.into_iter().map(of).collect::<Vec<_>>(), 0.5)
}

/// Returns the results of one stream in all rounds.
fn of_stream(rounds: &[Vec<StreamResult>], lane: usize) -> impl Iterator<Item = &StreamResult> + Clone {
    rounds.iter().filter_map(move |streams| streams.get(lane))
}

/// Formats the median and the range.
fn rate_cell(results: &[StreamResult]) -> String {
    let mut rates: Vec<f64> = results.iter().map(|results| results.goodput_bps).collect();
    let median = mbit(quantile(&mut rates, 0.5));
    match &rates[..] {
        [least, .., most] => format!("{median} ({} to {})", mbit(*least), mbit(*most)),
        _ => median,
    }
}

/// Measures two viz streams whose rates the receiver sets, compared with TCP (figure 9).
pub(super) fn change(lab: &Emulator, points: &Points, outcome: &mut Outcome) -> Result<(), Problem> {
    let millis = (8_000.0 * points.share).max(3_000.0) as u64;
    let after = millis * 3 / 8;
    let [fast, slower, changed] = [RATE, SLOWER, CHANGED].map(|rate| rate / points.slower);
    let of = |carrier, lane, rate| Stream { rate_bps: Some(rate), ..stream(carrier, millis, lane) };
    let viz = preset("viz");
    let job = Job::Streams(vec![
        of(&viz, 0, fast),
        Stream { change: Some((after, changed)), ..of(&viz, 1, slower) },
        of(&Carrier::Tcp, 2, fast),
    ]);
    let [fast_mbit, slower_mbit, changed_mbit] = [fast, slower, changed].map(|rate| rate as f64 / 1e6);
    println!(
        "\n## Three streams at once, RTT {RTT_MS} ms, loss {LOSS}; the second viz is changed to {changed_mbit} Mbit/s after {after} ms\n"
    );
    println!("Medians and each round\n");
    println!(
        "| stream | Mbit/s before | after | settling time, RTT | jitter, p99, ms |\n|---|---|---|---|---|"
    );
    let mut rounds = Vec::new();
    for round in 0..points.rounds_or_default(ROUNDS) {
        rounds.push(lab.run_round(round, &stream_path(), &job)?.load::<Vec<StreamResult>>("b.json")?);
    }
    let names = [
        format!("viz, {fast_mbit}"),
        format!("viz, {slower_mbit} then {changed_mbit}"),
        format!("TCP, {fast_mbit} set by the program"),
    ];
    for (lane, name) in names.iter().enumerate() {
        let cell = |of: fn(&StreamResult) -> Option<f64>, digits| each_cell(&rounds, lane, of, digits);
        println!(
            "| {name} | {} | {} | {} | {} |",
            cell(|results| Some(results.goodput_bps / 1e6), 1),
            cell(|results| results.later_goodput_bps.map(|bps| bps / 1e6), 1),
            cell(|results| results.settled_ms.map(|ms| ms / RTT_MS as f64), 2),
            cell(|results| Some(results.jitter_p99_us / 1e3), 3),
        );
        of_stream(&rounds, lane)
            .for_each(|results| outcome.row("change", json!({ "stream": name, "seen": results })));
    }
    let before = median(of_stream(&rounds, 1), |results| results.goodput_bps);
    let after = median(of_stream(&rounds, 1), |results| results.later_goodput_bps.unwrap_or(0.0));
    let is_met =
        (0.9..1.02).contains(&(before / slower as f64)) && (0.9..1.02).contains(&(after / changed as f64));
    let ours = format!("{} then {} Mbit/s", mbit(before), mbit(after));
    let expected = format!("{slower_mbit} then {changed_mbit} Mbit/s");
    outcome.claim("the receiver changes the rate of a running viz", expected, ours, is_met);
    Ok(())
}

/// Formats the median over the rounds, and each value; a dash for a missing one.
fn each_cell(
    rounds: &[Vec<StreamResult>],
    lane: usize,
    of: fn(&StreamResult) -> Option<f64>,
    digits: usize,
) -> String {
    let all: Vec<_> = rounds.iter().map(|streams| streams.get(lane).and_then(of)).collect();
    let mut values: Vec<f64> = all.iter().flatten().copied().collect();
    let show = |value: &Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    match &all[..] {
        _ if values.is_empty() => String::new(),
        [only] => show(only),
        all => {
            let each: Vec<_> = all.iter().map(show).collect();
            format!("{:.digits$}: {}", quantile(&mut values, 0.5), each.join(" "))
        }
    }
}

fn stream_path() -> PathConfig {
    PathConfig { rtt_ms: RTT_MS, rate: "1Gbit", loss: LOSS.to_owned(), untuned: false }
}

/// Measures streams of the same rate for each carrier: one alone on the path, then two concurrent ones.
pub(super) fn jitter(lab: &Emulator, points: &Points, outcome: &mut Outcome) -> Result<(), Problem> {
    println!("\n## Jitter in messages of {MESSAGE} bytes, RTT {RTT_MS} ms, loss {LOSS}\n");
    println!(
        "99 % quantile of | interval between two messages - interval at the nominal rate |, in the receiving program\n"
    );
    println!("| carrier | stream | Mbit/s | jitter, ms: median | of each round |\n|---|---|---|---|---|");
    let place = |program: &PathBuf| program.canonicalize().while_doing("cannot find the program of UDT");
    let udt = points.udt.as_ref().map(place).transpose()?.map(Carrier::Udt);
    let carriers: Vec<Carrier> = [preset("viz"), Carrier::Tcp].into_iter().chain(udt).collect();
    for rates in [&[RATE][..], &[RATE, SLOWER]] {
        let all = jitter_rounds(lab, points, &carriers, rates)?;
        check_jitter(&carriers, &all, rates.len(), outcome);
        for (carrier, rounds) in carriers.iter().zip(all) {
            for (lane, rate) in rates.iter().enumerate() {
                let place = if rates.len() == 1 { "alone" } else { "concurrent" };
                let (name, rate) = (carrier.name(), rate / 1_000_000);
                println!("| {name} | {rate} Mbit/s {place} | {} |", jitter_cells(&rounds, lane));
            }
        }
    }
    if points.udt.is_none() {
        println!("| UDT | not measured: scripts/bench/udt.sh builds a program for --udt | | | |");
    }
    Ok(())
}

/// Adds the rows of each carrier, and the claim that viz has less jitter than the others (figure 9).
fn check_jitter(carriers: &[Carrier], all: &[Vec<Vec<StreamResult>>], streams: usize, outcome: &mut Outcome) {
    let mut found = Vec::new();
    for (carrier, rounds) in carriers.iter().zip(all) {
        let name = carrier.name();
        outcome.row("jitter", json!({ "carrier": name, "streams": streams, "rounds": rounds }));
        found.push((name, median(of_stream(rounds, 0), |results| results.jitter_p99_us) / 1e3));
    }
    let Some(((_, of_viz), others)) = found.split_first() else { return };
    for (name, jitter) in others {
        let ours = format!("{of_viz:.3} ms, {name} {jitter:.3}");
        let claim = format!("viz has less jitter than {name}, streams on the path: {streams}");
        outcome.claim(claim, "viz has the least jitter", ours, of_viz <= jitter);
    }
}

/// Returns the receivers' measurements of streams at these rates, per carrier and round.
fn jitter_rounds(
    lab: &Emulator,
    points: &Points,
    carriers: &[Carrier],
    rates: &[u64],
) -> Result<Vec<Vec<Vec<StreamResult>>>, Problem> {
    let millis = (3_000.0 * points.share).max(1_000.0) as u64;
    let mut all = vec![Vec::new(); carriers.len()];
    for round in 0..points.rounds_or_default(ROUNDS) {
        for (carrier, rounds) in carriers.iter().zip(&mut all) {
            let streams = rates
                .iter()
                .zip(0..)
                .map(|(&rate, lane)| Stream { rate_bps: Some(rate), ..stream(carrier, millis, lane) });
            let job = Job::Streams(streams.collect());
            rounds.push(lab.run_round(round, &stream_path(), &job)?.load::<Vec<StreamResult>>("b.json")?);
        }
    }
    Ok(all)
}

/// Formats the jitter of one stream in each round.
fn jitter_cells(rounds: &[Vec<StreamResult>], lane: usize) -> String {
    let results = of_stream(rounds, lane);
    let each: Vec<_> = results.clone().map(|results| format!("{:.3}", results.jitter_p99_us / 1e3)).collect();
    let rate = median(results.clone(), |results| results.goodput_bps);
    let jitter = median(results, |results| results.jitter_p99_us) / 1e3;
    format!("{} | {jitter:.3} | {}", mbit(rate), each.join(" "))
}

/// Measures packets per reading (the paper's second table 5): the difference made by 1,000 more readings.
pub(super) fn readings(lab: &Emulator, share: f64, outcome: &mut Outcome) -> Result<(), Problem> {
    let more = (1_000.0 * share) as usize;
    let path = PathConfig { rtt_ms: 20, rate: "100Mbit", loss: "0%".to_owned(), untuned: false };
    println!("\n## Packets on the wire for each reading of 16 bytes, every 5 ms, no loss\n");
    println!("| carrier | readings | from the sensor | to the sensor | other packets of a run: from | to |");
    println!("|---|---|---|---|---|---|");
    for (carrier, constant) in
        [(Carrier::Tcp, false), (preset("msg"), false), (preset("sensor"), false), (preset("sensor"), true)]
    {
        let packets = |readings| {
            let job = Job::Readings { carrier: carrier.clone(), readings, gap_us: 5_000, constant };
            lab.run(&path, &job).map(|results| results.packets())
        };
        let (few, many) = (packets(more)?, packets(2 * more)?);
        let each = |few: u64, many: u64| (many as f64 - few as f64) / more as f64;
        let kind = if constant { "all equal" } else { "all different" };
        let (from, to) = (each(few.0, many.0), each(few.1, many.1));
        let name = carrier.name();
        outcome.row("readings", json!({ "carrier": name, "equal": constant, "from": from, "to": to }));
        if name == "sensor" {
            let ours = format!("{from:.3} and {to:.3}");
            let claim = format!("a sensor sends at most one packet per reading and receives none ({kind})");
            outcome.claim(claim, "1 and 0", ours, from < 1.02 && to < 0.02);
        }
        // Constant part: packets for keys, connecting and closing.
        let constant_part = |few: u64, each: f64| few as f64 - each * more as f64;
        let (constant_from, constant_to) = (constant_part(few.0, from), constant_part(few.1, to));
        println!("| {name} | {kind} | {from:.3} | {to:.3} | {constant_from:.0} | {constant_to:.0} |");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_median_and_every_round_with_dashes_for_missing_values() {
        let round = |settled_ms| vec![StreamResult { settled_ms, ..StreamResult::default() }];
        let rounds = [round(Some(61.0)), round(None), round(Some(59.5)), round(Some(60.0))];
        assert_eq!(each_cell(&rounds, 0, |results| results.settled_ms, 1), "60.0: 61.0 - 59.5 60.0");
        assert_eq!(each_cell(&rounds[..1], 0, |results| results.settled_ms, 0), "61");
        assert_eq!(each_cell(&rounds[1..2], 0, |results| results.settled_ms, 0), "");
        let results = |bps| StreamResult { goodput_bps: bps, ..StreamResult::default() };
        assert_eq!(rate_cell(&[results(3e6), results(1e6), results(2e6)]), "2.0 (1.0 to 3.0)");
        assert_eq!(rate_cell(&[results(3e6)]), "3.0");
    }
}
