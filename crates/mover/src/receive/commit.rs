//! Installs verified files under their final names in groups, corrects the metadata of kept files, and finishes
//! the set.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, RecvError, never};
use haul_base::AlignedBytes;
use haul_wire::control::{
    Action, ControlMessage, DestinationAttributes, Durability, Equal, Extent, Fault, FaultCode, Outcome,
    Readback,
};
use rustix::fs::Stat;
use rustix::io::Errno;

use crate::entries::{Attributes, EntryState, Kind};
use crate::fault::{IoFault, path_fault, show};
use crate::link::send_list;
use crate::receive::decide::discard_superseded;
use crate::receive::delete::{self, is_obstacle};
use crate::receive::metadata::{DIRECTORY_BITS, FILE_BITS, Metadata, MetadataFailures, has_mode, same_time};
use crate::receive::place::files::collision;
use crate::receive::place::links::{HardLink, LinkOutcome, has_target};
use crate::receive::place::replaceable;
use crate::receive::shared::{CommitEvent, Shared, text};
use crate::receive::sync::{self, Syncs};
use crate::receive::verify::{READ, read_back};
use crate::storage::Mtime;

const GROUP: usize = 1024;

/// Bytes of failure messages after which the outcomes are sent.
const MAX_FAULT_BYTES: usize = 1 << 20;

const OUTCOME_BATCH: usize = 1024;

pub(crate) struct Committer {
    shared: Arc<Shared>,
    events: Receiver<CommitEvent>,
    ready: Vec<u32>,
    outcomes: Vec<Outcome>,
    /// Bytes of failure messages in `outcomes`.
    outcome_text_bytes: usize,
    settled: u64,
    total: Option<u64>,
    /// Files whose place holds another kind of entry, which may be removed.
    blocked: Vec<u32>,
    /// File systems to sync once at the end.
    final_syncs: Syncs,
    buffer: AlignedBytes,
}

