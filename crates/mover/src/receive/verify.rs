//! Hashes written data and compares it with the sender's hashes.
//!
//! A group of a file is hashed from memory if its bytes arrive in order; otherwise it is read back from the
//! temporary file once it is complete. Data that existed before the job is hashed by [`compare`] in another
//! thread, and compared here group by group.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blake3::Hasher;
use crossbeam_channel::{Receiver, Sender};
use haul_base::AlignedBytes;
use haul_wire::control::{Action, Fault, FaultCode, FileDigest, Proof};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use crate::budget::Reserved;
use crate::entries::EntryState;
use crate::fault::{IoFault, Scope, violation};
use crate::job::job_ended;
use crate::receive::place::files::digest_mismatch;
use crate::receive::shared::{Check, CommitEvent, Comparison, Shared, Written, text};
use crate::storage::read_exact_at;
use crate::stream::Shape;
use crate::tree::{Groups, Tree, Value};

/// Maximum number of groups hashed as their bytes arrive; a hasher takes 2 KiB. The others are read back.
const MAX_IN_ORDER: usize = 1024;

/// Memory per file being hashed, here and for its temporary file, in bytes.
const IN_PROGRESS: u64 = 384;

/// Memory per incomplete file with a known digest, in bytes.
const EXPECTED: usize = 2 * size_of::<(u32, Result<Value, Fault>)>();

/// Hashes of groups of an incomplete file.
struct Hashing {
    tree: Tree,
    /// If the file has existing data.
    compared: Option<Box<FileComparison>>,
    _reserved: Reserved,
}

struct FileComparison {
    proofs: Tree,
    /// Groups with existing bytes that have not been compared yet; when none is left, the requests end.
    unchecked: BTreeSet<u32>,
    /// Requested bytes of a temporary file; `None` for an existing file.
    requested: Option<u64>,
    is_over: Arc<AtomicBool>,
    _reserved: Reserved,
}

pub(crate) struct Verifier {
    shared: Arc<Shared>,
    checks: Receiver<Check>,
    events: Sender<CommitEvent>,
    hashing: HashMap<u32, Hashing>,
    /// Hashers of groups that have arrived in order so far, by file and number, and their ends.
    in_order: BTreeMap<(u32, u32), Box<(Hasher, u64)>>,
    /// In a dry run: files found to differ.
    different: HashSet<u32>,
    expected: HashMap<u32, (Result<Value, Fault>, Reserved)>,
    buffer: AlignedBytes,
}

impl Verifier {
    pub(crate) fn new(shared: Arc<Shared>, checks: Receiver<Check>, events: Sender<CommitEvent>) -> Self {
        Self {
            shared,
            checks,
            events,
            hashing: HashMap::new(),
            in_order: BTreeMap::new(),
            different: HashSet::new(),
            expected: HashMap::new(),
            buffer: AlignedBytes::zeroed(READ),
        }
    }

    pub(crate) fn run(mut self) -> Result<(), Fault> {
        while let Ok(check) = self.checks.recv() {
            if self.shared.has_ended() {
                break;
            }
            self.check(check)?;
        }
        Ok(())
    }

    fn check(&mut self, check: Check) -> Result<(), Fault> {
        self.shared.progress.other_steps.add(1);
        match check {
            Check::Written(written) => self.written(&written),
            Check::Expected { digests, .. } => digests.into_iter().try_for_each(|digest| self.expect(digest)),
            Check::Compare(comparison) => self.compare(comparison),
            Check::Existing { entry, group, value } => self.existing_hashed(entry, group, value),
            Check::Proofs { proofs, .. } => proofs.iter().try_for_each(|proof| self.proof(proof)),
            Check::Abandoned(entry) => self.drop_entry(entry).map(drop),
        }
    }

    fn begin(&mut self, entry: u32, len: u64) -> Result<&mut Hashing, Fault> {
        match self.hashing.entry(entry) {
            Entry::Occupied(begun) => Ok(begun.into_mut()),
            Entry::Vacant(vacant) => {
                let groups = Groups::of(len);
                // Without the hashers, which are few.
                let bytes = IN_PROGRESS + u64::from(groups.count()) * size_of::<Option<Value>>() as u64;
                let reserved = self.shared.budget.reserve(bytes)?;
                Ok(vacant.insert(Hashing { tree: Tree::new(groups), compared: None, _reserved: reserved }))
            }
        }
    }

    /// Forgets the hashes of a file, and ends its comparison with existing data. Returns the comparison.
    fn forget(&mut self, entry: u32) -> Result<Option<Box<FileComparison>>, Fault> {
        while let Some((&group, _)) = self.in_order.range((entry, 0)..=(entry, u32::MAX)).next() {
            self.in_order.remove(&group);
        }
        let compared = self.hashing.remove(&entry).and_then(|hashing| hashing.compared);
        if let Some(compared) = &compared {
            compared.is_over.store(true, Relaxed);
            // With the last group, its requests have ended.
            if !compared.unchecked.is_empty() {
                self.shared.end_requests()?;
            }
        }
        Ok(compared)
    }

