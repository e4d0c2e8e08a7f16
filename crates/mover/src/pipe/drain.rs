//! Receives files one after the other into a pipe: an ordinary job without files at a destination.

use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use haul_wire::control::{Destination, Fault, FaultCode, ReceivePolicy};
use rustix::io::Errno;

use crate::entries::{EntryTable, Kind};
use crate::fault::IoFault;
use crate::job::{self, JobHandle, Stage, job_ended};
use crate::link::{ControlLink, RECV_TIMEOUT};
use crate::receive::{
    Base, BufferGuard, Check, FilePiece, FileSink, InOrder, Pipeline, Place, ReceiveJob, ReceiveOptions,
    Shared, Work, Written, run,
};

/// Capacity of the verifier's queue in pieces.
const PIECES: usize = 64;

/// Size of one write of zeros for a hole, in bytes.
const ZEROS: usize = 16 << 10;

/// Receives regular files and writes them to `output` in the order in which they are sent. Data is written
/// before it is verified; the report says whether it was intact.
///
/// # Errors
/// The root directory could not be opened, or a thread not be started.
pub fn receive_to(
    output: Box<dyn Write + Send>,
    link: Arc<dyn ControlLink>,
    options: ReceiveOptions,
) -> Result<ReceiveJob, Fault> {
    // A pipe has no existing files to compare, replace or remove.
    let options = ReceiveOptions { receive_policy: ReceivePolicy::default(), chunk: None, ..options };
    let place = Place::new(Base::nowhere()?, &options);
    let shared = Arc::new(Shared::new(link, place, options, Destination::Fresh, Stage::Listing));
    let sink = Box::new(FileSink { shared: shared.clone(), takes_any_order: false });
    let (pieces, written) = bounded(PIECES);
    let drain = Drain {
        shared: shared.clone(),
        output,
        in_order: InOrder::default(),
        entry: 0,
        file_offset: 0,
        written: Vec::new(),
        verified: pieces,
    };
    let write = |pipeline, _| -> job::Task { Box::new(move || write_and_check(drain, &written, &pipeline)) };
    let handle = JobHandle::start(shared, "haul-receive", move |shared| run(shared, None, write))?;
    Ok(ReceiveJob { sink, handle })
}

/// Runs the drain in a thread and passes written pieces to the verifier. If the job ends early, the drain's
/// thread may still block on a reader that does not read; it ends with the process.
fn write_and_check(drain: Drain, written: &Receiver<Written>, pipeline: &Pipeline) -> Result<(), Fault> {
    let drain_thread = job::spawn("haul-drain", move || drain.run())?;
    loop {
        match written.recv_timeout(RECV_TIMEOUT) {
            Ok(piece) => pipeline.check(Check::Written(piece))?,
            Err(RecvTimeoutError::Disconnected) => return job::join(drain_thread)?,
            Err(RecvTimeoutError::Timeout) if pipeline.has_ended() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

struct Drain {
    shared: Arc<Shared>,
    output: Box<dyn Write + Send>,
    in_order: InOrder,
    /// The current file, and the offset up to which it is written.
    entry: u32,
    file_offset: u64,
    /// Pieces to verify once the output has been flushed.
    written: Vec<Written>,
    verified: Sender<Written>,
}

impl Drain {
    fn run(mut self) -> Result<(), Fault> {
        loop {
            let (layout_len, object_len, next) = {
                let ledger = self.shared.ledger.lock();
                let next =
                    ledger.layout.pieces(self.in_order.taken_end, 0..1).first().map(|piece| piece.entry);
                (ledger.layout.len, ledger.object_len, next.unwrap_or(ledger.decided))
            };
            self.finish_files_before(next)?;
            self.flush()?;
            if object_len == Some(self.in_order.taken_end) && self.entry == self.shared.table(EntryTable::len)
            {
                return Ok(());
            }
            match self.shared.queue.take(layout_len) {
                Work::Bytes(guard) => {
                    self.in_order.add(&guard);
                    while let Some((guard, run)) = self.in_order.take() {
                        self.write_run(&guard, run)?;
                    }
                }
                Work::Recheck => {}
                Work::Closed => return Ok(()),
            }
        }
    }

    fn write_run(&mut self, guard: &Arc<BufferGuard>, run: Range<usize>) -> Result<(), Fault> {
        let len = run.len() as u64;
        let pieces = self.shared.ledger.lock().layout.pieces(self.in_order.taken_end - len, run);
        for FilePiece { entry, stream_range, bytes } in pieces {
            self.finish_files_before(entry)?;
            let shape = self.shared.table(|table| table.shape(entry));
            for (at, piece) in shape.split(stream_range.start, guard.bytes(bytes.clone())) {
                self.write_zeros_to(at)?;
                self.write(piece)?;
            }
            let enclosing = 0..stream_range.end;
            // Always, even if that fills the queue: a pipe cannot be read back.
            let bytes = Some((guard.clone(), bytes));
            self.written.push(Written { entry, range: stream_range, enclosing, bytes, len: shape.len });
        }
        self.shared.progress.bytes_done.add(len);
        Ok(())
    }

    /// Finishes the files before the entry `next`, whose bytes have all been written.
    fn finish_files_before(&mut self, next: u32) -> Result<(), Fault> {
        while self.entry < next {
            let entry = self.entry;
            let (kind, size) = self.shared.table(|table| (table.kind(entry), table.size(entry)));
            if matches!(kind, Kind::File(_)) {
                self.write_zeros_to(size)?;
                if self.shared.table(|table| table.stream_len(entry)) == 0 {
                    self.written.push(Written { entry, range: 0..0, enclosing: 0..0, bytes: None, len: 0 });
                }
            }
            (self.entry, self.file_offset) = (entry + 1, 0);
        }
        Ok(())
    }

    fn write_zeros_to(&mut self, at: u64) -> Result<(), Fault> {
        while self.file_offset < at {
            let len = (at - self.file_offset).min(ZEROS as u64) as usize;
            self.write(&[0; ZEROS][..len])?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.file_offset += bytes.len() as u64;
        self.output.write_all(bytes).map_err(|error| fault(&error))
    }

    /// Flushes the output and passes the written pieces to the verifier.
    fn flush(&mut self) -> Result<(), Fault> {
        self.output.flush().map_err(|error| fault(&error))?;
        self.written.drain(..).try_for_each(|piece| self.verified.send(piece).map_err(job_ended))
    }
}

fn fault(error: &std::io::Error) -> Fault {
    if error.kind() == ErrorKind::BrokenPipe {
        return Fault::new(FaultCode::Interrupted, "the reader has gone", "");
    }
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    IoFault::destination("write", b"stdout", errno).fault
}
