//! Bytes whose length is not known beforehand, into one file; and files, one after the other, out of a pipe.
//!
//! A stream is read once, so what was sent is kept in memory until it has arrived, and nothing can be resumed. Its
//! entry follows it, when its length and its hash are known.

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
use rustix::io::Errno;

use crate::fault::IoFault;
use crate::job::{self, Job as _, JobHandle, Stage, spawn_for};
use crate::link::ControlLink;
use crate::report::MoveReport;
use crate::send::{BLOCK, Block, FileSource, Requests, SendJob, SendLimits, Shared, listen};

/// What the entry of a stream is called while it travels; the receiver gives it the destination's name.
const STREAM: &[u8] = b"stdin";

/// Longest wait before it is looked again whether everything is written.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

const MODE: u32 = 0o644;

/// Blocks in memory at most, however little is in them.
const MOST_BLOCKS: usize = 1 << 16;

/// Longest wait before it is looked again whether there is room.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(2);

/// Sends what `input` gives, to its end, to [`receive_stream`](crate::receive_stream). At most
/// `limits.read_ahead + limits.keep` bytes are in memory.
///
/// # Errors
/// The threads could not be started.
pub fn send_stream(
    input: Box<dyn Read + Send>,
    link: Arc<dyn ControlLink>,
    limits: SendLimits,
) -> Result<SendJob, Fault> {
    let most = limits.read_ahead + limits.keep;
    let (jobs, _) = crossbeam_channel::unbounded();
    let (proofs, _) = crossbeam_channel::unbounded();
    // Nothing can be read again: it is kept until the receiver has it.
    let limits = SendLimits { keep: u64::MAX, ..limits };
    let shared = Arc::new(Shared::new(link, limits, Requests::new(jobs, proofs), Stage::Pipe));
    let source = Box::new(FileSource::new(shared.clone()));
    let handle = JobHandle::start(shared, "haul-send", move |shared| run(shared, input, most))?;
    Ok(SendJob { source, handle })
}

fn run(shared: &Arc<Shared>, input: Box<dyn Read + Send>, most: u64) -> Result<MoveReport, Fault> {
    let feed = Feed { shared: shared.clone(), input, most };
    let feeding = spawn_for(shared, "haul-feed", move || feed.run())?;
    let result = listen(shared);
    shared.stop();
    if result.is_ok() {
        job::join(feeding)?;
    }
    // Else it may wait for input that never comes; it ends at the next byte, or with the process.
    result
}

struct Feed {
    shared: Arc<Shared>,
    input: Box<dyn Read + Send>,
    most: u64,
}

impl Feed {
    fn run(mut self) -> Result<(), Fault> {
        if self.shared.wait_until_ready().is_none() {
            return Ok(());
        }
        let mut hasher = Hasher::new();
        let mut offset = 0;
        let mut buffer = AlignedBytes::zeroed(BLOCK);
        // Nobody knows when a pipe gives more: what it gave leaves at once.
        self.shared.set_idle(true);
        loop {
            if !self.wait_for_room() {
                return Ok(());
            }
            let data = self.read(&mut buffer)?;
            if data.is_empty() {
                return self.finish(offset, *hasher.finalize().as_bytes());
            }
            hasher.update(&data);
            let len = data.len();
            let block = Block::new(offset, data, len);
            offset = block.end();
            if offset > MAX_OFFSET {
                return Err(Fault::new(FaultCode::Usage, "the stream is longer than any file may be", ""));
            }
            self.shared.progress.found(0, len as u64);
            self.shared.publish(block);
        }
    }

    /// Waits until there is memory for another block. False: the job is over.
    fn wait_for_room(&self) -> bool {
        while !self.shared.stopped() {
            let (blocks, bytes) = self.shared.store.lock().held();
            if bytes < self.most && blocks < MOST_BLOCKS {
                return true;
            }
            std::thread::sleep(LOOK_FOR_ROOM);
        }
        false
    }

    /// What there is, at most a block; nothing at the end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<AlignedBytes, Fault> {
        loop {
            match self.input.read(buffer) {
                Ok(got) => return Ok(AlignedBytes::from(&buffer[..got])),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
                    return Err(IoFault::source("read", STREAM, errno).fault);
                }
            }
        }
    }

    /// The length is known now, and what the stream hashes to.
    fn finish(&self, len: u64, digest: [u8; 32]) -> Result<(), Fault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            path: RelPath::new(STREAM).expect("the name is a valid path"),
            kind: EntryKind::File { size: len, holes: Vec::new() },
            mode: MODE,
            mtime_secs: now.as_secs().try_into().unwrap_or(i64::MAX),
            mtime_nanos: now.subsec_nanos(),
            extras: None,
        };
        let mut ledger = self.shared.ledger.lock();
        ledger.table.push(&entry)?;
        ledger.table.set_digest(0, digest);
        drop(ledger);
        self.shared.progress.found(1, 0);
        self.shared.progress.found_all();
        let link = &self.shared.link;
        link.send(ControlMessage::Entries(vec![entry]))?;
        link.send(ControlMessage::EntriesEnd { entries: 1, bytes: len })?;
        link.send(ControlMessage::Digests(vec![FileDigest { entry: 0, result: Ok(digest) }]))?;
        self.shared.end();
        Ok(())
    }
}
