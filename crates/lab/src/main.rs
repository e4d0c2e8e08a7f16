//! The program `haul-lab`: emulated paths for real traffic, and experiments.

mod compare;
mod emulator;
mod experiment;
mod load;
mod outcome;
mod problem;
mod run;
mod scheduler;
mod selftest;
mod services;
mod signatures;
mod sim;
mod stack_cost;
mod wan;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "Examples:
  haul-lab wan --rtt 100ms --rate 1Gbit --loss 0.1% -- bash
  haul-lab wan --rtt 50ms --server 'haul serve --root /data' -- ./client.sh
  haul-lab wan --help";

/// Emulated paths for real programs, and experiments with them
#[derive(Debug, Parser)]
#[command(name = "haul-lab", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Emulates a path with delay, rate limit, loss and more between two network namespaces
    Wan(Box<wan::WanArgs>),
    /// Lists the experiments: the papers' tables and figures, and our own
    List,
    /// Runs experiments and reports which results of the papers they reproduce
    Run(experiment::RunArgs),
    /// Runs a scenario in the simulator and prints the results as JSON
    Sim(sim::SimArgs),
    /// Runs scenarios and writes the signature of every transmission window: training data for `haul train`
    Signatures(signatures::SignaturesArgs),
    /// Measures viz, msg and sensor on emulated paths, compared with TCP
    Services(services::ServicesArgs),
    /// Runs one end of such a measurement
    #[command(hide = true)]
    ServicesEnd(services::EndArgs),
    /// Runs the same paths and traffic in the simulator and on the emulator, and prints the results side by
    /// side
    Compare(compare::CompareArgs),
    /// Runs one end of a compared emulated path
    #[command(hide = true)]
    CompareEnd(compare::EndArgs),
    /// Shows which task holds the core of a receiving host, and the receiver's sleep average
    SchedulerTrace(scheduler::TraceArgs),
    /// Measures the cost of the micro-protocol framework
    StackCost(stack_cost::StackCostArgs),
    /// Runs one end of a scenario with real sockets
    #[command(hide = true)]
    RealEnd(sim::real::EndArgs),
    /// Enters a namespace and executes a program
    #[command(hide = true)]
    Enter(wan::EnterArgs),
    /// Computes until the process is killed
    #[command(hide = true)]
    Burn(load::BurnArgs),
}

/// Returns the exit code; prints a problem first.
fn exit_code_of(result: Result<ExitCode, problem::Problem>) -> ExitCode {
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
        Command::List => exit_code_of(experiment::list()),
        Command::Run(args) => exit_code_of(experiment::run(&args)),
        Command::Sim(args) => sim::sim(&args).unwrap_or_else(|problem| {
            eprintln!("haul-lab: {problem}");
            ExitCode::from(problem.exit_code())
        }),
        Command::Signatures(args) => exit_code_of(signatures::signatures(&args)),
        Command::Services(args) => exit_code_of(services::services(&args).map(|_| ExitCode::SUCCESS)),
        Command::ServicesEnd(args) => exit_code_of(services::end(&args)),
        Command::Compare(args) => exit_code_of(compare::compare(&args).map(|_| ExitCode::SUCCESS)),
        Command::CompareEnd(args) => compare::end(&args),
        Command::SchedulerTrace(args) => exit_code_of(scheduler::trace(&args)),
        Command::StackCost(args) => exit_code_of(stack_cost::stack_cost(&args)),
        Command::RealEnd(args) => sim::real::end(&args),
        Command::Enter(args) => wan::enter(&args),
        Command::Burn(args) => load::burn(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Splits a line into arguments as a shell would; a quoted part is one argument.
    fn words(line: &str) -> Vec<String> {
        let parts = line.trim().split('\'').enumerate();
        let each = |(at, part): (usize, &str)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        };
        parts.flat_map(each).collect()
    }

    #[test]
    fn the_examples_of_the_help_texts_parse() {
        let mut command = Cli::command();
        let mut texts = vec![command.render_long_help().to_string()];
        texts.extend(command.get_subcommands_mut().map(|sub| sub.render_long_help().to_string()));
        let is_example =
            |line: &&str| line.starts_with("  haul-lab ") || line.starts_with("  sudo haul-lab ");
        let examples: Vec<&str> = texts.iter().flat_map(|text| text.lines()).filter(is_example).collect();
        assert!(examples.len() >= 3, "{texts:?}");
        for example in examples {
            let words = words(example.trim().trim_start_matches("sudo "));
            match Cli::try_parse_from(&words) {
                Ok(_) => {}
                Err(error) => assert!(!error.use_stderr(), "{example}: {error}"),
            }
            // A served directory must be named with `--root`.
            let serves = words.iter().filter(|word| word.starts_with("haul serve"));
            assert!(serves.into_iter().all(|word| word.contains("--root ")), "{example}");
        }
    }
}
