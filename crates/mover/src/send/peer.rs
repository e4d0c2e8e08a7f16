//! Listens to the receiver until the job is over.

use std::sync::Arc;
use std::time::Duration;

use haul_wire::control::{Action, ControlMessage, Destination, Fault, FaultCode, Item, Outcome, Summary};

use crate::entries::{Kind, State};
use crate::fault::{protocol, unexpected};
use crate::link::is_session_message;
use crate::report::{MoveReport, set_digest};
use crate::send::shared::Shared;

/// Longest wait before it is looked again whether the job was aborted here.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Handles the receiver's messages; returns when the set is final or the job has failed.
pub(crate) fn listen(shared: &Arc<Shared>) -> Result<MoveReport, Fault> {
    loop {
        if let Some(fault) = shared.fault() {
            return Err(fault);
        }
        let message = shared.link.recv(LOOK_AGAIN);
        if matches!(&message, Ok(Some(message)) if !is_session_message(message)) {
            shared.progress.worked();
        }
        let handled = match message {
            Ok(None) => Ok(None),
            Ok(Some(message)) if is_session_message(&message) => Ok(None),
            Ok(Some(ControlMessage::Ready(destination))) => ready(shared, destination).map(|()| None),
            Ok(Some(ControlMessage::DestinationLineage(lineage))) if shared.set_lineage(lineage.clone()) => {
                Ok(None)
            }
            Ok(Some(ControlMessage::Wants(runs))) => {
                occupied(shared).and_then(|()| shared.wanted().wants(shared, &runs)).map(|()| None)
            }
            Ok(Some(ControlMessage::More(more))) => shared.wanted().more(shared, &more).map(|()| None),
            Ok(Some(ControlMessage::WantsEnd { bytes })) => {
                occupied(shared).and_then(|()| shared.wanted().end(shared, bytes)).map(|()| None)
            }
            Ok(Some(ControlMessage::Outcomes(outcomes))) => settle(shared, outcomes).map(|()| None),
            Ok(Some(ControlMessage::Items(items))) => {
                for item in &items {
                    take_item(shared, item);
                }
                Ok(None)
            }
            Ok(Some(ControlMessage::Removed(removal))) => {
                shared.ledger().removal = removal;
                Ok(None)
            }
            Ok(Some(ControlMessage::Finish(summary))) => finish(shared, &summary).map(Some),
            Ok(Some(ControlMessage::Abort(fault))) | Err(fault) => {
                shared.fail_silently(fault);
                Ok(None)
            }
            Ok(Some(ControlMessage::Bye)) => {
                shared.fail_silently(left_early());
                Ok(None)
            }
            Ok(Some(other)) => Err(unexpected(&other)),
        };
        match handled {
            Ok(None) => {}
            Ok(Some(report)) => return Ok(report),
            Err(fault) => shared.fail(fault),
        }
    }
}

/// The receiver says what it does to a name, or would do.
fn take_item(shared: &Shared, item: &Item) {
    if let Action::Resume { have, .. } = item.action {
        let mut ledger = shared.ledger();
        ledger.resumed_as_said = ledger.resumed_as_said.saturating_add(have);
    }
    shared.progress.tell(item);
}

fn left_early() -> Fault {
    Fault::new(
        FaultCode::ControlLost,
        "the receiver left before the transfer was complete",
        "run the same command again",
    )
}

fn ready(shared: &Shared, destination: Destination) -> Result<(), Fault> {
    if shared.set_ready(destination) { Ok(()) } else { Err(protocol("the receiver is ready twice")) }
}

/// Only of an occupied destination it is said what is wanted.
fn occupied(shared: &Shared) -> Result<(), Fault> {
    match shared.destination() {
        Some(Destination::Occupied) => Ok(()),
        _ => Err(protocol("something is wanted although everything is sent")),
    }
}

fn settle(shared: &Shared, outcomes: Vec<Outcome>) -> Result<(), Fault> {
    let mut wanted = shared.wanted();
    let mut ledger = shared.ledger();
    for Outcome { entry, fault } in outcomes {
        let known = u32::try_from(entry).ok().filter(|&e| e < ledger.table.len());
        let Some(index) = known.filter(|&e| ledger.table.state(e) == State::Waiting) else {
            return Err(protocol("an outcome of an entry that is not open"));
        };
        ledger.settled += 1;
        let (state, resumed) = wanted.settled(shared, index);
        if let Some(fault) = fault {
            ledger.table.set_state(index, State::Failed);
            let path = ledger.table.path(index);
            ledger.failures.add(&path, fault);
            shared.progress.one_failed();
        } else {
            ledger.table.set_state(index, state);
            ledger.resumed += resumed;
            if state == State::Done && matches!(ledger.table.kind(index), Kind::File(_)) {
                shared.progress.file_done();
            }
        }
    }
    Ok(())
}

/// Everything is final at the receiver: both sides must mean the same set.
fn finish(shared: &Shared, summary: &Summary) -> Result<MoveReport, Fault> {
    let ledger = shared.ledger();
    let entries = u64::from(ledger.table.len());
    if !ledger.complete || ledger.settled != entries {
        return Err(protocol("the receiver finished before everything was settled"));
    }
    let digest = set_digest(&ledger.table);
    if summary.entries != entries || summary.digest != digest {
        let message = "the set that the receiver has is not the one that was sent";
        return Err(Fault::new(FaultCode::VerifyFailed, message, "run the same command again"));
    }
    let (failures, removal) = (ledger.failures.clone(), ledger.removal.clone());
    let notes = summary.notes.clone();
    let resumed = ledger.resumed.max(ledger.resumed_as_said);
    let report = crate::report::report(&ledger.table, failures, digest, resumed, removal, notes);
    drop(ledger);
    // The receiver is content without it; the channel may close at once.
    let _ = shared.link.send(ControlMessage::Bye);
    Ok(report)
}
