//! What is done beside every running transfer: progress, the trace, `haul ctl`, and looking whether to stop.

use std::time::{Duration, Instant};

use haul_base::{Cause, CauseCounts, Span};
use haul_engine::{Counters, Role, Transfer};
use haul_proto::{Limit, LimitEvidence, limit_of_sender};
use haul_wire::control::{Fault, FaultCode};
use serde_json::{Value, json};

use crate::output::{Progress, Snapshot};
use crate::transfer::{
    Context, ControlSocket, Side, Unchanged,
    counters::{counters_json, heard, write_windows},
};

const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// What to do about an interruption.
pub(crate) const REST: &str = "what is complete is in place; run it again for the rest";

pub(crate) struct Watch<'a> {
    pub(crate) context: &'a Context,
    pub(crate) transfer: &'a Transfer,
    controls: Option<ControlSocket>,
    /// What the other side was heard to say.
    heard: Unchanged,
    progress: Progress,
    started: Instant,
    traced: Instant,
    /// The sender's evidence when the trace was last told of a limit.
    judged: LimitEvidence,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(
        context: &'a Context,
        transfer: &'a Transfer,
        side: Side,
        progress: Progress,
    ) -> Self {
        // A server is restricted to what it offers, and the directory of the sockets is elsewhere.
        let controls = (context.role == Role::Client).then(|| ControlSocket::open(side)).flatten();
        // From now on the transfer keeps what it tells of windows.
        write_windows(&context.events, transfer);
        let (heard, now, judged) = (Unchanged::default(), Instant::now(), LimitEvidence::default());
        Self { context, transfer, controls, heard, progress, started: now, traced: now, judged }
    }

    /// To be called many times a second; `done` rises with what is done, `trace` is the event of it.
    pub(crate) fn look(&mut self, snapshot: Snapshot, done: u64, trace: impl FnOnce() -> Value) {
        let counters = self.transfer.counters();
        let heard = heard(counters.as_ref(), snapshot.files.unwrap_or_default());
        let lost = match counters {
            Some(Counters::Sending(sending)) => sending.stats.lost_by_cause,
            Some(Counters::Receiving(stats)) => {
                [(Cause::ReceiverHost, u64::from(stats.socket_drops))].into_iter().collect()
            }
            None => CauseCounts::default(),
        };
        let silent_for = self.heard.lasts(heard, Instant::now());
        self.progress.update(Snapshot { silent_for, lost, ..snapshot });
        self.context.pulse.note(done);
        if let Some(controls) = &mut self.controls {
            controls.answer(&mut self.transfer, snapshot.bytes);
        }
        if self.traced.elapsed() >= TRACE_INTERVAL {
            self.traced = Instant::now();
            self.write(trace());
            self.write_limit();
        }
    }

    /// Why the run has to end, if somebody wants it to.
    pub(crate) fn reason_to_stop(&self) -> Option<Fault> {
        let Context { cancel, pulse, .. } = self.context;
        if cancel.is_requested() { Some(cancel.fault(REST)) } else { pulse.given_up() }
    }

    pub(crate) fn end(self, trace: Value) {
        self.progress.finish();
        self.write(trace);
    }

    /// What has been the limit since it was last said, each second.
    fn write_limit(&mut self) {
        let Some(Counters::Sending(sending)) = self.transfer.counters() else { return };
        let now = LimitEvidence::of(&sending.stats, Span::ZERO, None, self.started.elapsed().into());
        let Some(part) = now.since(&self.judged) else { return };
        self.judged = now;
        if let Some(Limit { what, evidence }) = limit_of_sender(&part) {
            self.context
                .events
                .write("limit", json!({ "limited_by": what, "limited_by_evidence": evidence }));
        }
    }

    fn write(&self, mut trace: Value) {
        let events = &self.context.events;
        if events.is_kept() {
            trace["data"] = self.transfer.counters().map(|counters| counters_json(&counters)).into();
            events.write("progress", trace);
            write_windows(events, self.transfer);
        }
    }
}

/// What the other side is told of a fault that ends the session from here.
pub(crate) fn for_peer(fault: &Fault, context: &Context) -> Fault {
    match fault.code {
        FaultCode::Interrupted => context.cancel.fault_for_peer(context.role, REST),
        _ => fault.clone(),
    }
}