/// Commits a set's only file, which is verified, and finishes the set.
pub(crate) fn commit_only(shared: &Arc<Shared>, entry: u32) -> Result<(), Fault> {
    let mut committer = Committer::new(shared.clone(), never());
    committer.commit(vec![entry])?;
    let failed = shared.ledger.lock().failures.named().first().map(|(_, fault)| fault.clone());
    failed.map_or_else(|| committer.finish(), Err)
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, events: Receiver<CommitEvent>) -> Self {
        Self {
            shared,
            events,
            ready: Vec::new(),
            outcomes: Vec::new(),
            outcome_text_bytes: 0,
            settled: 0,
            total: None,
            blocked: Vec::new(),
            final_syncs: Syncs::default(),
            buffer: AlignedBytes::zeroed(READ),
        }
    }

    pub(crate) fn run(mut self) -> Result<(), Fault> {
        while self.total != Some(self.settled) {
            if self.collect_events().is_err() || self.shared.has_ended() {
                return Ok(());
            }
            let ready = std::mem::take(&mut self.ready);
            self.commit(ready)?;
            self.flush()?;
            // In a dry run, a single thread sends the items, in order.
            if self.shared.is_verbose() {
                self.shared.report_remaining()?;
            }
        }
        self.remove_obstacles()?;
        // Hard links, once the outcomes of their files are known.
        self.finish_each(self.deferred(|kind| matches!(kind, Kind::HardLink(_))), Self::finish_hard_link)?;
        // Symbolic links follow all files, so that no file is written through one.
        self.finish_each(self.deferred(|kind| kind == Kind::Symlink), Self::finish_link)?;
        if let Some(removal) = delete::sweep(&self.shared)? {
            self.shared.link.send(ControlMessage::Removed(removal))?;
        }
        // Directories, deepest first: changes in a directory change its time and need its permissions.
        let directories = self.deferred(|kind| kind == Kind::Directory).into_iter().rev().collect();
        self.finish_each(directories, Self::finish_directory)?;
        self.finish()
    }

    fn collect_events(&mut self) -> Result<(), RecvError> {
        let first = self.events.recv()?;
        self.handle(first);
        while self.ready.len() < GROUP
            && self.outcomes.len() < OUTCOME_BATCH
            && self.outcome_text_bytes < MAX_FAULT_BYTES
        {
            let Ok(next) = self.events.try_recv() else { break };
            self.handle(next);
        }
        Ok(())
    }

    fn handle(&mut self, event: CommitEvent) {
        self.shared.progress.other_steps.add(1);
        match event {
            CommitEvent::End(total) => self.total = Some(total),
            CommitEvent::Deferred => self.settled += 1,
            CommitEvent::Verified(entry) => self.ready.push(entry),
            CommitEvent::Same(entry) => self.keep_existing(entry),
            CommitEvent::Failed { entry, fault, .. } => self.failed(entry, fault),
        }
    }

    fn keep_existing(&mut self, entry: u32) {
        let path = self.shared.path(entry);
        if !self.shared.is_dry_run() {
            match self.shared.place.existing(&path) {
                None => return self.failed(entry, disappeared(&path)),
                Some(existing) if !self.shared.place.claim_kept(&path, &existing) => {
                    return self.failed(entry, collision(&path).fault);
                }
                Some(existing) => self.shared.correct(entry, &path, &existing),
            }
        }
        self.shared.ledger.lock().table.set_state(entry, EntryState::Kept);
        self.settled += 1;
        self.succeeded(entry);
    }

    fn failed(&mut self, entry: u32, fault: Fault) {
        self.shared.mark_failed(entry);
        self.settled += 1;
        self.shared.progress.failed.add(1);
        let mut ledger = self.shared.ledger.lock();
        // The sender knows of an entry that it could not read.
        if ledger.table.kind(entry) != Kind::Unread {
            self.outcome_text_bytes += text(&fault);
            self.outcomes.push(Outcome { entry: entry.into(), fault: Some(fault.clone()) });
        }
        let path = ledger.table.path(entry);
        ledger.failures.add(&path, fault);
    }

    fn commit(&mut self, entries: Vec<u32>) -> Result<(), Fault> {
        let complete = if self.shared.makes_nothing() { entries } else { self.complete(entries)? };
        let free = self.defer_blocked(complete);
        self.install(free)
    }

    /// Defers files whose names are blocked by something that is only removed once everything has arrived.
    /// Returns the others.
    fn defer_blocked(&mut self, entries: Vec<u32>) -> Vec<u32> {
        if !self.shared.permits_deletion() || self.shared.place.is_fresh {
            return entries;
        }
        let (blocked, free): (Vec<u32>, _) = entries.into_iter().partition(|&entry| self.is_blocked(entry));
        self.settled += blocked.len() as u64;
        self.blocked.extend(blocked);
        free
    }

    fn is_blocked(&self, entry: u32) -> bool {
        let (kind, path) = self.shared.table(|table| (table.kind(entry), table.path(entry)));
        self.shared.place.obstacle(&path).is_some_and(|existing| is_obstacle(kind, existing))
    }

    /// Removes obstacles, and installs the files that they blocked.
    fn remove_obstacles(&mut self) -> Result<(), Fault> {
        if !self.shared.permits_deletion() {
            return Ok(());
        }
        // Links that would replace their own target fail before any obstacle is removed.
        self.for_each(self.deferred(|kind| kind == Kind::Symlink), |Self { shared, .. }, entry, path| {
            let target = shared.table(|table| table.target(entry).to_vec());
            shared.place.may_link(path, &target)
        })?;
        let files = std::mem::take(&mut self.blocked);
        let links = self.deferred(|kind| matches!(kind, Kind::Symlink | Kind::HardLink(_))).into_iter();
        let blocked_links = links.filter(|&entry| self.is_blocked(entry));
        let blocked: Vec<u32> = files.iter().copied().chain(blocked_links).collect();
        if blocked.is_empty() {
            return Ok(());
        }
        let remain = delete::clear(&self.shared, &blocked)?;
        if self.shared.is_dry_run() {
            self.would_remove_obstacles(blocked, remain)
        } else {
            self.install(files)
        }
    }

    /// Dry run: lists files whose obstacle would be removed, and fails entries whose obstacle remains.
    fn would_remove_obstacles(&mut self, blocked: Vec<u32>, remain: Vec<bool>) -> Result<(), Fault> {
        let mut remain = remain.into_iter();
        let mut free = self.for_each(blocked, |Self { shared, .. }, entry, path| {
            let remains = remain.next() == Some(true);
            let existing = shared.place.obstacle(path).filter(|_| remains);
            match shared.table(|table| table.kind(entry)) {
                // Fails later because its file did.
                Kind::HardLink(file) if shared.table(|table| table.state(file)) == EntryState::Failed => {
                    Ok(())
                }
                Kind::File(_) => {
                    replaceable(existing, path)?;
                    Ok(shared.report_installed(entry, path, false)?)
                }
                _ => replaceable(existing, path),
            }
        })?;
        free.retain(|&entry| self.shared.table(|table| matches!(table.kind(entry), Kind::File(_))));
        self.install(free)
    }

    /// Runs `work` on each entry. Returns those that succeeded; gives up the others.
    fn for_each(
        &mut self,
        entries: Vec<u32>,
        mut work: impl FnMut(&mut Self, u32, &[u8]) -> Result<(), IoFault>,
    ) -> Result<Vec<u32>, Fault> {
        let mut succeeded = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = self.shared.path(entry);
            self.shared.progress.other_steps.add(1);
            match work(self, entry, &path) {
                Ok(()) => succeeded.push(entry),
                Err(io_fault) => self.failed(entry, io_fault.of_entry()?),
            }
            self.flush_if_full()?;
        }
        Ok(succeeded)
    }

    /// Reads contents back if requested, then sets metadata and syncs.
    fn complete(&mut self, mut entries: Vec<u32>) -> Result<Vec<u32>, Fault> {
        let (count, mut group) = (entries.len(), Syncs::default());
        // Before the final permissions, which may forbid this user to open the file again.
        if self.shared.receive_policy.readback != Readback::No {
            // Only clean pages are dropped from the page cache (posix_fadvise(2)).
            entries = self.for_each(entries, |Self { shared, .. }, entry, path| {
                let synced = group.contents(&shared.place.file(entry, || path.to_vec())?, count);
                synced.map_err(|errno| IoFault::destination("sync", path, errno))
            })?;
            group.finish()?;
            entries = self.for_each(entries, |Self { shared, buffer, .. }, entry, path| {
                read_back(shared, entry, &*shared.place.file(entry, || path.to_vec())?, buffer)
            })?;
        }
        let complete = self.for_each(entries, |committer, entry, path| {
            let shared = &committer.shared;
            let file = shared.place.file(entry, || path.to_vec())?;
            let set = committer.apply(entry, path, file.as_fd(), true);
            let synced = set.and_then(|()| match shared.durability {
                Durability::Synced => group.contents(&file, count),
                Durability::AtEnd => committer.final_syncs.file_system_of(&file),
                Durability::Cached => Ok(()),
            });
            // After the sync: the kernel reports a write error once, to this sync or to the writeback.
            let written = synced.and_then(|()| shared.writeback.outcome(entry));
            written.map_err(|errno| IoFault::destination("finish", path, errno))
        })?;
        group.finish()?;
        Ok(complete)
    }

    /// Renames files to their final names. In a dry run, or when writing to a pipe, only updates their state.
    fn install(&mut self, entries: Vec<u32>) -> Result<(), Fault> {
        let mut directories: HashMap<*const OwnedFd, Arc<OwnedFd>> = HashMap::new();
        let done = self.for_each(entries, |Self { shared, .. }, entry, path| {
            if !shared.makes_nothing() {
                let size = shared.table(|table| table.size(entry));
                let (directory, replaced) = shared.place.install(entry, path, size)?;
                directories.insert(Arc::as_ptr(&directory), directory);
                shared.report_installed(entry, path, replaced)?;
            }
            shared.ledger.lock().table.set_state(entry, EntryState::Done);
            Ok(())
        })?;
        if self.shared.durability == Durability::Synced {
            let mut group = Syncs::default();
            for directory in directories.values() {
                group.contents(directory, directories.len()).map_err(sync::failed)?;
            }
            group.finish()?;
        }
        for entry in done {
            self.succeeded(entry);
            self.settled += 1;
            self.shared.progress.files_done.add(1);
        }
        Ok(())
    }

    fn succeeded(&mut self, entry: u32) {
        self.outcomes.push(Outcome { entry: entry.into(), fault: None });
    }

    fn flush(&mut self) -> Result<(), Fault> {
        self.outcome_text_bytes = 0;
        let outcomes = std::mem::take(&mut self.outcomes);
        send_list(&*self.shared.link, outcomes, OUTCOME_BATCH, ControlMessage::Outcomes)
    }

    /// Sends a full batch of outcomes; with [`Durability::Synced`] they wait for the final sync.
    fn flush_if_full(&mut self) -> Result<(), Fault> {
        let is_due = self.outcomes.len() >= OUTCOME_BATCH && self.shared.durability != Durability::Synced;
        if is_due { self.flush() } else { Ok(()) }
    }

    fn deferred(&self, is_kind: impl Fn(Kind) -> bool) -> Vec<u32> {
        let is_held = |kind, state| is_kind(kind) && state != EntryState::Failed;
        self.shared.table(|table| table.select(is_held).collect())
    }

    fn apply(&self, entry: u32, path: &[u8], fd: BorrowedFd<'_>, is_new: bool) -> Result<(), Errno> {
        let applied = self.shared.metadata.apply(fd, &self.shared.metadata_of(entry));
        // The file system has no permissions, or maps all users to one.
        if is_new && applied == Err(Errno::PERM) {
            self.shared.note_permissions(path, Errno::PERM);
            return Ok(());
        }
        applied.map(|failures| self.shared.note(path, failures))
    }

    /// Finishes links or directories, which are counted in `settled` already. `finish` returns a directory on
    /// the file system to sync.
    fn finish_each<D: AsFd>(
        &mut self,
        entries: Vec<u32>,
        finish: impl Fn(&Self, u32, &[u8]) -> Result<Option<D>, IoFault>,
    ) -> Result<(), Fault> {
        let finished = self.for_each(entries, |committer, entry, path| {
            let shared = &committer.shared;
            // Another file system may be mounted below the destination.
            if let Some(directory) = finish(committer, entry, path)?
                && shared.durability != Durability::Cached
            {
                committer.final_syncs.file_system_of(&directory).map_err(sync::failed)?;
            }
            shared.ledger.lock().table.set_state(entry, EntryState::Done);
            committer.succeeded(entry);
            Ok(())
        });
        finished.map(drop)
    }

    fn finish_hard_link(&self, entry: u32, path: &[u8]) -> Result<Option<Arc<OwnedFd>>, IoFault> {
        let ledger = self.shared.ledger.lock();
        let Kind::HardLink(file) = ledger.table.kind(entry) else { return Ok(None) };
        let (target, state) = (ledger.table.path(file), ledger.table.state(file));
        let (size, mtime) = (ledger.table.size(file), ledger.table.attributes(file).mtime);
        drop(ledger);
        if state == EntryState::Failed {
            let what = format!("is a hard link to `{}`, which failed", show(&target));
            return Err(IoFault::entry(FaultCode::Io, path, &what, "see the error of that file"));
        }
        let (is_kept, policy) = (state == EntryState::Kept, self.shared.receive_policy);
        let link = HardLink { path, target: &target, size, mtime, is_kept, policy };
        if self.shared.is_dry_run() {
            self.shared.report_item(path, self.shared.place.would_link(&link)?)?;
            return Ok(None);
        }
        let apply = |fd: BorrowedFd<'_>| self.apply(file, path, fd, true);
        self.record_link(path, self.shared.place.hard_link(entry, &link, apply)?)
    }

    fn record_link(
        &self,
        path: &[u8],
        (linked, directory): (LinkOutcome, Arc<OwnedFd>),
    ) -> Result<Option<Arc<OwnedFd>>, IoFault> {
        let note = match linked {
            LinkOutcome::Name | LinkOutcome::Existed => None,
            LinkOutcome::Copy => Some("a copy: the file system allows no further hard link to it"),
            LinkOutcome::KeptNewer => Some("kept because it is newer, and not hard-linked"),
            LinkOutcome::KeptEqual => Some("kept, and not hard-linked to a file that is newer"),
        };
        if let Some(note) = note {
            self.shared.note(path, vec![note.to_owned()]);
        }
        if matches!(linked, LinkOutcome::Name | LinkOutcome::Copy) {
            self.shared.report_item(path, Action::Link)?;
        }
        Ok(Some(directory))
    }

    fn finish_link(&self, entry: u32, path: &[u8]) -> Result<Option<Arc<OwnedFd>>, IoFault> {
        let target = self.shared.table(|table| table.target(entry).to_vec());
        if self.shared.is_dry_run() {
            self.shared.place.may_link(path, &target)?;
            let is_there = self.shared.place.dir_entry(path).is_ok_and(|dirent| has_target(&dirent, &target));
            self.shared.report_item(path, if is_there { Action::Keep } else { Action::Link })?;
            return Ok(None);
        }
        let Metadata { attributes, extras, .. } = self.shared.metadata_of(entry);
        let apply = |link: BorrowedFd<'_>| {
            if let Some(extras) = &extras {
                self.shared.note(path, self.shared.metadata.apply_to_link(link, extras));
            }
        };
        self.record_link(path, self.shared.place.link(entry, path, &target, attributes.mtime, apply)?)
    }

    fn finish_directory(&self, entry: u32, path: &[u8]) -> Result<Option<OwnedFd>, IoFault> {
        if self.shared.is_dry_run() {
            return Ok(None);
        }
        let is_made = self.shared.table(|table| table.state(entry)) == EntryState::Started;
        self.shared.place.finish_directory(path, is_made, |fd| self.apply(entry, path, fd, is_made))
    }

    /// Finishes the journal, then the destination's metadata: removing the journal changes its time.
    fn finish_destination(&self) {
        let is_complete = self.shared.ledger.lock().failures.is_all_special();
        if is_complete && !self.shared.makes_nothing() {
            discard_superseded(&self.shared);
        }
        self.shared.place.finish(is_complete);
        if !self.shared.makes_nothing() {
            self.shared.finish_destination();
        }
    }

    fn finish(&mut self) -> Result<(), Fault> {
        self.shared.report_remaining()?;
        let removed = self.shared.ledger.lock().removal.removed > 0;
        let is_pending = match self.shared.durability {
            _ if self.shared.makes_nothing() => false,
            // Links, directories and removals; files are synced already.
            Durability::Synced => removed || !self.outcomes.is_empty(),
            Durability::AtEnd => true,
            Durability::Cached => false,
        };
        if is_pending {
            self.final_syncs.file_system_of(&self.shared.place.base.directory).map_err(sync::failed)?;
            self.final_syncs.finish()?;
        }
        self.flush()?;
        self.finish_destination();
        self.shared.finish()
    }
}

