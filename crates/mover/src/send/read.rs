//! Reads the files in order, ahead of the data path, and hashes them.

use std::fs::File;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use blake3::Hasher;
use crossbeam_channel::Receiver;
use haul_base::AlignedBytes;
use haul_wire::control::{ControlMessage, Fault, FaultCode, FileDigest, Growth, Proof};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::Errno;

use crate::fault::{path_fault, source_fault};
use crate::identity::Identity;
use crate::job::{self, Job as _, job_ended};
use crate::link::send_list;
use crate::progress::Progress;
use crate::send::blocks::{BLOCK, Block, LARGE, Sections, SentPart, SourceFile, Store};
use crate::send::shared::{BlockHashes, HashJob, ReadJob, Shared};
use crate::storage::{fstat, read_at};
use crate::stream::Units;
use crate::tree::{Groups, Value};

const DIGEST_BATCH: usize = 256;

/// Maximum delay of digests and proofs while contents are read: the receiver completes no file without them.
const MAX_DIGEST_DELAY: Duration = Duration::from_millis(100);

/// Bytes read and then hashed at a time, small enough to stay in the core's cache in between.
const STEP: usize = 128 << 10;

/// Minimum size in bytes of files for which the kernel is advised of sequential reading.
const MIN_ADVISED_SIZE: u64 = 1 << 20;

const SINCE_FOUND: &str = "was modified or replaced after it was found";

