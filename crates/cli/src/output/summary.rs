//! The closing words for people.

use std::fmt;
use std::fmt::Write as _;

use haul_base::Span;

use super::{RunReport, clock, count, grouped, percent, size};
use crate::fault::{Fault, Shown, printable};

/// The limit that names this system's shortcomings as its cause.
const RECEIVER_HOST: &str = "receiver_host";

/// A report for people. It closes with two lines: what was moved, and what limited it.
pub struct Summary<'a>(pub &'a RunReport);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        f.write_str(&self.failures())?;
        f.write_str(&self.notes())?;
        if report.limited_by.as_ref().is_some_and(|limit| limit.what == RECEIVER_HOST) {
            for fallback in &report.fallbacks {
                writeln!(f, "note: {}", printable(fallback))?;
            }
        }
        if let Some(error) = &report.error {
            writeln!(f, "{}", Shown(error))?;
            if report.bytes == 0 {
                return Ok(());
            }
        }
        if self.is_nothing_to_do() {
            let kept = count(report.kept_files, "file");
            let (begin, deleted) = match report.deleted_files {
                0 => ("Nothing to do", String::new()),
                names => ("Nothing to send", format!(", {} deleted", count(names, "name"))),
            };
            return writeln!(
                f,
                "{begin}: {kept} there already{deleted}, looked at in {}.",
                clock(report.elapsed)
            );
        }
        if self.is_nothing_done() {
            return writeln!(f, "Nothing was moved.");
        }
        self.write_details(f)?;
        writeln!(f, "{}", self.moved())?;
        self.write_limit(f)
    }
}

impl Summary<'_> {
    /// One line for each failed file that is known by name, and one for all that failed with its directory.
    pub fn failures(&self) -> String {
        let report = self.0;
        let (mut lines, mut told) = (String::new(), 0);
        for failure in report.causes() {
            let Fault { message, hint, .. } = &failure.fault;
            let hint = if hint.is_empty() { String::new() } else { format!(" ({})", printable(hint)) };
            let place = failure.place();
            let place = printable(&place);
            let _ = writeln!(lines, "failed: {place}: {}{hint}", printable(message));
            let _ = match failure.below {
                0 => Ok(()),
                1 => writeln!(lines, "failed: {place}: 1 entry below it, which has no directory to lie in"),
                below => {
                    let below = grouped(below);
                    writeln!(
                        lines,
                        "failed: {place}: {below} entries below it, which have no directory to lie in"
                    )
                }
            };
            told += 1 + failure.below;
        }
        let unlisted = report.failed_files.saturating_sub(told);
        if unlisted > 0 {
            let _ = writeln!(lines, "failed: {} more", grouped(unlisted));
        }
        if let Some(Fault { message, hint, .. }) = &report.not_deleted {
            let hint = if hint.is_empty() { String::new() } else { format!(" ({})", printable(hint)) };
            let _ = writeln!(lines, "not deleted: {}{hint}", printable(message));
        }
        lines
    }

    /// One line for each thing that could not be preserved, or was left alone, and is known.
    pub fn notes(&self) -> String {
        let report = self.0;
        let mut lines: String = report.notes.iter().fold(String::new(), |mut lines, note| {
            let _ = writeln!(lines, "note: {}", printable(note));
            lines
        });
        let unlisted = report.noted.saturating_sub(report.notes.len() as u64);
        if unlisted > 0 {
            let _ = writeln!(lines, "note: {} more", grouped(unlisted));
        }
        lines
    }

    /// One line about how it was done.
    fn write_details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let mut parts =
            vec![format!("preset {}", report.preset), format!("controller {}", report.controller)];
        if !report.cipher.is_empty() {
            parts.push(format!("cipher {}", report.cipher));
        }
        if let Some(rtt) = report.rtt {
            parts.push(format!("rtt {}", milliseconds(rtt)));
        }
        for (side, seconds) in [("sender", report.cpu.sender), ("receiver", report.cpu.receiver)] {
            if let Some(seconds) = seconds {
                parts.push(format!("cpu {side} {seconds:.2} s"));
            }
        }
        if let Some(digest) = &report.digest {
            parts.push(format!("blake3 {}", digest.get(..16).unwrap_or(digest)));
        }
        writeln!(f, "{}", parts.join(", "))
    }

    /// What was moved, at what rate and share of the path, what was resent, and whether it was verified.
    pub fn moved(&self) -> String {
        let report = self.0;
        let what =
            if report.files > 0 { format!(" in {}", count(report.files, "file")) } else { String::new() };
        let mut line = format!(
            "{} {}{what} in {} at {}",
            self.verb(),
            size(report.bytes),
            clock(report.elapsed),
            report.goodput
        );
        if let Some((capacity, name)) = report.capacity.filter(|(rate, _)| rate.as_bps() > 0) {
            let share = report.goodput.as_bps() as f64 / capacity.as_bps() as f64;
            let _ = write!(line, " ({} of the {name}'s {capacity})", percent(share));
        }
        let resent = report.packets.resent as f64 / report.packets.sent.max(1) as f64;
        let _ = write!(line, ", {} resent, ", percent(resent));
        if report.resumed_bytes > 0 {
            let _ = write!(line, "{} resumed, ", size(report.resumed_bytes));
        }
        if report.kept_files > 0 {
            let _ = write!(line, "{} there already, ", count(report.kept_files, "file"));
        }
        if report.deleted_files > 0 {
            let _ = write!(line, "{} deleted, ", count(report.deleted_files, "name"));
        }
        let verified = match (&report.digest, report.is_ok()) {
            (Some(_), true) => "all verified",
            (Some(_), false) => "the rest verified",
            (None, _) => "nothing to verify",
        };
        line.push_str(if report.error.is_some() { "incomplete" } else { verified });
        line
    }

    /// What a dry run has seen.
    pub fn would_move(&self) -> String {
        let report = self.0;
        let sent = report.bytes.saturating_sub(report.resumed_bytes);
        let mut line = format!("would send {} in {}", size(sent), count(report.files, "file"));
        if report.resumed_bytes > 0 {
            let _ = write!(line, ", {} resumed", size(report.resumed_bytes));
        }
        let _ = write!(line, ", {} there already", count(report.kept_files, "file"));
        let _ = write!(line, ", {} deleted", count(report.deleted_files, "name"));
        line
    }

    /// Every file was there already.
    pub fn is_nothing_to_do(&self) -> bool {
        let report = self.0;
        report.kept_files > 0 && report.files == 0 && report.is_ok()
    }

    /// Every file failed.
    pub fn is_nothing_done(&self) -> bool {
        self.0.failed_files > 0 && self.0.files == 0 && self.0.bytes == 0
    }

    fn verb(&self) -> &'static str {
        if self.0.files > 0 || self.0.digest.is_some() { "Moved" } else { "Carried" }
    }

    fn write_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.limited_by {
            Some(limit) => {
                writeln!(
                    f,
                    "Limited by: {} ({})",
                    printable(&limit.what).replace('_', " "),
                    printable(&limit.evidence)
                )
            }
            None if self.0.error.is_some() => writeln!(f, "Limited by: unknown (it did not come to its end)"),
            None => writeln!(f, "Limited by: unknown (too short a run to tell)"),
        }
    }
}

fn milliseconds(span: Span) -> String {
    let ms = span.as_millis_f64();
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.1} ms") }
}
