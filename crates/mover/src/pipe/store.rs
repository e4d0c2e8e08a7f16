//! Receives a stream into a file.

use std::fs::File;
use std::sync::Arc;

use blake3::Hasher;
use crossbeam_channel::{Receiver, Sender, bounded};
use haul_wire::control::{
    ControlMessage, Destination, Entry, EntryKind, Fault, FaultCode, FileDigest, Layout, RunMode,
};
use rustix::io::Errno;
use rustix::process::getegid;

use crate::fault::{IoFault, unexpected, violation};
use crate::job::{self, JobHandle, Stage, spawn_for};
use crate::link::ControlLink;
use crate::pipe::STREAM;
use crate::receive::{
    FILE_BITS, FileSink, InOrder, NoSpace, Place, ReceiveJob, ReceiveOptions, Shared, Work, commit_only,
    digest_mismatch, mode_of, open_base, umask,
};
use crate::report::MoveReport;
use crate::root::Root;
use crate::storage::{Mtime, write_all_at};
use crate::stream::Shape;
use crate::tree::Value;

/// Permissions of a new file before the umask.
const NEW_FILE: u32 = 0o666;

/// Receives a stream from [`send_stream`](crate::send_stream) into the file `destination`, which [`Root`] may
/// confine. The file gets its name only when it is complete and verified.
///
/// # Errors
/// The destination is a directory, or its directory does not exist or cannot be opened; then nothing has been
/// sent to the peer yet. Or the threads could not be started.
pub fn receive_stream(
    destination: &[u8],
    root: &Root,
    link: Arc<dyn ControlLink>,
    options: ReceiveOptions,
) -> Result<ReceiveJob, Fault> {
    let base = open_base(root, destination, Layout::As, RunMode::Move)?;
    if base.rename.is_none() {
        return Err(IoFault::destination("write to", destination, Errno::ISDIR).fault);
    }
    // A stream has no chunks to wait for.
    let options = ReceiveOptions { chunk: None, ..options };
    let place = Place::new(base, &options);
    let shared = Arc::new(Shared::new(link, place, options, Destination::Fresh, Stage::Pipe));
    let sink = Box::new(FileSink { shared: shared.clone(), takes_any_order: false });
    Ok(ReceiveJob { sink, handle: JobHandle::start(shared, "haul-receive", run)? })
}

fn run(shared: &Arc<Shared>) -> Result<MoveReport, Fault> {
    let (announced, announcement) = bounded(1);
    let writing = shared.clone();
    let write = move || write(&writing, &announcement).map_err(|io_fault| io_fault.fault);
    let writer = spawn_for(shared, "haul-write", write)?;
    let ready = shared.link.send(ControlMessage::Ready(Destination::Fresh));
    let result = ready.and_then(|()| shared.listen(|message| handle(shared, &announced, message)));
    // Ends the writer if it still waits.
    drop(announced);
    shared.queue.close();
    let joined = job::join(writer);
    if result.is_err() {
        shared.place.discard(0, STREAM);
    }
    // Otherwise the committer has done it.
    if !shared.finished() {
        shared.place.finish(false);
    }
    joined.and(result)
}

/// Writes received bytes to the temporary file, and commits it when all are written and it is announced.
fn write(shared: &Arc<Shared>, announcement: &Receiver<Value>) -> Result<(), IoFault> {
    let path = shared.place.local(STREAM);
    let file = shared.place.create(0, STREAM, &Shape::new(0, &[]), Mtime::default())?;
    let (mut in_order, mut hasher) = (InOrder::default(), Hasher::new());
    while shared.queue.completed() != Some(in_order.taken_end) {
        match shared.queue.take(u64::MAX) {
            Work::Bytes(guard) => {
                in_order.add(&guard);
                while let Some((guard, run)) = in_order.take() {
                    let bytes = guard.bytes(run);
                    append(shared, &file, bytes, in_order.taken_end)
                        .map_err(|error| error.io_fault("write", &path))?;
                    hasher.update(bytes);
                }
            }
            Work::Recheck => {}
            Work::Closed => return Ok(()),
        }
    }
    match announcement.recv() {
        Ok(expected) if !shared.has_ended() => {
            Ok(commit(shared, in_order.taken_end, *hasher.finalize().as_bytes(), expected)?)
        }
        _ => Ok(()),
    }
}

/// Writes bytes that end at offset `taken_end`.
fn append(shared: &Shared, file: &File, bytes: &[u8], taken_end: u64) -> Result<(), NoSpace> {
    let len = bytes.len() as u64;
    shared.place.space.arrived(0, file, len)?;
    write_all_at(file, bytes, taken_end - len)?;
    shared.progress.bytes_done.add(len);
    Ok(())
}

fn handle(shared: &Shared, announced: &Sender<Value>, message: ControlMessage) -> Result<(), Fault> {
    match message {
        ControlMessage::Entries(entries) => return check_announcement(shared, &entries),
        ControlMessage::EntriesEnd { entries: 1, bytes }
            if shared.table(|table| (table.len(), table.bytes)) == (1, bytes) =>
        {
            shared.progress.set_all_known();
        }
        ControlMessage::Digests(digests) if shared.progress.all_known() => match digests.as_slice() {
            // A second one has no effect.
            [FileDigest { entry: 0, result }] => _ = announced.try_send(result.clone()?),
            _ => return Err(violation("digests of something else than the stream")),
        },
        ControlMessage::Close => {
            let message = "the sender disconnected before the stream was complete";
            let hint = "a stream cannot be resumed; send it again";
            return Err(Fault::new(FaultCode::ControlLost, message, hint));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(())
}

fn check_announcement(shared: &Shared, entries: &[Entry]) -> Result<(), Fault> {
    let mut ledger = shared.ledger.lock();
    let ([entry], 0) = (entries, ledger.table.len()) else {
        return Err(violation("a stream is one entry"));
    };
    entry.validate().map_err(|e| violation(&e.to_string()))?;
    let is_plain = matches!(&entry.kind, EntryKind::File { holes, .. } if holes.is_empty());
    if !is_plain || entry.path.as_bytes().contains(&b'/') {
        return Err(violation("a stream becomes one regular file"));
    }
    ledger.table.push(&Entry { mode: mode(shared), ..entry.clone() })?.map_or(Ok(()), Err)
}

/// Returns the permissions of the file to replace, or of a new one, as a shell's redirection gives it. Another
/// group does not get those of the replaced file's group.
fn mode(shared: &Shared) -> u32 {
    let Some(existing) = shared.place.existing(STREAM) else { return NEW_FILE & !umask() };
    let is_same_group = existing.st_gid == getegid().as_raw();
    mode_of(&existing) & FILE_BITS & if is_same_group { 0o777 } else { 0o707 }
}

/// Commits the stored file like any other, if it matches the announcement.
fn commit(shared: &Arc<Shared>, len: u64, digest: Value, expected: Value) -> Result<(), Fault> {
    let mut ledger = shared.ledger.lock();
    if (len, digest) != (ledger.table.size(0), expected) {
        return Err(digest_mismatch(&shared.place.local(STREAM)));
    }
    ledger.append(0, &(0..len))?;
    ledger.object_len = Some(len);
    ledger.table.set_digest(0, digest);
    drop(ledger);
    shared.progress.entries.add(1);
    shared.progress.bytes_known.add(len);
    commit_only(shared, 0)
}
