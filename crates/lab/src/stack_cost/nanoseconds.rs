//! Cost of a message alone, compared with wu-h-ctp table 3.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use haul_base::{Machine, Time};
use haul_stack::{Pool, SendOptions};
use serde_json::json;

use super::extra::{Counter, stack};
use super::modes::{Extra, Messages};
use crate::outcome::Outcome;

const ROUNDS: usize = 21;
const MESSAGES: usize = 2_000;
const SIZE: usize = 1_400;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the nanoseconds per item of `work`, which processes `count` items.
fn time(count: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Prints nanoseconds for construction, attribute access and destruction.
pub(super) fn measure(outcome: &mut Outcome) -> Result<(), Box<dyn Error>> {
    let body = vec![0x5a; SIZE];
    let (mut construct, mut submit, mut pass, mut destroy) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut pool = Pool::new(MESSAGES);
    let mut buffers = Vec::with_capacity(MESSAGES);
    for _ in 0..ROUNDS {
        construct.push(time(MESSAGES, || buffers.extend((0..MESSAGES).map(|_| pool.get(black_box(SIZE))))));
        destroy.push(time(MESSAGES, || buffers.drain(..).for_each(|buffer| pool.put(black_box(buffer)))));
    }
    let extra = Extra { messages: Messages::Pushed, ..Extra::default() };
    let mut slot = vec![0; 65_507];
    for _ in 0..ROUNDS {
        let mut sender = stack(extra, Some(SIZE), Counter::default())?;
        submit.push(time(MESSAGES, || {
            for _ in 0..MESSAGES {
                let _ = black_box(sender.send(Time::ZERO, &body, SendOptions::default()));
            }
        }));
        pass.push(time(MESSAGES, || while sender.poll_transmit(Time::ZERO, &mut slot).is_some() {}));
    }
    let access = attribute_access()?;
    println!("| one message, ns (median of {ROUNDS} x {MESSAGES}) | here | H-CTP | CTP |\n|---|---|---|---|");
    for (what, here, paper, ctp) in [
        ("construction (a buffer of the pool)", median(construct), 250.0, "4,000"),
        ("access to an attribute", access, 300.0, "1,200"),
        ("destruction (back to the pool)", median(destroy), 220.0, "2,600"),
    ] {
        println!("| {what} | {here:.2} | {paper} | {ctp} |");
        outcome.row("nanoseconds", json!({ "what": what, "here": here, "h_ctp": paper }));
        let name = format!("{what}: no longer than there");
        outcome.claim(name, format!("{paper} ns"), format!("{here:.2} ns"), here <= paper);
    }
    println!("| `Stack::send`: construction, a copy of {SIZE} bytes, queueing | {:.1} | | |", median(submit));
    println!("| from the queue to a finished packet, destruction included | {:.1} | | |", median(pass));
    Ok(())
}

/// Measures reading one attribute of each of 44 packets, as a handler does.
fn attribute_access() -> Result<f64, Box<dyn Error>> {
    let with = |raises| {
        let extra = Extra { raises, ..Extra::default() };
        let round = |_| {
            let mut sender = stack(extra, Some(SIZE), Counter::default())?;
            let mut slot = vec![0; 65_507];
            let _ = sender.poll_transmit(Time::ZERO, &mut slot);
            Ok(time(MESSAGES, || {
                for _ in 0..MESSAGES {
                    black_box(sender.poll_transmit(Time::ZERO, &mut slot));
                }
            }))
        };
        (0..ROUNDS).map(round).collect::<Result<_, Box<dyn Error>>>().map(median)
    };
    let packets = (65_507 / (SIZE + 19)) as f64;
    Ok((with(64)? - with(0)?) / (64.0 * packets))
}
