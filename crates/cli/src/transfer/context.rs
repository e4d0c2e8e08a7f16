//! What a run needs besides its arguments.

use std::sync::Arc;

use haul_diagnosis::Model;
use haul_engine::Role;
use haulage::config::{Evidence, RateControlConfig};
use serde_json::Value;

use crate::args::TransferOptions;
use crate::fault::{self, Fault};
use crate::output::{EventLog, ItemCallback, Lines, ProgressStyle, RunReport, eprint_lines, json_value};
use crate::settings::Settings;
use crate::signals::Cancel;
use crate::transfer::{Cpu, Negotiated, Quotas, SessionProgress};

#[derive(Clone)]
pub(crate) struct Context {
    pub settings: Settings,
    /// Model that classifies losses by their signature where this side sends; `None` for the built-in one.
    pub loss_model: Option<Arc<Model>>,
    /// Names of the recipe parameters that were set explicitly; the others come from the preset.
    pub named: Vec<String>,
    pub transfer: TransferOptions,
    pub on_item: Option<ItemCallback>,
    /// Receives the negotiated values of a dry run, before its changes.
    pub on_negotiated: Option<Arc<dyn Fn(Negotiated) + Send + Sync>>,
    /// Divides this receiver's capacity among its senders.
    pub quotas: Quotas,
    pub role: Role,
    pub cpu: Cpu,
    /// Progress of a server's session.
    pub session_progress: SessionProgress,
    pub cancel: Cancel,
    pub events: EventLog,
    pub style: ProgressStyle,
    pub quiet: bool,
    pub json: bool,
    pub typed: Vec<String>,
}

impl Context {
    /// Creates a client's context without output.
    pub(crate) fn quiet(settings: Settings, transfer: TransferOptions, cancel: Cancel) -> Self {
        Self {
            settings,
            loss_model: None,
            named: Vec::new(),
            transfer,
            on_item: None,
            on_negotiated: None,
            quotas: Quotas::default(),
            role: Role::Client,
            cpu: Cpu::ALL,
            session_progress: SessionProgress::default(),
            cancel,
            events: EventLog::none(),
            style: ProgressStyle::Hidden,
            quiet: true,
            json: false,
            typed: Vec::new(),
        }
    }

    /// Rejects a `--diagnosis-model` on the command line that this run does not use.
    pub(crate) fn check_loss_model(&self, is_sender: bool) -> Result<(), Fault> {
        if !self.typed.iter().any(|option| option == "diagnosis-model") {
            return Ok(());
        }
        if !is_sender {
            let message = "--diagnosis-model applies to the sending side, and this side receives";
            return Err(fault::usage(message, "give it to `haul` on the machine that sends"));
        }
        let law = self.settings.recipe.configuration();
        if let Some(RateControlConfig { diagnosis: Evidence::All | Evidence::Signature, .. }) = law {
            return Ok(());
        }
        let message = "--diagnosis-model evaluates signatures, but this recipe uses none";
        Err(fault::usage(message, "it needs `rate_control`, with `--diagnosis on` or `signature`"))
    }

    pub(crate) fn failed(&self, fault: Fault) -> RunReport {
        self.report(RunReport::failed(fault))
    }

    /// Adds the names of preset and controller.
    pub(crate) fn report(&self, report: RunReport) -> RunReport {
        let (preset, controller) = (self.settings.recipe.name.clone(), self.settings.controller().to_owned());
        RunReport { preset, controller, ..report }
    }

    /// Calls `work`, with `start` and its report as first and last event of the trace.
    pub(crate) fn traced(&self, start: Value, work: impl FnOnce() -> Result<RunReport, Fault>) -> RunReport {
        self.events.write("start", start);
        let report = work().unwrap_or_else(|fault| self.failed(fault));
        self.events.write("end", json_value(&report));
        report
    }

    /// Fails a successful run if its trace is incomplete. Scripts read a single object; users read the error
    /// after the report.
    pub(crate) fn add_trace_error(&self, report: &mut RunReport) {
        if self.json && report.exit_code() == 0 {
            report.error = self.events.finish().err();
        }
    }

    /// Prints a message for users, unless the run is quiet.
    pub(crate) fn inform(&self, words: impl Into<Lines>) {
        if !self.quiet {
            eprint_lines(words);
        }
    }
}
