//! Streams: bytes of unknown length sent into one file, and files received one after the other into a pipe.
//!
//! A stream is read once, so data is kept in memory until it is delivered, and nothing can be resumed. Its
//! entry is sent after it, when its length and hash are known.

mod drain;
mod store;

pub use drain::receive_to;
pub use store::receive_stream;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake3::Hasher;
use haul_base::AlignedBytes;
use haul_wire::control::{ControlMessage, Entry, EntryKind, Fault, FaultCode, FileDigest, RelPath};
use haul_wire::packet::MAX_OFFSET;
use rustix::io::{Errno, retry_on_intr};

use crate::fault::source_fault;
use crate::job::{self, Job as _, JobHandle, Stage, spawn_for};
use crate::link::ControlLink;
use crate::report::MoveReport;
use crate::send::{BLOCK, Block, FileSource, SendJob, SendLimits, Shared, listen};

/// Name of a stream's entry in messages; the receiver uses the destination's name instead.
const STREAM: &[u8] = b"stdin";

/// The receiver decides the permissions.
const MODE: u32 = 0o644;

/// Maximum number of blocks in memory, however small they are.
const MAX_BLOCKS: usize = 1 << 16;

/// Maximum wait before checking again for free memory.
const MEMORY_POLL: Duration = Duration::from_millis(2);

/// Sends all data of `input`, up to its end, to [`receive_stream`](crate::receive_stream). At most
/// `limits.read_ahead + limits.keep` bytes are in memory.
///
/// # Errors
/// A thread could not be started.
pub fn send_stream(
    input: Box<dyn Read + Send>,
    link: Arc<dyn ControlLink>,
    limits: SendLimits,
) -> Result<SendJob, Fault> {
    let max_bytes = limits.read_ahead + limits.keep;
    // A stream cannot be read again: it is kept until the receiver has it.
    let limits = SendLimits { keep: u64::MAX, ..limits };
    let shared = Arc::new(Shared::new(link, limits, Stage::Pipe));
    let source = Box::new(FileSource::new(shared.clone()));
    let handle = JobHandle::start(shared, "haul-send", move |shared| run(shared, input, max_bytes))?;
    Ok(SendJob { source, handle })
}

fn run(shared: &Arc<Shared>, input: Box<dyn Read + Send>, max_bytes: u64) -> Result<MoveReport, Fault> {
    let reading = shared.clone();
    let feeder = spawn_for(shared, "haul-feed", move || feed(&reading, input, max_bytes))?;
    let result = listen(shared);
    shared.stop();
    if result.is_ok() {
        job::join(feeder)?;
    }
    // On an error the thread may block on input that never comes; it ends at the next byte, or with the
    // process.
    result
}

/// Reads and publishes all of the input, then announces it; with `max_bytes` bytes in memory it waits.
fn feed(shared: &Shared, mut input: Box<dyn Read + Send>, max_bytes: u64) -> Result<(), Fault> {
    if shared.wait_for(|_| shared.destination()).is_none() {
        return Ok(());
    }
    let (mut hasher, mut offset, mut buffer) = (Hasher::new(), 0, AlignedBytes::zeroed(BLOCK));
    let is_full = || {
        let (blocks, bytes) = shared.store.lock().held();
        bytes >= max_bytes || blocks >= MAX_BLOCKS
    };
    // It is unknown when a pipe provides more, so each read is sent at once.
    shared.set_idle(true);
    loop {
        while is_full() && !shared.stopped() {
            std::thread::sleep(MEMORY_POLL);
        }
        if shared.stopped() {
            return Ok(());
        }
        let data = read(&mut input, &mut buffer)?;
        if data.is_empty() {
            return announce(shared, offset, *hasher.finalize().as_bytes());
        }
        hasher.update(&data);
        let len = data.len();
        let block = Block::new(offset, data, len);
        offset = block.end();
        if offset > MAX_OFFSET {
            return Err(Fault::new(FaultCode::Usage, "the stream is longer than any file may be", ""));
        }
        shared.progress.bytes_known.add(len as u64);
        shared.publish(block);
    }
}

/// Reads the available bytes, at most a block; empty at the end of input.
fn read(input: &mut dyn Read, buffer: &mut [u8]) -> Result<AlignedBytes, Fault> {
    let to_errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let read = retry_on_intr(|| input.read(buffer).map_err(to_errno));
    let len = read.map_err(|errno| source_fault("read", STREAM, errno))?;
    Ok(AlignedBytes::from(&buffer[..len]))
}

/// Announces the stream's entry, now that its length and hash are known.
fn announce(shared: &Shared, len: u64, digest: [u8; 32]) -> Result<(), Fault> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let entry = Entry {
        path: RelPath::new(STREAM).expect("the name is a valid path"),
        kind: EntryKind::File { size: len, holes: Vec::new() },
        mode: MODE,
        mtime_secs: now.as_secs().try_into().unwrap_or(i64::MAX),
        mtime_nanos: now.subsec_nanos(),
        extras: None,
    };
    let mut ledger = shared.ledger.lock();
    ledger.table.push(&entry)?;
    ledger.table.set_digest(0, digest);
    drop(ledger);
    shared.progress.entries.add(1);
    shared.progress.set_all_known();
    shared.link.send(ControlMessage::Entries(vec![entry]))?;
    shared.link.send(ControlMessage::EntriesEnd { entries: 1, bytes: len })?;
    shared.link.send(ControlMessage::Digests(vec![FileDigest { entry: 0, result: Ok(digest) }]))?;
    shared.end();
    Ok(())
}
