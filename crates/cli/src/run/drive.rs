//! Runs a job of the mover beside its data path, from its start to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{HostSample, Rate, Span};
use haul_engine::{Control, Counters, Role, Session, Transfer, Waker};
use haul_mover::{
    MoveReport, Progress as JobProgress, ReceiveHandle, ReceiveJob, SendHandle, SendJob, Stage, Wake,
};
use haul_wire::control::{Fault, FaultCode};
use serde_json::json;

use super::allot::{Allotments, Part};
use super::ctl::{ControlSocket, Side};
use super::link::{Sides, wake};
use super::sessions::Pulse;
use super::stall::{self, StallClock};
use crate::fault;
use crate::output::{ByCause, EventLog, Items, Progress, ProgressStyle, Snapshot, Stall};
use crate::signals::Cancel;

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

/// A job of either side.
pub(super) trait Job {
    fn progress(&self) -> Arc<JobProgress>;
    fn on_wake(&self, wake: Wake);
    fn abort(&self, fault: Fault);
    fn is_finished(&self) -> bool;
    /// What it waits for, if nothing happens.
    fn stage(&self) -> Stage;
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
            fn stage(&self) -> Stage {
                self.stage()
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
    /// What this side is to the other one.
    pub role: Role,
    pub style: ProgressStyle,
    /// The trace; a server has none.
    pub events: Option<&'a EventLog>,
    /// Where it is said what is done to names; a server's peer says it.
    pub items: Option<&'a Items>,
    /// How what is received here is divided among those who send.
    pub allotments: Allotments,
    /// Whether it gets on, for a server that has no place left.
    pub pulse: Pulse,
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
    let side = Side::of_sender(session.settings());
    run(handle, sides, watch, (None, side), |waker| Ok(session.start_sending(source, waker)?))
}

/// Receives into what `job` writes.
pub(super) fn receive(session: &mut Session, job: ReceiveJob, sides: &Sides, watch: &Watch<'_>) -> Moved {
    let ReceiveJob { sink, handle } = job;
    let control = session.control().clone();
    run(handle, sides, watch, (Some(&control), Side::Receives), |waker| {
        Ok(session.start_receiving(sink, waker)?)
    })
}

fn run<J: Job>(
    job: J,
    sides: &Sides,
    watch: &Watch<'_>,
    (sender, side): (Option<&Control>, Side),
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
    let controls = ControlSocket::open(watch, side);
    let stopped_by = look_after(&job, &transfer, watch, (part.as_ref(), controls), progress);
    drop(part);
    let notes = job.notes();
    let joined = join(job, stopped_by);
    let elapsed = started.elapsed().into();
    let data_cpu = transfer.cpu();
    let counters = stop(transfer);
    let result = joined.map_err(|fault| watch.cancel.or_own(fault, REST));
    Moved { result, notes, counters, data_cpu, elapsed }
}

/// The result of a job that has ended, or was ended from here. One that cannot end is left to itself: a thread of it
/// waits for a disk that does not answer, and ends with the process.
fn join<J: Job>(job: J, stopped_by: Option<Fault>) -> Result<MoveReport, Fault> {
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
        watch.pulse.note(done(&numbers, transfer));
        part.inspect(|part| part.look());
        if let Some(controls) = &mut controls {
            controls.answer(transfer, numbers.bytes_done());
        }
        if traced.elapsed() >= TRACE_INTERVAL {
            traced = Instant::now();
            trace(watch, &numbers, transfer);
        }
        if stopped_by.is_none() {
            let fault = reason_to_stop(transfer, watch).or_else(|| stall::too_long(stall));
            if let Some(fault) = &fault {
                job.abort(for_peer(fault, watch));
            }
            stopped_by = fault.map(|fault| (fault, Instant::now()));
        }
    }
    progress.finish();
    trace(watch, &numbers, transfer);
    stopped_by.map(|(fault, _)| fault)
}

/// How long to look away: a fiftieth of the time that has passed, so that the end is noticed in time, and a long copy
/// is woken no more than 20 times a second.
fn tick(elapsed: Duration) -> Duration {
    (elapsed / 50).clamp(TICK, LONGEST_TICK)
}

