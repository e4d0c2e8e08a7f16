//! Creates directories, writes received pieces to temporary files, and reports completed data.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::Sender;
use derive_more::Deref;
use haul_base::Piece;
use haul_proto::ObjectSink;
use haul_wire::control::{Action, Durability, Fault};

use crate::entries::{EntryState, EntryTable, Kind};
use crate::fault::{IoFault, Scope, protocol};
use crate::job::{Job as _, over};
use crate::receive::book::FilePiece;
use crate::receive::commit::sync::{Order, WRITEBACK_BYTES};
use crate::receive::queue::{BufferGuard, Work};
use crate::receive::shared::{Check, Settle, Shared, Written};
use crate::report::without_directory;
use crate::storage::write_all_at;

/// Number of buffers in use above which the verifier gets no more, and reads from the page cache instead.
const MAX_BUFFERS_IN_USE: usize = 16;

#[derive(Clone, Deref)]
pub(crate) struct Pipeline {
    #[deref(forward)]
    pub(crate) shared: Arc<Shared>,
    pub(crate) checks: Sender<Check>,
    pub(crate) settles: Sender<Settle>,
}

impl Pipeline {
    pub(crate) fn check(&self, check: Check) -> Result<(), Fault> {
        self.unless_over(self.checks.send(check))
    }

    pub(crate) fn settle(&self, settle: Settle) -> Result<(), Fault> {
        self.unless_over(self.settles.send(settle))
    }

    /// Ignores closed queues when the job is over: received data is still written, but not verified or
    /// committed.
    fn unless_over<E>(&self, sent: Result<(), E>) -> Result<(), Fault> {
        sent.or_else(|error| if self.has_ended() { Ok(()) } else { Err(over(error)) })
    }

    /// Creates directories and empty files, before bytes of them or of later entries are
    /// [requested](Shared::ask).
    pub(crate) fn prepare(&self, entry: u32) -> Result<(), Fault> {
        self.make(entry).or_else(|io_fault| self.failed(entry, io_fault))
    }

    fn make(&self, entry: u32) -> Result<(), IoFault> {
        let (state, kind, path) =
            self.table(|table| (table.state(entry), table.kind(entry), table.path(entry)));
        match kind {
            _ if matches!(state, EntryState::Failed | EntryState::Kept) => {}
            _ if self.table(|table| table.parent_failed(entry)) => return Err(missing_parent(&path)),
            Kind::Directory => {
                if self.make_directory(&path)? {
                    self.book.lock().table.set_state(entry, EntryState::Started);
                    self.tell(&path, Action::MakeDirectory)?;
                }
                self.settle(Settle::Held)?;
            }
            Kind::Symlink | Kind::HardLink(_) => self.settle(Settle::Held)?,
            Kind::File(_) if self.table(|table| table.stream_len(entry)) == 0 => {
                self.start(entry)?;
                let nothing = Written { entry, range: 0..0, around: 0..0, bytes: None, len: 0 };
                self.check(Check::Written(nothing))?;
            }
            Kind::File(_) | Kind::Unread => {}
        }
        Ok(())
    }

    fn start(&self, entry: u32) -> Result<Arc<File>, IoFault> {
        let look = |table: &EntryTable| (table.path(entry), table.shape(entry), table.attributes(entry));
        let (path, shape, attributes) = self.table(look);
        let file = self.place.create(entry, &path, &shape, attributes.mtime)?;
        self.book.lock().table.set_state(entry, EntryState::Started);
        Ok(file)
    }

    fn failed(&self, entry: u32, io_fault: IoFault) -> Result<(), Fault> {
        if io_fault.scope == Scope::Job {
            return Err(io_fault.fault);
        }
        if !self.give_up(entry) {
            return Ok(());
        }
        self.check(Check::GivenUp(entry))?;
        self.settle(Settle::failed(&self.budget, entry, io_fault.fault)?)
    }
}

pub(crate) struct Writer {
    pub(crate) shared: Pipeline,
    pub(crate) writeback: Sender<Order>,
    /// Bytes of large files written since the last write-back.
    pub(crate) since: u64,
}

impl Writer {
    pub(crate) fn run(mut self) -> Result<(), Fault> {
        loop {
            let known = self.shared.book.lock().layout.len;
            match self.shared.queue.take(known) {
                Work::Bytes(guard) => self.write(&guard)?,
                Work::Look => self.check_length()?,
                Work::Closed => return Ok(()),
            }
        }
    }

    fn check_length(&self) -> Result<(), Fault> {
        let promised = self.shared.book.lock().object_len;
        match (promised, self.shared.queue.completed()) {
            (Some(promised), Some(delivered)) if promised != delivered => {
                Err(protocol(&format!("{promised} bytes were announced and {delivered} were sent")))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, guard: &Arc<BufferGuard>) -> Result<(), Fault> {
        for run in guard.runs() {
            let pieces = self.shared.book.lock().layout.pieces(run.offset, run.range.clone());
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
            self.since += len;
            // If the disk is still busy with the last write-back, the next one is postponed.
            if self.since >= WRITEBACK_BYTES && self.writeback.try_send((entry, opened.clone())).is_ok() {
                self.since = 0;
            }
        }
        let around = self.shared.book.lock().note_written(entry, &stream_range, shape.len);
        self.shared.budget.take(0)?;
        self.shared.place.note_written(entry, stream_range.clone());
        let bytes = guard.is_one_of(MAX_BUFFERS_IN_USE).then(|| (guard.clone(), bytes));
        let written = Written { entry, range: stream_range, around, bytes, len: shape.len };
        Ok(self.shared.check(Check::Written(written))?)
    }

    fn open(&self, entry: u32) -> Result<Option<Arc<File>>, IoFault> {
        let (state, orphan) = self.shared.table(|table| (table.state(entry), table.parent_failed(entry)));
        match state {
            EntryState::Failed | EntryState::Kept => Ok(None),
            EntryState::Waiting if orphan => Err(missing_parent(&self.shared.path(entry))),
            EntryState::Waiting => self.shared.start(entry).map(Some),
            EntryState::Started | EntryState::Done => {
                self.shared.place.file(entry, || self.shared.path(entry)).map(Some)
            }
        }
    }
}

pub(crate) fn missing_parent(path: &[u8]) -> IoFault {
    IoFault { fault: without_directory(path), scope: Scope::Entry }
}

pub(crate) struct FileSink {
    pub(crate) shared: Arc<Shared>,
    /// Whether data can be written in any order of arrival. Otherwise it may wait for missing data.
    pub(crate) takes_any_order: bool,
}

impl ObjectSink for FileSink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        if !self.shared.queue.push(data, pieces) {
            self.shared.fail(protocol("more was sent than the receiver permitted"));
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
