//! Copies between two other machines. This one starts `haul` there by ssh, except for a server that runs
//! already, and shows the progress. No data passes through it.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use haul_wire::control::{Fault, FaultCode, Host, RunMode};
use serde_json::Value;

use crate::args::SshArgs;
use crate::endpoint::Machine;
use crate::fault;
use crate::output::{Progress, RunReport, Snapshot};
use crate::settings::Settings;
use crate::signals::Cancel;
use crate::ssh::{Job, Remote, SshCommand, SshHost};
use crate::transfer::{Context, CopyPlan, LIMIT, REST_HINT, RemoteServer, by_ssh};

/// Interval of progress updates, and of checks for an interruption or silence.
const TICK: Duration = Duration::from_millis(50);
/// Time in which a signal that ended ssh reaches this process too, even on a busy machine.
const SIGNAL_DELAY: Duration = Duration::from_millis(500);
/// Timeout for the other machine to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn copy(
    context: &Context,
    ssh: &SshArgs,
    (plan, client_host, server_host): (&CopyPlan, &SshHost, Option<&SshHost>),
) -> Result<RunReport, Fault> {
    let detach = ssh.detach && context.transfer.receive_policy.run != RunMode::ListChanges;
    // Dropped in reverse order: the machine that connects ends first.
    let (mut server, mut client) = start(context, ssh, (plan, client_host, server_host), detach)?;
    let progress = Progress::start(&context.style);
    let report = follow(&mut client, context, detach, &progress);
    progress.finish();
    if let Some(note) = server.as_mut().and_then(|server| server.remote.early_end()) {
        context.inform(format!("note: {note}"));
    }
    let preset = context.settings.recipe.name.clone();
    let mut report = RunReport { preset, ..report? };
    report.each_fault(|fault| *fault = seen_from(client_host, fault.clone(), &context.cancel));
    Ok(report)
}

/// Converts a fault that `host` reported to this machine's point of view.
fn seen_from(host: &SshHost, mut fault: Fault, cancel: &Cancel) -> Fault {
    if fault.host.as_ref().is_none_or(|there| *there == Host::Here) {
        fault.host = Some(Host::Named(host.name().to_owned()));
    }
    if fault::is_network_fault(fault.code) {
        fault.host = None;
        fault.message = format!("seen from {host}: {}", fault.message);
    }
    // If nobody stopped this side, an interruption there was the peer's.
    if cancel.is_requested() { fault } else { fault.from_peer() }
}

/// Starts a server by ssh, if one is needed, and the machine that connects to it, and sends that its job.
fn start(
    context: &Context,
    ssh: &SshArgs,
    (plan, client_host, server_host): (&CopyPlan, &SshHost, Option<&SshHost>),
    detach: bool,
) -> Result<(Option<RemoteServer>, Remote), Fault> {
    let start =
        |host| RemoteServer::start(context, &SshCommand::new(ssh, host)?, &by_ssh::put_permit(context, plan));
    let server = server_host.map(start).transpose()?;
    let command = SshCommand::new(ssh, client_host)?;
    let mut client = Remote::start(&command, command.copy(), &context.cancel)?;
    let (url, fetches) = match (&plan.sources[0].0, &plan.to, &server) {
        (Machine::Url(url), _, _) => (url, true),
        (_, Machine::Url(url), _) | (.., Some(RemoteServer { url, .. })) => (url, false),
        _ => return Err(Fault::new(FaultCode::Internal, "no machine serves", "")),
    };
    let Settings { crypto, offload, socket_buffer, recipe } = &context.settings;
    client.send(&Job {
        server: url.to_string(),
        hosts: server.as_ref().map(|server| server.remote.announcement.hosts.clone()).unwrap_or_default(),
        fetches,
        sources: plan.sources[0].1.clone(),
        destination: plan.path.clone(),
        selection: plan.selection.clone(),
        transfer: context.transfer,
        detach,
        actions: plan.actions(),
        ports: command.ports.clone(),
        recipe: recipe.to_toml(),
        crypto: *crypto,
        offload: *offload,
        socket_buffer: *socket_buffer,
    })?;
    Ok((server, client))
}

