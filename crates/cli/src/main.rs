//! The `haul` program; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    haul_cli::main()
}