pub(crate) struct Reader {
    shared: Arc<Shared>,
    incoming: Receiver<ReadJob>,
    /// Empty until its memory is available.
    buffer: AlignedBytes,
    used: usize,
    offset: u64,
    hash_reporter: HashReporter,
    scratch: AlignedBytes,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, incoming: Receiver<ReadJob>) -> Self {
        let (hash_reporter, scratch) = (HashReporter::new(&shared), AlignedBytes::zeroed(BLOCK));
        Self { shared, incoming, buffer: AlignedBytes::default(), used: 0, offset: 0, hash_reporter, scratch }
    }

    /// Handles jobs until the object or the job ends.
    pub(crate) fn run(mut self) -> Result<(), Fault> {
        while let Some(job) = self.next_job()? {
            if self.shared.stopped() || !self.read(&job) {
                return Ok(());
            }
            if self.hash_reporter.digests.len() >= DIGEST_BATCH {
                self.hash_reporter.flush()?;
            }
        }
        if !self.shared.stopped() {
            self.shared.end();
        }
        Ok(())
    }

    /// Returns the next job, `None` at the end of the object. Publishes everything read so far before waiting.
    fn next_job(&mut self) -> Result<Option<ReadJob>, Fault> {
        if let Ok(job) = self.incoming.try_recv() {
            return Ok(Some(job));
        }
        self.publish();
        self.hash_reporter.flush()?;
        self.shared.disk_is_slow.store(true, Relaxed);
        self.shared.set_idle(true);
        let job = self.incoming.recv().ok();
        self.shared.set_idle(false);
        Ok(job)
    }

    /// Reads ranges of a file, and fills missing bytes with zeros. False: the job is over.
    fn read(&mut self, job: &ReadJob) -> bool {
        let file = &job.file;
        let all = || Arc::new(Sections::new(once(0..file.shape.len), None));
        let sections = job.sections.clone().unwrap_or_else(all);
        let len = sections.len;
        let at = self.offset + self.used as u64;
        let opened = Opened::open(file);
        // Recorded before the bytes, which may be lost in the network as soon as they are published.
        let kept = opened.as_ref().ok().filter(|_| len >= LARGE).map(|opened| opened.file.clone());
        let part = SentPart { at, sections: sections.clone(), file: file.clone() };
        self.shared.store.lock().add_part(part, kept);
        let copied = opened.and_then(|opened| self.copy_sections(opened, job, &sections));
        if self.shared.stopped() {
            return false;
        }
        if let Err(fault) = copied {
            // If the file was already proved, it has changed since, so the proofs no longer hold either.
            let digest = match &job.hashes {
                Some(hashes) => hashes.report(Err(fault)),
                None => Some(FileDigest { entry: file.entry.into(), result: Err(fault) }),
            };
            self.hash_reporter.digests.extend(digest);
        }
        let missing = at + len - (self.offset + self.used as u64);
        if self.zeros(missing).is_err() {
            return false;
        }
        if self.used > 0 && self.shared.is_drained() {
            self.publish();
        }
        true
    }

    fn copy_sections(&mut self, opened: Opened<'_>, job: &ReadJob, sections: &Sections) -> Result<(), Fault> {
        let Some(hashes) = &job.hashes else {
            let mut hasher = Hasher::new();
            for range in sections.ranges() {
                self.copy(&opened, range, &mut hasher)?;
            }
            opened.finish()?;
            if job.sections.is_none() {
                let (entry, digest) = (job.file.entry, *hasher.finalize().as_bytes());
                self.shared.ledger.lock().table.set_digest(entry, digest);
                self.hash_reporter.digests.push(FileDigest { entry: entry.into(), result: Ok(digest) });
            }
            return Ok(());
        };
        let mut values = Vec::new();
        let groups = hashes.groups();
        for group in groups.touched_by(sections.ranges()) {
            values.push((group, self.copy_group(&opened, (groups, group), sections)?));
        }
        opened.finish()?;
        for &(group, value) in &values {
            self.hash_reporter.add_block_hash(job.file.entry, group, value)?;
        }
        self.hash_reporter.settle(hashes, &values);
        Ok(())
    }

    /// Reads and hashes a whole group, and sends those of its bytes that are in `requested`.
    fn copy_group(
        &mut self,
        opened: &Opened<'_>,
        (groups, group): (Groups, u32),
        requested: &Sections,
    ) -> Result<Value, Fault> {
        let (bounds, mut hasher) = (groups.range(group), groups.hasher(group));
        let mut at = bounds.start;
        for range in requested.ranges_after(at).take_while(|range| range.start < bounds.end) {
            opened.hash(&self.shared.progress, at..range.start, &mut self.scratch, &mut hasher)?;
            let inside = at.max(range.start)..range.end.min(bounds.end);
            at = inside.end;
            self.copy(opened, inside, &mut hasher)?;
        }
        opened.hash(&self.shared.progress, at..bounds.end, &mut self.scratch, &mut hasher)?;
        Ok(groups.value(&hasher))
    }

    /// Reads and hashes a range and appends it to the object.
    fn copy(&mut self, opened: &Opened<'_>, mut range: Range<u64>, hasher: &mut Hasher) -> Result<(), Fault> {
        while range.start < range.end {
            let room = self.room()?;
            let step = if self.shared.units.is_some() { room } else { room.min(STEP) };
            let len = (range.end - range.start).min(step as u64) as usize;
            let into = &mut self.buffer[self.used..self.used + len];
            let switches_before = job::voluntary_switches();
            let got = opened.read(range.start, into)?;
            self.shared.disk_is_slow.store(job::voluntary_switches() > switches_before, Relaxed);
            hasher.update(&into[..got]);
            self.used += got;
            range.start += got as u64;
        }
        Ok(())
    }

    /// Appends zeros in place of unreadable bytes. Fails if the job is over.
    fn zeros(&mut self, mut remaining: u64) -> Result<(), Fault> {
        while remaining > 0 {
            let len = remaining.min(self.room()? as u64) as usize;
            self.buffer[self.used..self.used + len].fill(0);
            self.used += len;
            remaining -= len as u64;
        }
        Ok(())
    }

    /// Returns the free bytes of the buffer, at least 1, waiting for memory. Fails if the job is over.
    fn room(&mut self) -> Result<usize, Fault> {
        let capacity = self.capacity();
        if self.used == capacity {
            self.publish();
        }
        if self.used == 0 {
            // Memory may be unavailable for long, or a large file may take long to read.
            if !self.shared.has_room_in(&self.shared.store.lock())
                || self.hash_reporter.flushed.elapsed() >= MAX_DIGEST_DELAY
            {
                let end = |fault: &Fault| _ = self.shared.end_with(fault.clone(), false);
                self.hash_reporter.flush().inspect_err(end)?;
            }
            let has_room = |store: &Store| self.shared.has_room_in(store).then_some(());
            self.shared.wait_for(has_room).ok_or_else(|| job_ended(()))?;
            if self.buffer.is_empty() {
                let spare = self.shared.spare_buffer();
                let new = || AlignedBytes::zeroed(self.shared.units.map_or(BLOCK, Units::longest));
                self.buffer = spare.unwrap_or_else(new);
            }
        }
        Ok(self.capacity() - self.used)
    }

    fn capacity(&self) -> usize {
        let unit = |units: Units| (units.around(self.offset).end - self.offset) as usize;
        self.shared.units.map_or(BLOCK, unit)
    }

    fn publish(&mut self) {
        if self.used == 0 {
            return;
        }
        let memory = if self.used >= self.buffer.len() / 2 {
            std::mem::take(&mut self.buffer)
        } else {
            AlignedBytes::from(&self.buffer[..self.used])
        };
        let block = Block::new(self.offset, memory, self.used);
        self.offset = block.end();
        self.used = 0;
        self.shared.publish(block);
    }
}