/// Shows progress until the transfer ends, ssh is lost, or the user interrupts.
fn follow(
    client: &mut Remote,
    context: &Context,
    detach: bool,
    progress: &Progress,
) -> Result<RunReport, Fault> {
    let mut remote_progress = RemoteProgress::new();
    let mut stop_requested_at: Option<Instant> = None;
    loop {
        match client.next_line(TICK) {
            Ok(line) => remote_progress.handle_line(&line, &client.command, context),
            Err(RecvTimeoutError::Timeout) => {}
            // Ctrl-C at a terminal reaches ssh as well.
            Err(RecvTimeoutError::Disconnected) => {
                if !context.cancel.is_requested() {
                    std::thread::sleep(SIGNAL_DELAY);
                }
                return Err(match (context.cancel.is_requested(), detach) {
                    (true, true) => remote_progress.interruption_fault(client),
                    (true, false) => context.cancel.fault(REST_HINT),
                    (false, _) => remote_progress.connection_lost(client),
                });
            }
        }
        if let Some(report) = remote_progress.report.take() {
            return Ok(report);
        }
        progress.update(remote_progress.snapshot());
        if context.cancel.is_requested() {
            if detach {
                return Err(remote_progress.interruption_fault(client));
            }
            client.close_stdin();
            if stop_requested_at.get_or_insert_with(Instant::now).elapsed() > STOP_TIMEOUT {
                return Err(context.cancel.fault(REST_HINT));
            }
        }
        if remote_progress.is_silent(Instant::now()) {
            return Err(remote_progress.connection_lost(client));
        }
    }
}

struct RemoteProgress {
    snapshot: Snapshot,
    last_contact: Instant,
    /// Log file and process ID of a copy that has detached.
    detached: Option<(String, u64)>,
    /// Whether a detached copy has its session: from then on the server does not need ssh either.
    is_independent: bool,
    report: Option<RunReport>,
}

impl RemoteProgress {
    fn new() -> Self {
        let snapshot = Snapshot { files: Some(0), ..Snapshot::default() };
        let last_contact = Instant::now();
        Self { snapshot, last_contact, detached: None, is_independent: false, report: None }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { silent_for: self.last_contact.elapsed().into(), ..self.snapshot }
    }

