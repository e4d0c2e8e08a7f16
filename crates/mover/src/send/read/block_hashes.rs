//! What the groups of a file hash to, for a receiver that has some of them already.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use haul_base::AlignedBytes;
use haul_wire::control::{ControlMessage, Fault, FileDigest, Proof};

use super::opened::Opened;
use crate::send::blocks::BLOCK;
use crate::send::plan::jobs::{BlockHashes, HashJob};
use crate::send::shared::Shared;
use crate::tree::{Groups, Value};

const PROOF_BATCH: usize = 4096;

/// Notes the digest of a file, if it is known now, and gives what the receiver is told of it.
pub(crate) fn digest(shared: &Shared, hashes: &BlockHashes, root: Option<Value>) -> Option<FileDigest> {
    let root = root?;
    shared.ledger().table.set_digest(hashes.planned.entry, root);
    hashes.tell(Ok(root))
}

#[derive(Default)]
pub(crate) struct HashBatch {
    pending: Vec<Proof>,
    values: usize,
}

impl HashBatch {
    pub(crate) fn add(&mut self, shared: &Shared, entry: u32, group: u32, value: Value) -> Result<(), Fault> {
        let (entry, group) = (u64::from(entry), u64::from(group));
        match self.pending.last_mut() {
            Some(last) if last.entry == entry && last.first + last.values.len() as u64 == group => {
                last.values.push(value);
            }
            _ => self.pending.push(Proof { entry, first: group, values: vec![value] }),
        }
        self.values += 1;
        if self.values >= PROOF_BATCH { self.flush(shared) } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self, shared: &Shared) -> Result<(), Fault> {
        self.values = 0;
        if self.pending.is_empty() {
            return Ok(());
        }
        shared.link.send(ControlMessage::Proofs(std::mem::take(&mut self.pending)))
    }
}

/// Reads and hashes what the receiver has, beside the reader.
pub(crate) struct BlockHasher {
    shared: Arc<Shared>,
    jobs: Receiver<HashJob>,
    proofs: HashBatch,
    buffer: AlignedBytes,
}

impl BlockHasher {
    pub(crate) fn new(shared: Arc<Shared>, jobs: Receiver<HashJob>) -> Self {
        Self { shared, jobs, proofs: HashBatch::default(), buffer: AlignedBytes::zeroed(BLOCK) }
    }

    /// Works until there is nothing more to prove, or until the job is over.
    pub(crate) fn run(mut self) {
        while let Some(job) = self.next() {
            if self.shared.stopped() {
                return;
            }
            let told = match self.prove(&job) {
                Ok(told) => told,
                Err(fault) => job.hashes.fail(fault),
            };
            if let Err(fault) = self.tell(told) {
                return self.shared.fail_silently(fault);
            }
        }
    }

    fn next(&mut self) -> Option<HashJob> {
        if let Ok(job) = self.jobs.try_recv() {
            return Some(job);
        }
        if let Err(fault) = self.proofs.flush(&self.shared) {
            self.shared.fail_silently(fault);
            return None;
        }
        self.jobs.recv().ok()
    }

    fn tell(&mut self, digest: Option<FileDigest>) -> Result<(), Fault> {
        let Some(digest) = digest else { return Ok(()) };
        self.proofs.flush(&self.shared)?;
        self.shared.link.send(ControlMessage::Digests(vec![digest]))
    }

    fn prove(&mut self, job: &HashJob) -> Result<Option<FileDigest>, Fault> {
        let hashes = &job.hashes;
        let opened = Opened::open(&hashes.planned)?;
        let mut values = Vec::with_capacity(job.groups.len());
        for &group in &job.groups {
            if self.shared.stopped() {
                return Ok(None);
            }
            let value = self.value(hashes.groups(), group, &opened)?;
            values.push((group, value));
            self.proofs.add(&self.shared, hashes.planned.entry, group, value)?;
        }
        opened.finish()?;
        let mut told = if job.groups.is_empty() { digest(&self.shared, hashes, hashes.root()) } else { None };
        for (group, value) in values {
            told = told.or(digest(&self.shared, hashes, hashes.set(group, value)));
        }
        Ok(told)
    }

    fn value(&mut self, groups: Groups, group: u32, opened: &Opened<'_>) -> Result<Value, Fault> {
        let mut hasher = groups.hasher(group);
        opened.hash(&self.shared.progress, groups.range(group), &mut self.buffer, &mut hasher)?;
        Ok(groups.value(&hasher))
    }
}
