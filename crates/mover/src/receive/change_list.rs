//! Reports changes to names. In a dry run, reports what would be done to each entry without doing it.

use haul_wire::control::{Action, ControlMessage, EntryRequest, Fault, Item, RelPath, RunMode};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::entries::Kind;
use crate::fault::IoFault;
use crate::link::send_list;
use crate::receive::decide::{Decision, Verdict, is_claim_for};
use crate::receive::delete::is_obstacle;
use crate::receive::messages::MessageHandler;
use crate::receive::place::{check_kind, obstacle_fault};
use crate::receive::shared::{CommitEvent, Shared};
use crate::receive::write::missing_parent;
use crate::root::split;
use crate::storage::{kind_of, lstatat_if_any};

impl MessageHandler {
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
            return Err(missing_parent(path));
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
        self.progress.report(&item);
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
