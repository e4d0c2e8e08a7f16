//! Runs a job of the mover beside its data path, from its start to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_engine::{Control, Counters, Session, Transfer, Waker};
use haul_mover::{MoveReport, Progress as JobProgress, ReceiveHandle, ReceiveJob, SendHandle, SendJob, Wake};
use haul_wire::control::{Fault, FaultCode};
use serde_json::json;

use super::allot::{Allotments, Part};
use super::link::{Sides, wake};
use crate::fault;
use crate::output::{EventLog, Items, Progress, ProgressStyle, Snapshot};
use crate::signals::Cancel;

/// How often a run is looked after.
const TICK: Duration = Duration::from_millis(5);
/// How often the trace gets a line of numbers.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// What to do when a copy of files has lost the other side.
const GOES_ON: &str = "run the same command again: it goes on where it stopped";

/// A job of either side.
pub(super) trait Job {
    fn progress(&self) -> Arc<JobProgress>;
    fn on_wake(&self, wake: Wake);
    fn abort(&self, fault: Fault);
    fn is_finished(&self) -> bool;
    /// What a person should know if it fails.
    fn notes(&self) -> Vec<String>;
    fn join(self) -> Result<MoveReport, Fault>;
}

macro_rules! job {
    ($handle:ty, $notes:expr) => {
        impl Job for $handle {
            fn progress(&self) -> Arc<JobProgress> {
                self.progress()
            }
            fn on_wake(&self, wake: Wake) {
                self.on_wake(wake);
            }
            fn abort(&self, fault: Fault) {
                self.abort(fault);
            }
            fn is_finished(&self) -> bool {
                self.is_finished()
            }
            fn notes(&self) -> Vec<String> {
                $notes(self)
            }
            fn join(self) -> Result<MoveReport, Fault> {
                self.join()
            }
        }
    };
}

job!(SendHandle, |_| Vec::new());
job!(ReceiveHandle, ReceiveHandle::notes);

/// Who looks on.
pub(super) struct Watch<'a> {
    pub cancel: &'a Cancel,
    pub style: ProgressStyle,
    /// The trace; a server has none.
    pub events: Option<&'a EventLog>,
    /// Where it is said what is done to names; a server's peer says it.
    pub items: Option<&'a Items>,
    /// How what is received here is divided among those who send.
    pub allotments: Allotments,
}

/// How a job ended.
pub(super) struct Moved {
    pub result: Result<MoveReport, Fault>,
    /// What a person should know if it failed; otherwise its report says it.
    pub notes: Vec<String>,
    pub counters: Option<Counters>,
    /// Processor time of the data thread.
    pub data_cpu: Span,
    /// From the start of the data path to the end of the job.
    pub elapsed: Span,
}

impl Moved {
    /// It was a copy of files, which goes on where it stopped.
    pub(super) fn resumable(mut self) -> Self {
        self.result = self.result.map_err(|fault| fault::if_lost(fault, GOES_ON));
        self
    }
}

/// Sends what `job` reads.
pub(super) fn send(session: &mut Session, job: SendJob, sides: &Sides, watch: &Watch<'_>) -> Moved {
    let SendJob { source, handle } = job;
    run(handle, sides, watch, None, |waker| Ok(session.start_sending(source, waker)?))
}

/// Receives into what `job` writes.
pub(super) fn receive(session: &mut Session, job: ReceiveJob, sides: &Sides, watch: &Watch<'_>) -> Moved {
    let ReceiveJob { sink, handle } = job;
    let control = session.control().clone();
    run(handle, sides, watch, Some(&control), |waker| Ok(session.start_receiving(sink, waker)?))
}

fn run<J: Job>(
    job: J,
    sides: &Sides,
    watch: &Watch<'_>,
    sender: Option<&Control>,
    start: impl FnOnce(Waker) -> Result<Transfer, Fault>,
) -> Moved {
    let started = Instant::now();
    let progress = Progress::start(&watch.style);
    let tell = watch.items.and_then(|items| items.tell(progress.voice()));
    job.progress().on_item(tell.unwrap_or_else(|| Arc::new(|_| {})));
    let transfer = Waker::new().map_err(Fault::from).and_then(|waker| {
        job.on_wake(wake(&waker));
        start(waker)
    });
    let transfer = match transfer {
        Ok(transfer) => Arc::new(transfer),
        Err(fault) => {
            job.abort(fault.clone());
            let notes = job.notes();
            // The job's own words would only repeat that it was aborted.
            let _ = job.join();
            return Moved {
                result: Err(fault),
                notes,
                counters: None,
                data_cpu: Span::ZERO,
                elapsed: Span::ZERO,
            };
        }
    };
    sides.watch(&transfer);
    let part = sender.and_then(|sender| watch.allotments.join(sender, &transfer));
    let stopped_by = look_after(&job, &transfer, watch, part.as_ref(), progress);
    drop(part);
    let notes = job.notes();
    let joined = job.join();
    let elapsed = started.elapsed().into();
    let data_cpu = transfer.cpu();
    let counters = stop(transfer);
    Moved { result: stopped_by.map_or(joined, Err), notes, counters, data_cpu, elapsed }
}

