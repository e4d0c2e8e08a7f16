//! Options of a receiving job, and its expectations of the set.

use std::collections::BTreeSet;
use std::sync::Arc;

use haul_base::{Bytes, Rate, Span};
use haul_wire::control::{
    Durability, Extent, IgnoreFiles, Preserve, ReceivePolicy, RelPath, Rule, Selection,
};

use crate::budget::SET_MEMORY;
use crate::receive::place::space::MinFree;
use crate::root::{Root, copies_content};

/// Minimum and maximum bytes of contents in memory.
const MEMORY: std::ops::RangeInclusive<u64> = 64 << 20..=160 << 20;

/// Rate that fills the maximum memory in about 100 ms.
const FULL_MEMORY_RATE: Rate = Rate::from_bps(13_400_000_000);

/// Options of a receiving job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// Part of the temporary files' names; must differ between concurrent jobs.
    pub session: u32,
    /// Maximum bytes of contents in memory, enforced by flow control.
    pub memory: u64,
    /// Bytes that names, links, holes and attributes of the set may take; above, the job ends with
    /// [`FaultCode::SetTooLarge`](haul_wire::control::FaultCode::SetTooLarge).
    pub set_memory: Bytes,
    /// Durability of received files; overrides that of the policy.
    pub durability: Durability,
    /// Treatment of existing entries.
    pub receive_policy: ReceivePolicy,
    /// Owners, attributes and access control lists that a sender may set; hard links are always kept.
    pub permit: Preserve,
    /// Minimum free space on the disk.
    pub min_free: MinFree,
    /// What this side requested, if it did. An entry outside of it ends the job.
    pub expectations: Option<Expectations>,
    /// Chunk of the object that is written at a time, or in equal parts of at most 100 MB; `memory` is raised
    /// to two of them. `None`: bytes are written as they arrive.
    pub chunk: Option<Bytes>,
}

impl ReceiveOptions {
    /// Returns options with 64 MiB of memory and the given policy.
    pub fn with_policy(session: u32, receive_policy: ReceivePolicy) -> Self {
        Self {
            session,
            memory: *MEMORY.start(),
            set_memory: SET_MEMORY,
            durability: receive_policy.durability,
            receive_policy,
            permit: Preserve::default(),
            min_free: MinFree::Nothing,
            expectations: None,
            chunk: None,
        }
    }

    /// Sets the memory to one round trip of data at 13.4 Gbit/s, within 64 to 160 MiB. Not more, because data
    /// in memory is lost if the process is killed.
    #[must_use]
    pub fn for_round_trip(self, round_trip: Span) -> Self {
        let memory = FULL_MEMORY_RATE.bytes_in(round_trip);
        Self { memory: memory.clamp(*MEMORY.start(), *MEMORY.end()), ..self }
    }
}

/// What this side requested from a sender. Entries outside of it are rejected, a larger [`Extent`] lowered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectations {
    /// Permitted first path components; `None`: any, because a directory's contents were requested.
    roots: Option<Arc<BTreeSet<Vec<u8>>>>,
    pub(crate) rules: Arc<[Rule]>,
    pub(crate) ignore_files: IgnoreFiles,
    pub(crate) extent: Extent,
}

impl Expectations {
    /// Creates the expectations for these sources, named as by [`send_files`](crate::send_files).
    pub fn new(sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let name = |source: &Vec<u8>| Root::Anywhere.split(source).name;
        let roots = match &selection.paths {
            // For a single source.
            Some(paths) if content => Some(paths.iter().map(|path| top_name(path).to_vec()).collect()),
            _ if content => None,
            _ => Some(sources.iter().map(name).collect()),
        };
        let extent = if content { Extent::Destination } else { Extent::Directories };
        let ignore_files = selection.ignore_files;
        Self { roots: roots.map(Arc::new), rules: selection.rules.clone().into(), ignore_files, extent }
    }

    /// Whether an entry with this path was requested.
    pub(crate) fn covers(&self, path: &RelPath) -> bool {
        self.roots.as_ref().is_none_or(|roots| roots.contains(top_name(path)))
    }
}

fn top_name(path: &RelPath) -> &[u8] {
    path.components().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_round_trips_get_more_memory() {
        let memory = |ms| {
            ReceiveOptions::with_policy(1, ReceivePolicy::default())
                .for_round_trip(Span::from_millis(ms))
                .memory
                >> 20
        };
        assert_eq!([0, 10, 40, 60, 100, 600].map(memory), [64, 64, 64, 95, 159, 160]);
    }

    fn expectations(sources: &[&str], paths: Option<&[&str]>) -> Expectations {
        let sources: Vec<Vec<u8>> = sources.iter().map(|source| source.as_bytes().to_vec()).collect();
        let path = |path: &&str| RelPath::new(path.as_bytes()).unwrap();
        let paths = paths.map(|paths| paths.iter().map(path).collect());
        Expectations::new(&sources, &Selection { paths, ..Selection::default() })
    }

    #[test]
    fn expected_names_follow_from_the_sources() {
        let covers = |set: &Expectations, path: &str| set.covers(&RelPath::new(path.as_bytes()).unwrap());
        let two = expectations(&["a/b/", "/c"], None);
        assert!(covers(&two, "b") && covers(&two, "b/x") && covers(&two, "c") && !covers(&two, "a"));
        assert_eq!(two.extent, Extent::Directories);
        let content = expectations(&["a", "b/."], None);
        assert!(covers(&content, "anything") && content.extent == Extent::Destination);
        assert!(covers(&expectations(&[""], None), "anything"));
        let listed = expectations(&["b/."], Some(&["x/y", "z"]));
        assert!(
            covers(&listed, "x") && covers(&listed, "x/y") && covers(&listed, "z") && !covers(&listed, "y")
        );
        assert!(covers(&expectations(&["b"], Some(&["x"])), "b/x"));
    }
}
