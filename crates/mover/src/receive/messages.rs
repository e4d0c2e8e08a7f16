//! What the threads of a receiving job tell each other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use haul_base::RangeSet;
use haul_wire::control::{Fault, FileDigest, Proof};

use crate::budget::{Budget, Reserved};
use crate::receive::queue::LentBuffer;
use crate::tree::Value;

pub(crate) enum Check {
    Written(Written),
    /// What files should hash to.
    Expected {
        digests: Vec<FileDigest>,
        _reserved: Reserved,
    },
    Compare(Comparison),
    /// What a group that was there hashes to; `None` if it cannot be read.
    Held {
        entry: u32,
        group: u32,
        value: Option<Value>,
    },
    /// What groups should hash to.
    Proofs {
        proofs: Vec<Proof>,
        _reserved: Reserved,
    },
    /// The writer has given a file up.
    GivenUp(u32),
}

impl Check {
    /// What files should hash to; what is said is reserved until the verifier comes to it.
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

/// A file of which something was there.
#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) entry: u32,
    pub(crate) held: Held,
    /// What the temporary file has of the stream; the final file has all of it.
    pub(crate) claimed: RangeSet,
    /// The rest of the file need not be hashed.
    pub(crate) is_over: Arc<AtomicBool>,
}

/// Bytes of a file that were written.
pub(crate) struct Written {
    pub(crate) entry: u32,
    /// Where in the stream they begin.
    pub(crate) offset: u64,
    /// The bytes, if they are still in memory.
    pub(crate) bytes: Option<(Arc<LentBuffer>, Range<usize>)>,
    pub(crate) groups: Range<u32>,
    pub(crate) len: u64,
}

/// What the committer learns: exactly one message for each entry, and the number of entries.
pub(crate) enum Settle {
    /// A directory or a link, which is finished at the end; or a file that stays as it is.
    Held,
    /// The file is complete and its contents are right.
    Verified(u32),
    /// What was there has turned out to be equal.
    Same(u32),
    /// It failed, here or at the sender, to whom it `is_known` then.
    Failed { entry: u32, fault: Fault, is_known: bool, _reserved: Reserved },
    /// There are so many entries.
    End(u64),
}

impl Settle {
    /// What is said of a failure is reserved until the committer comes to it.
    pub(crate) fn failed(
        budget: &Arc<Budget>,
        entry: u32,
        fault: Fault,
        is_known: bool,
    ) -> Result<Self, Fault> {
        let reserved = budget.reserve(text(&fault) as u64)?;
        Ok(Self::Failed { entry, fault, is_known, _reserved: reserved })
    }
}

/// Where something of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    Part,
    Final,
}
