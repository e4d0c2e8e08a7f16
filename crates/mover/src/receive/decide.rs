//! Decides what to request of each entry, given the destination's contents. A dry run lists instead what would be
//! done to each.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use haul_base::RangeSet;
use haul_wire::control::{
    Action, ControlMessage, Destination, EntryRequest, Equal, Fault, Item, Leftovers as UseLeftovers, Newer,
    RelPath, RunMode,
};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::entries::{EntryState, Kind};
use crate::fault::IoFault;
use crate::journal::{Claim, FileIdentity, Leftovers, LockMode};
use crate::link::send_list;
use crate::receive::delete::is_obstacle;
use crate::receive::messages::MessageHandler;
use crate::receive::metadata;
use crate::receive::place::files::collision;
use crate::receive::place::{check_kind, obstacle_fault};
use crate::receive::shared::{Check, CommitEvent, Comparison, Shared};
use crate::report::missing_directory;
use crate::root::split;
use crate::storage::{Mtime, kind_of, lstatat_if_any};

/// Minimum size of a shorter existing file to be compared; smaller ones are sent again.
const MIN_COMPARED_SIZE: u64 = 1 << 20;

pub(super) enum Verdict {
    /// Keep it, and correct its metadata.
    Keep(Stat),
    KeepNewer(Stat),
    Compare,
    Send(Option<Stat>),
}

/// What to request of an entry.
pub(super) type Decision = Result<EntryRequest, Fault>;

impl MessageHandler {
    pub(crate) fn decide(&mut self, entry: u32) -> Decision {
        let (state, kind, path) =
            self.shared.table(|table| (table.state(entry), table.kind(entry), table.path(entry)));
        match kind {
            // Without requests files arrive whole, also those refused here.
            _ if self.shared.destination == Destination::Fresh => Ok(EntryRequest::All),
            _ if state == EntryState::Failed => Ok(EntryRequest::Nothing),
            _ if self.shared.is_dry_run() => self.list_changes(entry, kind, &path),
            Kind::File(_) => self.decide_file(entry, &path),
            Kind::Unread | Kind::Directory | Kind::Symlink | Kind::HardLink(_) => Ok(EntryRequest::All),
        }
    }

    fn decide_file(&mut self, entry: u32, path: &[u8]) -> Decision {
        let verdict = self.verdict(entry, path);
        // Fails before the contents are transferred.
        if matches!(verdict, Verdict::Send(None))
            && let Err(io_fault) = self.found(entry, Kind::File(0), path)
        {
            return self.fail(entry, io_fault.fault);
        }
        if matches!(verdict, Verdict::Compare | Verdict::Send(_))
            && let Some(decision) = self.resume_leftover(entry, path)
        {
            return decision;
        }
        match verdict {
            // The job created it under another name.
            Verdict::Keep(existing) | Verdict::KeepNewer(existing)
                if !self.shared.place.claim_kept(path, &existing) =>
            {
                self.fail(entry, collision(path).fault)
            }
            Verdict::Keep(existing) => {
                if let Some(leftovers) = self.leftovers.as_mut().filter(|leftovers| !leftovers.is_empty()) {
                    leftovers.discard_all(&self.shared.place.local(path));
                }
                self.shared.correct(entry, path, &existing);
                self.keep(entry)
            }
            Verdict::KeepNewer(_) => self.keep(entry),
            Verdict::Compare => self.compare(entry, None).map(|()| EntryRequest::Compare),
            Verdict::Send(existing) => self.extend_or_send(entry, path, existing.as_ref()),
        }
    }

    pub(super) fn verdict(&self, entry: u32, path: &[u8]) -> Verdict {
        let receive_policy = self.shared.receive_policy;
        let (source, shape) = self.shared.table(|table| (table.attributes(entry), table.shape(entry)));
        let Some(existing) = self.shared.place.existing(path) else { return Verdict::Send(None) };
        if receive_policy.newer == Newer::Keep && Mtime::of(&existing) > source.mtime {
            return Verdict::KeepNewer(existing);
        }
        let same_size = existing.st_size as u64 == shape.size;
        // The time resolution of the file system is only known after storing a time.
        let stored = |existing: &Stat| {
            !self.shared.is_dry_run() && self.shared.place.stores_time_as(path, existing, source)
        };
        let same_time = |existing: &Stat| metadata::same_time(existing, source.mtime) || stored(existing);
        match receive_policy.equal {
            Equal::SizeAndTime if same_size && same_time(&existing) => Verdict::Keep(existing),
            Equal::Contents if same_size && shape.size == 0 => Verdict::Keep(existing),
            // Holes are not read, so the data in their place could not be compared.
            Equal::Contents if same_size && !shape.is_sparse() => Verdict::Compare,
            Equal::Contents | Equal::SizeAndTime | Equal::Nothing => Verdict::Send(Some(existing)),
        }
    }

    pub(super) fn fail(&self, entry: u32, fault: Fault) -> Decision {
        self.shared.mark_failed(entry);
        self.shared.send_event(CommitEvent::failed(&self.shared.budget, entry, fault)?)?;
        Ok(EntryRequest::Nothing)
    }