fn reason_to_stop(transfer: &Transfer, watch: &Watch<'_>) -> Option<Fault> {
    if watch.cancel.is_requested() {
        return Some(interrupted(watch.cancel));
    }
    transfer.failure().map(Fault::from).or_else(|| watch.pulse.given_up())
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
pub(super) fn interrupted(cancel: &Cancel) -> Fault {
    cancel.fault(REST)
}

/// What the other side is told of a fault that ends the session from here.
pub(super) fn for_peer(fault: &Fault, watch: &Watch<'_>) -> Fault {
    match fault.code {
        FaultCode::Interrupted => watch.cancel.fault_for_peer(watch.role, REST),
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
                "law_switches": stats.law_switches,
                "receiver_drops": stats.receiver_drops,
                "lost_by_cause": ByCause(stats.lost_by_cause),
                "receiver_arrival_bps": stats.receiver_host.arrival_rate.map(Rate::as_bps),
                "receiver_drain_bps": stats.receiver_host.drain_rate.map(Rate::as_bps),
                "receiver_read_delay_ms": stats.receiver_host.read_delay.map(Span::as_millis_f64),
                "receiver_host": stats.receiver_host.sample.map(|host| host_json(&host)),
            })
        }
        Counters::Receiving(stats) => json!({
            "packets": stats.packets,
            "duplicates": stats.duplicates,
            "rejected": stats.rejected,
            "object_bytes": stats.object_bytes,
            "socket_drops": stats.socket_drops,
            "feedback_sent": stats.feedback_sent,
            "receiver_host": stats.host.map(|host| host_json(&host)),
        }),
    }
}

/// The load of a receiving host, totals since the session began; what it cannot say is null.
fn host_json(host: &HostSample) -> serde_json::Value {
    let millis = |span: Option<Span>| span.map(Span::as_millis_f64);
    let percent = |thousandths: Option<u16>| thousandths.map(|thousandths| f64::from(thousandths) / 10.0);
    json!({
        "run_delay_ms": millis(host.run_delay),
        "involuntary_switches": host.involuntary_switches,
        "socket_fill_percent": percent(host.socket_fill),
        "cpu_pressure_percent": percent(host.cpu_pressure),
        "disk_pressure_percent": percent(host.disk_pressure),
        "steal_ms": millis(host.steal),
        "sleep_average_ms": millis(host.sleep_average),
    })
}

#[cfg(test)]
mod tests {
    use haul_engine::Sending;
    use haul_proto::{PeerHost, ReceiverStats, SenderStats};

    use super::*;

    #[test]
    fn the_hosts_load_is_in_the_trace_at_both_sides_with_units_and_null_for_what_it_cannot_say() {
        let sample = HostSample {
            run_delay: Some(Span::from_micros(12_500)),
            socket_fill: Some(375),
            involuntary_switches: Some(7),
            steal: Some(Span::from_millis(20)),
            ..HostSample::default()
        };
        let host = json!({
            "run_delay_ms": 12.5, "involuntary_switches": 7, "socket_fill_percent": 37.5,
            "cpu_pressure_percent": null, "disk_pressure_percent": null, "steal_ms": 20.0, "sleep_average_ms": null,
        });
        let stats = ReceiverStats { host: Some(sample), ..ReceiverStats::default() };
        assert_eq!(counters_json(&Counters::Receiving(stats))["receiver_host"], host);
        let mut stats = SenderStats::default();
        let sending = |stats| Counters::Sending(Sending { stats, rate: Rate::ZERO, phase: "", in_flight: 0 });
        assert!(counters_json(&sending(stats))["receiver_host"].is_null());
        let read_delay = Some(Span::from_micros(250));
        let drain_rate = Some(Rate::from_mbps(80));
        stats.receiver_host = PeerHost { sample: Some(sample), drain_rate, read_delay, arrival_rate: None };
        let told = counters_json(&sending(stats));
        assert_eq!(told["receiver_host"], host);
        assert_eq!(
            (&told["receiver_drain_bps"], &told["receiver_arrival_bps"]),
            (&80_000_000.into(), &().into())
        );
        assert_eq!(told["receiver_read_delay_ms"], 0.25);
    }
}
