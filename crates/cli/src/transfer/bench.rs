//! Memory to memory: what `haul bench` does on both sides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_engine::{Control, Counters, Session, Transfer, Waker};
use haul_wire::control::{BenchLimit, ControlMessage, Fault, FaultCode, Notes, Summary};
use serde_json::json;

use crate::output::{Progress, Snapshot};
use crate::transfer::context::Context;
use crate::transfer::control_socket::Side;
use crate::transfer::drive::{Measured, stop};
use crate::transfer::link::Sides;
use crate::transfer::memory::{Gauge, MemorySource, NullSink};
use crate::transfer::watch::{Watch, for_peer};

/// How often a run is looked after.
const TICK: Duration = Duration::from_millis(5);
/// How long the other side may take for its last words.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// How a bench ended on one side.
pub(crate) struct Carried {
    /// Bytes that both sides agree on.
    pub bytes: Result<u64, Fault>,
    pub measured: Measured,
}

/// Sends memory until the limit is reached and everything has arrived.
pub(crate) fn send(session: &mut Session, limit: BenchLimit, sides: &Sides, context: &Context) -> Carried {
    let gauge = Gauge::default();
    let source = MemorySource::new(limit, gauge.clone());
    let total = match limit {
        BenchLimit::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    let (control, side) = (session.control().clone(), Side::Sends(session.law()));
    let start = |waker| Ok(session.start_sending(Box::new(source), waker)?);
    run((&control, sides, context), side, (&gauge, total), start, |transfer| {
        let bytes = match transfer.counters() {
            Some(Counters::Sending(sending)) => sending.stats.object_acked,
            _ => gauge.bytes(),
        };
        agree_as_sender(&control, sides, bytes)
    })
}

/// Receives memory until everything has arrived.
pub(crate) fn receive(session: &mut Session, sides: &Sides, context: &Context) -> Carried {
    let gauge = Gauge::default();
    let sink = Box::new(NullSink(gauge.clone()));
    let control = session.control().clone();
    let start = |waker| Ok(session.start_receiving(sink, waker)?);
    let agree = |_: &Transfer| agree_as_receiver(&control, sides, gauge.bytes());
    run((&control, sides, context), Side::Receives, (&gauge, None), start, agree)
}

/// Runs the data path to its end, and has both sides `agree` on how much that was.
fn run(
    (control, sides, context): (&Control, &Sides, &Context),
    side: Side,
    (gauge, total): (&Gauge, Option<u64>),
    start: impl FnOnce(Waker) -> Result<Transfer, Fault>,
    agree: impl FnOnce(&Transfer) -> Result<u64, Fault>,
) -> Carried {
    let started = Instant::now();
    let transfer = match Waker::new().map_err(Fault::from).and_then(start) {
        Ok(transfer) => Arc::new(transfer),
        Err(fault) => {
            control.abort(fault.clone());
            return Carried { bytes: Err(fault), measured: Measured::default() };
        }
    };
    sides.watch(&transfer);
    let watch = Watch::start(context, &transfer, side, Progress::start(&context.style));
    let delivered = wait(watch, sides, control, gauge, total);
    let moving = started.elapsed().into();
    let bytes = delivered.and_then(|()| agree(&transfer));
    match &bytes {
        // The numbers are agreed on; how the close goes changes nothing.
        Ok(_) => drop(control.close()),
        Err(fault) => control.abort(for_peer(fault, context)),
    }
    let bytes = bytes.map_err(|fault| context.cancel.or_own(fault, ""));
    Carried { bytes, measured: stop(transfer, moving, &context.events) }
}

/// Shows how it goes until every byte has arrived.
fn wait(
    mut watch: Watch<'_>,
    sides: &Sides,
    control: &Control,
    gauge: &Gauge,
    total_bytes: Option<u64>,
) -> Result<(), Fault> {
    let trace = || json!({ "bytes": gauge.bytes() });
    let waker = watch.transfer.waker();
    let result = loop {
        match watch.transfer.wait_delivered(TICK) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(error) => break Err(error.into()),
        }
        let bytes = gauge.bytes();
        watch.look(Snapshot { bytes, total_bytes, ..Snapshot::default() }, bytes, trace);
        if let Some(fault) = watch.reason_to_stop() {
            break Err(fault);
        }
        if let Some(error) = control.failure() {
            break Err(sides.fault(error));
        }
        // The source ends by the clock, which nothing else tells the data thread.
        waker.wake();
    };
    watch.end(trace());
    result
}

fn agree_as_sender(control: &Control, sides: &Sides, bytes: u64) -> Result<u64, Fault> {
    control.send(ControlMessage::Counted(sides.ours()))?;
    control.send(ControlMessage::ObjectSent { bytes })?;
    let theirs = loop {
        match sides.take(control.recv(Some(LAST_WORDS)).map_err(|error| sides.fault(error))?) {
            Some(ControlMessage::Finish(summary)) => break summary.bytes,
            None => {}
            Some(other) => tracing::debug!("unexpected {} at the end of a bench", other.name()),
        }
    };
    compare(bytes, theirs)
}

fn agree_as_receiver(control: &Control, sides: &Sides, bytes: u64) -> Result<u64, Fault> {
    let theirs = loop {
        match sides.take(control.recv(Some(LAST_WORDS)).map_err(|error| sides.fault(error))?) {
            Some(ControlMessage::ObjectSent { bytes }) => break bytes,
            None => {}
            Some(other) => tracing::debug!("unexpected {} at the end of a bench", other.name()),
        }
    };
    control.send(ControlMessage::Counted(sides.ours()))?;
    control.send(ControlMessage::Finish(Summary {
        entries: 0,
        failed: 0,
        bytes,
        digest: [0; 32],
        notes: Notes::default(),
    }))?;
    compare(bytes, theirs)
}

fn compare(ours: u64, theirs: u64) -> Result<u64, Fault> {
    if ours == theirs {
        return Ok(ours);
    }
    let message = format!("this side counts {ours} bytes and the other side {theirs}");
    Err(Fault::new(FaultCode::VerifyFailed, message, "report this: it should be impossible"))
}
