//! Context that every command's run receives.

use std::sync::Arc;

use haul_diagnosis::Model;
use haul_engine::Role;
use haul_mover::Tell;
use haulage::config::{Evidence, RateControlConfig};
use serde_json::Value;

use crate::args::TransferOptions;
use crate::fault::{self, Fault};
use crate::output::{EventLog, Lines, ProgressStyle, RunReport, json_value, tell};
use crate::settings::Settings;
use crate::signals::Cancel;
use crate::transfer::{Negotiated, Pulse, Quotas};

#[derive(Clone)]
pub(crate) struct Context {
    pub settings: Settings,
    /// What signatures are judged by where this side sends; `None`: the shipped model.
    pub loss_model: Option<Arc<Model>>,
    /// Names of the recipe parameters that were set explicitly; the others come from the preset.
    pub named: Vec<String>,
    pub transfer: TransferOptions,
    /// Receives each change to a name, if anybody wants to know.
    pub on_item: Option<Tell>,
    /// Learns, before anything else is done, what two machines would agree on: for a dry run.
    pub on_agreed: Option<Arc<dyn Fn(Negotiated) + Send + Sync>>,
    /// Divides this receiver's capacity among its senders.
    pub quotas: Quotas,
    /// Role of this side in the session.
    pub role: Role,
    /// Whether a session gets on, for a server that has no place left.
    pub pulse: Pulse,
    pub cancel: Cancel,
    pub events: EventLog,
    pub style: ProgressStyle,
    pub quiet: bool,
    pub json: bool,
    /// Names of the options given on the command line itself.
    pub typed: Vec<String>,
}

impl Context {
    /// Creates a context without output for people or scripts.
    pub(crate) fn quiet(settings: Settings, transfer: TransferOptions, cancel: Cancel) -> Self {
        Self {
            settings,
            loss_model: None,
            named: Vec::new(),
            transfer,
            on_item: None,
            on_agreed: None,
            quotas: Quotas::default(),
            role: Role::Client,
            pulse: Pulse::default(),
            cancel,
            events: EventLog::none(),
            style: ProgressStyle::Hidden,
            quiet: true,
            json: false,
            typed: Vec::new(),
        }
    }

    /// Refuses a typed `--diagnosis-model` that nothing would read; a configured one is for the runs that use it.
    pub(crate) fn check_loss_model(&self, is_sender: bool) -> Result<(), Fault> {
        if !self.typed.iter().any(|option| option == "diagnosis-model") {
            return Ok(());
        }
        if !is_sender {
            let message = "--diagnosis-model applies to the sending side, and this side receives";
            return Err(fault::usage(message, "give it to `haul` on the machine that sends"));
        }
        check_signatures(&self.settings.recipe)
    }

    /// A report that has failed, with the names of what was to be used.
    pub(crate) fn failed(&self, fault: Fault) -> RunReport {
        self.report(RunReport::failed(fault))
    }

    /// Fills in the names of what was used.
    pub(crate) fn report(&self, report: RunReport) -> RunReport {
        let (preset, controller) = (self.settings.recipe.name.clone(), self.settings.controller().to_owned());
        RunReport { preset, controller, ..report }
    }

    /// Does `work` between the beginning and the end of a trace; the beginning says what is done.
    pub(crate) fn traced(&self, start: Value, work: impl FnOnce() -> Result<RunReport, Fault>) -> RunReport {
        self.events.write("start", start);
        let report = work().unwrap_or_else(|fault| self.failed(fault));
        self.trace_end(&report);
        report
    }

    pub(crate) fn trace_end(&self, report: &RunReport) {
        self.events.write("end", json_value(report));
    }

    /// Says something to people, unless they do not want it or it is nothing.
    pub(crate) fn say(&self, words: impl Into<Lines>) {
        if !self.quiet {
            tell(words);
        }
    }
}

fn check_signatures(recipe: &haulage::Recipe) -> Result<(), Fault> {
    let law = recipe.configuration().map_err(fault::of)?;
    if let Some(RateControlConfig { diagnosis: Evidence::All | Evidence::Signature, .. }) = law {
        return Ok(());
    }
    let message = "--diagnosis-model evaluates signatures, but this recipe uses none";
    Err(fault::usage(message, "it needs `rate_control`, with `--diagnosis on` or `signature`"))
}
