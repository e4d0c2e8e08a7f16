//! Handles the sender's messages until the job ends.

use crossbeam_channel::Sender;
use haul_wire::control::{ControlMessage, Entry, EntryKind, Extent, Fault, FaultCode, FileDigest, Rule};

use crate::fault::{early_disconnect, path_fault, show, unexpected, violation};
use crate::job::{Job as _, job_ended};
use crate::journal::{Leftovers, is_reserved, reserved};
use crate::receive::shared::{Check, CommitEvent, Comparison};
use crate::receive::write::Pipeline;
use crate::report::MoveReport;

pub(crate) struct MessageHandler {
    pub(crate) shared: Pipeline,
    pub(crate) leftovers: Option<Leftovers>,
    pub(crate) hashing: Sender<Comparison>,
    /// Files to be hashed once the entries have been requested.
    pub(crate) to_hash: Vec<Comparison>,
    /// First component of the single top-level entry, if it is renamed.
    pub(crate) source_root: Option<Vec<u8>>,
}

impl MessageHandler {
    /// Returns when the set is final or the job has failed.
    pub(crate) fn listen(&mut self) -> Result<MoveReport, Fault> {
        let lineage = self.shared.place.base.lineage(self.shared.permits_deletion());
        let link = &self.shared.link;
        let sent = link.send(ControlMessage::DestinationLineage(lineage));
        let ready = ControlMessage::Ready(self.shared.destination);
        if let Err(fault) = sent.and_then(|()| link.send(ready)) {
            self.shared.end_with(fault, false);
        }
        let shared = self.shared.clone();
        shared.listen(|message| self.handle(message))
    }

    fn handle(&mut self, message: ControlMessage) -> Result<(), Fault> {
        match message {
            ControlMessage::Digests(digests) => self.digests(digests),
            ControlMessage::Proofs(proofs) => self.shared.check(Check::proofs(&self.shared.budget, proofs)?),
            ControlMessage::Close => Err(early_disconnect("sender")),
            // The others describe the set.
            other if self.shared.progress.all_known() => Err(unexpected(&other)),
            ControlMessage::Entries(entries) => self.entries(&entries),
            ControlMessage::Extent(extent) => {
                let expectations = self.shared.expectations.as_ref();
                let limit = expectations.map_or(Extent::Destination, |expected| expected.extent);
                self.shared.ledger.lock().extent = extent.min(limit);
                Ok(())
            }
            ControlMessage::DestinationAttributes(attributes) => {
                self.shared.set_attributes(attributes);
                Ok(())
            }
            ControlMessage::LeftOut(rules) => self.left_out(rules),
            ControlMessage::Filtered(filtered) if self.shared.permits_deletion() => {
                self.shared.ledger.lock().filtered.take_in(&filtered, &self.shared.budget)
            }
            ControlMessage::Filtered(_) => Ok(()),
            ControlMessage::EntriesEnd { entries, bytes } => self.entries_end(entries, bytes),
            other => Err(unexpected(&other)),
        }
    }

    fn entries(&mut self, entries: &[Entry]) -> Result<(), Fault> {
        if let (None, Some(entry)) = (&self.source_root, entries.first()) {
            self.check_source_root(entry)?;
        }
        let first = self.shared.ledger.lock().table.len();
        let mut requests = Vec::with_capacity(entries.len());
        for entry in entries {
            entry.validate().map_err(|e| violation(&e.to_string()))?;
            self.check_expected(entry)?;
            let refusal = self.refusal(entry);
            let extras = entry.extras.as_ref().map(|extras| self.shared.metadata.permitted(extras));
            let mut ledger = self.shared.ledger.lock();
            let index = ledger.table.len();
            let failed = match refusal {
                Some(fault) => Some(ledger.table.push_failed(entry, fault)?),
                None => ledger.table.push(entry)?,
            };
            self.shared.budget.take_entry(ledger.table.cost(index))?;
            if let Some(extras) = extras.filter(|_| failed.is_none()) {
                self.shared.budget.take(ledger.extras.insert(index, extras))?;
            }
            let is_special = failed.as_ref().is_some_and(|fault| fault.code == FaultCode::SpecialFile);
            if is_special && self.shared.permits_deletion() {
                ledger.filtered.insert_special(entry.path.as_bytes());
            }
            drop(ledger);
            self.shared.progress.entries.add(1);
            if let Some(fault) = failed {
                self.shared.send_event(CommitEvent::failed(&self.shared.budget, index, fault)?)?;
            }
            requests.push(self.decide(index)?);
            if !self.shared.makes_nothing() {
                self.shared.prepare(index).or_else(|io_fault| self.shared.failed(index, io_fault))?;
            }
        }
        self.shared.report_remaining()?;
        self.shared.send_requests(first, &requests)?;
        // Only now, since it may lead to more requests.
        self.to_hash.drain(..).try_for_each(|job| self.hashing.send(job).map_err(job_ended))?;
        self.shared.queue.signal_work();
        Ok(())
    }