fn disappeared(path: &[u8]) -> Fault {
    let what = "disappeared from the destination while it was compared";
    path_fault(FaultCode::Io, path, what, "run the same command again")
}

impl Shared {
    /// Stores metadata of a source directory whose contents go directly into the destination. The first of
    /// several sources counts, as with rsync. Ignored if the client requested less than
    /// [`Extent::Destination`].
    pub(crate) fn set_attributes(&self, attributes: DestinationAttributes) {
        let expectations = self.expectations.as_ref();
        let is_expected = expectations.is_none_or(|expected| expected.extent == Extent::Destination);
        if !is_expected || self.place.base.rename.is_some() || self.ledger.lock().destination.is_some() {
            return;
        }
        self.ledger.lock().destination = Some(attributes);
        if self.is_dry_run() {
            return;
        }
        self.place.is_included.store(true, Ordering::Release);
        self.place.base.make_private();
    }

    pub(crate) fn finish_destination(&self) {
        let Some(expected) = self.ledger.lock().destination.clone() else { return };
        let DestinationAttributes { mode, mtime_secs, mtime_nanos, extras } = expected;
        let attributes = Attributes { mtime: Mtime { secs: mtime_secs, nanos: mtime_nanos }, mode };
        let expected = Metadata { attributes, extras: extras.map(Arc::from), bits: DIRECTORY_BITS };
        let directory = self.place.directory(&[]);
        match directory.and_then(|directory| self.metadata.apply(directory.as_fd(), &expected)) {
            Ok(metadata_failures) => self.note(b".", metadata_failures),
            // The destination may belong to another user, and keeps its metadata then.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => self.note_permissions(b".", errno),
        }
    }

