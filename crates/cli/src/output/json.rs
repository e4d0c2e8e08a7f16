//! The result as one JSON object: a contract with scripts (`schema` 1).

use std::borrow::Cow;

use haul_base::{Cause, CauseCounts, Span};
use serde::{Serialize, Serializer};

use super::{RunReport, out_json, without_keys};
use crate::demo::TcpBeside;
use crate::fault::{Fault, Host};

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    ok: bool,
    bytes: u64,
    files: u64,
    seconds: f64,
    goodput_bps: f64,
    rtt_ms: Option<f64>,
    preset: &'a str,
    controller: &'a str,
    cipher: &'a str,
    packets_sent: u64,
    packets_resent: u64,
    loss_rate: f64,
    lost_by_cause: ByCause,
    limited_by: Option<&'a str>,
    limited_by_evidence: Option<&'a str>,
    digest: Option<&'a str>,
    cpu_seconds: Cpu,
    max_rss_bytes: Option<u64>,
    resumed_bytes: u64,
    kept_files: u64,
    deleted_files: u64,
    hard_links: u64,
    notes: &'a [String],
    noted: u64,
    fallbacks: &'a [String],
    failed_files: u64,
    failures: Vec<FailedFile<'a>>,
    /// In the demo only.
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<serde_json::Value>,
    /// In the demo with a busy receiver only.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_verdict: Option<serde_json::Value>,
    error: Option<ErrorObject>,
}

/// Lost packets by the names of their causes.
pub(crate) struct ByCause(pub CauseCounts);

impl Serialize for ByCause {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(Cause::ALL.map(|cause| (cause.name(), self.0.of(cause))))
    }
}

#[derive(Serialize)]
struct Cpu {
    sender: Option<f64>,
    receiver: Option<f64>,
}

#[derive(Serialize)]
struct FailedFile<'a> {
    path: Cow<'a, str>,
    /// Where the text is not all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    /// Where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<&'a str>,
    #[serde(flatten)]
    error: ErrorObject,
}

#[derive(Serialize)]
pub(crate) struct ErrorObject {
    code: &'static str,
    message: String,
    hint: String,
    retryable: bool,
    /// The machine that it happened on, or `here`; nothing where no other takes part.
    on: Option<String>,
}

impl From<Fault> for ErrorObject {
    fn from(fault: Fault) -> Self {
        let on = fault.host.map(|host| match host {
            Host::Here => "here".to_owned(),
            Host::Named(name) => name,
        });
        let (message, hint) = (without_keys(&fault.message), without_keys(&fault.hint));
        Self { code: fault.code.as_str(), message, hint, retryable: fault.retryable, on }
    }
}

/// The report as one line of JSON.
pub(crate) fn json(report: &RunReport) -> String {
    serde_json::to_string(&document(report)).expect("numbers, texts and lists always have a JSON form")
}

/// Prints an object for scripts that has `fields` and says that all went well.
pub(crate) fn out_fields(mut fields: serde_json::Value) {
    (fields["schema"], fields["ok"]) = (SCHEMA.into(), true.into());
    fields["error"] = serde_json::Value::Null;
    out_json(&fields.to_string());
}

pub(crate) fn json_value(report: &RunReport) -> serde_json::Value {
    serde_json::to_value(document(report)).expect("numbers, texts and lists always have a JSON form")
}

fn document(report: &RunReport) -> Document<'_> {
    Document {
        schema: SCHEMA,
        ok: report.is_ok(),
        bytes: report.bytes,
        files: report.files,
        seconds: report.elapsed.as_secs_f64(),
        goodput_bps: report.goodput.as_bps() as f64,
        rtt_ms: report.rtt.map(Span::as_millis_f64),
        preset: &report.preset,
        controller: &report.controller,
        cipher: &report.cipher,
        packets_sent: report.packets.sent,
        packets_resent: report.packets.resent,
        loss_rate: report.loss_rate(),
        lost_by_cause: ByCause(report.lost),
        limited_by: report.limited_by.as_ref().map(|limit| limit.what.as_str()),
        limited_by_evidence: report.limited_by.as_ref().map(|limit| limit.evidence.as_str()),
        digest: report.digest.as_deref(),
        cpu_seconds: Cpu { sender: report.cpu.sender, receiver: report.cpu.receiver },
        max_rss_bytes: report.max_rss,
        resumed_bytes: report.resumed_bytes,
        kept_files: report.kept_files,
        deleted_files: report.deleted_files,
        hard_links: report.hard_links,
        notes: &report.notes,
        noted: report.noted,
        fallbacks: &report.fallbacks,
        failed_files: report.failed_files,
        failures: report
            .failed
            .iter()
            .map(|f| FailedFile {
                path: f.path.text(),
                path_b64: f.path.base64(),
                machine: f.machine.as_deref(),
                error: ErrorObject::from(f.fault.clone()),
            })
            .collect(),
        tcp: report.tcp.as_ref().map(TcpBeside::json),
        without_verdict: report.without_verdict.as_deref().map(json_value),
        error: report.visible_error().map(ErrorObject::from),
    }
}
