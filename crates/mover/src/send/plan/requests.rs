//! Turns the receiver's requests into jobs for the reader and the prover.

use std::sync::Arc;

use haul_wire::control::{ByteRange, EntryRequest, Fault, More, RequestRun};
use haul_wire::packet::MAX_OFFSET;

use crate::entries::EntryState;
use crate::fault::violation;
use crate::send::blocks::{Sections, SourceFile};
use crate::send::shared::{BlockHashes, HashJob, Partial, ReadJob, Requests, Shared};
use crate::tree::{Groups, Value};

/// Memory in bytes for a file that the receiver had in part, with its path.
const OF_PARTIAL: u64 = 1024;

impl Requests {
    /// Appends ranges of a file to the object.
    pub(crate) fn read(&mut self, shared: &Shared, job: ReadJob) -> Result<(), Fault> {
        let bytes = job.sections.as_ref().map_or(job.file.shape.len, |sections| sections.len);
        let end = self.object.checked_add(bytes).filter(|&end| end <= MAX_OFFSET);
        self.object = end.ok_or_else(|| violation("the set is larger than any object may be"))?;
        shared.progress.bytes_known.add(bytes);
        // An empty file has a digest, too.
        if bytes > 0 || job.sections.is_none() {
            // The reader ends only with the job.
            let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        }
        Ok(())
    }

    pub(crate) fn handle_requests(&mut self, shared: &Shared, runs: &[RequestRun]) -> Result<(), Fault> {
        for run in runs {
            let known = u64::from(shared.ledger.lock().table.len() - self.answered);
            if run.count == 0 || run.count > known {
                return Err(violation("a reply about entries that were not announced"));
            }
            for _ in 0..run.count {
                let entry = self.answered;
                self.answered += 1;
                self.handle_request(shared, entry, &run.request)?;
            }
        }
        Ok(())
    }

    fn handle_request(&mut self, shared: &Shared, entry: u32, request: &EntryRequest) -> Result<(), Fault> {
        let is_file = self.announced.front().is_some_and(|file| file.entry == entry);
        let file = if is_file { self.announced.pop_front() } else { None };
        match (request, file) {
            (EntryRequest::Nothing, _) | (EntryRequest::All, None) => Ok(()),
            (_, None) => Err(violation("parts of an entry that is not a file were requested")),
            (EntryRequest::All, Some(file)) => {
                self.read(shared, ReadJob { file, sections: None, hashes: None })
            }
            (EntryRequest::Kept, Some(_)) => {
                shared.ledger.lock().table.set_state(entry, EntryState::Kept);
                Ok(())
            }
            (EntryRequest::Compare, Some(file)) => self.request_ranges(shared, file, &[], EntryState::Kept),
            (EntryRequest::Ranges(ranges), Some(file)) => {
                self.request_ranges(shared, file, ranges, EntryState::Done)
            }
        }
    }

    fn request_ranges(
        &mut self,
        shared: &Shared,
        file: Arc<SourceFile>,
        ranges: &[ByteRange],
        state_if_unsent: EntryState,
    ) -> Result<(), Fault> {
        let len = file.shape.len;
        let sections = sections(shared, ranges, len)?;
        let groups = Groups::of(len);
        // The values of the groups, and the list of those left to the prover.
        let group_bytes = groups.count() as usize * (size_of::<Option<Value>>() + size_of::<u32>());
        let reserved = shared.budget.reserve(OF_PARTIAL + group_bytes as u64)?;
        let hashes = Arc::new(BlockHashes::new(file.clone()));
        let mut sent = groups.touched_by(sections.ranges()).peekable();
        let hashed_separately: Vec<u32> =
            (0..groups.count()).filter(|group| sent.next_if_eq(group).is_none()).collect();
        drop(sent);
        let (bytes, entry) = (sections.len, file.entry);
        let partial =
            Partial { hashes: hashes.clone(), state_if_unsent, bytes, differs: false, _reserved: reserved };
        self.partial.insert(entry, partial);
        self.read(shared, ReadJob { file, sections: Some(sections), hashes: Some(hashes.clone()) })?;
        if !hashed_separately.is_empty() || groups.count() == 0 {
            let job = HashJob { hashes, groups: hashed_separately };
            // The prover ends only with the job.
            let _ = self.proofs.as_ref().map(|proofs| proofs.send(job));
        }
        Ok(())
    }

    /// Sends further ranges, because the receiver's data turned out to differ.
    pub(crate) fn more(&mut self, shared: &Shared, more: &More) -> Result<(), Fault> {
        let entry = u32::try_from(more.entry).ok();
        let Some(partial) = entry.and_then(|entry| self.partial.get_mut(&entry)) else {
            return Err(violation("more data was requested of a file that is not being compared"));
        };
        let file = partial.hashes.file.clone();
        let len = file.shape.len;
        let sections = sections(shared, &more.ranges, len)?;
        partial.bytes += sections.len;
        partial.differs = true;
        if self.jobs.is_none() || partial.bytes > len.saturating_mul(2) {
            return Err(violation("more data was requested than exists"));
        }
        self.read(shared, ReadJob { file, sections: Some(sections), hashes: None })
    }

    pub(crate) fn end(&mut self, shared: &Shared, bytes: u64) -> Result<(), Fault> {
        let all = shared.progress.all_known() && self.answered == shared.ledger.lock().table.len();
        if !all || self.jobs.is_none() || bytes != self.object {
            return Err(violation("the end of the receiver's requests does not match their total length"));
        }
        self.jobs = None;
        Ok(())
    }

    /// Settles an entry. Returns its final state, and how many of its bytes were not sent because the
    /// receiver had them.
    pub(crate) fn settled(&mut self, entry: u32) -> (EntryState, u64) {
        let Some(partial) = self.partial.remove(&entry) else { return (EntryState::Done, 0) };
        let unsent = partial.hashes.file.shape.len.saturating_sub(partial.bytes);
        match partial.state_if_unsent {
            EntryState::Kept if !partial.differs => (EntryState::Kept, 0),
            EntryState::Kept => (EntryState::Done, 0),
            _ => (EntryState::Done, unsent),
        }
    }
}

/// Checks ranges received from the peer, and reserves memory for them.
fn sections(shared: &Shared, ranges: &[ByteRange], len: u64) -> Result<Arc<Sections>, Fault> {
    if !ByteRange::in_order(ranges, len) {
        return Err(violation("ranges that a file does not have are requested"));
    }
    let reserved = shared.budget.reserve(ranges.len() as u64 * Sections::EACH)?;
    let ranges = ranges.iter().map(|range| range.start..range.start + range.len);
    Ok(Arc::new(Sections::new(ranges, Some(reserved))))
}
