//! Benefit and cost of `fec`: a stream of 50 Mbit/s over lossy paths, with `viz` (no retransmission), `viz`
//! with repair packets, `msg` (full retransmission), and both.
//! `cargo run --release -p haul-sim --example fec [SEED]` prints late and lost messages, and the bytes on the
//! wire.

#[path = "../tests/exchange/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod exchange;
#[path = "../tests/exchange/repair.rs"]
mod repair;

use haul_base::Span;
use repair::{MESSAGE, StreamOutcome, TIMEOUT, alone, loss_after_repair, recipe, runs, stream};

const MESSAGES: u32 = 100_000;

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let recipes = [
        ("viz", recipe("viz", None)),
        ("viz, fec 20+2", recipe("viz", Some(2))),
        ("viz, fec 20+4", recipe("viz", Some(4))),
        ("msg", recipe("msg", None)),
        ("msg, fec 20+2", recipe("msg", Some(2))),
    ];
    let losses = [
        ("0.1 %", alone(0.001)),
        ("1 %", alone(0.01)),
        ("5 %", alone(0.05)),
        ("1 % in runs of 5", runs(0.01, 5.0)),
    ];
    println!("seed {seed}, {MESSAGES} messages of {MESSAGE} bytes, 50 Mbit/s");
    println!(
        "late: % later than the path plus {TIMEOUT}, or lost; never: % lost; 99.9 %: ms in addition to the path"
    );
    println!("forth, back: UDP payload to bytes of messages\n");
    println!(
        "| RTT | loss | recipe | late | never | 99.9 % | forth | back |\n|---|---|---|---|---|---|---|---|"
    );
    for rtt in [60, 200].map(Span::from_millis) {
        for (loss, stage) in &losses {
            for (name, recipe) in &recipes {
                let StreamOutcome { late, lost, p999, cost: (forth, back) } =
                    stream(seed, recipe, rtt, stage, MESSAGES);
                println!(
                    "| {rtt} | {loss} | {name} | {:.3} | {:.3} | {:.2} | {forth:.3} | {back:.3} |",
                    late * 100.0,
                    lost * 100.0,
                    p999.as_millis_f64()
                );
            }
        }
    }
    println!(
        "\nShare that 20+2 and 20+4 cannot repair with independent losses, by the binomial distribution:"
    );
    for p in [0.001, 0.01, 0.05] {
        let [two, four] = [2, 4].map(|repairs| 100.0 * loss_after_repair(p, 20, repairs));
        println!("{} % lost: {two:.5} %, {four:.5} %", p * 100.0);
    }
}