    fn note_permissions(&self, path: &[u8], errno: Errno) {
        let why = std::io::Error::from(errno);
        self.note(path, vec![format!("its permissions or time cannot be set: {why}")]);
    }

    pub(crate) fn metadata_of(&self, entry: u32) -> Metadata {
        let ledger = self.ledger.lock();
        let bits = if ledger.table.kind(entry) == Kind::Directory { DIRECTORY_BITS } else { FILE_BITS };
        Metadata { attributes: ledger.table.attributes(entry), extras: ledger.extras.get(entry), bits }
    }

    /// Corrects the metadata of a kept file if it differs and that is permitted.
    pub(crate) fn correct(&self, entry: u32, path: &[u8], existing: &Stat) {
        let expected = self.metadata_of(entry);
        let is_same_time = self.has_time(existing, &expected);
        if expected.extras.is_none() && has_mode(existing, expected.attributes.mode) && is_same_time {
            return;
        }
        let Some((file, stat)) = self.place.open_found(path, existing) else { return };
        let fd = file.as_fd();
        let differs = || !is_same_time || self.metadata.would_change(fd, &expected);
        let is_shared = self.place.may_be_shared(&stat);
        let is_reported = (self.is_verbose() || is_shared) && differs();
        let applied = if is_shared {
            if !is_reported {
                return;
            }
            Ok(self.correct_copy(entry, path, &file, &expected))
        } else if is_same_time {
            self.metadata.apply_but_time(fd, &expected)
        } else {
            self.metadata.apply(fd, &expected)
        };
        match applied {
            Ok(metadata_failures) => self.note(path, metadata_failures),
            // Another user owns the file, whose contents are right nevertheless.
            Err(Errno::PERM) => return,
            Err(errno) => return self.note_permissions(path, errno),
        }
        if is_reported {
            // A broken connection ends the job elsewhere.
            let _ = self.report_item(path, Action::Adjust);
        }
    }