const PROOF_BATCH: usize = 4096;

/// Digests and proofs of data that was read, to be sent to the receiver.
struct HashReporter {
    shared: Arc<Shared>,
    proofs: Vec<Proof>,
    /// Number of group values in `proofs`.
    values: usize,
    digests: Vec<FileDigest>,
    /// Time of the last flush.
    flushed: Instant,
}

impl HashReporter {
    fn new(shared: &Arc<Shared>) -> Self {
        let (proofs, digests) = (Vec::new(), Vec::new());
        Self { shared: shared.clone(), proofs, values: 0, digests, flushed: Instant::now() }
    }

    fn add_block_hash(&mut self, entry: u32, group: u32, value: Value) -> Result<(), Fault> {
        let (entry, group) = (u64::from(entry), u64::from(group));
        match self.proofs.last_mut() {
            Some(last) if last.entry == entry && last.first + last.values.len() as u64 == group => {
                last.values.push(value);
            }
            _ => self.proofs.push(Proof { entry, first: group, values: vec![value] }),
        }
        self.values += 1;
        if self.values >= PROOF_BATCH { self.flush() } else { Ok(()) }
    }

    /// Records group values read from one consistent state of a file. If they were the last, queues its
    /// digest.
    fn settle(&mut self, hashes: &BlockHashes, values: &[(u32, Value)]) {
        if let Some(root) = hashes.set(values) {
            self.shared.ledger.lock().table.set_digest(hashes.file.entry, root);
            self.digests.extend(hashes.report(Ok(root)));
        }
    }

    fn run_hash_job(&mut self, job: &HashJob, buffer: &mut [u8]) -> Result<(), Fault> {
        let (hashes, groups) = (&job.hashes, job.hashes.groups());
        let opened = Opened::open(&hashes.file)?;
        let mut values = Vec::with_capacity(job.groups.len());
        for &group in &job.groups {
            if self.shared.stopped() {
                return Ok(());
            }
            let mut hasher = groups.hasher(group);
            opened.hash(&self.shared.progress, groups.range(group), buffer, &mut hasher)?;
            let value = groups.value(&hasher);
            values.push((group, value));
            self.add_block_hash(hashes.file.entry, group, value)?;
        }
        opened.finish()?;
        self.settle(hashes, &values);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Fault> {
        self.flushed = Instant::now();
        self.values = 0;
        let (proofs, digests) = (std::mem::take(&mut self.proofs), std::mem::take(&mut self.digests));
        if !proofs.is_empty() {
            self.shared.link.send(ControlMessage::Proofs(proofs))?;
        }
        send_list(&*self.shared.link, digests, DIGEST_BATCH, ControlMessage::Digests)
    }
}

/// Reads and hashes data that the receiver already has, in parallel with the reader.
pub(crate) fn hash_blocks(shared: &Arc<Shared>, jobs: &Receiver<HashJob>) -> Result<(), Fault> {
    let (mut hash_reporter, mut buffer) = (HashReporter::new(shared), AlignedBytes::zeroed(BLOCK));
    while let Ok(job) = jobs.recv() {
        if shared.stopped() {
            break;
        }
        if let Err(fault) = hash_reporter.run_hash_job(&job, &mut buffer) {
            hash_reporter.digests.extend(job.hashes.report(Err(fault)));
        }
        if jobs.is_empty() || !hash_reporter.digests.is_empty() {
            hash_reporter.flush()?;
        }
    }
    Ok(())
}

/// A source file open for reading, with checks that it is still the one found by the walk.
struct Opened<'a> {
    source: &'a SourceFile,
    file: Arc<File>,
}

