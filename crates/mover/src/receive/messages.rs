//! Messages between the threads of a receiving job.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use haul_base::RangeSet;
use haul_wire::control::{Fault, FileDigest, Proof};

use crate::budget::{Budget, Reserved};
use crate::receive::queue::BufferGuard;
use crate::tree::Value;

/// Messages to the verifier. `Held` is the hash of a group of existing data; `None` if it cannot be read.
pub(crate) enum Check {
    Written(Written),
    Expected { digests: Vec<FileDigest>, _reserved: Reserved },
    Compare(Comparison),
    Held { entry: u32, group: u32, value: Option<Value> },
    Proofs { proofs: Vec<Proof>, _reserved: Reserved },
    GivenUp(u32),
}

impl Check {
    pub(crate) fn expected(budget: &Arc<Budget>, digests: Vec<FileDigest>) -> Result<Self, Fault> {
        let said = |digest: &FileDigest| digest.result.as_ref().err().map_or(0, text);
        let bytes: usize = digests.iter().map(|digest| size_of::<FileDigest>() + said(digest)).sum();
        Ok(Self::Expected { digests, _reserved: budget.reserve(bytes as u64)? })
    }

    pub(crate) fn proofs(budget: &Arc<Budget>, proofs: Vec<Proof>) -> Result<Self, Fault> {
        let bytes = |proof: &Proof| size_of::<Proof>() + proof.values.len() * size_of::<Value>();
        let bytes = proofs.iter().map(bytes).sum::<usize>();
        Ok(Self::Proofs { proofs, _reserved: budget.reserve(bytes as u64)? })
    }
}

pub(crate) fn text(fault: &Fault) -> usize {
    fault.message.len() + fault.hint.len()
}

/// A file with existing data.
#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) entry: u32,
    /// Ranges of the stream in the temporary file; `None`: the existing file is compared.
    pub(crate) claimed: Option<RangeSet>,
    /// Set when the rest of the file need not be hashed.
    pub(crate) is_over: Arc<AtomicBool>,
}

pub(crate) struct Written {
    pub(crate) entry: u32,
    /// Offset in the stream.
    pub(crate) offset: u64,
    /// The bytes, unless too many buffers are in use.
    pub(crate) bytes: Option<(Arc<BufferGuard>, Range<usize>)>,
    pub(crate) groups: Range<u32>,
    pub(crate) len: u64,
}

/// Messages to the committer: one per entry, and the number of entries.
pub(crate) enum Settle {
    /// A directory or link, which is finished at the end, or a file that is left as it is.
    Held,
    /// The file is complete and verified.
    Verified(u32),
    /// The existing file is equal.
    Same(u32),
    Failed {
        entry: u32,
        fault: Fault,
        _reserved: Reserved,
    },
    /// Total number of entries.
    End(u64),
}

impl Settle {
    pub(crate) fn failed(budget: &Arc<Budget>, entry: u32, fault: Fault) -> Result<Self, Fault> {
        let reserved = budget.reserve(text(&fault) as u64)?;
        Ok(Self::Failed { entry, fault, _reserved: reserved })
    }
}
