//! Runs a job of the mover beside its data path, from its start to its end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_engine::{Control, Counters, Role, Session, Transfer, Waker};
use haul_mover::{JobHandle, MoveReport, Progress as JobProgress, ReceiveJob, SendJob};
use haul_wire::control::{Fault, FaultCode};
use serde_json::json;

use crate::fault;
use crate::output::{EventLog, Items, Progress, ProgressStyle, Snapshot, Stall};
use crate::signals::Cancel;
use crate::transfer::control_socket::{ControlSocket, Side};
use crate::transfer::counters::{counters_json, write_windows};
use crate::transfer::link::{Sides, wake};
use crate::transfer::quota::{Part, Quotas};
use crate::transfer::sessions::Pulse;
use crate::transfer::stall::{self, StallClock};

/// How often a run is looked after.
const TICK: Duration = Duration::from_millis(5);
/// The same after some seconds.
const LONGEST_TICK: Duration = Duration::from_millis(50);
/// How often the trace gets a line of numbers.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// What to do when a copy of files has lost the other side.
const GOES_ON: &str = "run the same command again: it goes on where it stopped";

/// What to do about an interruption.
const REST: &str = "what is complete is in place; run it again for the rest";

/// A number that no other job of this machine is likely to have at the same time.
pub(crate) fn job_number() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// What the run of a job is given: whether to stop, and where its progress goes.
pub(crate) struct RunEnv<'a> {
    pub cancel: &'a Cancel,
    /// What this side is to the other one.
    pub role: Role,
    pub style: ProgressStyle,
    /// The trace; a server has none.
    pub events: Option<&'a EventLog>,
    /// Where it is said what is done to names; a server's peer says it.
    pub items: Option<&'a Items>,
    /// How what is received here is divided among those who send.
    pub quotas: Quotas,
    /// Whether it gets on, for a server that has no place left.
    pub pulse: Pulse,
}

/// How a job ended.
pub(crate) struct Moved {
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
    pub(crate) fn resumable(mut self) -> Self {
        self.result = self.result.map_err(|fault| fault::if_lost(fault, GOES_ON));
        self
    }
}

/// Sends what `job` reads.
pub(crate) fn send(session: &mut Session, job: SendJob, sides: &Sides, env: &RunEnv<'_>) -> Moved {
    let SendJob { source, handle } = job;
    let side = Side::of_sender(session.settings());
    run(handle, sides, env, (None, side), |waker| Ok(session.start_sending(source, waker)?))
}

/// Receives into what `job` writes.
pub(crate) fn receive(session: &mut Session, job: ReceiveJob, sides: &Sides, env: &RunEnv<'_>) -> Moved {
    let ReceiveJob { sink, handle } = job;
    let control = session.control().clone();
    run(handle, sides, env, (Some(&control), Side::Receives), |waker| {
        Ok(session.start_receiving(sink, waker)?)
    })
}

fn run(
    job: JobHandle,
    sides: &Sides,
    env: &RunEnv<'_>,
    (sender, side): (Option<&Control>, Side),
    start: impl FnOnce(Waker) -> Result<Transfer, Fault>,
) -> Moved {
    let started = Instant::now();
    let progress = Progress::start(&env.style);
    let tell = env.items.and_then(|items| items.tell(progress.voice()));
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
    let part = sender.and_then(|sender| env.quotas.join(sender, &transfer));
    let controls = ControlSocket::open(env.role, side);
    let stopped_by = look_after(&job, &transfer, env, (part.as_ref(), controls), progress);
    drop(part);
    let notes = job.notes();
    let joined = join(job, stopped_by);
    let elapsed = started.elapsed().into();
    let data_cpu = transfer.cpu();
    let counters = stop(transfer);
    let result = joined.map_err(|fault| env.cancel.or_own(fault, REST));
    Moved { result, notes, counters, data_cpu, elapsed }
}

/// The result of a job that has ended, or was ended from here. One that cannot end is left to itself: a thread of it
/// waits for a disk that does not answer, and ends with the process.
fn join(job: JobHandle, stopped_by: Option<Fault>) -> Result<MoveReport, Fault> {
    match stopped_by {
        None => job.join(),
        Some(fault) if job.is_finished() => {
            // The job's own words are those that the other side was told.
            let _ = job.join();
            Err(fault)
        }
        Some(fault) => {
            let fault = stall::unended(fault, job.stage());
            std::mem::forget(job);
            Err(fault)
        }
    }
}

