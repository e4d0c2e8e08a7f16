//! The result as one JSON object: a contract with scripts (`schema` 1).

use std::borrow::Cow;

use haul_base::{Cause, CauseCounts, Span};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{FileFailure, RunReport, out_json, without_keys};
use crate::fault::{Fault, Host};

const SCHEMA: u32 = 1;

/// Lost packets by the names of their causes.
pub(crate) struct ByCause(pub CauseCounts);

impl Serialize for ByCause {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(Cause::ALL.map(|cause| (cause.name(), self.0.of(cause))))
    }
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

impl<'a> From<&'a FileFailure> for FailedFile<'a> {
    fn from(failure: &'a FileFailure) -> Self {
        Self {
            path: failure.path.text(),
            path_b64: failure.path.base64(),
            machine: failure.machine.as_deref(),
            error: ErrorObject::from(failure.fault.clone()),
        }
    }
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

/// A report as scripts get it.
struct Document<'a>(&'a RunReport);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let limit = report.limited_by.as_ref();
        let mut object = to.serialize_map(None)?;
        object.serialize_entry("schema", &SCHEMA)?;
        object.serialize_entry("ok", &report.is_ok())?;
        object.serialize_entry("bytes", &report.bytes)?;
        object.serialize_entry("files", &report.files)?;
        object.serialize_entry("seconds", &report.elapsed.as_secs_f64())?;
        object.serialize_entry("goodput_bps", &(report.goodput.as_bps() as f64))?;
        object.serialize_entry("rtt_ms", &report.rtt.map(Span::as_millis_f64))?;
        object.serialize_entry("preset", &report.preset)?;
        object.serialize_entry("controller", &report.controller)?;
        object.serialize_entry("cipher", &report.cipher)?;
        object.serialize_entry("packets_sent", &report.packets.sent)?;
        object.serialize_entry("packets_resent", &report.packets.resent)?;
        object.serialize_entry("loss_rate", &report.loss_rate())?;
        object.serialize_entry("lost_by_cause", &ByCause(report.lost))?;
        object.serialize_entry("limited_by", &limit.map(|limit| &limit.what))?;
        object.serialize_entry("limited_by_evidence", &limit.map(|limit| &limit.evidence))?;
        object.serialize_entry("digest", &report.digest)?;
        object.serialize_entry("cpu_seconds", &report.cpu)?;
        object.serialize_entry("max_rss_bytes", &report.max_rss)?;
        object.serialize_entry("resumed_bytes", &report.resumed_bytes)?;
        object.serialize_entry("kept_files", &report.kept_files)?;
        object.serialize_entry("deleted_files", &report.deleted_files)?;
        object.serialize_entry("hard_links", &report.hard_links)?;
        object.serialize_entry("notes", &report.notes)?;
        object.serialize_entry("noted", &report.noted)?;
        object.serialize_entry("fallbacks", &report.fallbacks)?;
        object.serialize_entry("failed_files", &report.failed_files)?;
        object
            .serialize_entry("failures", &report.failed.iter().map(FailedFile::from).collect::<Vec<_>>())?;
        // In the demo only.
        if let Some(tcp) = &report.tcp {
            object.serialize_entry("tcp", &tcp.json())?;
        }
        if let Some(other) = &report.without_verdict {
            object.serialize_entry("without_verdict", &json_value(other))?;
        }
        object.serialize_entry("error", &report.visible_error().map(ErrorObject::from))?;
        object.end()
    }
}

/// The report as one line of JSON.
pub(crate) fn json(report: &RunReport) -> String {
    serde_json::to_string(&Document(report)).expect("numbers, texts and lists always have a JSON form")
}

/// Prints an object for scripts that has `fields` and says that all went well.
pub(crate) fn out_fields(mut fields: serde_json::Value) {
    (fields["schema"], fields["ok"]) = (SCHEMA.into(), true.into());
    fields["error"] = serde_json::Value::Null;
    out_json(&fields.to_string());
}

pub(crate) fn json_value(report: &RunReport) -> serde_json::Value {
    serde_json::to_value(Document(report)).expect("numbers, texts and lists always have a JSON form")
}
