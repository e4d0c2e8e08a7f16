//! Runs a job of the mover beside its data path, from its start to its end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{Bytes, Span};
use haul_engine::{Counters, Session, Transfer, Waker};
use haul_mover::{
    ControlLink, JobHandle, MoveReport, Progress as JobProgress, ReceiveJob, ReceiveOptions, SendJob,
};
use haul_wire::control::{Fault, ReceivePolicy};
use haulage::Recipe;
use haulage::config::{DiskAccess, ObjectConfig};
use serde_json::{Value, json};

use crate::fault;
use crate::output::{EventLog, Progress, Snapshot, Stall};
use crate::transfer::{
    Context, Side, Sides, Unchanged, Watch,
    counters::{carried, write_windows},
    for_peer,
    quota::Part,
    sessions,
    watch::REST,
};

const TICK: Duration = Duration::from_millis(5);
const LONGEST_TICK: Duration = Duration::from_millis(50);
/// What to do when a copy of files has lost the other side.
const GOES_ON: &str = "run the same command again: it goes on where it stopped";

pub(crate) struct Moved {
    pub result: Result<MoveReport, Fault>,
    /// What a person should know if it failed; otherwise its report says it.
    pub notes: Vec<String>,
    pub measured: Measured,
}

#[derive(Default)]
pub(crate) struct Measured {
    pub counters: Option<Counters>,
    pub data_cpu: Span,
    /// From its start to the last byte's arrival, or to the end of the job.
    pub moving: Span,
}

impl Moved {
    /// It was a copy of files, which goes on where it stopped.
    pub(crate) fn resumable(mut self) -> Self {
        self.result = self.result.map_err(|fault| fault::if_lost(fault, GOES_ON));
        self
    }
}

/// Sends what the job reads that `begin` makes for a control channel and for what is read at a time.
pub(crate) fn send(
    session: &mut Session,
    sides: &Arc<Sides>,
    context: &Context,
    begin: impl FnOnce(Arc<dyn ControlLink>, Option<Bytes>) -> Result<SendJob, Fault>,
) -> Result<Moved, Fault> {
    let SendJob { source, handle } = begin(sides.clone(), disk_chunk(session.recipe()))?;
    let side = Side::Sends(session.law());
    let start = |waker| session.start_sending(source, waker).map_err(|error| sides.fault(error));
    Ok(run(handle, sides, context, side, start))
}

/// Receives into what the job writes that `begin` makes for a control channel, by this policy.
pub(crate) fn receive(
    session: &mut Session,
    sides: &Arc<Sides>,
    context: &Context,
    policy: ReceivePolicy,
    begin: impl FnOnce(Arc<dyn ControlLink>, ReceiveOptions) -> Result<ReceiveJob, Fault>,
) -> Result<Moved, Fault> {
    // Different for jobs of this machine at the same time.
    let number = RandomState::new().build_hasher().finish() as u32;
    let options = ReceiveOptions {
        chunk: disk_chunk(session.recipe()),
        ..ReceiveOptions::with_policy(number, policy).for_round_trip(session.round_trip())
    };
    let ReceiveJob { sink, handle } = begin(sides.clone(), options)?;
    let side = Side::Receives(session.law(), Some(sides.clone()));
    let start = |waker| session.start_receiving(sink, waker).map_err(|error| sides.fault(error));
    Ok(run(handle, sides, context, side, start))
}

/// How much of the object files are read and written at a time, if the recipe in force has them go by its chunks.
fn disk_chunk(recipe: &Recipe) -> Option<Bytes> {
    let ObjectConfig { chunk, disk, .. } = recipe.configuration().ok()??;
    (disk == DiskAccess::Chunk).then_some(chunk)
}

fn run(
    job: JobHandle,
    sides: &Sides,
    context: &Context,
    side: Side,
    start: impl FnOnce(Waker) -> Result<Transfer, Fault>,
) -> Moved {
    let started = Instant::now();
    let progress = Progress::start(&context.style);
    job.progress().on_item(context.on_item.clone().unwrap_or_else(|| Arc::new(|_| {})));
    let transfer = Waker::new().map_err(fault::of).and_then(|waker| {
        let wake = waker.clone();
        job.on_wake(Arc::new(move || wake.wake()));
        start(waker)
    });
    let transfer = match transfer {
        Ok(transfer) => Arc::new(transfer),
        Err(fault) => {
            job.abort(fault.clone());
            let notes = job.notes();
            // The job's own words would only repeat that it was aborted.
            let _ = job.join();
            return Moved { result: Err(fault), notes, measured: Measured::default() };
        }
    };
    sides.watch(&transfer);
    let part = match side {
        Side::Receives(..) => context.quotas.join(sides.control.clone(), Arc::downgrade(&transfer)),
        Side::Sends(_) => None,
    };
    let watch = Watch::start(context, &transfer, side, progress);
    let stopped_by = look_after(&job, sides, part.as_ref(), watch);
    drop(part);
    let notes = job.notes();
    let joined = join(job, stopped_by);
    let measured = stop(transfer, started.elapsed().into(), &context.events);
    let result = joined.map_err(|fault| context.cancel.or_own(fault, REST));
    Moved { result, notes, measured }
}