    fn comparison(&mut self, entry: u32) -> Option<(&mut Tree, &mut FileComparison)> {
        let Hashing { tree, compared, .. } = self.hashing.get_mut(&entry)?;
        Some((tree, compared.as_deref_mut()?))
    }

    fn written(&mut self, written: &Written) -> Result<(), Fault> {
        let (entry, groups) = (written.entry, Groups::of(written.len));
        self.begin(entry, written.len)?;
        self.hash_in_order(written);
        for group in groups.completed(&written.range, &written.enclosing) {
            let taken = self.take(entry, group, groups);
            match taken.map_or_else(|| self.hash_from_disk(entry, group), Ok) {
                Ok(value) => {
                    // The file may have been given up meanwhile.
                    self.begin(entry, written.len)?.tree.set(group, value);
                    self.check_group(entry, group)?;
                }
                Err(io_fault) => self.unreadable(entry, group, io_fault)?,
            }
        }
        self.try_finish(entry)
    }

    /// Hashes bytes of the stream that begin or continue a group.
    fn hash_in_order(&mut self, written: &Written) {
        let Some((guard, in_buffer)) = &written.bytes else { return };
        let (bytes, range, groups) =
            (guard.bytes(in_buffer.clone()), &written.range, Groups::of(written.len));
        for group in groups.touched(range) {
            let key = (written.entry, group);
            if self.in_order.len() >= MAX_IN_ORDER && !self.in_order.contains_key(&key) {
                continue;
            }
            let bounds = groups.range(group);
            let begin = || Box::new((groups.hasher(group), bounds.start));
            let (hasher, hashed_end) = &mut **self.in_order.entry(key).or_insert_with(begin);
            let part = range.start.max(bounds.start)..range.end.min(bounds.end);
            if *hashed_end == part.start {
                hasher.update(&bytes[(part.start - range.start) as usize..(part.end - range.start) as usize]);
                *hashed_end = part.end;
            }
        }
    }

    /// Takes the hash of a complete group; `None` if it did not arrive in order.
    fn take(&mut self, entry: u32, group: u32, groups: Groups) -> Option<Value> {
        let (hasher, hashed_end) = *self.in_order.remove(&(entry, group))?;
        (hashed_end == groups.range(group).end).then(|| groups.value(&hasher))
    }

    /// Handles a group that cannot be read back. If it existed before the job, it is requested: after a power
    /// failure, a journal can claim more than the file contains.
    fn unreadable(&mut self, entry: u32, group: u32, io_fault: IoFault) -> Result<(), Fault> {
        let given_up = self.shared.ledger.lock().table.state(entry) == EntryState::Failed;
        let is_existing = self.comparison(entry).is_some_and(|(_, c)| c.unchecked.contains(&group));
        match io_fault.scope {
            _ if given_up => Ok(()),
            _ if is_existing => self.differs(entry, group),
            Scope::Job => Err(io_fault.fault),
            Scope::Entry => {
                self.drop_entry(entry)?;
                self.commit_failed(entry, io_fault.fault)
            }
        }
    }

    fn drop_entry(&mut self, entry: u32) -> Result<Option<Box<FileComparison>>, Fault> {
        self.expected.remove(&entry);
        self.different.remove(&entry);
        self.forget(entry)
    }

    fn hash_from_disk(&mut self, entry: u32, group: u32) -> Result<Value, IoFault> {
        let path = || self.shared.path(entry);
        let file = self.shared.place.file(entry, path)?;
        let shape = self.shared.table(|table| table.shape(entry));
        hash_group(&file, &shape, group, &mut self.buffer)
            .map_err(|errno| IoFault::destination("read back", &path(), errno))
    }

    fn compare(&mut self, comparison: Comparison) -> Result<(), Fault> {
        let Comparison { entry, claimed, is_over } = comparison;
        let len = self.shared.ledger.lock().table.stream_len(entry);
        let groups = Groups::of(len);
        let unchecked: BTreeSet<u32> = match &claimed {
            None => (0..groups.count()).collect(),
            Some(claimed) => claimed.iter().flat_map(|range| groups.touched(&range)).collect(),
        };
        let requested = claimed.map(|claimed| len - claimed.total());
        // A hash per group, and twice the numbers of unchecked groups.
        let bytes = IN_PROGRESS + u64::from(groups.count()) * (size_of::<Option<Value>>() as u64 + 20);
        let reserved = self.shared.budget.reserve(bytes)?;
        let (proofs, has_none) = (Tree::new(groups), unchecked.is_empty());
        let compared = FileComparison { proofs, unchecked, requested, is_over, _reserved: reserved };
        self.begin(entry, len)?.compared = Some(Box::new(compared));
        if has_none { self.shared.end_requests() } else { Ok(()) }
    }

