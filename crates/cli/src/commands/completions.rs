//! `haul completions`: prints the completion script of a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::out_verbatim;

pub(crate) fn run(shell: Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "haul", &mut script);
    out_verbatim(String::from_utf8_lossy(&script).trim_end());
    0
}
