//! Report of a finished run.

use haul_base::{Cause, CauseCounts, Rate, Span, printable_bytes};
use haul_mover::SOME_FAILED;
use haul_proto::Limit;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{out_json, put_name, without_keys};
use crate::fault::{Fault, FaultCode, Host, place};

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
    pub(super) fn place(&self) -> String {
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
    #[serde(deserialize_with = "known_capacity")]
    pub capacity: Option<(Rate, &'static str)>,
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
    /// TCP on the same path (demo only).
    #[serde(skip)]
    pub tcp: Option<Value>,
    /// The same run without acting on the cause of losses (demo only).
    #[serde(skip)]
    pub without_verdict: Option<Box<RunReport>>,
    pub error: Option<Fault>,
}

/// Drops a capacity with an unknown name.
fn known_capacity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(Rate, &'static str)>, D::Error> {
    let read = Option::<(Rate, String)>::deserialize(from)?;
    let known = |name: &str| ["path", "ceiling", "measured path"].into_iter().find(|known| *known == name);
    Ok(read.and_then(|(rate, name)| Some((rate, known(&name)?))))
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

    pub(crate) fn loss_rate(&self) -> f64 {
        if self.packets.sent == 0 { 0.0 } else { self.lost.whole() as f64 / self.packets.sent as f64 }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.error, self.failed_files) {
            (Some(error), _) => self.files_exit_code.unwrap_or_else(|| error.code.exit_code()),
            (None, 0) if self.not_deleted.is_none() => 0,
            (None, _) => self.files_exit_code.unwrap_or(SOME_FAILED),
        }
    }

    /// Iterates over the named failures, except those counted by another one.
    pub(super) fn causes(&self) -> impl Iterator<Item = &FileFailure> {
        self.failed.iter().filter(|failure| !self.failed.iter().any(|above| above.counts(failure)))
    }

    fn first_failure(&self) -> Option<Fault> {
        if self.failed_files == 0 {
            return None;
        }
        let failed = format!("{} failed", super::count(self.failed_files, "file"));
        let Some(first) = self.failed.first() else { return Some(Fault::new(FaultCode::Io, failed, "")) };
        let Fault { code, message, hint, .. } = &first.fault;
        let message = format!("{failed}; the first is {}: {}{message}", first.place(), place(&first.fault));
        Some(Fault::new(*code, message, hint))
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
    let limit = report.limited_by.as_ref();
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
        "packets_sent": report.packets.sent,
        "packets_resent": report.packets.resent,
        "loss_rate": report.loss_rate(),
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
    if let Some(tcp) = &report.tcp {
        object["tcp"] = tcp.clone();
    }
    if let Some(other) = &report.without_verdict {
        object["without_verdict"] = json_value(other);
    }
    object
}

/// Prints an object for scripts with `fields` and the outcome.
pub(crate) fn out_fields(mut fields: Value, error: Option<&Fault>) {
    (fields["schema"], fields["ok"]) = (SCHEMA.into(), error.is_none().into());
    fields["error"] = json!(error.map(fault_value));
    out_json(&fields);
}