    fn existing_hashed(&mut self, entry: u32, group: u32, value: Option<Value>) -> Result<(), Fault> {
        let Some((tree, _)) = self.comparison(entry) else { return Ok(()) };
        let Some(value) = value else {
            return self.differs(entry, group);
        };
        tree.set(group, value);
        self.check_group(entry, group)?;
        self.try_finish(entry)
    }

    fn proof(&mut self, proof: &Proof) -> Result<(), Fault> {
        // The rest of the proof of a file that is settled or known to differ is ignored.
        let Some(entry) = u32::try_from(proof.entry).ok().filter(|&entry| self.comparison(entry).is_some())
        else {
            return Ok(());
        };
        let foreign = || violation("a proof of a group that the file does not have");
        let first = u32::try_from(proof.first).map_err(|_| foreign())?;
        for (at, &value) in (u64::from(first)..).zip(&proof.values) {
            let Some((_, compared)) = self.comparison(entry) else { return Ok(()) };
            let group = u32::try_from(at).ok().filter(|&g| g < compared.proofs.groups.count());
            let group = group.ok_or_else(foreign)?;
            compared.proofs.set(group, value);
            self.check_group(entry, group)?;
        }
        self.try_finish(entry)
    }

    fn check_group(&mut self, entry: u32, group: u32) -> Result<(), Fault> {
        let Some((tree, compared)) = self.comparison(entry) else { return Ok(()) };
        let (Some(ours), Some(theirs)) = (tree.get(group), compared.proofs.get(group)) else {
            return Ok(());
        };
        if !compared.unchecked.contains(&group) {
            return Ok(());
        }
        if ours != theirs {
            return self.differs(entry, group);
        }
        compared.unchecked.remove(&group);
        if compared.unchecked.is_empty() { self.shared.end_requests() } else { Ok(()) }
    }

    fn differs(&mut self, entry: u32, group: u32) -> Result<(), Fault> {
        let Some((tree, compared)) = self.comparison(entry) else { return Ok(()) };
        let Some(requested) = &mut compared.requested else {
            // Sending the request may block, while more would be read.
            compared.is_over.store(true, Relaxed);
            return self.differs_from_existing(entry);
        };
        let range = tree.groups.range(group);
        *requested += range.end - range.start;
        tree.clear(group);
        let done = compared.unchecked.remove(&group) && compared.unchecked.is_empty();
        self.in_order.remove(&(entry, group));
        self.shared.ledger.lock().forget(entry, range.clone());
        self.shared.request_more(entry, vec![range.into()])?;
        if done { self.shared.end_requests() } else { Ok(()) }
    }

    /// Requests the whole file; in a dry run only records that it would be replaced.
    fn differs_from_existing(&mut self, entry: u32) -> Result<(), Fault> {
        let range = 0..self.shared.table(|table| table.stream_len(entry));
        let is_dry_run = self.shared.is_dry_run();
        self.shared.request_more(entry, if is_dry_run { Vec::new() } else { vec![range.into()] })?;
        self.forget(entry)?;
        if is_dry_run {
            self.different.insert(entry);
        }
        self.try_finish(entry)
    }

    fn expect(&mut self, digest: FileDigest) -> Result<(), Fault> {
        // The control thread has checked that the entry is a file.
        let entry = digest.entry as u32;
        if matches!(self.shared.ledger.lock().table.state(entry), EntryState::Waiting | EntryState::Started) {
            let bytes = EXPECTED + digest.result.as_ref().err().map_or(0, text);
            let reserved = self.shared.budget.reserve(bytes as u64)?;
            self.expected.insert(entry, (digest.result, reserved));
        }
        self.try_finish(entry)
    }

    fn try_finish(&mut self, entry: u32) -> Result<(), Fault> {
        let Some((expected, _)) = self.expected.get(&entry) else { return Ok(()) };
        let hashing = self.hashing.get(&entry);
        let found = hashing.and_then(|hashing| hashing.tree.root());
        if found.is_none() && !self.different.contains(&entry) {
            return Ok(());
        }
        let compared = hashing.and_then(|hashing| hashing.compared.as_ref());
        let result = match expected {
            Ok(expected) if found.is_none_or(|found| found == *expected) => Ok(*expected),
            // The proofs will identify the group.
            Ok(_) if compared.is_some_and(|c| !c.unchecked.is_empty()) => return Ok(()),
            Ok(_) => Err(digest_mismatch(&self.shared.path(entry))),
            Err(fault) => Err(fault.clone()),
        };
        let compared = self.drop_entry(entry)?;
        match result {
            Ok(digest) => self.commit_verified(entry, digest, compared.as_deref()),
            Err(fault) => self.commit_failed(entry, fault),
        }
    }