/// The result of a job. One that does not end, because a disk does not answer, is left to end with the process.
fn join(job: JobHandle, stopped_by: Option<Fault>) -> Result<MoveReport, Fault> {
    match stopped_by {
        None => job.join(),
        Some(fault) if job.is_finished() => {
            // The job's own words are those that the other side was told.
            let _ = job.join();
            Err(fault)
        }
        Some(fault) => {
            let fault = sessions::unended(fault, job.stage());
            std::mem::forget(job);
            Err(fault)
        }
    }
}

/// Ends the data path and gives its last counters; the last windows of one that was broken off go into the trace.
pub(crate) fn stop(transfer: Arc<Transfer>, moving: Span, events: &EventLog) -> Measured {
    let (data_cpu, counters) = (transfer.cpu(), transfer.counters());
    // The job that could hold another reference is over.
    let Some(mut transfer) = Arc::into_inner(transfer) else {
        return Measured { counters, data_cpu, moving };
    };
    let counters = transfer.stop();
    write_windows(events, &transfer);
    Measured { counters, data_cpu, moving }
}

/// Shows and records how it goes until the job ends. A fault if it was ended from here.
fn look_after(job: &JobHandle, sides: &Sides, part: Option<&Part>, mut watch: Watch<'_>) -> Option<Fault> {
    let numbers = job.progress();
    let started = Instant::now();
    let mut idle = Unchanged::default();
    let mut stopped_by: Option<(Fault, Instant)> = None;
    while !job.is_finished() && stopped_by.as_ref().is_none_or(|(_, at)| at.elapsed() < sessions::ENDING) {
        std::thread::sleep(tick(started.elapsed()));
        let stall = Stall { lasts: idle.lasts(numbers.activity(), Instant::now()), stage: job.stage() };
        watch.look(snapshot(&numbers, stall), done(&numbers, watch.transfer), || trace(&numbers));
        part.inspect(|part| part.look());
        if stopped_by.is_none() {
            let failure = || watch.transfer.failure().map(|error| sides.fault(error));
            let fault = watch.reason_to_stop().or_else(failure).or_else(|| sessions::too_long(stall));
            if let Some(fault) = &fault {
                job.abort(for_peer(fault, watch.context));
            }
            stopped_by = fault.map(|fault| (fault, Instant::now()));
        }
    }
    watch.end(trace(&numbers));
    stopped_by.map(|(fault, _)| fault)
}

/// Time between two looks: a fiftieth of what has passed, so that short copies end in time and long ones wake seldom.
fn tick(elapsed: Duration) -> Duration {
    (elapsed / 50).clamp(TICK, LONGEST_TICK)
}

/// A number that rises with everything that is done.
fn done(numbers: &JobProgress, transfer: &Transfer) -> u64 {
    let carried = carried(transfer.counters().as_ref());
    let entries = numbers.files_done() + numbers.failed();
    [numbers.bytes_done(), numbers.bytes_known(), entries].into_iter().fold(carried, u64::wrapping_add)
}

fn snapshot(numbers: &JobProgress, stall: Stall) -> Snapshot {
    Snapshot {
        bytes: numbers.bytes_done(),
        total_bytes: Some(numbers.bytes_known()).filter(|&bytes| bytes > 0),
        files: Some(numbers.files_done()),
        stall: Some(stall),
        ..Snapshot::default()
    }
}

/// One line of numbers in the trace.
fn trace(numbers: &JobProgress) -> Value {
    json!({
        "bytes": numbers.bytes_done(),
        "bytes_known": numbers.bytes_known(),
        "files": numbers.files_done(),
        "failed": numbers.failed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fobs_reads_and_writes_chunks_and_the_others_do_not() {
        for (name, _) in haul_proto::presets::PRESETS {
            let recipe = haul_proto::presets::preset(name).unwrap().unwrap();
            let wanted = name.starts_with("fobs").then_some(Bytes(100_000_000));
            assert_eq!(disk_chunk(&recipe), wanted, "{name}");
        }
    }
}
