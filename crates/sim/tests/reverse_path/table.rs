//! Share of reports for combinations of rate, round-trip time and loss, after the start: at most 1 % of the
//! data packets from 100 Mbit/s on, 2 % below. Exception: a minimum of four reports per second, or one per
//! round trip if that is longer. With fewer, the law could not adapt to a changed path within 3 s.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{Rate, Span};

use super::ms;
use crate::common::{Channel, Run};

/// Factor by which losses increase the number of reports, which are then sent early.
const EARLY_FACTOR: f64 = 1.2;

/// Results of a run: packets in each direction, object bytes and lost packets.
#[derive(Clone, Copy, Debug)]
struct Counts {
    data: f64,
    back: f64,
    object: f64,
    lost: f64,
}

fn counts(run: &Run) -> Counts {
    let summary = run.world.summary();
    let offered = |name| summary.flows.iter().find(|flow| flow.name == name).unwrap().truth.offered as f64;
    let object = run.session.receiver(&run.world).stats().object_bytes as f64;
    Counts { data: offered("data"), back: offered("feedback"), object, lost: run.sent().lost as f64 }
}

/// Start and length of a cell's measurement, seconds.
fn stretch(mbps: f64, rtt: u64) -> (f64, f64) {
    match mbps {
        ..2.0 => (40.0, 60.0),
        ..20.0 => (20.0, 20.0),
        ..100.0 => (15.0, 8.0),
        ..500.0 => (12.0, 4.0),
        _ if rtt > 100 => (15.0, 1.0),
        _ => (5.0, 3.0),
    }
}

/// Runs one cell. Returns the problem, if there is one.
fn cell(mbps: f64, rtt: u64, loss: f64) -> Option<String> {
    let rate = Rate::from_bps((mbps * 1e6) as u64);
    let queue = ms(rtt.max(20)).max(rate.time_for(15_000));
    let path = Channel { queue, loss, ..Channel::clean(ms(rtt) / 2, rate) };
    let mut run = Run::new(5, 4 << 30, "bbr", None, &path, &path);
    let (start, len) = stretch(mbps, rtt);
    run.run(Span::from_secs_f64(start));
    let (first, mut queued) = (counts(&run), 0.0);
    for n in 1..=100 {
        run.run(Span::from_secs_f64(start + len * f64::from(n) / 100.0));
        let standing = run.world.path(run.forward).and_then(|path| path.standing_queue(run.world.now()));
        queued += standing.map_or(0.0, |queue| rate.time_for(queue.bytes).as_secs_f64()) / 100.0;
    }
    let last = counts(&run);
    let data = last.data - first.data;
    let share = (last.back - first.back) / data;
    let goodput = (last.object - first.object) * 8.0 / len / (mbps * 1e6) * 1_500.0 / 1_433.0;
    let lost = (last.lost - first.lost) / data;
    let row = format!(
        "{mbps} Mbit/s, {rtt} ms, loss {loss}: reports {share:.4}, goodput {goodput:.3}, queue {:.1} ms, lost {lost:.4}",
        queued * 1e3
    );
    println!("TABLE {row}");
    let bar = if mbps >= 100.0 { 0.01 } else { 0.02 };
    let at_least = EARLY_FACTOR / ms(rtt.max(250)).as_secs_f64() * len / data;
    let is_good = share <= f64::max(bar, at_least) && goodput > 0.9 * (1.0 - loss) && lost < loss + 0.025;
    (!is_good).then_some(row)
}

fn check(loss: f64) {
    let rates = [0.056, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1_000.0];
    let cells = rates.into_iter().flat_map(|mbps| [1, 5, 20, 100, 600].map(|rtt| (mbps, rtt)));
    let bad: Vec<String> = cells.filter_map(|(mbps, rtt)| cell(mbps, rtt, loss)).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn reports_are_few_at_any_rate_and_round_trip_without_loss() {
    check(0.0);
}

#[test]
fn reports_are_few_at_any_rate_and_round_trip_with_few_losses() {
    check(0.001);
}

#[test]
fn reports_are_few_at_any_rate_and_round_trip_with_many_losses() {
    check(0.01);
}