impl<'a> Opened<'a> {
    fn open(source: &'a SourceFile) -> Result<Self, Fault> {
        let path = &source.path;
        let opened = source.source_root.open(path, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = Arc::new(File::from(opened.map_err(|errno| match errno {
            // It was a regular file when found, and is now a link.
            Errno::LOOP => changed(path, "was replaced"),
            errno => source_fault("open", path, errno),
        })?));
        let opened = Self { source, file };
        opened.must_be_same(SINCE_FOUND)?;
        opened.must_have_a_size()?;
        if source.shape.len >= MIN_ADVISED_SIZE {
            // Errors are irrelevant: it is only advice.
            let _ = fadvise(&*opened.file, 0, None, Advice::Sequential);
        }
        Ok(opened)
    }

    /// Checks after the last read that all data comes from one state of the file.
    fn finish(self) -> Result<(), Fault> {
        self.must_be_same("was modified while it was read")
    }

    fn must_be_same(&self, how: &str) -> Result<(), Fault> {
        let path = &self.source.path;
        let stat = fstat(&*self.file).map_err(|errno| source_fault("look at", path, errno))?;
        let (now, expected) = (Identity::of(&stat), self.source.identity);
        let same = now == expected || (self.source.growth == Growth::Accept && now.has_grown_from(expected));
        if same { Ok(()) } else { Err(changed(path, how)) }
    }

    /// Rejects files that report size 0 but have contents, as in `/proc`.
    fn must_have_a_size(&self) -> Result<(), Fault> {
        let path = &self.source.path;
        if self.source.shape.size > 0 {
            return Ok(());
        }
        match read_at(&self.file, &mut [0], 0) {
            Ok(0) => Ok(()),
            // It was empty when found and has grown.
            Ok(_) if fstat(&*self.file).is_ok_and(|stat| stat.st_size > 0) => self.must_be_same(SINCE_FOUND),
            Ok(_) => {
                let what = "has contents but no size, as files of /proc do";
                Err(path_fault(FaultCode::Unreadable, path, what, "copy it to a regular file first"))
            }
            Err(errno) => Err(source_fault("read", path, errno)),
        }
    }

    /// Reads bytes of the stream at `offset`; returns their number, at least 1.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let path = &self.source.path;
        let (at, run) = self.source.shape.locate(offset);
        let len = run.min(into.len() as u64) as usize;
        match read_at(&self.file, &mut into[..len], at) {
            Err(errno) => Err(source_fault("read", path, errno)),
            Ok(0) => Err(changed(path, "became shorter while it was read")),
            Ok(got) => Ok(got),
        }
    }

    fn hash(
        &self,
        progress: &Progress,
        stream_range: Range<u64>,
        buffer: &mut [u8],
        hasher: &mut Hasher,
    ) -> Result<(), Fault> {
        let mut at = stream_range.start;
        while at < stream_range.end {
            let len = (stream_range.end - at).min(buffer.len() as u64) as usize;
            let got = self.read(at, &mut buffer[..len])?;
            hasher.update(&buffer[..got]);
            progress.other_steps.add(1);
            at += got as u64;
        }
        Ok(())
    }
}

fn changed(path: &[u8], how: &str) -> Fault {
    path_fault(FaultCode::SourceChanged, path, how, "copy it again when nothing is writing to it")
}
