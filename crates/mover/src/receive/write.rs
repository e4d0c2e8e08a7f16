//! Creates directories, writes received pieces to temporary files, and reports completed data.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::Sender;
use derive_more::Deref;
use haul_base::Piece;
use haul_proto::ObjectSink;
use haul_wire::control::{Action, Durability, Fault};

use crate::entries::{EntryState, EntryTable, Kind};
use crate::fault::{IoFault, violation};
use crate::job::{Job as _, job_ended};
use crate::receive::ledger::FilePiece;
use crate::receive::queue::{BufferGuard, Work};
use crate::receive::shared::{Check, CommitEvent, Shared, Written};
use crate::receive::sync::{WRITEBACK_BYTES, WritebackJob};
use crate::report::missing_directory;
use crate::storage::write_all_at;

/// Number of buffers in use above which the verifier gets no more, and reads from the page cache instead.
const MAX_BUFFERS_IN_USE: usize = 16;

#[derive(Clone, Deref)]
pub(crate) struct Pipeline {
    #[deref(forward)]
    pub(crate) shared: Arc<Shared>,
    pub(crate) checks: Sender<Check>,
    pub(crate) events: Sender<CommitEvent>,
}

impl Pipeline {
    pub(crate) fn check(&self, check: Check) -> Result<(), Fault> {
        self.ignore_if_ended(self.checks.send(check))
    }

    pub(crate) fn send_event(&self, event: CommitEvent) -> Result<(), Fault> {
        self.ignore_if_ended(self.events.send(event))
    }

    /// Ignores closed queues when the job is over: received data is still written, but not verified or
    /// committed.
    fn ignore_if_ended<E>(&self, sent: Result<(), E>) -> Result<(), Fault> {
        sent.or_else(|error| if self.has_ended() { Ok(()) } else { Err(job_ended(error)) })
    }

    /// Creates directories and empty files, before bytes of them or of later entries are requested.
    pub(crate) fn prepare(&self, entry: u32) -> Result<(), IoFault> {
        let (state, kind, path) =
            self.table(|table| (table.state(entry), table.kind(entry), table.path(entry)));
        match kind {
            _ if matches!(state, EntryState::Failed | EntryState::Kept) => {}
            _ if self.table(|table| table.parent_failed(entry)) => return Err(missing_directory(&path)),
            Kind::Directory => {
                if self.make_directory(&path)? {
                    self.ledger.lock().table.set_state(entry, EntryState::Started);
                    self.report_item(&path, Action::MakeDirectory)?;
                }
                self.send_event(CommitEvent::Deferred)?;
            }
            Kind::Symlink | Kind::HardLink(_) => self.send_event(CommitEvent::Deferred)?,
            Kind::File(_) if self.table(|table| table.stream_len(entry)) == 0 => {
                self.start(entry)?;
                let empty = Written { entry, range: 0..0, enclosing: 0..0, bytes: None, len: 0 };
                self.check(Check::Written(empty))?;
            }
            Kind::File(_) | Kind::Unread => {}
        }
        Ok(())
    }

    fn start(&self, entry: u32) -> Result<Arc<File>, IoFault> {
        let read = |table: &EntryTable| (table.path(entry), table.shape(entry), table.attributes(entry));
        let (path, shape, attributes) = self.table(read);
        let file = self.place.create(entry, &path, &shape, attributes.mtime)?;
        self.ledger.lock().table.set_state(entry, EntryState::Started);
        Ok(file)
    }

    pub(crate) fn failed(&self, entry: u32, io_fault: IoFault) -> Result<(), Fault> {
        let fault = io_fault.of_entry()?;
        if !self.mark_failed(entry) {
            return Ok(());
        }
        self.check(Check::Abandoned(entry))?;
        self.send_event(CommitEvent::failed(&self.budget, entry, fault)?)
    }
}

pub(crate) struct Writer {
    pub(crate) shared: Pipeline,
    pub(crate) writeback: Sender<WritebackJob>,
    /// Bytes of large files written since the last write-back.
    pub(crate) unsynced: u64,
}