    /// Whether the other machine is lost. It reports several times a second, and ends stalled copies itself.
    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_contact) > LIMIT
    }

    /// Handles one line; ignores what is not an event.
    fn handle_line(&mut self, line: &str, command: &SshCommand, context: &Context) {
        let Ok(Value::Object(mut event)) = serde_json::from_str(line) else { return };
        let Some(Value::String(name)) = event.remove("event") else { return };
        event.remove("t");
        self.last_contact = Instant::now();
        let number = |key: &str| event.get(key).and_then(Value::as_u64);
        let text = |key: &str| event.get(key).and_then(Value::as_str);
        match name.as_str() {
            "progress" => {
                self.snapshot.bytes = number("bytes").unwrap_or(self.snapshot.bytes);
                self.snapshot.total_bytes = number("bytes_known").filter(|&bytes| bytes > 0);
                self.snapshot.files = number("files").or(self.snapshot.files);
                self.on_established(command, context);
            }
            // Sessions with `check` precede it, to find a working address of the server.
            "session" if text("request") != Some("check") => self.on_established(command, context),
            "plan" => {
                if let Some(callback) = &context.on_negotiated {
                    let negotiated = event.remove("negotiated").unwrap_or_default();
                    callback(serde_json::from_value(negotiated).unwrap_or_default());
                }
                return;
            }
            "item" => {
                let item = serde_json::from_value(event.remove("item").unwrap_or_default());
                // Ignores what is not an item.
                if let (Ok(item), Some(callback)) = (item, &context.on_item) {
                    callback(&item);
                }
                return;
            }
            "result" => {
                let report = serde_json::from_value(event.remove("report").unwrap_or_default());
                self.report = Some(report.unwrap_or_else(|error| {
                    let host = &command.host;
                    let message = format!("the final report of {host} was not understood: {error}");
                    let hint = "install the same version of haul on all machines";
                    RunReport::failed(Fault::new(FaultCode::VersionMismatch, message, hint))
                }));
                return;
            }
            "detached" => {
                let log = text("log").unwrap_or("?").to_owned();
                self.detached = Some((log, number("pid").unwrap_or_default()));
            }
            // This side writes its own.
            "start" | "end" => return,
            _ => {}
        }
        context.events.write(&name, Value::Object(event));
    }

    /// Notes and says that a detached copy has its session: a server started by ssh now outlives ssh.
    fn on_established(&mut self, command: &SshCommand, context: &Context) {
        let Some((log, pid)) = self.detached.as_ref().filter(|_| !self.is_independent) else {
            return;
        };
        let (host, ssh) = (&command.host, command.shown());
        context.inform(format!(
            "detached: it continues if this machine stops; log {host}:{log}, stop it with `{ssh} kill {pid}`"
        ));
        self.is_independent = true;
    }

    /// Returns the fault if ssh ended, or nothing was heard, before the final report.
    fn connection_lost(&self, client: &Remote) -> Fault {
        let how = match &self.detached {
            Some(_) if self.is_independent => "; the transfer continues there unless it was stopped",
            Some(_) => " before the transfer started",
            None => ", and the transfer stops there",
        };
        let hint =
            "run the same command again; with --detach the transfer would continue without this machine";
        let message = format!("the ssh connection to {} was lost{how}", client.command.host);
        let fault =
            Fault::new(FaultCode::ControlLost, message, self.advice(client).unwrap_or(hint.to_owned()));
        Fault { retryable: fault.retryable && !self.is_independent, ..fault }
    }

    /// Returns the fault if the user interrupts a run with `--detach`.
    fn interruption_fault(&self, client: &Remote) -> Fault {
        let host = &client.command.host;
        let message = match &self.detached {
            Some(_) if self.is_independent => {
                format!("no longer watching; the transfer continues on {host}")
            }
            Some(_) => "interrupted before the transfer started".to_owned(),
            None => format!("interrupted; it is unknown whether the transfer started on {host}"),
        };
        let hint = self
            .advice(client)
            .unwrap_or_else(|| format!("check with `{} pgrep -a haul`", client.command.shown()));
        Fault::new(FaultCode::Interrupted, message, hint)
    }

    /// Says how to see the result of a detached copy.
    fn advice(&self, client: &Remote) -> Option<String> {
        let (log, _) = self.detached.as_ref()?;
        Some(format!("check its result with `{} tail {log}`", client.command.shown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TransferOptions;
    use crate::settings::Preset;

    #[test]
    fn no_line_of_another_machine_causes_a_panic() {
        let settings = Preset::default_preset().settings().unwrap();
        let context = Context::quiet(settings, TransferOptions::default(), Cancel::default());
        let host = SshHost { destination: "far".to_owned(), port: None };
        let command = SshCommand::new(&SshArgs::default(), &host).unwrap();
        let mut remote_progress = RemoteProgress::new();
        for name in ["session", "detached", "progress", "plan", "item", "result", "other"] {
            for fields in
                ["", r#", "request": 7, "log": [], "pid": -1, "bytes": "x", "report": {}, "item": 0"#]
            {
                let line = format!(r#"{{"event": "{name}"{fields}}}"#);
                remote_progress.handle_line(&line, &command, &context);
            }
        }
        assert_eq!(remote_progress.detached, Some(("?".to_owned(), 0)));
        assert!(remote_progress.is_independent && remote_progress.report.is_some());
    }

    /// ssh itself does not notice a lost machine while it has nothing to send.
    #[test]
    fn a_machine_counts_as_silent_after_the_limit() {
        let remote_progress = RemoteProgress::new();
        assert!(!remote_progress.is_silent(remote_progress.last_contact + LIMIT));
        assert!(remote_progress.is_silent(remote_progress.last_contact + LIMIT + TICK));
    }
}
