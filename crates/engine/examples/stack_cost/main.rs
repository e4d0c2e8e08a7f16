//! What the framework costs: stacks of the least micro-protocols over real UDP, beside the same loop written by
//! hand, with more event raises, more attributes, more copies, and without a pool (wu-h-ctp section 3.3).
//!
//! ```text
//! stack_cost recv MODE --bind ADDR:PORT [--size BYTES]
//! stack_cost send MODE --to ADDR:PORT [--size BYTES] [--seconds S]
//! stack_cost compare-recv MODE[@BYTES],... --bind ADDR:PORT
//! stack_cost compare-send MODE[@BYTES],... --to ADDR:PORT [--seconds S]
//! stack_cost nanoseconds
//! stack_cost memory [MODE] [--size BYTES] [--batches N]
//! ```
//!
//! MODE: `hand`, `base`, `raises=N`, `attributes=N`, `copies=N`, `push` (messages are queued before they are sent),
//! `push-no-pool`. Both sides must be given the same. `--size` is that of a message (1,400 bytes). `memory` does without
//! sockets: nanoseconds of several modes in turn, or so many batches (1,000) of one, for a profiler.

mod compare;
mod extra;
mod hand;
mod memory;
mod nanoseconds;
mod sides;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Hand,
    Stack(Extra),
}

/// What a stack has besides its base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extra {
    raises: usize,
    attributes: usize,
    copies: usize,
    messages: Messages,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Messages {
    /// Written into the packet when it is made.
    #[default]
    Pulled,
    /// Queued, in buffers of the pool.
    Pushed,
    /// Queued, in buffers that are allocated and freed.
    PushedWithoutPool,
}

fn mode(text: &str) -> Option<Mode> {
    let (name, number) = text.split_once('=').unwrap_or((text, "0"));
    let number = number.parse().ok()?;
    let extra = match name {
        "hand" => return Some(Mode::Hand),
        "base" => Extra::default(),
        "raises" => Extra { raises: number, ..Extra::default() },
        "attributes" => Extra { attributes: number, ..Extra::default() },
        "copies" => Extra { copies: number, ..Extra::default() },
        "push" => Extra { messages: Messages::Pushed, ..Extra::default() },
        "push-no-pool" => Extra { messages: Messages::PushedWithoutPool, ..Extra::default() },
        _ => return None,
    };
    Some(Mode::Stack(extra))
}

struct Options {
    addr: SocketAddr,
    size: usize,
    time: Duration,
}

/// The value of the option `name`.
fn value<'a>(args: &'a [String], name: &str) -> Option<&'a String> {
    args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1))
}

fn size(args: &[String]) -> Option<usize> {
    value(args, "--size").map_or(Ok(1_400), |text| text.parse()).ok()
}

fn options(args: &[String]) -> Option<Options> {
    let value = |name: &str| value(args, name);
    let addr = value("--bind").or_else(|| value("--to"))?.parse().ok()?;
    let size = size(args)?;
    let seconds = value("--seconds").map_or(Ok(3.0), |text| text.parse()).ok()?;
    Some(Options { addr, size, time: Duration::try_from_secs_f64(seconds).ok()? })
}

fn memory(args: &[String]) -> Result<(), Box<dyn Error>> {
    let size = size(args).ok_or("--size takes bytes")?;
    match args.first().filter(|arg| !arg.starts_with("--")) {
        None => memory::measure(size),
        Some(name) => {
            let batches = value(args, "--batches").map_or(Ok(1_000), |text| text.parse())?;
            memory::once(mode(name).ok_or("no such mode")?, batches, size)
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["nanoseconds"] => nanoseconds::measure(),
        ["memory", ..] => memory(&args[1..]),
        [side @ ("compare-recv" | "compare-send"), list, rest @ ..] if !rest.is_empty() => {
            match (options(&args), *side) {
                (Some(options), "compare-recv") => compare::receive(list, &options),
                (Some(options), _) => compare::send(list, &options),
                (None, _) => Err("see the head of the example's source for what it takes".into()),
            }
        }
        [side @ ("recv" | "send"), name, rest @ ..] if !rest.is_empty() => match (mode(name), options(&args))
        {
            (Some(mode), Some(options)) if *side == "recv" => sides::receive(mode, &options),
            (Some(mode), Some(options)) => sides::send(mode, &options),
            _ => Err("see the head of the example's source for what it takes".into()),
        },
        _ => {
            Err("usage: stack_cost recv|send MODE --bind|--to ADDR:PORT [--size BYTES] [--seconds S]".into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stack_cost: {error}");
            ExitCode::FAILURE
        }
    }
}
