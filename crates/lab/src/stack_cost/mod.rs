//! `haul-lab stack-cost`: cost of the framework. Compares minimal stacks with the same loop written by hand,
//! and with extra event raises, attributes and copies, and without a pool (wu-h-ctp section 3.3).

mod compare;
mod extra;
mod hand;
mod memory;
mod modes;
mod nanoseconds;
mod sides;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use haul_base::WithCauses;

use self::modes::{Item, Mode, SIZE};
use crate::outcome::Outcome;
use crate::problem::Problem;

/// Arguments of `haul-lab stack-cost`.
#[derive(Debug, Args)]
pub(crate) struct StackCostArgs {
    #[command(subcommand)]
    what: Measurement,
}

/// Measurements.
#[derive(Debug, Subcommand)]
enum Measurement {
    /// Cost of a message alone, compared with wu-h-ctp table 3
    Nanoseconds,
    /// Both ends on one core, without sockets
    Memory {
        /// For a profiler: runs only this mode
        mode: Option<Mode>,

        /// Batches of that mode
        #[arg(long, value_name = "N", default_value = "1000", requires = "mode")]
        batches: usize,
    },
    /// Sends slices of 40 ms of each mode in turn
    Send {
        #[command(flatten)]
        list: List,

        /// Address of the receiver
        #[arg(long, value_name = "ADDR:PORT")]
        to: SocketAddr,

        /// Duration in seconds
        #[arg(long, value_name = "S", default_value = "3")]
        seconds: f64,
    },
    /// Receives these slices and prints the rates
    Recv {
        #[command(flatten)]
        list: List,

        /// Address of the first mode; each mode has its own port
        #[arg(long, value_name = "ADDR:PORT")]
        bind: SocketAddr,
    },
}

/// Modes to compare, equal on both sides.
#[derive(Debug, Args)]
struct List {
    /// hand, base, raises=N, attributes=N, copies=N, push, push-no-pool; @8192 after a mode sets the message
    /// size in bytes
    #[arg(value_name = "MODE[@BYTES],..", value_delimiter = ',', required = true)]
    items: Vec<Item>,
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` expects")]
fn problem(error: Box<dyn Error>) -> Problem {
    Problem::failed(WithCauses(&*error).to_string(), "")
}

/// Runs one measurement.
pub(crate) fn stack_cost(args: &StackCostArgs) -> Result<ExitCode, Problem> {
    let done = match &args.what {
        Measurement::Nanoseconds => nanoseconds::measure(&mut Outcome::default()),
        Measurement::Memory { mode: None, .. } => memory::measure(SIZE, &mut Outcome::default()),
        Measurement::Memory { mode: Some(mode), batches } => memory::once(*mode, *batches, SIZE),
        Measurement::Send { list, to, seconds } => Duration::try_from_secs_f64(*seconds)
            .map_err(Into::into)
            .and_then(|time| compare::send(&list.items, *to, time)),
        Measurement::Recv { list, bind } => compare::receive(&list.items, *bind),
    };
    done.map(|()| ExitCode::SUCCESS).map_err(problem)
}

/// Runs the measurements that need neither sockets nor a second process.
pub(crate) fn in_memory() -> Result<Outcome, Problem> {
    let mut outcome = Outcome::default();
    memory::measure(SIZE, &mut outcome).map_err(problem)?;
    nanoseconds::measure(&mut outcome).map_err(problem)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::modes::Extra;
    use super::*;

    #[test]
    fn modes_have_sizes_and_unknown_ones_are_refused() {
        let item: Item = "raises=9@8192".parse().unwrap();
        assert_eq!((item.mode, item.size), (Mode::Stack(Extra { raises: 9, ..Extra::default() }), 8_192));
        assert_eq!("hand".parse::<Item>().unwrap().size, SIZE);
        for wrong in ["", "warp", "raises=many", "base@", "base@x"] {
            assert!(wrong.parse::<Item>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_mode_carries_a_packet_in_memory() {
        for mode in ["hand", "base", "raises=9", "attributes=7", "copies=3", "push", "push-no-pool"] {
            memory::once(mode.parse().unwrap(), 3, SIZE).unwrap();
        }
    }
}