    fn commit_verified(
        &self,
        entry: u32,
        digest: Value,
        compared: Option<&FileComparison>,
    ) -> Result<(), Fault> {
        let mut ledger = self.shared.ledger.lock();
        ledger.table.set_digest(entry, digest);
        let (path, size) = (ledger.table.path(entry), ledger.table.size(entry));
        if let Some(requested) = compared.and_then(|compared| compared.requested) {
            let len = ledger.table.stream_len(entry);
            ledger.resumed(entry, len.saturating_sub(requested))?;
        }
        drop(ledger);
        let same = compared.is_some_and(|compared| compared.requested.is_none());
        if self.shared.is_dry_run() {
            let action = match self.shared.place.existing(&path) {
                _ if !same => Action::Replace { size },
                Some(existing) => self.shared.metadata_action(entry, &path, &existing),
                None => Action::Keep,
            };
            self.shared.report_item(&path, action)?;
        }
        let event = if same { CommitEvent::Same(entry) } else { CommitEvent::Verified(entry) };
        self.events.send(event).map_err(job_ended)
    }

    fn commit_failed(&self, entry: u32, fault: Fault) -> Result<(), Fault> {
        if !self.shared.mark_failed(entry) {
            return Ok(());
        }
        self.events.send(CommitEvent::failed(&self.shared.budget, entry, fault)?).map_err(job_ended)
    }
}

pub(crate) const READ: usize = 1 << 20;

/// Hashes existing files until there is nothing more to compare or the job ends.
pub(crate) fn compare(
    shared: &Shared,
    jobs: &Receiver<Comparison>,
    checks: &Sender<Check>,
) -> Result<(), Fault> {
    let mut buffer = AlignedBytes::zeroed(READ);
    for job in jobs {
        let path = shared.path(job.entry);
        let file = match job.claimed {
            Some(_) => shared.place.file(job.entry, || path).ok(),
            None => shared.place.open_final(&path).map(Arc::new),
        };
        let shape = shared.table(|table| table.shape(job.entry));
        let groups = Groups::of(shape.len);
        let is_there =
            |&group: &u32| job.claimed.as_ref().is_none_or(|claimed| claimed.covers(groups.range(group)));
        for group in (0..groups.count()).filter(is_there) {
            if shared.has_ended() {
                return Ok(());
            }
            if job.is_over.load(Relaxed) {
                break;
            }
            shared.progress.other_steps.add(1);
            // Unreadable data counts as different.
            let value = file.as_deref().and_then(|file| hash_group(file, &shape, group, &mut buffer).ok());
            checks.send(Check::Existing { entry: job.entry, group, value }).map_err(job_ended)?;
        }
    }
    Ok(())
}

/// Reads a group of a file's stream through `buffer`, which must not be empty, and hashes it.
pub(crate) fn hash_group(file: &File, shape: &Shape, group: u32, buffer: &mut [u8]) -> Result<Value, Errno> {
    let (groups, most) = (Groups::of(shape.len), buffer.len() as u64);
    let mut hasher = groups.hasher(group);
    for (mut at, len) in shape.pieces(groups.range(group)) {
        let end = at + len;
        while at < end {
            let into = &mut buffer[..(end - at).min(most) as usize];
            read_exact_at(file, into, at)?;
            hasher.update(into);
            at += into.len() as u64;
        }
    }
    Ok(groups.value(&hasher))
}

/// Reads a complete, verified and synced file back from disk and compares its digest.
pub(crate) fn read_back(shared: &Shared, entry: u32, file: &File, buffer: &mut [u8]) -> Result<(), IoFault> {
    let (shape, digest) = shared.table(|table| (table.shape(entry), table.digest(entry).copied()));
    let path = || shared.path(entry);
    let io_fault = |errno| IoFault::destination("read back", &path(), errno);
    // May fail: in-memory file systems have no page cache to drop.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    let groups = Groups::of(shape.len);
    let mut tree = Tree::new(groups);
    for group in 0..groups.count() {
        if shared.has_ended() {
            return Err(job_ended(()).into());
        }
        shared.progress.other_steps.add(1);
        tree.set(group, hash_group(file, &shape, group, buffer).map_err(io_fault)?);
    }
    if tree.root() == digest {
        return Ok(());
    }
    let what = "differs on disk from what was written: its BLAKE3 digest differs";
    let hint = "check the system log of the receiving machine and test its disk";
    Err(IoFault::entry(FaultCode::VerifyFailed, &path(), what, hint))
}
