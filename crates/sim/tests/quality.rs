//! Guarantees of `fec` and `priority` over simulated paths. The examples `fec` and `priority` print the
//! figures.

#[expect(dead_code, reason = "other tests use more of it")]
mod exchange;
#[path = "exchange/repair.rs"]
mod repair;
#[path = "exchange/urgent.rs"]
mod urgent;

use haul_base::{Rate, Span};
use repair::{TIMEOUT, alone, loss_after_repair, runs, stream};

const RTT: Span = Span::from_millis(60);
const MESSAGES: u32 = 30_000;

/// Unrepaired losses come in clusters longer than the repairs, so their number varies more than that of
/// single losses.
fn near(measured: f64, expected: f64) -> bool {
    (0.75..1.25).contains(&(measured / expected))
}

#[test]
fn fec_repairs_losses_in_time() {
    for (repairs, loss) in [(1, 0.02), (2, 0.05), (4, 0.1)] {
        let bare = stream(17, &repair::recipe("viz", None), RTT, &alone(loss), MESSAGES);
        let repaired = stream(17, &repair::recipe("viz", Some(repairs)), RTT, &alone(loss), MESSAGES);
        let expected = loss_after_repair(loss, 20, i32::from(repairs));
        println!("seed 17, {loss}, {repairs} repairs: {bare:?}, {repaired:?}, expected {expected}");
        assert!(near(bare.lost, loss) && near(repaired.lost, expected));
        // Repaired packets needed no round trip.
        assert!((repaired.late - repaired.lost).abs() < 1e-9);
        // The cost is the repair packets, and four bytes of position per packet.
        let more = repaired.cost.0 / bare.cost.0 - 1.0 - f64::from(repairs) / 20.0;
        assert!((0.0..0.01).contains(&more), "{more}");
    }
}

#[test]
fn fec_saves_most_round_trips_of_retransmissions() {
    let bare = stream(5, &repair::recipe("msg", None), RTT, &alone(0.01), MESSAGES);
    let repaired = stream(5, &repair::recipe("msg", Some(2)), RTT, &alone(0.01), MESSAGES);
    println!("seed 5: {bare:?}, {repaired:?}");
    assert!(bare.lost == 0.0 && repaired.lost == 0.0, "everything comes");
    assert!(near(bare.late, 0.01) && repaired.late < 0.1 * bare.late);
    assert!(bare.p999 >= RTT && repaired.p999 <= TIMEOUT);
}

/// A run of losses is longer than the repairs of a block.
#[test]
fn fec_helps_little_against_runs_of_losses() {
    let bare = stream(3, &repair::recipe("viz", None), RTT, &runs(0.02, 8.0), MESSAGES);
    let repaired = stream(3, &repair::recipe("viz", Some(2)), RTT, &runs(0.02, 8.0), MESSAGES);
    println!("seed 3: {bare:?}, {repaired:?}");
    assert!(repaired.lost < bare.lost && repaired.lost > 0.5 * bare.lost);
}

#[test]
fn an_urgent_message_waits_for_at_most_one_bulk_message() {
    let rate: Rate = urgent::RATE.parse().expect("a rate");
    for bulk in [1_000, 8_192, 65_536] {
        let queued = urgent::waits(9, &urgent::recipe(false, true), bulk, 500);
        let first = urgent::waits(9, &urgent::recipe(true, true), bulk, 500);
        println!("seed 9, {bulk} bytes: {} to {}", first[250], queued[250]);
        assert!(queued[0] >= rate.time_for(urgent::QUEUE as u64), "the whole queue goes first");
        // Headers are less than 10 %; the packet being sent and the previous one are counted separately.
        let one = rate.time_for((bulk + bulk / 10 + 2 * 1_200) as u64);
        assert!(*first.last().expect("many") <= one, "{:?} > {one}", first.last());
    }
}