/// Ends the data path and gives its last counters.
pub(crate) fn stop(transfer: Arc<Transfer>) -> Option<Counters> {
    let counters = transfer.counters();
    // The job that could hold another reference is over.
    Arc::into_inner(transfer).map_or(counters, Transfer::stop)
}

/// Shows and records how it goes until the job ends. A fault if it was ended from here.
fn look_after(
    job: &JobHandle,
    transfer: &Transfer,
    env: &RunEnv<'_>,
    (part, mut controls): (Option<&Part>, Option<ControlSocket>),
    mut progress: Progress,
) -> Option<Fault> {
    let numbers = job.progress();
    let started = Instant::now();
    let mut traced = started;
    let mut contact = Contact::new();
    let mut clock = StallClock::new();
    let mut stopped_by: Option<(Fault, Instant)> = None;
    while !job.is_finished() && stopped_by.as_ref().is_none_or(|(_, at)| at.elapsed() < stall::ENDING) {
        std::thread::sleep(tick(started.elapsed()));
        let stall = Stall { lasts: clock.lasts(numbers.activity(), Instant::now()), stage: job.stage() };
        progress.update(&snapshot(&numbers, contact.silent_for(transfer), stall));
        env.pulse.note(done(&numbers, transfer));
        part.inspect(|part| part.look());
        if let Some(controls) = &mut controls {
            controls.answer(transfer, numbers.bytes_done());
        }
        if traced.elapsed() >= TRACE_INTERVAL {
            traced = Instant::now();
            trace(env, &numbers, transfer);
        }
        if stopped_by.is_none() {
            let fault = reason_to_stop(transfer, env).or_else(|| stall::too_long(stall));
            if let Some(fault) = &fault {
                job.abort(for_peer(fault, env));
            }
            stopped_by = fault.map(|fault| (fault, Instant::now()));
        }
    }
    progress.finish();
    trace(env, &numbers, transfer);
    stopped_by.map(|(fault, _)| fault)
}

/// How long to look away: a fiftieth of the time that has passed, so that the end is noticed in time, and a long copy
/// is woken no more than 20 times a second.
fn tick(elapsed: Duration) -> Duration {
    (elapsed / 50).clamp(TICK, LONGEST_TICK)
}

fn reason_to_stop(transfer: &Transfer, env: &RunEnv<'_>) -> Option<Fault> {
    if env.cancel.is_requested() {
        return Some(interrupted(env.cancel));
    }
    transfer.failure().map(Fault::from).or_else(|| env.pulse.given_up())
}

/// A number that rises with everything that is done.
fn done(numbers: &JobProgress, transfer: &Transfer) -> u64 {
    let carried = match transfer.counters() {
        Some(Counters::Sending(sending)) => sending.stats.object_acked,
        Some(Counters::Receiving(stats)) => stats.object_bytes,
        None => 0,
    };
    let entries = numbers.files_done() + numbers.failed();
    [numbers.bytes_done(), numbers.bytes_known(), entries].into_iter().fold(carried, u64::wrapping_add)
}

/// What an interruption is called.
pub(crate) fn interrupted(cancel: &Cancel) -> Fault {
    cancel.fault(REST)
}

/// What the other side is told of a fault that ends the session from here.
pub(crate) fn for_peer(fault: &Fault, env: &RunEnv<'_>) -> Fault {
    match fault.code {
        FaultCode::Interrupted => env.cancel.fault_for_peer(env.role, REST),
        _ => fault.clone(),
    }
}

fn snapshot(numbers: &JobProgress, silent_for: Span, stall: Stall) -> Snapshot {
    Snapshot {
        bytes: numbers.bytes_done(),
        total_bytes: Some(numbers.bytes_known()).filter(|&bytes| bytes > 0),
        files: Some(numbers.files_done()),
        silent_for,
        stall: Some(stall),
    }
}

/// Follows when a packet of the other side was last counted.
pub(crate) struct Contact {
    packets: u64,
    at: Instant,
}

impl Contact {
    pub(crate) fn new() -> Self {
        Self { packets: 0, at: Instant::now() }
    }

    /// How long nothing was heard.
    pub(crate) fn silent_for(&mut self, transfer: &Transfer) -> Span {
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
fn trace(env: &RunEnv<'_>, numbers: &JobProgress, transfer: &Transfer) {
    let Some(events) = env.events else { return };
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
    write_windows(events, transfer);
}
