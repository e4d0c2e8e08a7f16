//! Summary of a run for users.

use haul_base::{Bytes, Cause, CauseCounts, Rate, Span};

use super::format::grouped;
use super::{Lines, RunReport, clock, count, percent};
use crate::fault::shown;

/// Limit whose summary mentions what this system lacks.
const RECEIVER_HOST: &str = "receiver_host";

impl From<&RunReport> for Lines {
    fn from(report: &RunReport) -> Self {
        let mut lines = report.failures();
        lines.append(&report.note_lines());
        if report.limited_by.as_ref().is_some_and(|limit| limit.what == RECEIVER_HOST) {
            report.fallbacks.iter().for_each(|fallback| lines.push(format_args!("note: {fallback}")));
        }
        if let Some(error) = &report.error {
            lines.append(&shown(error));
            if report.bytes == 0 {
                return lines;
            }
        }
        if report.is_nothing_to_do() {
            lines.push(report.nothing_to_do());
        } else if report.is_nothing_done() {
            lines.push("Nothing was moved.");
        } else {
            lines.push(report.details());
            report.lost_in_words().into_iter().for_each(|line| lines.push(line));
            lines.push(report.moved());
            lines.push(report.limit());
        }
        lines
    }
}

impl RunReport {
    fn nothing_to_do(&self) -> String {
        let mut parts = vec![format!("Nothing to send: {} already there", count(self.kept_files, "file"))];
        parts.extend((self.deleted_files > 0).then(|| self.deleted()));
        parts.push(format!("checked in {}.", clock(self.elapsed)));
        parts.join(", ")
    }

    pub(crate) fn problems(&self) -> Lines {
        let mut lines = self.failures();
        self.error.iter().for_each(|error| lines.append(&shown(error)));
        lines
    }

    /// Returns a line per failed file known by name, and one for all that failed with their directory.
    pub(crate) fn failures(&self) -> Lines {
        let (mut lines, mut told) = (Lines::default(), 0);
        for failure in self.causes() {
            let place = failure.place();
            lines.push(format_args!("failed: {place}: {}", failure.fault));
            if failure.below > 0 {
                let below = count(failure.below, "name");
                lines.push(format_args!("failed: {place}: {below} below it, whose directory is missing"));
            }
            told += 1 + failure.below;
        }
        let unlisted = self.failed_files.saturating_sub(told);
        if unlisted > 0 {
            lines.push(format_args!("failed: {} more", grouped(unlisted)));
        }
        if let Some(fault) = &self.not_deleted {
            lines.push(format_args!("not deleted: {fault}"));
        }
        lines
    }

    /// Returns a line per known attribute that was not preserved and per entry left alone.
    pub(crate) fn note_lines(&self) -> Lines {
        let mut lines = Lines::default();
        self.notes.iter().for_each(|note| lines.push(format_args!("note: {note}")));
        let unlisted = self.noted.saturating_sub(self.notes.len() as u64);
        if unlisted > 0 {
            lines.push(format_args!("note: {} more", grouped(unlisted)));
        }
        lines
    }

    /// Describes the losses and their causes; `None` without losses.
    pub(crate) fn lost_in_words(&self) -> Option<String> {
        let whole = self.lost.whole();
        let named: Vec<_> = lost_by(&self.lost).into_iter().map(|(_, words)| words).collect();
        let lost = format!("lost {} of {}", count(whole, "packet"), grouped(self.packets.sent));
        (whole > 0).then(|| format!("{lost}: {}", named.join(", ")))
    }

    fn details(&self) -> String {
        let mut parts = vec![format!("preset {}", self.preset), format!("controller {}", self.controller)];
        parts.extend((!self.cipher.is_empty()).then(|| format!("cipher {}", self.cipher)));
        let digits = |milliseconds| if milliseconds < 10.0 { 2 } else { 1 };
        let rtt = self.rtt.map(Span::as_millis_f64);
        parts.extend(rtt.map(|rtt| format!("rtt {rtt:.0$} ms", digits(rtt))));
        parts.extend(self.cpu.sender.map(|seconds| format!("cpu sender {seconds:.2} s")));
        parts.extend(self.cpu.receiver.map(|seconds| format!("cpu receiver {seconds:.2} s")));
        let digest = self.digest.as_ref().map(|digest| digest.get(..16).unwrap_or(digest));
        parts.extend(digest.map(|digest| format!("blake3 {digest}")));
        parts.join(", ")
    }

