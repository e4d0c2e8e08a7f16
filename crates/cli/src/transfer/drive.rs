//! Runs a job of the mover with its data path.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{Bytes, Span};
use haul_engine::{EngineError, Session, Transfer, Waker};
use haul_mover::{
    ControlLink, JobHandle, MoveReport, Progress, ReceiveJob, ReceiveOptions, SET_MEMORY, SendJob, SendLimits,
};
use haul_wire::control::{ControlMessage, Fault, ReceivePolicy};
use haulage::Recipe;
use haulage::config::{DiskAccess, ObjectConfig};
use serde_json::{Value, json};

use crate::args::TransferOptions;
use crate::output::{RunReport, Snapshot, Stall};
use crate::transfer::control_socket::Side;
use crate::transfer::counters::arrived_bytes;
use crate::transfer::watch::{Measured, REST_HINT, Watch};
use crate::transfer::{ChangeTimer, Sides, outcome, sessions};

const TICK: Duration = Duration::from_millis(5);
const LONGEST_TICK: Duration = Duration::from_millis(50);

/// Sends what a job reads; `begin` starts it, with the control channel and the limits of this side.
pub(crate) fn send(
    session: &mut Session,
    sides: &Arc<Sides>,
    begin: impl FnOnce(Arc<dyn ControlLink>, SendLimits) -> Result<SendJob, Fault>,
) -> Result<RunReport, Fault> {
    let TransferOptions { growth, preserve, set_memory, .. } = sides.context.transfer;
    let set_memory = set_memory.unwrap_or(SET_MEMORY);
    let chunk = disk_chunk(session.recipe());
    let limits = SendLimits { growth, preserve, set_memory, chunk, ..SendLimits::default() };
    let SendJob { source, handle } = begin(sides.clone(), limits)?;
    Ok(run(handle, sides, Side::Sends, sessions::LIMIT, |waker| session.start_sending(source, waker)))
}

/// Receives what a job writes; `begin` starts it.
pub(crate) fn receive(
    session: &mut Session,
    sides: &Arc<Sides>,
    policy: ReceivePolicy,
    begin: impl FnOnce(Arc<dyn ControlLink>, ReceiveOptions) -> Result<ReceiveJob, Fault>,
) -> Result<RunReport, Fault> {
    // Random, so that simultaneous jobs of this machine differ.
    let number = RandomState::new().build_hasher().finish() as u32;
    let options = ReceiveOptions {
        chunk: disk_chunk(session.recipe()),
        set_memory: sides.context.transfer.set_memory.unwrap_or(SET_MEMORY),
        ..ReceiveOptions::with_policy(number, policy).for_round_trip(session.round_trip())
    };
    let ReceiveJob { sink, handle } = begin(sides.clone(), options)?;
    Ok(run(handle, sides, Side::Receives, sessions::LIMIT, |waker| session.start_receiving(sink, waker)))
}

/// Returns the recipe's chunk size if files are read and written by chunks.
fn disk_chunk(recipe: &Recipe) -> Option<Bytes> {
    let ObjectConfig { chunk, disk, .. } = recipe.configuration()?;
    (disk == DiskAccess::Chunk).then_some(chunk)
}

fn run(
    job: JobHandle,
    sides: &Arc<Sides>,
    side: Side,
    limit: Duration,
    start: impl FnOnce(Waker) -> Result<Transfer, EngineError>,
) -> RunReport {
    let context = &sides.context;
    // Before the data path starts, because that permits the sender to send.
    let quota = (side == Side::Receives).then(|| join_quota(sides)).flatten();
    let watch = Watch::start(sides, side, |waker| {
        let wake = waker.clone();
        job.on_wake(Arc::new(move || wake.wake()));
        start(waker)
    });
    let mut watch = match watch {
        Ok(watch) => watch,
        Err(fault) => {
            job.abort(fault.clone());
            let notes = job.notes();
            let _ = job.join();
            return outcome::of_files(sides, Err(fault), notes, &Measured::default());
        }
    };
    if let Some(quota) = &quota {
        quota.restart();
    }
    let stopped_by = supervise(&job, quota.as_ref(), &mut watch, limit);
    drop(quota);
    let notes = job.notes();
    let result = result(job, stopped_by).map_err(|fault| context.cancel.interruption_or(fault, REST_HINT));
    outcome::of_files(sides, result, notes, &watch.stop())
}

/// Gives a sender its quota, if there is a capacity.
fn join_quota(sides: &Arc<Sides>) -> Option<sessions::QuotaGuard> {
    let sender = Arc::downgrade(sides);
    let received = move || sender.upgrade().map_or(0, |sides| sides.arrived_bytes());
    sides.context.quotas.join(sides.control.clone(), received)
}

/// Returns the result of a job. One that does not end, as a disk does not respond, ends with the process.
fn result(job: JobHandle, stopped_by: Option<Fault>) -> Result<MoveReport, Fault> {
    let Some(fault) = stopped_by else { return job.join() };
    if !job.is_finished() {
        let fault = sessions::not_ended_in_time(fault, job.stage());
        std::mem::forget(job);
        return Err(fault);
    }
    // The job's own fault is the one for the peer.
    let _ = job.join();
    Err(fault)
}

