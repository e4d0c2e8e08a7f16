//! Handles the receiver's messages until the set is final or the job has failed.

use std::sync::Arc;

use haul_wire::control::{Action, ControlMessage, Destination, Fault, FaultCode, Outcome, Summary};

use crate::entries::{EntryState, Kind};
use crate::fault::{early_disconnect, unexpected, violation};
use crate::job::Job as _;
use crate::link::RECV_TIMEOUT;
use crate::report::{MoveReport, set_digest};
use crate::send::shared::Shared;

pub(crate) fn listen(shared: &Arc<Shared>) -> Result<MoveReport, Fault> {
    let mut report = None;
    loop {
        shared.check_ending()?;
        let handle = |message| handle(shared, message).map(|done| report = done);
        shared.receive(shared.link.recv(RECV_TIMEOUT), handle);
        if let Some(report) = report {
            return Ok(report);
        }
    }
}

/// Handles one message; returns the report once the set is final.
fn handle(shared: &Shared, message: ControlMessage) -> Result<Option<MoveReport>, Fault> {
    match message {
        ControlMessage::Ready(destination) if shared.set_ready(destination) => {}
        ControlMessage::DestinationLineage(lineage)
            if shared.destination().is_none() && shared.lineage.set(lineage.clone()).is_ok() => {}
        ControlMessage::EntryRequests(_) | ControlMessage::EntryRequestsEnd { .. }
            if shared.destination() != Some(Destination::Occupied) =>
        {
            return Err(violation("data was requested after everything had been sent"));
        }
        ControlMessage::EntryRequests(runs) => shared.requests.lock().handle_requests(shared, &runs)?,
        ControlMessage::More(more) => shared.requests.lock().more(shared, &more)?,
        ControlMessage::EntryRequestsEnd { bytes } => shared.requests.lock().end(shared, bytes)?,
        ControlMessage::Outcomes(outcomes) => settle(shared, outcomes)?,
        ControlMessage::Items(items) => {
            for item in items {
                if let Action::Resume { have, .. } = item.action {
                    let resumed = &mut shared.ledger.lock().resumed_by_items;
                    *resumed = resumed.saturating_add(have);
                }
                shared.link.changed(&item);
            }
        }
        ControlMessage::Removed(removal) => shared.ledger.lock().removal = removal,
        ControlMessage::Finish(summary) => return finish(shared, &summary).map(Some),
        ControlMessage::Close => return Err(early_disconnect("receiver")),
        other => return Err(unexpected(&other)),
    }
    Ok(None)
}

fn settle(shared: &Shared, outcomes: Vec<Outcome>) -> Result<(), Fault> {
    let mut requests = shared.requests.lock();
    let mut ledger = shared.ledger.lock();
    for Outcome { entry, fault } in outcomes {
        let is_open = |&e: &u32| e < ledger.table.len() && ledger.table.state(e) == EntryState::Waiting;
        let Some(index) = u32::try_from(entry).ok().filter(is_open) else {
            return Err(violation("an outcome of an entry that is not open"));
        };
        let (state, resumed) = requests.settled(index);
        if let Some(fault) = fault {
            ledger.table.set_state(index, EntryState::Failed);
            let path = ledger.table.path(index);
            ledger.failures.add(&path, fault);
            shared.progress.failed.add(1);
        } else {
            ledger.table.set_state(index, state);
            ledger.resumed += resumed;
            if state == EntryState::Done && matches!(ledger.table.kind(index), Kind::File(_)) {
                shared.progress.files_done.add(1);
            }
        }
    }
    Ok(())
}

/// Checks that both sides have the same set, and returns the report; everything is final at the receiver.
fn finish(shared: &Shared, summary: &Summary) -> Result<MoveReport, Fault> {
    let ledger = shared.ledger.lock();
    let entries = u64::from(ledger.table.len());
    let is_open = |_, state| state == EntryState::Waiting;
    if !shared.progress.all_known() || ledger.table.select(is_open).next().is_some() {
        return Err(violation("the receiver finished before everything was settled"));
    }
    let digest = set_digest(&ledger.table);
    if summary.entries != entries || summary.digest != digest {
        let message = "the receiver's file set differs from the one sent";
        return Err(Fault::new(FaultCode::VerifyFailed, message, "run the same command again"));
    }
    let report = MoveReport {
        resumed_bytes: ledger.resumed.max(ledger.resumed_by_items),
        removal: ledger.removal.clone(),
        notes: summary.notes.clone(),
        failures: ledger.failures.clone(),
        ..MoveReport::of(&ledger.table, digest)
    };
    drop(ledger);
    // The receiver does not need this message; the channel may close at once.
    let _ = shared.link.send(ControlMessage::Close);
    Ok(report)
}
