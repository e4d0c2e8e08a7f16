//! Report of a finished run, for scripts and for users.

use std::borrow::Cow;

use haul_base::{Bytes, Cause, CauseCounts, Rate, Span, printable_bytes};
use haul_mover::SOME_FAILED;
use haul_proto::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Lines, clock, count, error_lines, grouped, machine_prefix, out_json, percent, put_name, without_keys,
};
use crate::fault::{Fault, FaultCode, Host};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Packets {
    /// Includes `resent`.
    pub sent: u64,
    pub resent: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpuSeconds {
    pub sender: Option<f64>,
    pub receiver: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileFailure {
    /// Source machine, if several send.
    pub machine: Option<String>,
    pub path: Vec<u8>,
    pub fault: Fault,
    /// Number of entries below it that failed because of it.
    pub below: u64,
}

impl FileFailure {
    fn location(&self) -> String {
        let path = printable_bytes(&self.path);
        match &self.machine {
            Some(machine) => format!("{path} from {machine}"),
            None => path,
        }
    }

    /// Whether `below` counts `other`.
    fn counts(&self, other: &Self) -> bool {
        let rest = other.path.strip_prefix(&*self.path).filter(|_| self.below > 0);
        rest.is_some_and(|rest| rest.starts_with(b"/"))
            && self.machine == other.machine
            && haul_mover::follows_from_directory(&other.fault)
    }
}

/// Outcome of one run. Serde serialises it for `haul` on another machine, [`json_value`] for scripts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunReport {
    /// Bytes at the destination, including `resumed_bytes`.
    pub bytes: u64,
    pub files: u64,
    /// With files, from the connection to the verified end; without, the time of the data path.
    pub elapsed: Span,
    /// Bytes transferred by this run per second of `elapsed`.
    pub goodput: Rate,
    pub rtt: Option<Span>,
    pub preset: String,
    pub controller: String,
    pub cipher: String,
    pub packets: Packets,
    pub lost: CauseCounts,
    /// Achievable rate and its name: `path`, `ceiling` or `measured path`.
    pub capacity: Option<(Rate, Cow<'static, str>)>,
    pub limited_by: Option<Limit>,
    /// Longest time that a packet waited to be read by the receiver, if this side sent.
    pub longest_read_delay: Option<Span>,
    /// `None` if nothing was verified.
    pub digest: Option<String>,
    pub cpu: CpuSeconds,
    /// Peak memory of this process, in bytes.
    pub max_rss: Option<u64>,
    /// Entries deleted at the destination; in a dry run, to be deleted.
    pub deleted_files: u64,
    /// Why entries were not deleted.
    pub not_deleted: Option<Fault>,
    /// Regular files that were already up to date.
    pub kept_files: u64,
    pub resumed_bytes: u64,
    pub hard_links: u64,
    /// The first attributes that could not be preserved, and names left alone.
    pub notes: Vec<String>,
    /// Number of all of these.
    pub noted: u64,
    /// Requested features that this system lacks, and what to do about it.
    pub fallbacks: Vec<String>,
    /// The first failed files.
    pub failed: Vec<FileFailure>,
    pub failed_files: u64,
    /// Exit code derived from the failures of files, which takes precedence over that of `error`. If `None`
    /// without `error`, failures count as 3.
    pub files_exit_code: Option<u8>,
    pub files_fault: Option<Fault>,
    /// What the demo compares the run with, and its name in the JSON object.
    #[serde(skip)]
    pub compared: Option<(&'static str, Value)>,
    pub error: Option<Fault>,
}

impl RunReport {
    /// For streams: replaces a limit among `storages` by the application.
    pub(crate) fn of_application(mut self, storages: &[&str]) -> Self {
        if let Some(limit) = self.limited_by.as_mut().filter(|limit| storages.contains(&&*limit.what)) {
            limit.what = "application".into();
        }
        self
    }

    pub(crate) fn failed(error: Fault) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    pub(crate) fn each_fault(&mut self, change: impl FnMut(&mut Fault)) {
        let of_files = self.failed.iter_mut().map(|failure| &mut failure.fault);
        let others = [&mut self.error, &mut self.files_fault, &mut self.not_deleted];
        of_files.chain(others.into_iter().flatten()).for_each(change);
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.error.is_none() && self.failed_files == 0 && self.not_deleted.is_none()
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.error, self.failed_files) {
            (Some(error), _) => self.files_exit_code.unwrap_or_else(|| error.code.exit_code()),
            (None, 0) if self.not_deleted.is_none() => 0,
            (None, _) => self.files_exit_code.unwrap_or(SOME_FAILED),
        }
    }

    /// Iterates over the named failures, except those counted by another one.
    fn causes(&self) -> impl Iterator<Item = &FileFailure> {
        self.failed.iter().filter(|failure| !self.failed.iter().any(|above| above.counts(failure)))
    }

    fn first_failure(&self) -> Option<Fault> {
        if self.failed_files == 0 {
            return None;
        }
        let failed = format!("{} failed", count(self.failed_files, "file"));
        let Some(first) = self.failed.first() else { return Some(Fault::new(FaultCode::Io, failed, "")) };
        let Fault { code, message, hint, .. } = &first.fault;
        let message =
            format!("{failed}; the first is {}: {}{message}", first.location(), machine_prefix(&first.fault));
        Some(Fault::new(*code, message, hint))
    }

    fn nothing_to_do(&self) -> String {
        let mut parts = vec![format!("Nothing to send: {} already there", count(self.kept_files, "file"))];
        parts.extend((self.deleted_files > 0).then(|| self.deleted()));
        parts.push(format!("checked in {}.", clock(self.elapsed)));
        parts.join(", ")
    }

    pub(crate) fn problems(&self) -> Lines {
        let mut lines = self.failures();
        self.error.iter().for_each(|error| lines.append(&error_lines(error)));
        lines
    }

    /// Returns a line per failed file known by name, and one for all that failed with their directory.
    pub(crate) fn failures(&self) -> Lines {
        let (mut lines, mut listed) = (Lines::default(), 0);
        for failure in self.causes() {
            let location = failure.location();
            lines.push(format_args!("failed: {location}: {}", failure.fault));
            if failure.below > 0 {
                let below = count(failure.below, "name");
                lines.push(format_args!("failed: {location}: {below} below it, whose directory is missing"));
            }
            listed += 1 + failure.below;
        }
        let unlisted = self.failed_files.saturating_sub(listed);
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
    pub(crate) fn loss_summary(&self) -> Option<String> {
        let total_lost = self.lost.total();
        let named: Vec<_> = lost_by(&self.lost).into_iter().map(|(_, words)| words).collect();
        let lost = format!("lost {} of {}", count(total_lost, "packet"), grouped(self.packets.sent));
        (total_lost > 0).then(|| format!("{lost}: {}", named.join(", ")))
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
        let capacity = self.capacity.as_ref().filter(|(rate, _)| *rate >= goodput.max(Rate::from_bps(1)));
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
        parts.extend((self.kept_files > 0).then(|| self.kept_text()));
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
        parts.extend([self.kept_text(), self.deleted()]);
        parts.join(", ")
    }

    fn kept_text(&self) -> String {
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

const SCHEMA: u32 = 1;

pub(crate) fn by_cause(lost: CauseCounts) -> Value {
    Cause::ALL.into_iter().map(|cause| (cause.name(), lost.of(cause))).collect()
}

fn fault_value(fault: &Fault) -> Value {
    let on = fault.host.as_ref().map(|host| match host {
        Host::Here => "here",
        Host::Named(name) => name,
    });
    json!({
        "code": fault.code.as_str(), "message": without_keys(&fault.message), "hint": without_keys(&fault.hint),
        "retryable": fault.retryable, "on": on,
    })
}

fn failure_value(failure: &FileFailure) -> Value {
    let mut object = fault_value(&failure.fault);
    put_name(&mut object, "path", &failure.path);
    if let Some(machine) = &failure.machine {
        object["machine"] = json!(machine);
    }
    object
}

pub(crate) fn json_value(report: &RunReport) -> Value {
    let (Packets { sent, resent }, limit) = (report.packets, report.limited_by.as_ref());
    // Failed files alone are an error too.
    let error =
        report.error.clone().or_else(|| report.files_fault.clone()).or_else(|| report.first_failure());
    let mut object = json!({
        "schema": SCHEMA,
        "ok": report.is_ok(),
        "bytes": report.bytes,
        "files": report.files,
        "seconds": report.elapsed.as_secs_f64(),
        "goodput_bps": report.goodput.as_bps() as f64,
        "rtt_ms": report.rtt.map(Span::as_millis_f64),
        "preset": report.preset,
        "controller": report.controller,
        "cipher": report.cipher,
        "packets_sent": sent,
        "packets_resent": resent,
        "loss_rate": if sent == 0 { 0.0 } else { report.lost.total() as f64 / sent as f64 },
        "lost_by_cause": by_cause(report.lost),
        "limited_by": limit.map(|limit| &limit.what),
        "limited_by_evidence": limit.map(|limit| &limit.evidence),
        "digest": report.digest,
        "cpu_seconds": report.cpu,
        "max_rss_bytes": report.max_rss,
        "resumed_bytes": report.resumed_bytes,
        "kept_files": report.kept_files,
        "deleted_files": report.deleted_files,
        "hard_links": report.hard_links,
        "notes": report.notes,
        "noted": report.noted,
        "fallbacks": report.fallbacks,
        "failed_files": report.failed_files,
        "failures": report.failed.iter().map(failure_value).collect::<Vec<_>>(),
        "error": error.as_ref().map(fault_value),
    });
    if let Some((name, other)) = &report.compared {
        object[*name] = other.clone();
    }
    object
}

/// Prints an object for scripts with `fields` and the outcome.
pub(crate) fn out_fields(mut fields: Value, error: Option<&Fault>) {
    (fields["schema"], fields["ok"]) = (SCHEMA.into(), error.is_none().into());
    fields["error"] = json!(error.map(fault_value));
    out_json(&fields);
}

impl From<&RunReport> for Lines {
    fn from(report: &RunReport) -> Self {
        let mut lines = report.failures();
        lines.append(&report.note_lines());
        // What this system lacks may be why.
        if report.limited_by.as_ref().is_some_and(|limit| limit.what == "receiver_host") {
            report.fallbacks.iter().for_each(|fallback| lines.push(format_args!("note: {fallback}")));
        }
        if let Some(error) = &report.error {
            lines.append(&error_lines(error));
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
            report.loss_summary().into_iter().for_each(|line| lines.push(line));
            lines.push(report.moved());
            lines.push(report.limit());
        }
        lines
    }
}

/// Returns the causes of losses, each with its number of packets and its description.
pub(super) fn lost_by(lost: &CauseCounts) -> Vec<(u64, String)> {
    let words = ["by the receiving host", "by congestion", "at random", "by an outage", "of unknown cause"];
    let share = |packets: u64| percent(packets as f64 / lost.total() as f64);
    let causes = Cause::ALL.map(|cause| lost.of(cause)).into_iter().zip(words);
    let named = causes.filter(|(packets, _)| *packets > 0);
    named.map(|(packets, words)| (packets, format!("{} {words}", share(packets)))).collect()
}
