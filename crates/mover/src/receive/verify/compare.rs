//! Hashes what is at the destination already, beside the verifier.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use haul_base::AlignedBytes;
use rustix::io::Errno;

use crate::receive::messages::{Check, HashJob, Held};
use crate::receive::shared::Shared;
use crate::storage::read_exact_at;
use crate::stream::Shape;
use crate::tree::{Groups, Value};

pub(crate) const READ: usize = 1 << 20;

pub(crate) struct Comparer {
    shared: Arc<Shared>,
    jobs: Receiver<HashJob>,
    checks: Sender<Check>,
    buffer: AlignedBytes,
}

impl Comparer {
    pub(crate) fn new(shared: Arc<Shared>, jobs: Receiver<HashJob>, checks: Sender<Check>) -> Self {
        Self { shared, jobs, checks, buffer: AlignedBytes::zeroed(READ) }
    }

    /// Works until there is nothing more to compare, or until the job is over.
    pub(crate) fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            let file = self.open(&job);
            let shape = self.shared.book.lock().table.shape(job.entry);
            for &group in &job.groups {
                if self.shared.ending().is_some() {
                    return;
                }
                if job.interest.is_over() {
                    break;
                }
                self.shared.progress.worked();
                let value = file.as_deref().and_then(|file| self.value(file, &shape, group));
                if self.checks.send(Check::Held { entry: job.entry, group, value }).is_err() {
                    return;
                }
            }
        }
    }

    fn open(&self, job: &HashJob) -> Option<Arc<File>> {
        let path = self.shared.path(job.entry);
        match job.held {
            Held::Part => self.shared.place.file(job.entry, || path).ok(),
            Held::Final => self.shared.place.open_final(&path).map(Arc::new),
        }
    }

    /// What a group hashes to; `None` if it cannot be read, which makes it differ from everything.
    fn value(&mut self, file: &File, shape: &Shape, group: u32) -> Option<Value> {
        let groups = Groups::of(shape.len);
        hash_group(file, shape, groups, group, &mut self.buffer).ok()
    }
}

/// Reads a group of a file's stream through `buffer`, which has room for something, and hashes it.
pub(crate) fn hash_group(
    file: &File,
    shape: &Shape,
    groups: Groups,
    group: u32,
    buffer: &mut [u8],
) -> Result<Value, Errno> {
    let (mut hasher, most) = (groups.hasher(group), buffer.len() as u64);
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