    pub(super) fn keep(&self, entry: u32) -> Decision {
        self.shared.ledger.lock().table.set_state(entry, EntryState::Kept);
        self.shared.send_event(CommitEvent::Deferred)?;
        Ok(EntryRequest::Kept)
    }

    /// Reuses what an earlier attempt left, if it was the same file.
    fn resume_leftover(&mut self, entry: u32, path: &[u8]) -> Option<Decision> {
        let (identity, shape) = self.shared.identity(entry, path);
        let leftovers = self.leftovers.as_mut()?;
        while let Some(claim) = leftovers.take(&identity.path) {
            if is_claim_for(&claim, &identity, self.shared.receive_policy.leftovers)
                && self.shared.place.adopt((entry, path), &claim, &identity, &shape)
            {
                leftovers.consumed(&claim);
                return Some(self.resume(entry, claim.record.written));
            }
            leftovers.discard(&claim);
        }
        None
    }

    fn extend_or_send(&mut self, entry: u32, path: &[u8], existing: Option<&Stat>) -> Decision {
        let (identity, _) = self.shared.identity(entry, path);
        match self.extendable_bytes(entry, existing) {
            Some(have) if self.shared.place.copy_existing(entry, path, have, &identity) => {
                let mut written = RangeSet::new();
                written.insert(0..have);
                self.resume(entry, written)
            }
            _ => Ok(EntryRequest::All),
        }
    }

    /// Returns the length of an existing shorter file, if it counts as the file's beginning.
    pub(super) fn extendable_bytes(&self, entry: u32, existing: Option<&Stat>) -> Option<u64> {
        let existing = existing.filter(|_| self.shared.receive_policy.leftovers == UseLeftovers::Extend)?;
        let (have, shape) = (existing.st_size as u64, self.shared.table(|table| table.shape(entry)));
        (!shape.is_sparse() && (MIN_COMPARED_SIZE..shape.size).contains(&have)).then_some(have)
    }

    fn resume(&mut self, entry: u32, written: RangeSet) -> Decision {
        let len = self.shared.ledger.lock().table.stream_len(entry);
        let mut missing = RangeSet::new();
        missing.insert(0..len);
        written.iter().for_each(|range| missing.remove(range));
        self.shared.ledger.lock().start_with(entry, written.clone());
        self.compare(entry, Some(written))?;
        Ok(EntryRequest::Ranges(missing.iter().map(Into::into).collect()))
    }

    pub(super) fn compare(&mut self, entry: u32, claimed: Option<RangeSet>) -> Result<(), Fault> {
        self.shared.open_comparison();
        let comparison = Comparison { entry, claimed, is_over: Arc::default() };
        self.shared.check(Check::Compare(comparison.clone()))?;
        self.to_hash.push(comparison);
        Ok(())
    }

    /// Returns the request needed to report what would be done to an entry.
    pub(crate) fn list_changes(&mut self, entry: u32, kind: Kind, path: &[u8]) -> Decision {
        let (existing, is_blocked) = match self.found(entry, kind, path) {
            Ok(found) => found,
            Err(io_fault) => return self.fail(entry, io_fault.fault),
        };
        match kind {
            // Reported once it is known whether the entry in its way is removed.
            Kind::File(_) if is_blocked => {
                self.would_resume(entry, path, None)?;
                self.shared.send_event(CommitEvent::Verified(entry))?;
                Ok(EntryRequest::Nothing)
            }
            Kind::File(_) => self.list_file_changes(entry, path, existing.is_some()),
            // Links are reported when everything else has arrived.
            Kind::Directory | Kind::Symlink | Kind::HardLink(_) => {
                if kind == Kind::Directory && existing.is_none() {
                    self.shared.report_item(path, Action::MakeDirectory)?;
                }
                self.shared.send_event(CommitEvent::Deferred)?;
                Ok(EntryRequest::All)
            }
            Kind::Unread => Ok(EntryRequest::All),
        }
    }

    /// Returns the kind of the file that the entry would replace, and whether another one would be removed
    /// first: at once for a directory, otherwise when everything has arrived.
    fn found(&self, entry: u32, kind: Kind, path: &[u8]) -> Result<(Option<FileType>, bool), IoFault> {
        if self.shared.table(|table| table.parent_failed(entry)) {
            return Err(missing_directory(path));
        }
        let existing = self.existing_kind(path)?;
        if !self.shared.permits_deletion() || !existing.is_some_and(|existing| is_obstacle(kind, existing)) {
            return check_kind(kind, existing, path).map(|()| (existing, false));
        }
        if kind == Kind::Directory {
            self.shared.count_one()?;
            self.shared.report_item(path, Action::Delete)?;
        }
        Ok((None, true))
    }