impl Writer {
    pub(crate) fn run(mut self) -> Result<(), Fault> {
        loop {
            let known = self.shared.ledger.lock().layout.len;
            match self.shared.queue.take(known) {
                Work::Bytes(guard) => self.write(&guard)?,
                Work::Recheck => self.check_length()?,
                Work::Closed => return Ok(()),
            }
        }
    }

    fn check_length(&self) -> Result<(), Fault> {
        let expected = self.shared.ledger.lock().object_len;
        match (expected, self.shared.queue.completed()) {
            (Some(expected), Some(delivered)) if expected != delivered => {
                Err(violation(&format!("{expected} bytes were announced and {delivered} were sent")))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, guard: &Arc<BufferGuard>) -> Result<(), Fault> {
        for run in guard.runs() {
            let pieces = self.shared.ledger.lock().layout.pieces(run.offset, run.range.clone());
            for piece in pieces {
                let entry = piece.entry;
                if let Err(io_fault) = self.write_piece(piece, guard) {
                    self.shared.failed(entry, io_fault)?;
                }
            }
            self.shared.progress.bytes_done.add(run.range.len() as u64);
        }
        Ok(())
    }

    fn write_piece(&mut self, piece: FilePiece, guard: &Arc<BufferGuard>) -> Result<(), IoFault> {
        let FilePiece { entry, stream_range, bytes } = piece;
        // Bytes of a failed file are dropped.
        let Some(opened) = self.open(entry)? else { return Ok(()) };
        let shape = self.shared.table(|table| table.shape(entry));
        let len = bytes.len() as u64;
        let room = self.shared.place.space.arrived(entry, &opened, len);
        let written = room.and_then(|()| {
            let mut pieces = shape.split(stream_range.start, guard.bytes(bytes.clone()));
            Ok(pieces.try_for_each(|(at, piece)| write_all_at(&opened, piece, at))?)
        });
        written.map_err(|no_space| no_space.io_fault("write", &self.shared.path(entry)))?;
        if self.shared.durability != Durability::Cached && shape.len >= WRITEBACK_BYTES {
            self.unsynced += len;
            // If the disk is still busy with the last write-back, the next one is postponed.
            if self.unsynced >= WRITEBACK_BYTES && self.writeback.try_send((entry, opened.clone())).is_ok() {
                self.unsynced = 0;
            }
        }
        let enclosing = self.shared.ledger.lock().record_written(entry, &stream_range, shape.len);
        self.shared.budget.take(0)?;
        self.shared.place.record_written(entry, stream_range.clone());
        let bytes = guard.in_use_at_most(MAX_BUFFERS_IN_USE).then(|| (guard.clone(), bytes));
        let written = Written { entry, range: stream_range, enclosing, bytes, len: shape.len };
        Ok(self.shared.check(Check::Written(written))?)
    }

    fn open(&self, entry: u32) -> Result<Option<Arc<File>>, IoFault> {
        let (state, orphan) = self.shared.table(|table| (table.state(entry), table.parent_failed(entry)));
        match state {
            EntryState::Failed | EntryState::Kept => Ok(None),
            EntryState::Waiting if orphan => Err(missing_directory(&self.shared.path(entry))),
            EntryState::Waiting => self.shared.start(entry).map(Some),
            EntryState::Started | EntryState::Done => {
                self.shared.place.file(entry, || self.shared.path(entry)).map(Some)
            }
        }
    }
}

pub(crate) struct FileSink {
    pub(crate) shared: Arc<Shared>,
    /// Whether data can be written in any order of arrival. Otherwise it may wait for missing data.
    pub(crate) takes_any_order: bool,
}

impl ObjectSink for FileSink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        if !self.shared.queue.push(data, pieces) {
            self.shared.fail(violation("more was sent than the receiver permitted"));
        }
    }

    fn limit(&mut self) -> u64 {
        self.shared.queue.limit()
    }

    fn takes_any_order(&self) -> bool {
        self.takes_any_order
    }

    fn complete(&mut self, len: u64) {
        self.shared.queue.complete(len);
    }
}
