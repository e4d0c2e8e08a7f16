//! The `haul` program, as a library so that its parts can be tested.

#![warn(clippy::print_stderr, reason = "it panics where stderr is closed: `output::tell` does not")]

mod app;
pub mod args;
mod commands;
pub mod config;
pub mod demo;
pub mod endpoint;
pub mod fault;
mod logging;
pub mod output;
pub mod settings;
pub mod signals;
pub mod ssh;
mod transfer;

pub use app::main;
pub use ssh::check;