/// Shows and traces the progress until the job ends. Returns the fault if this side has ended it, for example
/// after `limit` without progress of either side.
fn supervise(
    job: &JobHandle,
    quota: Option<&sessions::QuotaGuard>,
    watch: &mut Watch<'_>,
    limit: Duration,
) -> Option<Fault> {
    let (progress, sides) = (job.progress(), watch.sides);
    let started = Instant::now();
    let (mut idle, mut reported) = (ChangeTimer::default(), ChangeTimer::default());
    let mut stopped_by: Option<(Fault, Instant)> = None;
    while !job.is_finished() && stopped_by.as_ref().is_none_or(|(_, at)| at.elapsed() < sessions::END_TIMEOUT)
    {
        // A fiftieth of the elapsed time, so that short copies end soon and long ones wake seldom.
        std::thread::sleep((started.elapsed() / 50).clamp(TICK, LONGEST_TICK));
        // One side may work for long without a message of the job.
        if reported.since.elapsed() >= limit / 30
            && reported.age(progress.activity(), Instant::now()) == Span::ZERO
        {
            // If there is no room, the peer has messages to receive. If it fails, so does the job.
            let _ = sides.control.send_if_room(&ControlMessage::Counted(sides.ours()));
        }
        let activity = progress.activity().wrapping_add(sides.reports());
        let stall = Stall { duration: idle.age(activity, Instant::now()), stage: job.stage() };
        let done = arrived_bytes(watch.transfer.counters().as_ref()).wrapping_add(activity);
        watch.update(snapshot(&progress, stall), done, || trace(&progress));
        quota.inspect(|quota| quota.update());
        if stopped_by.is_none() {
            let failure = || watch.transfer.failure().map(|error| sides.fault(error));
            let fault =
                watch.reason_to_stop().or_else(failure).or_else(|| sessions::stall_fault(stall, limit));
            if let Some(fault) = &fault {
                job.abort(watch.for_peer(fault));
            }
            stopped_by = fault.map(|fault| (fault, Instant::now()));
        }
    }
    watch.end(trace(&progress));
    stopped_by.map(|(fault, _)| fault)
}

fn snapshot(progress: &Progress, stall: Stall) -> Snapshot {
    Snapshot {
        bytes: progress.bytes_done.get(),
        total_bytes: Some(progress.bytes_known.get()).filter(|&bytes| bytes > 0),
        files: Some(progress.files_done.get()),
        stall: Some(stall),
        ..Snapshot::default()
    }
}

fn trace(progress: &Progress) -> Value {
    json!({
        "bytes": progress.bytes_done.get(),
        "bytes_known": progress.bytes_known.get(),
        "files": progress.files_done.get(),
        "failed": progress.failed.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fobs_presets_read_and_write_in_chunks() {
        for (name, _) in haul_proto::presets::PRESETS {
            let recipe = haul_proto::presets::preset(name).unwrap().unwrap();
            let expected = name.starts_with("fobs").then_some(Bytes(100_000_000));
            assert_eq!(disk_chunk(&recipe), expected, "{name}");
        }
    }
}

#[cfg(all(test, feature = "faults"))]
mod limit_tests {
    use std::fs;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use haul_engine::{ConnectOptions, ListenOptions, Listener, Role, connect};
    use haul_mover::faults::{Call, Disk, Verdict};
    use haul_mover::{Root, SendLimits, receive_files, send_files};
    use haul_wire::control::{BenchLimit, Layout, Readback, Request, Selection};

    use super::*;
    use crate::args::TransferOptions;
    use crate::settings::{Preset, Settings};
    use crate::signals::Cancel;
    use crate::transfer::Context;

    #[test]
    fn a_receiver_that_reads_back_for_longer_than_the_limit_is_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).into_os_string().into_encoded_bytes();
        fs::write(dir.path().join("from"), vec![7; 20 << 20]).unwrap();
        let settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        let quiet = Context::quiet(settings, TransferOptions::default(), Cancel::default());
        let context = Context { role: Role::Server, ..quiet };
        let listener =
            Listener::bind(ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        let url = listener.url("127.0.0.1", b"");
        let settings = context.settings.to_wire(BenchLimit::Unlimited);
        let connecting =
            thread::spawn(move || connect(&url, ConnectOptions::new(Request::BenchReceive, settings)));
        let mut server = listener.accept(Duration::from_secs(60)).unwrap().accept().unwrap();
        let mut client = connecting.join().unwrap().unwrap();
        let [sender, receiver] =
            [&server, &client].map(|session| Sides::new(&context, session, Instant::now(), String::new()));

        let (from, all) = (vec![at("from")], Selection::default());
        let SendJob { source, handle: sending } =
            send_files(from, Root::Anywhere, &all, sender.clone(), SendLimits::default()).unwrap();
        // Reads 1 MiB at a time.
        let slow = Disk::new(|_, call| {
            if matches!(call, Call::Read(_)) {
                thread::sleep(Duration::from_millis(400));
            }
            Verdict::Pass
        });
        let policy = ReceivePolicy { readback: Readback::FromDisk, ..ReceivePolicy::default() };
        let options = ReceiveOptions::with_policy(1, policy);
        let begin = || receive_files(&at("to"), &Root::Anywhere, Layout::As, receiver.clone(), options);
        let ReceiveJob { sink, handle: receiving } = slow.run(begin).unwrap();
        let limit = Duration::from_secs(3);
        let receiving = thread::spawn(move || {
            run(receiving, &receiver, Side::Receives, limit, |waker| client.start_receiving(sink, waker))
        });
        let sent = run(sending, &sender, Side::Sends, limit, |waker| server.start_sending(source, waker));
        let received = receiving.join().unwrap();
        assert!(sent.error.is_none() && received.error.is_none(), "{:?} {:?}", sent.error, received.error);
        assert_eq!((sent.files, received.files), (1, 1));
        assert!(received.elapsed > Span::from(2 * limit), "{}", received.elapsed);
    }
}
