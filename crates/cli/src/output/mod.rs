//! Output: progress and messages on stderr, results on stdout.

mod events;
mod format;
mod lines;
mod progress;
mod report;

pub(crate) use events::EventLog;
pub(crate) use format::{
    ItemCallback, clock, count, error_lines, grouped, item_lines, item_lists, machine_prefix, percent,
    put_name,
};
pub(crate) use lines::{
    Lines, eprint_lines, eprint_verbatim, escape_controls, out, out_json, out_url, out_verbatim,
    stdout_error, without_keys, write_stdout,
};
pub(crate) use progress::{Progress, ProgressStyle, Snapshot, Stall, is_rich_terminal};
pub(crate) use report::{CpuSeconds, FileFailure, Packets, RunReport, by_cause, json_value, out_fields};

#[cfg(test)]
mod tests;