    /// Corrects a file that may have hard links outside the peer's root: replaces it by a corrected copy.
    fn correct_copy(&self, entry: u32, path: &[u8], file: &File, expected: &Metadata) -> MetadataFailures {
        let mut metadata_failures = MetadataFailures::new();
        let apply = |fd: BorrowedFd<'_>| {
            metadata_failures = self.metadata.apply(fd, expected)?;
            Ok(())
        };
        if self.place.detach(entry, path, file, apply).is_err() {
            metadata_failures.push(
                "it has several hard links and could not be replaced by a separate file: it is unchanged"
                    .to_owned(),
            );
        }
        metadata_failures
    }

    pub(crate) fn metadata_action(&self, entry: u32, path: &[u8], existing: &Stat) -> Action {
        let expected = self.metadata_of(entry);
        let would_change = |(file, _): (File, Stat)| self.metadata.would_change(file.as_fd(), &expected);
        let is_equal = self.has_time(existing, &expected)
            && match expected.extras {
                None => has_mode(existing, expected.attributes.mode),
                Some(_) => !self.place.open_found(path, existing).is_some_and(would_change),
            };
        if is_equal { Action::Keep } else { Action::Adjust }
    }

    /// Whether the existing file's time equals the expected one as stored by the file system. True with
    /// [`Equal::SizeAndTime`], where the time was compared before the file was kept.
    fn has_time(&self, existing: &Stat, expected: &Metadata) -> bool {
        same_time(existing, expected.attributes.mtime) || self.receive_policy.equal == Equal::SizeAndTime
    }
}
