//! The `haul-lab` program: paths for real traffic, and experiments.

mod compare;
mod load;
mod problem;
mod run;
mod selftest;
mod services;
mod sim;
mod wan;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "Examples:
  haul-lab wan --rtt 100ms --rate 1Gbit --loss 0.1% -- bash
  haul-lab wan --rtt 50ms --server 'haul serve /data' -- ./client.sh
  haul-lab wan --help";

/// Paths for the traffic of real programs, and experiments with them
#[derive(Debug, Parser)]
#[command(name = "haul-lab", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts a path with delay, rate, loss and more between two network namespaces
    Wan(Box<wan::WanArgs>),
    /// Runs a scenario in the simulator and prints what came out as JSON
    Sim(sim::SimArgs),
    /// Measures viz, msg and sensor on emulated paths, beside TCP
    Services(services::ServicesArgs),
    /// Is one end of such a measurement
    #[command(hide = true)]
    ServicesEnd(services::EndArgs),
    /// Runs the same paths and traffic in the simulator and on the emulator, and prints both side by side
    Compare(compare::CompareArgs),
    /// Is one end of an emulated path that is compared
    #[command(hide = true)]
    CompareEnd(compare::EndArgs),
    /// Becomes a program inside of a namespace
    #[command(hide = true)]
    Enter(wan::EnterArgs),
    /// Computes until it is ended
    #[command(hide = true)]
    Burn(load::BurnArgs),
}

/// The exit code, after a problem was said.
fn told(result: Result<ExitCode, problem::Problem>) -> ExitCode {
    result.unwrap_or_else(|problem| {
        eprintln!("haul-lab: {problem}");
        ExitCode::from(problem.exit_code())
    })
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Wan(args) => wan::wan(&args).map_or_else(
            |problem| {
                eprintln!("haul-lab: {problem}");
                ExitCode::from(problem.exit_code())
            },
            ExitCode::from,
        ),
        Command::Sim(args) => sim::sim(&args).unwrap_or_else(|problem| {
            eprintln!("haul-lab: {problem}");
            ExitCode::from(problem.exit_code())
        }),
        Command::Services(args) => told(services::services(&args)),
        Command::ServicesEnd(args) => told(services::end(&args)),
        Command::Compare(args) => told(compare::compare(&args).map(|()| ExitCode::SUCCESS)),
        Command::CompareEnd(args) => compare::end(&args),
        Command::Enter(args) => wan::enter(&args),
        Command::Burn(args) => load::burn(&args),
    }
}
