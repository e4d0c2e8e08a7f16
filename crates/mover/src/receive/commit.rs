//! Puts verified files under their final names, in groups, and finishes the set.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvError};
use haul_wire::control::{ControlMessage, Fault, Outcome, Summary, encoded_len};
use rustix::fs::{FileType, fstat, fsync, syncfs};
use rustix::io::Errno;

use crate::batch::next_part;
use crate::digest::set_digest;
use crate::entries::{Attributes, Kind, State};
use crate::fault::{Scope, Side, Trouble};
use crate::receive::attributes::set_on_open;
use crate::receive::extraneous;
use crate::receive::shared::{Durability, Settle, Shared};

/// Files committed together at most.
const GROUP: usize = 1024;

/// Up to so many files or directories are synced one by one; more, by file system.
const FEW: usize = 8;

/// Outcomes in one message.
const OUTCOME_BATCH: usize = 1024;

pub(crate) struct Committer {
    shared: Arc<Shared>,
    settles: Receiver<Settle>,
    ready: Vec<u32>,
    outcomes: Vec<Outcome>,
    settled: u64,
    total: Option<u64>,
}

/// A verified file and what it is to become.
struct Item {
    entry: u32,
    path: Vec<u8>,
    attributes: Attributes,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, settles: Receiver<Settle>) -> Self {
        Self { shared, settles, ready: Vec::new(), outcomes: Vec::new(), settled: 0, total: None }
    }

    /// Works until the set is final, or until the job has failed.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.work() {
            self.shared.fail(fault);
        }
    }

    fn work(&mut self) -> Result<(), Fault> {
        while self.total != Some(self.settled) {
            if self.gather().is_err() || self.shared.ending().is_some() {
                return Ok(());
            }
            let ready = std::mem::take(&mut self.ready);
            self.commit(&ready)?;
            self.flush()?;
        }
        self.finish_links()?;
        self.remove_extraneous()?;
        self.finish_directories()?;
        self.finish()
    }

    /// Waits for something to do and takes what is there.
    fn gather(&mut self) -> Result<(), RecvError> {
        let first = self.settles.recv()?;
        self.absorb(first);
        while self.ready.len() < GROUP && self.outcomes.len() < OUTCOME_BATCH {
            let Ok(next) = self.settles.try_recv() else { break };
            self.absorb(next);
        }
        Ok(())
    }

    fn absorb(&mut self, settle: Settle) {
        match settle {
            Settle::End(total) => self.total = Some(total),
            Settle::Held => self.settled += 1,
            Settle::Verified(entry) => self.ready.push(entry),
            Settle::Same(entry) => self.same(entry),
            Settle::Failed(entry, fault) => self.failed(entry, fault),
            Settle::Unread(entry, fault) => self.count_failure(entry, fault),
        }
    }

    fn same(&mut self, entry: u32) {
        self.shared.book().table.set_state(entry, State::Kept);
        self.settled += 1;
        self.succeeded(entry);
    }

    fn failed(&mut self, entry: u32, fault: Fault) {
        self.outcomes.push(Outcome { entry: entry.into(), fault: Some(fault.clone()) });
        self.count_failure(entry, fault);
    }

    fn count_failure(&mut self, entry: u32, fault: Fault) {
        self.settled += 1;
        self.shared.progress.one_failed();
        let mut book = self.shared.book();
        let path = book.table.path(entry);
        book.failures.add(&path, fault);
    }

    /// One entry did not work out; or the job is over.
    fn give_up(&mut self, entry: u32, path: &[u8], trouble: Trouble) -> Result<(), Fault> {
        if trouble.scope == Scope::Job {
            return Err(trouble.fault);
        }
        self.shared.place.discard(entry, path);
        self.shared.book().table.set_state(entry, State::Failed);
        self.failed(entry, trouble.fault);
        Ok(())
    }

    /// Attributes, then the contents to the disk, then the names, then the names to the disk.
    fn commit(&mut self, entries: &[u32]) -> Result<(), Fault> {
        if entries.is_empty() {
            return Ok(());
        }
        if self.shared.only_looks() {
            self.would_commit(entries);
            return Ok(());
        }
        let book = self.shared.book();
        let item = |&entry: &u32| Item {
            entry,
            path: book.table.path(entry),
            attributes: book.table.attributes(entry),
        };
        let items: Vec<Item> = entries.iter().map(item).collect();
        drop(book);
        let items = self.complete(items)?;
        self.install(&items)
    }

    /// Sets attributes and syncs contents; returns the items for which that worked.
    fn complete(&mut self, items: Vec<Item>) -> Result<Vec<Item>, Fault> {
        let few = items.len() <= FEW;
        let mut kept = Vec::with_capacity(items.len());
        let mut sync = Syncs::new(self.shared.durability);
        for item in items {
            let done = self.shared.place.file(item.entry, || item.path.clone()).and_then(|file| {
                let set = set_on_open(&*file, item.attributes, FileType::RegularFile);
                set.and_then(|()| sync.contents(&file, few))
                    .map_err(|errno| trouble("finish", &item.path, errno))
            });
            match done {
                Ok(()) => kept.push(item),
                Err(trouble) => self.give_up(item.entry, &item.path, trouble)?,
            }
        }
        sync.finish()?;
        Ok(kept)
    }

    fn install(&mut self, items: &[Item]) -> Result<(), Fault> {
        let mut directories: HashMap<*const OwnedFd, Arc<OwnedFd>> = HashMap::new();
        let mut done = Vec::with_capacity(items.len());
        for item in items {
            match self.shared.place.install(item.entry, &item.path) {
                Ok(spot) => {
                    directories.insert(Arc::as_ptr(&spot.directory), spot.directory);
                    self.shared.book().table.set_state(item.entry, State::Done);
                    done.push(item.entry);
                }
                Err(trouble) => self.give_up(item.entry, &item.path, trouble)?,
            }
        }
        let few = directories.len() <= FEW;
        let mut sync = Syncs::new(self.shared.durability);
        for directory in directories.values() {
            sync.contents(directory, few)
                .map_err(|errno| trouble("sync", b"the destination", errno).fault)?;
        }
        sync.finish()?;
        for entry in done {
            self.succeeded(entry);
            self.settled += 1;
            self.shared.progress.file_done();
        }
        Ok(())
    }

    /// In a dry run: nothing has to be done.
    fn would_commit(&mut self, entries: &[u32]) {
        for &entry in entries {
            self.shared.book().table.set_state(entry, State::Done);
            self.succeeded(entry);
            self.settled += 1;
            self.shared.progress.file_done();
        }
    }

    /// When everything else has succeeded; before directories get their times.
    fn remove_extraneous(&mut self) -> Result<(), Fault> {
        if let Some(removal) = extraneous::sweep(&self.shared)? {
            self.shared.link.send(ControlMessage::Removed(removal.clone()))?;
            self.shared.book().removal = removal;
        }
        Ok(())
    }

    fn succeeded(&mut self, entry: u32) {
        self.outcomes.push(Outcome { entry: entry.into(), fault: None });
    }

    fn flush(&mut self) -> Result<(), Fault> {
        while !self.outcomes.is_empty() {
            let batch = next_part(&mut self.outcomes, OUTCOME_BATCH, encoded_len);
            self.shared.link.send(ControlMessage::Outcomes(batch))?;
        }
        Ok(())
    }

    /// Entries of a kind that have not failed, with whether they were started.
    fn held(&self, kind: Kind) -> Vec<u32> {
        let book = self.shared.book();
        let table = &book.table;
        (0..table.len()).filter(|&e| table.kind(e) == kind && table.state(e) != State::Failed).collect()
    }

    /// Links come last, so that nothing is ever written through one.
    fn finish_links(&mut self) -> Result<(), Fault> {
        for entry in self.held(Kind::Symlink) {
            let book = self.shared.book();
            let (path, attributes) = (book.table.path(entry), book.table.attributes(entry));
            let target = book.table.target(entry).to_vec();
            drop(book);
            let looks = self.shared.only_looks();
            let make = || self.shared.place.make_link(entry, &path, &target, attributes);
            let made = if looks { Ok(()) } else { make() };
            self.held_is_done(entry, &path, made)?;
        }
        Ok(())
    }

    /// Directories from the deepest up: what is done in one changes its time and needs its permissions.
    fn finish_directories(&mut self) -> Result<(), Fault> {
        for entry in self.held(Kind::Directory).into_iter().rev() {
            let book = self.shared.book();
            let (path, attributes) = (book.table.path(entry), book.table.attributes(entry));
            let made = book.table.state(entry) == State::Started;
            drop(book);
            let looks = self.shared.only_looks();
            let finish = || self.shared.place.finish_directory(&path, attributes, made);
            let set = if looks { Ok(()) } else { finish() };
            self.held_is_done(entry, &path, set)?;
        }
        Ok(())
    }

    /// A link or directory, which counts as settled already.
    fn held_is_done(&mut self, entry: u32, path: &[u8], done: Result<(), Trouble>) -> Result<(), Fault> {
        match done {
            Ok(()) => {
                self.shared.book().table.set_state(entry, State::Done);
                self.succeeded(entry);
            }
            Err(trouble) => {
                self.give_up(entry, path, trouble)?;
                self.settled -= 1;
            }
        }
        if self.outcomes.len() >= OUTCOME_BATCH && self.shared.durability == Durability::Cached {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Fault> {
        self.shared.tell_the_rest()?;
        let removed = self.shared.book().removal.removed > 0;
        if (removed || !self.outcomes.is_empty()) && !self.shared.only_looks() {
            // Links, directories and removed names; files are on the disk already.
            let mut sync = Syncs::new(self.shared.durability);
            sync.contents(self.shared.place.base(), false)
                .map_err(|errno| trouble("sync", b"the destination", errno).fault)?;
            sync.finish()?;
        }
        self.flush()?;
        let book = self.shared.book();
        let summary = Summary {
            entries: book.table.len().into(),
            failed: book.failures.count(),
            bytes: book.layout.len(),
            digest: set_digest(&book.table),
        };
        drop(book);
        self.shared.set_finished();
        self.shared.link.send(ControlMessage::Finish(summary))
    }
}

fn trouble(doing: &str, path: &[u8], errno: Errno) -> Trouble {
    Trouble::new(Side::Destination, doing, path, errno)
}

/// Syncs a group: one by one if they are few, else each of their file systems once.
struct Syncs {
    durability: Durability,
    file_systems: HashMap<u64, OwnedFd>,
}

impl Syncs {
    fn new(durability: Durability) -> Self {
        Self { durability, file_systems: HashMap::new() }
    }

    /// Syncs now, or remembers the file system.
    #[expect(clippy::useless_conversion, reason = "the field differs between architectures")]
    fn contents(&mut self, fd: &impl AsFd, few: bool) -> Result<(), Errno> {
        if self.durability == Durability::Cached {
            return Ok(());
        }
        if few {
            return unless_path_only(fsync(fd));
        }
        let device = u64::from(fstat(fd)?.st_dev);
        if let Entry::Vacant(vacant) = self.file_systems.entry(device) {
            vacant.insert(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Fault> {
        for fd in self.file_systems.values() {
            unless_path_only(syncfs(fd)).map_err(|errno| trouble("sync", b"the destination", errno).fault)?;
        }
        Ok(())
    }
}

/// Directories that may be entered but not listed cannot be synced.
fn unless_path_only(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::BADF | Errno::INVAL) => Ok(()),
        done => done,
    }
}
