//! Decides what to request of each entry, given the destination's contents.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use haul_base::RangeSet;
use haul_wire::control::{Destination, EntryRequest, Equal, Fault, Leftovers as UseLeftovers, Newer};
use rustix::fs::Stat;

use crate::entries::{EntryState, Kind};
use crate::journal::{Claim, FileIdentity, Leftovers, LockMode};
use crate::receive::messages::MessageHandler;
use crate::receive::place::attributes;
use crate::receive::place::dir_entry::collision;
use crate::receive::shared::{Check, CommitEvent, Comparison, Shared};
use crate::storage::Mtime;

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
        match self.verdict(entry, path) {
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
            Verdict::Send(existing) => self.resume_or_send(entry, path, existing.as_ref()),
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
        let same_time = |existing: &Stat| attributes::same_time(existing, source.mtime) || stored(existing);
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
    fn resume_or_send(&mut self, entry: u32, path: &[u8], existing: Option<&Stat>) -> Decision {
        let (identity, shape) = self.shared.identity(entry, path);
        if let Some(leftovers) = &mut self.leftovers {
            while let Some(claim) = leftovers.take(&identity.path) {
                if is_claim_for(&claim, &identity, self.shared.receive_policy.leftovers)
                    && self.shared.place.adopt((entry, path), &claim, &identity, &shape)
                {
                    leftovers.consumed(&claim);
                    return self.resume(entry, claim.record.written);
                }
                leftovers.discard(&claim);
            }
        }
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
