//! Receives files into a pipe, one after the other.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::sync::Arc;

use blake3::Hasher;
use haul_wire::control::{
    ControlMessage, Destination, Entry, EntryKind, Fault, FaultCode, FileDigest, Outcome, Want,
};
use rustix::io::Errno;

use crate::entries::{EntryTable, Kind, State};
use crate::fault::{IoFault, left_early, protocol, unexpected};
use crate::job::{self, JobHandle, Stage, spawn_for};
use crate::link::ControlLink;
use crate::pipe::LOOK_AGAIN;
use crate::receive::{
    Base, BufferGuard, FileSink, Place, ReceiveJob, ReceiveOptions, Shared, Work, bytes_expected, mismatch,
};
use crate::report::MoveReport;

/// Zeros written at a time where a file has a hole.
const ZEROS: usize = 16 << 10;

/// Receives regular files and writes them to `output`, in the order in which they are sent. What has come is written
/// before it is verified; the report says whether it was right.
///
/// # Errors
/// The threads could not be started.
pub fn receive_to(
    output: Box<dyn Write + Send>,
    link: Arc<dyn ControlLink>,
    options: ReceiveOptions,
) -> Result<ReceiveJob, Fault> {
    let place = Place::new(Base::nowhere()?, &options);
    let shared = Arc::new(Shared::new(link, place, options, Destination::Fresh, Stage::Listing));
    let sink = Box::new(FileSink { shared: shared.clone(), takes_any_order: false });
    let handle = JobHandle::start(shared, "haul-receive", |shared| run(shared, output))?;
    Ok(ReceiveJob { sink, handle })
}

fn run(shared: &Arc<Shared>, output: Box<dyn Write + Send>) -> Result<MoveReport, Fault> {
    let drain = Drain::new(shared.clone(), output);
    let draining = spawn_for(shared, "haul-drain", move || drain.run())?;
    let result =
        Listener { shared: shared.clone(), expected: HashMap::new(), settled: 0, total: None }.listen();
    shared.queue.close();
    if result.is_ok() {
        job::join(draining)?;
    }
    // Else it may wait for a reader who does not read; it ends with the process.
    result
}

struct Drain {
    shared: Arc<Shared>,
    output: Box<dyn Write + Send>,
    /// What has come before its turn, by its place in the object. The memory counts as used.
    waiting: BTreeMap<u64, (Arc<BufferGuard>, Range<usize>)>,
    upto: u64,
    /// The file whose turn it is, what it hashes to so far, and up to where it is written.
    entry: u32,
    hasher: Hasher,
    in_file: u64,
}

impl Drain {
    fn new(shared: Arc<Shared>, output: Box<dyn Write + Send>) -> Self {
        let (waiting, hasher) = (BTreeMap::new(), Hasher::new());
        Self { shared, output, waiting, upto: 0, entry: 0, hasher, in_file: 0 }
    }

    fn run(mut self) -> Result<(), Fault> {
        loop {
            let (known, whole) = {
                let book = self.shared.book.lock();
                (book.layout.len, book.object_len)
            };
            self.finish_entries()?;
            if whole == Some(self.upto) && self.entry == self.shared.table(EntryTable::len) {
                return self.flush();
            }
            match self.shared.queue.take(known) {
                Work::Bytes(guard) => self.take(&guard)?,
                Work::Look => {}
                Work::Closed => return Ok(()),
            }
        }
    }

    fn take(&mut self, guard: &Arc<BufferGuard>) -> Result<(), Fault> {
        for run in guard.runs() {
            self.waiting.insert(run.offset, (guard.clone(), run.range.clone()));
        }
        while let Some((guard, range)) = self.waiting.remove(&self.upto) {
            self.write_run(guard.bytes(range))?;
        }
        self.flush()
    }

    fn write_run(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let pieces = self.shared.book.lock().layout.pieces(self.upto, bytes.len() as u64);
        let mut rest = bytes;
        for piece in pieces {
            while self.entry < piece.entry {
                self.finish_entry()?;
            }
            let (now, later) = rest.split_at(piece.len as usize);
            rest = later;
            self.hasher.update(now);
            let shape = self.shared.book.lock().table.shape(piece.entry);
            let mut from = now;
            for (at, len) in shape.pieces(piece.offset..piece.offset + piece.len) {
                self.zeros_to(at)?;
                let (part, later) = from.split_at(len as usize);
                from = later;
                self.write(part)?;
            }
        }
        self.upto += bytes.len() as u64;
        self.shared.progress.add_done(bytes.len() as u64);
        Ok(())
    }

    /// Finishes the files that have no more bytes to come.
    fn finish_entries(&mut self) -> Result<(), Fault> {
        loop {
            let book = self.shared.book.lock();
            let is_known = self.entry < book.decided;
            let next = if is_known { book.layout.pieces(self.upto, 1).first().copied() } else { None };
            let whole = book.layout.len == self.upto;
            drop(book);
            if !is_known || next.is_some_and(|piece| piece.entry == self.entry) || (next.is_none() && !whole)
            {
                return Ok(());
            }
            self.finish_entry()?;
        }
    }

