//! What accompanies every transfer: progress, the trace, `haul ctl`, and checks for a reason to stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{Cause, CauseCounts, Span};
use haul_engine::{Counters, EngineError, Role, Transfer, Waker};
use haul_proto::{ChosenLaw, LawChange, Limit, LimitEvidence, Part, limit_of_sender};
use haulage::LawRequests;
use serde_json::{Value, json};

use crate::fault::{self, Fault, FaultCode};
use crate::output::{Progress, Snapshot};
use crate::transfer::{
    ChangeTimer, Context, Sides,
    control_socket::{ControlSocket, Controlled, Side, unknown},
    counters::{counters_json, peer_activity, write_windows},
};

const TRACE_INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const REST_HINT: &str = "completed files are in place; run the command again for the rest";

/// The law of a transfer: of this side, which sends, or requests to the other side.
enum Law {
    Ours(Option<Part>),
    Theirs(LawRequests),
}

pub(crate) struct Watch<'a> {
    pub(crate) sides: &'a Sides,
    pub(crate) transfer: Arc<Transfer>,
    law: Law,
    controls: Option<ControlSocket>,
    /// Number that rises with the peer's packets and finished files.
    peer_activity: ChangeTimer,
    progress: Progress,
    started: Instant,
    /// Time from the start to the arrival of the last byte, or to the end of the job.
    moving: Span,
    traced: Instant,
    /// The sender's evidence at the last `limit` event.
    last_evidence: LimitEvidence,
}

impl Controlled for Watch<'_> {
    fn law(&self) -> Option<Part> {
        match &self.law {
            Law::Ours(law) => law.clone(),
            Law::Theirs(requests) => Controlled::law(requests),
        }
    }

    fn change(&mut self, change: &LawChange) -> Result<(), Fault> {
        match &mut self.law {
            Law::Ours(Some(law)) => {
                self.transfer.switch_law(ChosenLaw::change(law, change).map_err(unknown)?);
            }
            Law::Ours(None) => {}
            Law::Theirs(requests) => requests.change(change)?,
        }
        Ok(())
    }

    fn data(&self) -> Option<Value> {
        self.transfer.counters().map(|counters| counters_json(&counters))
    }
}

#[derive(Default)]
pub(crate) struct Measured {
    pub counters: Option<Counters>,
    pub data_cpu: Span,
    pub moving: Span,
    /// Changes of the law that this side has requested.
    pub requested: Vec<(String, String)>,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(
        sides: &'a Sides,
        side: Side,
        start: impl FnOnce(Waker) -> Result<Transfer, EngineError>,
    ) -> Result<Self, Fault> {
        let (context, started) = (&sides.context, Instant::now());
        let waker = Waker::new().map_err(fault::of)?;
        let transfer = Arc::new(start(waker).map_err(|error| sides.fault(error))?);
        sides.watch(&transfer);
        let progress = Progress::start(&context.style);
        // A server may not access the directory of the sockets.
        let controls = (context.role == Role::Client).then(|| ControlSocket::open(side)).flatten();
        // From the first call on, the transfer keeps diagnosed windows.
        write_windows(&context.events, &transfer);
        let law = match side {
            Side::Sends => Law::Ours(sides.agreed.clone()),
            Side::Receives => Law::Theirs(LawRequests::new(sides.control.clone(), sides.agreed.clone())),
        };
        Ok(Self {
            sides,
            transfer,
            law,
            controls,
            peer_activity: ChangeTimer::default(),
            progress,
            started,
            moving: Span::ZERO,
            traced: started,
            last_evidence: LimitEvidence::default(),
        })
    }

    /// To be called many times a second. `done` changes with progress; `trace` returns the `progress` event.
    pub(crate) fn update(&mut self, snapshot: Snapshot, done: u64, trace: impl FnOnce() -> Value) {
        let counters = self.transfer.counters();
        let peer_activity = peer_activity(counters.as_ref(), snapshot.files.unwrap_or_default());
        let lost = match counters {
            Some(Counters::Sending(sending)) => sending.stats.lost_by_cause,
            Some(Counters::Receiving(stats)) => {
                [(Cause::ReceiverHost, u64::from(stats.socket_drops))].into_iter().collect()
            }
            None => CauseCounts::default(),
        };
        let silent_for = self.peer_activity.age(peer_activity, Instant::now());
        self.progress.update(Snapshot { silent_for, lost, ..snapshot });
        self.sides.context.session_progress.record(done);
        if let Some(controls) = self.controls.take() {
            controls.answer(self, snapshot.bytes);
            self.controls = Some(controls);
        }
        if self.traced.elapsed() >= TRACE_INTERVAL {
            self.traced = Instant::now();
            self.write(trace());
            self.write_limit();
        }
    }

    pub(crate) fn reason_to_stop(&self) -> Option<Fault> {
        let Context { cancel, session_progress, .. } = &self.sides.context;
        if cancel.is_requested() { Some(cancel.fault(REST_HINT)) } else { session_progress.eviction() }
    }

    /// Returns the fault to report to the peer when this side ends the session.
    pub(crate) fn for_peer(&self, fault: &Fault) -> Fault {
        let Context { cancel, role, .. } = &self.sides.context;
        let is_local_interruption = fault.code == FaultCode::Interrupted;
        if is_local_interruption { cancel.fault_for_peer(*role, REST_HINT) } else { fault.clone() }
    }

    /// To be called when all data has arrived, or the job has ended.
    pub(crate) fn end(&mut self, trace: Value) {
        self.progress.finish();
        self.write(trace);
        self.moving = self.started.elapsed().into();
    }

    /// Ends the data path, and writes its last windows to the trace.
    pub(crate) fn stop(self) -> Measured {
        let Self { sides, transfer, law, moving, .. } = self;
        let (data_cpu, mut counters) = (transfer.cpu(), transfer.counters());
        let mut requested = Vec::new();
        if let (Law::Theirs(requests), Some(agreed)) = (law, &sides.agreed) {
            let (law, agreed) = (requests.law().map(Part::texts), agreed.texts());
            requested.extend(law.into_iter().flatten().filter(|set| !agreed.contains(set)));
        }
        // Only the threads of a job that does not end could hold another reference.
        if let Some(mut transfer) = Arc::into_inner(transfer) {
            counters = transfer.stop();
            write_windows(&sides.context.events, &transfer);
        }
        Measured { counters, data_cpu, moving, requested }
    }

    /// Writes the limit since the last such event, at most once a second.
    fn write_limit(&mut self) {
        let Some(Counters::Sending(sending)) = self.transfer.counters() else { return };
        let now = LimitEvidence::of(&sending.stats, Span::ZERO, None, self.started.elapsed().into());
        let Some(part) = now.since(&self.last_evidence) else { return };
        self.last_evidence = now;
        if let Some(Limit { what, evidence }) = limit_of_sender(&part) {
            let limit = json!({ "limited_by": what, "limited_by_evidence": evidence });
            self.sides.context.events.write("limit", limit);
        }
    }

    fn write(&self, mut trace: Value) {
        let events = &self.sides.context.events;
        if events.is_enabled() {
            trace["data"] = self.data().into();
            events.write("progress", trace);
            write_windows(events, &self.transfer);
        }
    }
}
