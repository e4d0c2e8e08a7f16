//! Benefit of `priority`: urgent messages of 100 bytes beside a permanently backlogged bulk stream.
//! `cargo run --release -p haul-sim --example priority [SEED]` prints how long urgent messages wait at the
//! sender.

#[path = "../tests/exchange/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod exchange;
#[path = "../tests/exchange/urgent.rs"]
mod urgent;

use urgent::{QUEUE, RATE, recipe, waits};

const MESSAGES: u32 = 5_000;

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!(
        "seed {seed}, {MESSAGES} urgent messages, {} KiB of bulk waiting, {RATE}/s; ms: median (99 %)\n",
        QUEUE / 1_024
    );
    println!(
        "| bytes of a bulk message | viz | viz, priority | the same without pacing |\n|---|---|---|---|"
    );
    for bulk in [1_000, 8 * 1_024, 64 * 1_024] {
        let cell = |priority, pacing| {
            let waits = waits(seed, &recipe(priority, pacing), bulk, MESSAGES);
            let at = |share: usize| waits[(waits.len() * share).div_ceil(100) - 1].as_millis_f64();
            format!("{:.2} ({:.2})", at(50), at(99))
        };
        println!("| {bulk} | {} | {} | {} |", cell(false, true), cell(true, true), cell(true, false));
    }
}