    fn finish_entry(&mut self) -> Result<(), Fault> {
        let (kind, size) = self.shared.table(|table| (table.kind(self.entry), table.size(self.entry)));
        if matches!(kind, Kind::File(_)) {
            self.zeros_to(size)?;
            let mut book = self.shared.book.lock();
            book.table.set_digest(self.entry, *self.hasher.finalize().as_bytes());
            // An entry of the same name as an earlier one failed when it came.
            if book.table.state(self.entry) == State::Waiting {
                book.table.set_state(self.entry, State::Started);
            }
        }
        (self.entry, self.in_file, self.hasher) = (self.entry + 1, 0, Hasher::new());
        Ok(())
    }

    fn zeros_to(&mut self, at: u64) -> Result<(), Fault> {
        while self.in_file < at {
            let len = (at - self.in_file).min(ZEROS as u64) as usize;
            self.write(&[0; ZEROS][..len])?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.in_file += bytes.len() as u64;
        self.output.write_all(bytes).map_err(|error| fault(&error))
    }

    fn flush(&mut self) -> Result<(), Fault> {
        self.output.flush().map_err(|error| fault(&error))
    }
}

fn fault(error: &std::io::Error) -> Fault {
    if error.kind() == ErrorKind::BrokenPipe {
        let message = "nobody reads what is written any more";
        return Fault::new(FaultCode::Interrupted, message, "");
    }
    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    IoFault::destination("write", b"stdout", errno).fault
}

struct Listener {
    shared: Arc<Shared>,
    expected: HashMap<u32, Result<[u8; 32], Fault>>,
    /// Of the entries below this number it is known what became of them.
    settled: u32,
    total: Option<u32>,
}

impl Listener {
    fn listen(mut self) -> Result<MoveReport, Fault> {
        self.shared.link.send(ControlMessage::Ready(Destination::Fresh))?;
        loop {
            self.shared.check_ending()?;
            self.settle()?;
            if self.total == Some(self.settled) {
                return self.finish();
            }
            let shared = self.shared.clone();
            shared.take_in(shared.link.recv(LOOK_AGAIN), |message| self.handle(message));
        }
    }

    fn handle(&mut self, message: ControlMessage) -> Result<(), Fault> {
        match message {
            ControlMessage::Entries(entries) if self.total.is_none() => self.entries(&entries),
            ControlMessage::EntriesEnd { entries, bytes } if self.total.is_none() => {
                self.shared.book.lock().must_be_all(entries, bytes)?;
                self.total = Some(entries as u32);
                self.shared.progress.found_all();
                self.shared.all_asked()
            }
            ControlMessage::Digests(digests) => {
                digests.into_iter().try_for_each(|digest| self.expect(digest))
            }
            ControlMessage::Extent(_)
            | ControlMessage::LeftOut(_)
            | ControlMessage::Filtered(_)
            | ControlMessage::DestinationAttributes(_) => Ok(()),
            ControlMessage::Bye => Err(left_early("sender")),
            other => Err(unexpected(&other)),
        }
    }

    fn entries(&mut self, entries: &[Entry]) -> Result<(), Fault> {
        let first = self.shared.book.lock().table.len();
        for (at, entry) in (0..).zip(entries) {
            entry.validate().map_err(|e| protocol(&e.to_string()))?;
            if !matches!(entry.kind, EntryKind::File { .. } | EntryKind::Failed(_)) {
                return Err(Fault::new(
                    FaultCode::Usage,
                    format!("`{}` is no regular file, and only those can be written to stdout", entry.path),
                    "name the files, or copy it to a directory",
                ));
            }
            let mut book = self.shared.book.lock();
            if let Some(fault) = book.table.push(entry)? {
                book.failures.add(entry.path.as_bytes(), fault);
            }
            self.shared.budget.take_entry(book.table.cost(first + at))?;
            drop(book);
            self.shared.progress.found(1, 0);
        }
        self.shared.ask(first, vec![Want::Whole; entries.len()])?;
        self.shared.queue.nudge();
        Ok(())
    }

    fn expect(&mut self, digest: FileDigest) -> Result<(), Fault> {
        let entry = self.shared.book.lock().table.file(digest.entry)?;
        // Held until the end: as a digest, what could not be read as what is said of it.
        self.shared.budget.take(bytes_expected(&digest.result))?;
        self.expected.insert(entry, digest.result);
        Ok(())
    }

    /// Settles the next files that are out, and of which it is known what they should hash to.
    fn settle(&mut self) -> Result<(), Fault> {
        loop {
            let (entry, mut book) = (self.settled, self.shared.book.lock());
            if entry == book.table.len() {
                return Ok(());
            }
            let expected = match book.table.state(entry) {
                State::Failed => {
                    self.settled += 1;
                    continue;
                }
                State::Started => self.expected.remove(&entry),
                _ => None,
            };
            let Some(expected) = expected else { return Ok(()) };
            let path = book.table.path(entry);
            let fault = match expected {
                Ok(expected) if book.table.digest(entry) == Some(&expected) => None,
                Ok(_) => Some(mismatch(&path)),
                Err(fault) => Some(fault),
            };
            if let Some(fault) = &fault {
                book.table.set_state(entry, State::Failed);
                book.failures.add(&path, fault.clone());
                self.shared.progress.one_failed();
            } else {
                book.table.set_state(entry, State::Done);
                self.shared.progress.file_done();
            }
            drop(book);
            self.settled += 1;
            self.shared.link.send(ControlMessage::Outcomes(vec![Outcome { entry: entry.into(), fault }]))?;
        }
    }

    fn finish(&self) -> Result<MoveReport, Fault> {
        self.shared.finish()?;
        self.shared.await_close();
        Ok(self.shared.book.lock().report())
    }
}