/// Ends the data path and gives its last counters.
pub(super) fn stop(transfer: Arc<Transfer>) -> Option<Counters> {
    let counters = transfer.counters();
    // The job that could hold another reference is over.
    Arc::into_inner(transfer).map_or(counters, Transfer::stop)
}

/// Shows and records how it goes until the job ends. A fault if it was ended from here.
fn look_after(
    job: &impl Job,
    transfer: &Transfer,
    watch: &Watch<'_>,
    part: Option<&Part>,
    mut progress: Progress,
) -> Option<Fault> {
    let numbers = job.progress();
    let mut traced = Instant::now();
    let mut contact = Contact::new();
    let mut stopped_by = None;
    while !job.is_finished() {
        std::thread::sleep(TICK);
        progress.update(&snapshot(&numbers, contact.silent_for(transfer)));
        part.inspect(|part| part.look());
        if traced.elapsed() >= TRACE_INTERVAL {
            traced = Instant::now();
            trace(watch, &numbers, transfer);
        }
        if stopped_by.is_none() {
            stopped_by = reason_to_stop(transfer, watch.cancel);
            if let Some(fault) = &stopped_by {
                job.abort(fault.clone());
            }
        }
    }
    progress.finish();
    trace(watch, &numbers, transfer);
    stopped_by
}

fn reason_to_stop(transfer: &Transfer, cancel: &Cancel) -> Option<Fault> {
    if cancel.is_requested() {
        return Some(interrupted());
    }
    transfer.failure().map(Fault::from)
}

/// What an interruption is called on both sides.
pub(super) fn interrupted() -> Fault {
    Fault::new(
        FaultCode::Interrupted,
        "interrupted",
        "what is complete is in place; run it again for the rest",
    )
}

fn snapshot(numbers: &JobProgress, silent_for: Span) -> Snapshot {
    Snapshot {
        bytes: numbers.bytes_done(),
        total_bytes: Some(numbers.bytes_known()).filter(|&bytes| bytes > 0),
        files: Some(numbers.files_done()),
        silent_for,
    }
}

/// Follows when a packet of the other side was last counted.
pub(super) struct Contact {
    packets: u64,
    at: Instant,
}

impl Contact {
    pub(super) fn new() -> Self {
        Self { packets: 0, at: Instant::now() }
    }

    /// How long nothing was heard.
    pub(super) fn silent_for(&mut self, transfer: &Transfer) -> Span {
        let packets = match transfer.counters() {
            Some(Counters::Sending(sending)) => sending.stats.feedback,
            Some(Counters::Receiving(stats)) => stats.packets + stats.duplicates,
            None => 0,
        };
        if packets != self.packets {
            (self.packets, self.at) = (packets, Instant::now());
        }
        self.at.elapsed().into()
    }
}

/// One line of numbers in the trace.
fn trace(watch: &Watch<'_>, numbers: &JobProgress, transfer: &Transfer) {
    let Some(events) = watch.events else { return };
    let mut fields = json!({
        "bytes": numbers.bytes_done(),
        "bytes_known": numbers.bytes_known(),
        "files": numbers.files_done(),
        "failed": numbers.failed(),
    });
    if let Some(counters) = transfer.counters() {
        fields["data"] = counters_json(&counters);
    }
    events.write("progress", fields);
}

pub(super) fn counters_json(counters: &Counters) -> serde_json::Value {
    match counters {
        Counters::Sending(sending) => {
            let stats = &sending.stats;
            json!({
                "rate_bps": sending.rate.as_bps(),
                "phase": sending.phase,
                "in_flight": sending.in_flight,
                "packets": stats.packets,
                "resent": stats.resent,
                "lost": stats.lost,
                "acked_bytes": stats.object_acked,
                "rtt_ms": stats.rtt.as_millis_f64(),
                "min_rtt_ms": stats.min_rtt.as_millis_f64(),
                "datagram": stats.datagram,
                "peak_delivery_bps": stats.peak_delivery_bps,
                "receiver_drops": stats.receiver_drops,
            })
        }
        Counters::Receiving(stats) => json!({
            "packets": stats.packets,
            "duplicates": stats.duplicates,
            "rejected": stats.rejected,
            "object_bytes": stats.object_bytes,
            "socket_drops": stats.socket_drops,
            "feedback_sent": stats.feedback_sent,
        }),
    }
}