    fn existing_kind(&self, path: &[u8]) -> Result<Option<FileType>, IoFault> {
        let place = &self.shared.place;
        let local = place.local(path);
        let (parent, name) = split(&local);
        let directory = match place.directory(parent) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            // A directory replaces it first.
            Err(Errno::NOTDIR | Errno::LOOP) if self.shared.permits_deletion() => return Ok(None),
            // Its permissions are extended first.
            Err(Errno::ACCESS) if place.could_relax_permissions(parent) => return Ok(None),
            Err(errno) => return Err(obstacle_fault(path, errno)),
        };
        match lstatat_if_any(&directory, name) {
            Ok(stat) => Ok(stat.as_ref().map(kind_of)),
            Err(Errno::ACCESS) if place.could_relax_permissions(parent) => Ok(None),
            Err(errno) => Err(IoFault::destination("look at", path, errno)),
        }
    }

    fn list_file_changes(&mut self, entry: u32, path: &[u8], replaces: bool) -> Decision {
        match self.verdict(entry, path) {
            Verdict::Keep(existing) => {
                self.shared.report_item(path, self.shared.metadata_action(entry, path, &existing))?;
                self.keep(entry)
            }
            Verdict::KeepNewer(_) => {
                self.shared.report_item(path, Action::Keep)?;
                self.keep(entry)
            }
            Verdict::Compare => self.compare(entry, None).map(|()| EntryRequest::Compare),
            Verdict::Send(existing) => {
                self.would_resume(entry, path, existing.as_ref())?;
                self.shared.report_installed(entry, path, replaces)?;
                self.shared.send_event(CommitEvent::Verified(entry))?;
                Ok(EntryRequest::Nothing)
            }
        }
    }

    /// Records how many bytes of the file exist already, if it would be resumed.
    fn would_resume(&mut self, entry: u32, path: &[u8], existing: Option<&Stat>) -> Result<(), Fault> {
        let (identity, _) = self.shared.identity(entry, path);
        let receive_policy = self.shared.receive_policy;
        let claim = std::iter::from_fn(|| self.leftovers.as_mut()?.take(&identity.path))
            .find(|claim| is_claim_for(claim, &identity, receive_policy.leftovers));
        let have = claim
            .map(|claim| claim.record.written.total())
            .or_else(|| self.extendable_bytes(entry, existing));
        have.map_or(Ok(()), |have| self.shared.ledger.lock().resumed(entry, have))
    }
}

/// Whether a partial file is this one; a growing file may have been shorter then.
pub(super) fn is_claim_for(claim: &Claim, identity: &FileIdentity, leftovers: UseLeftovers) -> bool {
    let (old, new) = (&claim.record.identity, identity);
    match leftovers {
        UseLeftovers::Ignore => false,
        UseLeftovers::Resume => old == new,
        UseLeftovers::Extend => old == new || (old.shape == new.shape && old.size < new.size),
    }
}

/// Removes leftovers of files that are complete now. If a killed copy is repeated at once, the first receiver
/// is still running, and leaves its journal after the second one has looked for journals.
pub(crate) fn discard_superseded(shared: &Shared) {
    let Some(mut leftovers) = Leftovers::find(shared.place.base.directory.as_fd(), LockMode::Keep) else {
        return;
    };
    if !leftovers.is_empty() {
        let is_complete =
            |kind, state| matches!((kind, state), (Kind::File(_), EntryState::Done | EntryState::Kept));
        let complete: Vec<u32> = shared.table(|table| table.select(is_complete).collect());
        for entry in complete {
            leftovers.discard_all(&shared.place.local(&shared.path(entry)));
        }
        if let Some(name) = &shared.place.base.rename {
            leftovers.adopt_directory(name);
        }
    }
    leftovers.finish();
}

const BATCH: usize = 1024;

impl Shared {
    /// Reports that a file was or would be installed, replacing another one if `replaced`.
    pub(crate) fn report_installed(&self, entry: u32, path: &[u8], replaced: bool) -> Result<(), Fault> {
        let ledger = self.ledger.lock();
        let (have, size) = (ledger.resumes.get(&entry).copied(), ledger.table.size(entry));
        drop(ledger);
        let action = match have {
            Some(have) => Action::Resume { have, size },
            None if replaced => Action::Replace { size },
            None => Action::Send { size },
        };
        self.report_item(path, action)
    }

    /// Reports a change to a name: removals always, others in a dry run and with `--verbose`.
    pub(crate) fn report_item(&self, path: &[u8], action: Action) -> Result<(), Fault> {
        if self.receive_policy.run == RunMode::Move && action != Action::Delete {
            return Ok(());
        }
        // A path that is too long is not reported.
        let Ok(path) = RelPath::new(self.place.local(path)) else { return Ok(()) };
        let item = Item { path, action };
        self.link.changed(&item);
        // The user is on this side.
        if self.is_verbose() && self.expectations.is_some() {
            return Ok(());
        }
        let mut unreported = self.unreported.lock();
        unreported.push(item);
        let full = unreported.len() >= BATCH;
        drop(unreported);
        if full { self.report_remaining() } else { Ok(()) }
    }

    pub(crate) fn report_remaining(&self) -> Result<(), Fault> {
        let items = std::mem::take(&mut *self.unreported.lock());
        send_list(&*self.link, items, BATCH, ControlMessage::Items)
    }
}
