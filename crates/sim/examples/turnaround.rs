//! Turn-around time of 10-byte messages with the recipe `msg`: request and answer, with equal loss in both
//! directions.
//! `cargo run --release -p haul-sim --example turnaround [SEED]` prints the mean, the ideal of the repeat
//! policy and the 99th percentile per round-trip time and loss, 10,000 messages each.

#[path = "../tests/exchange/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod exchange;

use exchange::{ideal, mean, p99, round_trips_of};
use haul_base::{Probability, Span};
use haul_sim::{PathSpec, StageSpec};

const MESSAGES: u32 = 10_000;

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed}, {MESSAGES} messages each, milliseconds");
    println!("{:>6} {:>6} {:>9} {:>9} {:>7} {:>9}", "RTT", "loss", "mean", "ideal", "ratio", "p99");
    for rtt in [1, 60].map(Span::from_millis) {
        for percent in [0.0, 1.0, 2.0, 5.0, 10.0] {
            let loss = Probability::new(percent / 100.0).expect("a share");
            let path = PathSpec { stages: vec![StageSpec::Loss(loss), StageSpec::Delay(rtt / 2)] };
            let times = round_trips_of(seed, MESSAGES, rtt, &path);
            let (mean, ideal) = (mean(&times).as_millis_f64(), ideal(rtt, percent / 100.0).as_millis_f64());
            println!(
                "{:>6} {percent:>4} % {mean:>9.3} {ideal:>9.3} {:>7.3} {:>9.3}",
                rtt.as_millis_f64(),
                mean / ideal,
                p99(&times).as_millis_f64()
            );
        }
    }
}
