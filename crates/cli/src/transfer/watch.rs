//! What is done beside every running transfer: progress, the trace, `haul ctl`, and looking whether to stop.

use std::time::{Duration, Instant};

use haul_engine::{Counters, Transfer};
use haul_wire::control::{Fault, FaultCode};
use serde_json::Value;

use crate::output::{Progress, Snapshot};
use crate::signals::Cancel;
use crate::transfer::context::Context;
use crate::transfer::control_socket::{ControlSocket, Side};
use crate::transfer::counters::{counters_json, write_windows};
use crate::transfer::stall::Unchanged;

/// How often the trace gets a line of numbers.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// What to do about an interruption.
pub(crate) const REST: &str = "what is complete is in place; run it again for the rest";

/// See the module's text.
pub(crate) struct Watch<'a> {
    pub(crate) context: &'a Context,
    pub(crate) transfer: &'a Transfer,
    controls: Option<ControlSocket>,
    /// Packets of the other side.
    heard: Unchanged,
    progress: Progress,
    traced: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(
        context: &'a Context,
        transfer: &'a Transfer,
        side: Side,
        progress: Progress,
    ) -> Self {
        let controls = ControlSocket::open(context.role, side);
        Self { context, transfer, controls, heard: Unchanged::new(), progress, traced: Instant::now() }
    }

    /// To be called many times a second. `done` is a number that rises with what is done, `trace` what the trace says
    /// of it.
    pub(crate) fn look(&mut self, snapshot: Snapshot, done: u64, trace: impl FnOnce() -> Value) {
        let silent_for = self.heard.lasts(packets(self.transfer), Instant::now());
        self.progress.update(&Snapshot { silent_for, ..snapshot });
        self.context.pulse.note(done);
        if let Some(controls) = &mut self.controls {
            controls.answer(self.transfer, snapshot.bytes);
        }
        if self.traced.elapsed() >= TRACE_INTERVAL {
            self.traced = Instant::now();
            self.write(trace());
        }
    }

    /// Why the run has to end, if somebody wants it to.
    pub(crate) fn reason_to_stop(&self) -> Option<Fault> {
        let Context { cancel, pulse, .. } = self.context;
        if cancel.is_requested() { Some(interrupted(cancel)) } else { pulse.given_up() }
    }

    pub(crate) fn end(self, trace: Value) {
        self.progress.finish();
        self.write(trace);
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

fn packets(transfer: &Transfer) -> u64 {
    match transfer.counters() {
        Some(Counters::Sending(sending)) => sending.stats.feedback,
        Some(Counters::Receiving(stats)) => stats.packets + stats.duplicates,
        None => 0,
    }
}

pub(crate) fn interrupted(cancel: &Cancel) -> Fault {
    cancel.fault(REST)
}

/// What the other side is told of a fault that ends the session from here.
pub(crate) fn for_peer(fault: &Fault, context: &Context) -> Fault {
    match fault.code {
        FaultCode::Interrupted => context.cancel.fault_for_peer(context.role, REST),
        _ => fault.clone(),
    }
}
