//! The comparison without sockets: from the sender's stack directly into the receiver's, on one core. This
//! isolates the cost of the framework and its micro-protocols, and instruction counts
//! (`valgrind --tool=callgrind`) are reproducible.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use haul_base::{Ecn, Machine, PathId, Received, Time};
use haul_stack::{SendOptions, Stack};
use serde_json::json;

use super::extra::{Counter, stack};
use super::hand::{HandWrittenSender, read};
use super::modes::{Extra, Messages, Mode};
use crate::outcome::Outcome;

const SLOT: usize = 65_507;
const ROUNDS: usize = 41;

/// Both ends of one mode.
enum Ends {
    HandWritten(HandWrittenSender),
    Stacks(Box<Stack>, Box<Stack>, Messages),
}

impl Ends {
    fn new(mode: Mode, size: usize) -> Result<Self, Box<dyn Error>> {
        let Mode::Stack(extra) = mode else { return Ok(Self::HandWritten(HandWrittenSender::default())) };
        let sender = stack(extra, Some(size), Counter::default())?;
        let receiver = stack(extra, None, Counter::default())?;
        Ok(Self::Stacks(Box::new(sender), Box::new(receiver), extra.messages))
    }

    /// Writes a batch. Returns its bytes and stride.
    fn write(&mut self, slot: &mut [u8], message: &[u8]) -> Result<(usize, usize), Box<dyn Error>> {
        match self {
            Self::HandWritten(hand) => Ok(hand.fill(slot, message.len())),
            Self::Stacks(sender, _, messages) => {
                while *messages != Messages::Pulled && sender.queued_bytes() < 2 * SLOT + message.len() {
                    sender.send(Time::ZERO, message, SendOptions::default())?;
                }
                let sent = sender.poll_transmit(Time::ZERO, slot).ok_or("the stack has nothing to send")?;
                Ok((sent.len, sent.segment_size))
            }
        }
    }

    fn read(&mut self, data: &mut [u8], stride: usize) {
        match self {
            Self::HandWritten(_) => {
                black_box(read(data, stride));
            }
            Self::Stacks(_, receiver, _) => {
                let path = PathId::default();
                let mut received =
                    Received { data, stride, arrival: None, path, ecn: Ecn::NotEct, socket_drops: None };
                receiver.on_receive(Time::ZERO, &mut received);
            }
        }
    }

    /// Moves `batches`. Returns the packets, and the times at the sender and at the receiver.
    fn run(&mut self, batches: usize, message: &[u8]) -> Result<(usize, Duration, Duration), Box<dyn Error>> {
        let mut slot = vec![0x5a; SLOT];
        let (mut packets, mut writing, mut reading) = (0, Duration::ZERO, Duration::ZERO);
        for _ in 0..batches {
            let start = Instant::now();
            let (len, stride) = self.write(&mut slot, message)?;
            let middle = Instant::now();
            self.read(&mut slot[..len], stride);
            writing += middle - start;
            reading += middle.elapsed();
            packets += len.div_ceil(stride);
        }
        Ok((packets, writing, reading))
    }
}

/// Moves `batches` of one mode, for a profiler.
pub(super) fn once(mode: Mode, batches: usize, size: usize) -> Result<(), Box<dyn Error>> {
    let (packets, _, _) = Ends::new(mode, size)?.run(batches, &vec![0x5a; size])?;
    println!("{{\"batches\":{batches},\"packets\":{packets}}}");
    Ok(())
}

/// Prints nanoseconds per packet at both ends, for several modes.
pub(super) fn measure(size: usize, outcome: &mut Outcome) -> Result<(), Box<dyn Error>> {
    let stack = |raises, attributes| Mode::Stack(Extra { raises, attributes, ..Extra::default() });
    let pushed = Mode::Stack(Extra { messages: Messages::Pushed, ..Extra::default() });
    let modes = [
        ("by hand", Mode::HandWritten),
        ("base", stack(0, 0)),
        ("9 more raises", stack(9, 0)),
        ("7 more attributes", stack(0, 7)),
        ("queued", pushed),
    ];
    let message = vec![0x5a; size];
    let mut times = vec![Vec::new(); modes.len()];
    for _ in 0..ROUNDS {
        for ((_, mode), times) in modes.iter().zip(&mut times) {
            let (packets, writing, reading) = Ends::new(*mode, size)?.run(300, &message)?;
            let each = |time: Duration| time.as_nanos() as f64 / packets as f64;
            times.push((each(writing), each(reading)));
        }
    }
    println!("| one packet in memory, ns (median of {ROUNDS}) | sender | receiver |\n|---|---|---|");
    for ((name, _), times) in modes.iter().zip(&times) {
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let sender = median(times.iter().map(|time| time.0).collect());
        let receiver = median(times.iter().map(|time| time.1).collect());
        println!("| {name} | {sender:.2} | {receiver:.2} |");
        outcome.row("memory", json!({ "mode": name, "sender_ns": sender, "receiver_ns": receiver }));
    }
    Ok(())
}
