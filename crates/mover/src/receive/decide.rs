//! Decides what to request of each entry, given the destination's contents.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use haul_base::RangeSet;
use haul_wire::control::{Destination, Equal, Fault, Leftovers as UseLeftovers, Newer, Want};
use rustix::fs::Stat;

use crate::entries::{EntryState, Kind};
use crate::journal::{Claim, FileIdentity, Hold, Leftovers};
use crate::receive::peer::Peer;
use crate::receive::place::attributes;
use crate::receive::place::dir_entry::collision;
use crate::receive::shared::{Check, Comparison, Settle, Shared};
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

impl Peer {
    pub(crate) fn want(&mut self, entry: u32) -> Result<Want, Fault> {
        let (state, kind, path) =
            self.shared.table(|table| (table.state(entry), table.kind(entry), table.path(entry)));
        match kind {
            // Without requests files arrive whole, also those refused here.
            _ if self.shared.destination == Destination::Fresh => Ok(Want::Whole),
            _ if state == EntryState::Failed => Ok(Want::Nothing),
            _ if self.shared.is_dry_run() => self.list_changes(entry, kind, &path),
            Kind::File(_) => self.want_file(entry, &path),
            Kind::Unread | Kind::Directory | Kind::Symlink | Kind::HardLink(_) => Ok(Want::Whole),
        }
    }

    fn want_file(&mut self, entry: u32, path: &[u8]) -> Result<Want, Fault> {
        match self.verdict(entry, path) {
            // The job created it under another name.
            Verdict::Keep(there) | Verdict::KeepNewer(there) if !self.shared.place.keeps(path, &there) => {
                self.fail(entry, collision(path).fault)
            }
            Verdict::Keep(there) => {
                if let Some(leftovers) = self.leftovers.as_mut().filter(|leftovers| !leftovers.is_empty()) {
                    leftovers.discard_all(&self.shared.place.local(path));
                }
                self.shared.correct(entry, path, &there);
                self.kept(entry)
            }
            Verdict::KeepNewer(_) => self.kept(entry),
            Verdict::Compare => self.compare(entry, None).map(|()| Want::Compare),
            Verdict::Send(existing) => self.claimed(entry, path, existing.as_ref()),
        }
    }

    pub(super) fn verdict(&self, entry: u32, path: &[u8]) -> Verdict {
        let receive_policy = self.shared.receive_policy;
        let (wanted, shape) = self.shared.table(|table| (table.attributes(entry), table.shape(entry)));
        let Some(there) = self.shared.place.existing(path) else { return Verdict::Send(None) };
        if receive_policy.newer == Newer::Keep && Mtime::of(&there) > wanted.mtime {
            return Verdict::KeepNewer(there);
        }
        let same_size = there.st_size as u64 == shape.size;
        // The time resolution of the file system is only known after storing a time.
        let stored =
            |there: &Stat| !self.shared.is_dry_run() && self.shared.place.stores_time_as(path, there, wanted);
        let same_time = |there: &Stat| attributes::same_time(there, wanted.mtime) || stored(there);
        match receive_policy.equal {
            Equal::SizeAndTime if same_size && same_time(&there) => Verdict::Keep(there),
            Equal::Contents if same_size && shape.size == 0 => Verdict::Keep(there),
            // Holes are not read, so the data in their place could not be compared.
            Equal::Contents if same_size && !shape.is_sparse() => Verdict::Compare,
            Equal::Contents | Equal::SizeAndTime | Equal::Nothing => Verdict::Send(Some(there)),
        }
    }

    pub(super) fn fail(&self, entry: u32, fault: Fault) -> Result<Want, Fault> {
        self.shared.give_up(entry);
        self.shared.settle(Settle::failed(&self.shared.budget, entry, fault)?)?;
        Ok(Want::Nothing)
    }

    pub(super) fn kept(&self, entry: u32) -> Result<Want, Fault> {
        self.shared.book.lock().table.set_state(entry, EntryState::Kept);
        self.shared.settle(Settle::Held)?;
        Ok(Want::Kept)
    }

    /// Reuses what an earlier attempt left, if it was the same file.
    fn claimed(&mut self, entry: u32, path: &[u8], existing: Option<&Stat>) -> Result<Want, Fault> {
        let (identity, shape) = self.shared.identity(entry, path);
        if let Some(leftovers) = &mut self.leftovers {
            while let Some(claim) = leftovers.take(&identity.path) {
                if is_claim_for(&claim, &identity, self.shared.receive_policy.leftovers)
                    && self.shared.place.adopt((entry, path), &claim, &identity, &shape)
                {
                    leftovers.consumed(&claim);
                    return self.resume(entry, claim.noted.written);
                }
                leftovers.discard(&claim);
            }
        }
        match self.extends(entry, existing) {
            Some(have) if self.shared.place.begin_with(entry, path, have, &identity) => {
                let mut written = RangeSet::new();
                written.insert(0..have);
                self.resume(entry, written)
            }
            _ => Ok(Want::Whole),
        }
    }

    /// Returns the length of an existing shorter file, if it counts as the file's beginning.
    pub(super) fn extends(&self, entry: u32, existing: Option<&Stat>) -> Option<u64> {
        let there = existing.filter(|_| self.shared.receive_policy.leftovers == UseLeftovers::Extend)?;
        let (have, shape) = (there.st_size as u64, self.shared.table(|table| table.shape(entry)));
        (!shape.is_sparse() && (MIN_COMPARED_SIZE..shape.size).contains(&have)).then_some(have)
    }

    fn resume(&mut self, entry: u32, written: RangeSet) -> Result<Want, Fault> {
        let len = self.shared.book.lock().table.stream_len(entry);
        let mut missing = RangeSet::new();
        missing.insert(0..len);
        written.iter().for_each(|range| missing.remove(range));
        self.shared.book.lock().start_with(entry, written.clone());
        self.compare(entry, Some(written))?;
        Ok(Want::Rest(missing.iter().map(Into::into).collect()))
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
    let (old, new) = (&claim.noted.identity, identity);
    match leftovers {
        UseLeftovers::Ignore => false,
        UseLeftovers::Resume => old == new,
        UseLeftovers::Extend => old == new || (old.shape == new.shape && old.size < new.size),
    }
}

/// Removes leftovers of files that are complete now. If a killed copy is repeated at once, the first receiver
/// is still running, and leaves its journal after the second one has looked for journals.
pub(crate) fn clear_overtaken(shared: &Shared) {
    let Some(mut leftovers) = Leftovers::find(shared.place.base.directory.as_fd(), Hold::Keep) else {
        return;
    };
    if !leftovers.is_empty() {
        let is_complete =
            |kind, state| matches!((kind, state), (Kind::File(_), EntryState::Done | EntryState::Kept));
        let complete: Vec<u32> = shared.table(|table| table.those(is_complete).collect());
        for entry in complete {
            leftovers.discard_all(&shared.place.local(&shared.path(entry)));
        }
        if let Some(name) = &shared.place.base.rename {
            leftovers.adopt_directory(name);
        }
    }
    leftovers.finish();
}