    /// Handles the first entry, which identifies the source.
    fn check_source_root(&mut self, entry: &Entry) -> Result<(), Fault> {
        let root = entry.path.components().next().unwrap_or_default();
        if let Some(source) = self.shared.place.base.made_for.as_deref().filter(|&source| source != root) {
            let name = show(self.shared.place.base.rename.as_deref().unwrap_or_default());
            let message = format!("`{name}` belongs to an unfinished copy of `{}`", show(source));
            let hint = format!(
                "end the destination with `/` to copy into it; to discard the unfinished copy, run `haul clean` on the receiver in the directory that contains `{name}`"
            );
            return Err(Fault::new(FaultCode::Usage, message, hint));
        }
        // Takes over the directory that an earlier job made for this source.
        if let (Some(leftovers), Some(name), false) =
            (&mut self.leftovers, self.shared.place.base.rename.as_deref(), self.shared.is_dry_run())
        {
            leftovers.adopt_directory(name);
        }
        self.source_root = Some(root.to_vec());
        Ok(())
    }

    fn left_out(&self, rules: Vec<Rule>) -> Result<(), Fault> {
        let mut ledger = self.shared.ledger.lock();
        ledger.left_out.rules.extend(rules);
        ledger.left_out.validate().map_err(|why| violation(&why.to_string()))
    }

    /// Fails if an entry was not requested, or cannot be written to a pipe.
    fn check_expected(&self, entry: &Entry) -> Result<(), Fault> {
        if self.shared.place.is_nowhere()
            && !matches!(entry.kind, EntryKind::File { .. } | EntryKind::Failed(_))
        {
            let what = "is not a regular file; only regular files can be written to stdout";
            let hint = "name the files, or copy it to a directory";
            return Err(path_fault(FaultCode::Usage, entry.path.as_bytes(), what, hint));
        }
        let covers = self.shared.expectations.as_ref().is_none_or(|expected| expected.covers(&entry.path));
        // Nothing is created for unreadable entries.
        if covers || matches!(entry.kind, EntryKind::Failed(_)) {
            return Ok(());
        }
        Err(Fault::new(
            FaultCode::NotPermitted,
            format!("the server sends `{}`, which was not requested; do not trust it", entry.path),
            "it was not written; find out what runs on that machine",
        ))
    }

    /// Returns why this entry may not be created here, independent of the others.
    fn refusal(&mut self, entry: &Entry) -> Option<Fault> {
        if matches!(entry.kind, EntryKind::Failed(_)) {
            return None;
        }
        if entry.path.components().any(is_reserved) {
            return Some(reserved(&show(entry.path.as_bytes())));
        }
        self.shared.place.base.rename.as_ref()?;
        let first = entry.path.components().next().unwrap_or_default();
        (self.source_root.as_deref() != Some(first)).then(|| {
            let message = format!("only one source can be copied to this name, not also `{}`", show(first));
            let hint = "end the destination with `/` to copy several sources into it";
            Fault::new(FaultCode::Usage, message, hint)
        })
    }

    fn entries_end(&mut self, entries: u64, bytes: u64) -> Result<(), Fault> {
        if self.shared.table(|table| (table.len().into(), table.bytes)) != (entries, bytes) {
            return Err(violation("the entries are not as many as announced"));
        }
        self.shared.progress.set_all_known();
        self.remove_leftovers();
        self.shared.end_requests()?;
        self.shared.send_event(CommitEvent::End(entries))
    }

    /// Removes useless leftovers, before directories get their times.
    pub(crate) fn remove_leftovers(&mut self) {
        if let Some(leftovers) = self.leftovers.take().filter(|_| !self.shared.is_dry_run()) {
            leftovers.finish();
        }
    }

    fn digests(&self, digests: Vec<FileDigest>) -> Result<(), Fault> {
        self.shared
            .table(|table| digests.iter().try_for_each(|digest| table.file(digest.entry).map(drop)))?;
        self.shared.check(Check::expected(&self.shared.budget, digests)?)
    }
}
