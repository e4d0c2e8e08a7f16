//! The `haul` program, as a library so that its parts can be tested.

#![warn(clippy::print_stderr, reason = "it panics if stderr is closed; `output::tell` does not")]

mod app;
mod args;
mod commands;
mod config;
mod endpoint;
mod fault;
mod logging;
mod output;
mod settings;
mod signals;
mod ssh;
mod standard_streams;
mod text_file;
mod transfer;

pub use app::main;
#[cfg(any(test, fuzzing))]
pub use ssh::check;