    pub(crate) fn moved(&self) -> String {
        let what = if self.files > 0 { format!(" in {}", count(self.files, "file")) } else { String::new() };
        let verb = if self.files > 0 || self.digest.is_some() { "Moved" } else { "Carried" };
        let (bytes, time, goodput) = (Bytes(self.bytes), clock(self.elapsed), self.goodput);
        // A run of few packets, which leave at once, can exceed the capacity.
        let capacity = self.capacity.filter(|(rate, _)| *rate >= goodput.max(Rate::from_bps(1)));
        let share = capacity.map(|(capacity, name)| {
            let share = percent(goodput.as_bps() as f64 / capacity.as_bps() as f64);
            format!(" ({share} of the {name}'s {capacity})")
        });
        let resent = percent(self.packets.resent as f64 / self.packets.sent.max(1) as f64);
        let mut parts = vec![
            format!("{verb} {bytes}{what} in {time} at {goodput}{}", share.unwrap_or_default()),
            format!("{resent} resent"),
        ];
        parts.extend((self.resumed_bytes > 0).then(|| format!("{} resumed", Bytes(self.resumed_bytes))));
        parts.extend((self.kept_files > 0).then(|| self.there_already()));
        parts.extend((self.deleted_files > 0).then(|| self.deleted()));
        let verified = match (&self.digest, self.is_ok()) {
            _ if self.error.is_some() => "incomplete",
            (Some(_), true) => "all verified",
            (Some(_), false) => "the rest verified",
            (None, _) => "nothing to verify",
        };
        parts.push(verified.to_owned());
        parts.join(", ")
    }

    pub(crate) fn would_move(&self) -> String {
        let sent = Bytes(self.bytes.saturating_sub(self.resumed_bytes));
        let mut parts = vec![format!("would send {sent} in {}", count(self.files, "file"))];
        parts.extend((self.resumed_bytes > 0).then(|| format!("{} resumed", Bytes(self.resumed_bytes))));
        parts.extend([self.there_already(), self.deleted()]);
        parts.join(", ")
    }

    fn there_already(&self) -> String {
        format!("{} there already", count(self.kept_files, "file"))
    }

    fn deleted(&self) -> String {
        format!("{} deleted", count(self.deleted_files, "name"))
    }

    pub(crate) fn is_nothing_to_do(&self) -> bool {
        self.kept_files > 0 && self.files == 0 && self.is_ok()
    }

    pub(crate) fn is_nothing_done(&self) -> bool {
        self.failed_files > 0 && self.files == 0 && self.bytes == 0
    }

    pub(crate) fn limit(&self) -> String {
        match &self.limited_by {
            Some(limit) => format!("Limited by: {} ({})", limit.what.replace('_', " "), limit.evidence),
            None if self.error.is_some() => "Limited by: unknown (the transfer did not finish)".to_owned(),
            None => "Limited by: unknown (the run was too short to tell)".to_owned(),
        }
    }
}

/// Returns the causes of losses, each with its number of packets and its description.
pub(super) fn lost_by(lost: &CauseCounts) -> Vec<(u64, String)> {
    let words = ["by the receiving host", "by congestion", "at random", "by an outage", "of unknown cause"];
    let share = |packets: u64| percent(packets as f64 / lost.whole() as f64);
    let causes = Cause::ALL.map(|cause| lost.of(cause)).into_iter().zip(words);
    let named = causes.filter(|(packets, _)| *packets > 0);
    named.map(|(packets, words)| (packets, format!("{} {words}", share(packets)))).collect()
}
