//! Buffer of object data that was read and may still have to be sent or retransmitted.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use derive_more::Deref;
use haul_base::AlignedBytes;
use haul_wire::control::Growth;

use crate::budget::Reserved;
use crate::identity::Identity;
use crate::root::SourceRoot;
use crate::stream::{ConcatenatedRanges, Shape};

/// Size of a block in bytes, unless whole units are read.
pub(crate) const BLOCK: usize = 256 << 10;

/// Parts of at least this many bytes keep their files open until delivered, up to [`MAX_OPENED`] files.
pub(crate) const LARGE: u64 = 4 << 20;

/// Maximum number of files kept open, the newest ones: a round of a blast can leave any number of parts
/// unacknowledged.
const MAX_OPENED: usize = 64;

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    memory: AlignedBytes,
    len: usize,
}

impl Block {
    /// Creates a block of the first `len` bytes of `memory`.
    pub(crate) fn new(offset: u64, memory: AlignedBytes, len: usize) -> Self {
        Self { offset, memory, len }
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// A file of the set as the walk found it.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) entry: u32,
    pub(crate) source_root: Arc<SourceRoot>,
    pub(crate) path: Vec<u8>,
    pub(crate) shape: Arc<Shape>,
    /// Identity of the file when it was found.
    pub(crate) identity: Identity,
    pub(crate) growth: Growth,
}

/// The part of the object that is sent from one file.
#[derive(Debug)]
pub(crate) struct SentPart {
    pub(crate) at: u64,
    /// Ranges of the file's stream that the part consists of.
    pub(crate) sections: Arc<Sections>,
    pub(crate) file: Arc<SourceFile>,
}

impl SentPart {
    fn end(&self) -> u64 {
        self.at + self.sections.len
    }
}

/// Bytes of large files kept after sending once a re-read has waited for the storage; none before.
const MIN_KEPT_OF_LARGE: u64 = 1 << 20;

/// Blocks and file parts from the first unreleased byte on.
#[derive(Debug)]
pub(crate) struct Store {
    blocks: VecDeque<Arc<Block>>,
    parts: VecDeque<Arc<SentPart>>,
    /// Open files of the newest large parts, with the object offsets of the parts.
    opened: VecDeque<(u64, Arc<File>)>,
    /// Buffers for reuse, the most recently used last. New ones are allocated only if there is none.
    pub(crate) spare: Vec<AlignedBytes>,
    /// Length of reusable buffers.
    buffer_len: usize,
    held: u64,
    /// Limit in bytes for all blocks, including those not sent yet.
    keep: u64,
    /// Limit for large parts, counted back from the last sent byte. Their files are open, so any of their
    /// bytes can be re-read with one call, and memory that is reused soon is still in the processor's caches.
    keep_of_large: u64,
}

impl Store {
    pub(crate) fn new(buffer_len: usize, keep: u64) -> Self {
        let (blocks, parts, opened, spare) = Default::default();
        Self { blocks, parts, opened, spare, buffer_len, held: 0, keep, keep_of_large: 0 }
    }

    /// Keeps more sent bytes of large files.
    pub(crate) fn keep_more(&mut self) {
        self.keep_of_large = (2 * self.keep_of_large).max(MIN_KEPT_OF_LARGE).min(self.keep);
    }

    /// Appends a block. Drops the oldest blocks below `sent` that exceed the limits; if lost, their data is
    /// read again.
    pub(crate) fn publish(&mut self, block: Block, sent: u64) {
        self.held += block.len as u64;
        self.blocks.push_back(Arc::new(block));
        self.drop_while(|store, oldest| store.is_evictable(oldest, sent));
    }

    fn is_evictable(&self, block: &Block, sent: u64) -> bool {
        let is_large = || {
            let part = self.part_at(block.offset);
            part.is_some_and(|(part, opened)| opened.is_some() && part.end() >= block.end())
        };
        block.end() <= sent
            && (self.held > self.keep || (sent - block.end() >= self.keep_of_large && is_large()))
    }

    pub(crate) fn release(&mut self, offset: u64) {
        self.drop_while(|_, oldest| oldest.end() <= offset);
        while self.parts.front().is_some_and(|part| part.end() <= offset) {
            self.parts.pop_front();
        }
        let first = self.parts.front().map_or(u64::MAX, |part| part.at);
        while self.opened.front().is_some_and(|&(at, _)| at < first) {
            self.opened.pop_front();
        }
    }

    /// Drops sent blocks, oldest first, until at most `most` bytes are held.
    pub(crate) fn shrink(&mut self, sent: u64, most: u64) {
        self.drop_while(|store, oldest| store.held > most && oldest.end() <= sent);
    }

    /// Drops blocks, oldest first, while the oldest one meets a condition.
    fn drop_while(&mut self, condition: impl Fn(&Self, &Block) -> bool) {
        while self.blocks.front().is_some_and(|oldest| condition(self, oldest))
            && let Some(block) = self.blocks.pop_front()
        {
            self.held -= block.len as u64;
            if let Ok(block) = Arc::try_unwrap(block)
                && block.memory.len() == self.buffer_len
            {
                self.spare.push(block.memory);
            }
        }
    }

    pub(crate) fn held(&self) -> (usize, u64) {
        (self.blocks.len(), self.held)
    }

    pub(crate) fn block_at(&self, offset: u64) -> Option<Arc<Block>> {
        let index = self.blocks.partition_point(|b| b.end() <= offset);
        self.blocks.get(index).filter(|b| b.offset <= offset).cloned()
    }

    /// Appends a part, with its file if that is to be kept open.
    pub(crate) fn add_part(&mut self, part: SentPart, opened: Option<Arc<File>>) {
        if part.sections.len == 0 {
            return;
        }
        self.opened.extend(opened.map(|file| (part.at, file)));
        if self.opened.len() > MAX_OPENED {
            self.opened.pop_front();
        }
        self.parts.push_back(Arc::new(part));
    }

    /// Returns the part with the byte at `offset`, and its file if that is open.
    pub(crate) fn part_at(&self, offset: u64) -> Option<(Arc<SentPart>, Option<Arc<File>>)> {
        let index = self.parts.partition_point(|part| part.end() <= offset);
        let part = self.parts.get(index).filter(|part| part.at <= offset)?;
        let opened = self.opened.binary_search_by_key(&part.at, |&(at, _)| at).ok();
        Some((part.clone(), opened.map(|index| self.opened[index].1.clone())))
    }
}

/// Ranges of a file's stream, concatenated in the object. Shared, because there may be very many.
#[derive(Debug, Deref)]
pub(crate) struct Sections {
    #[deref]
    each: ConcatenatedRanges,
    _reserved: Option<Reserved>,
}

impl Sections {
    pub(crate) const EACH: u64 = size_of::<(u64, u64)>() as u64;

    /// Concatenates ranges, which are in order and not empty.
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>, reserved: Option<Reserved>) -> Self {
        Self { each: ConcatenatedRanges::new(ranges), _reserved: reserved }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use haul_wire::control::LinkChoice;

    use super::*;
    use crate::root::Root;

    fn block(offset: u64, len: usize) -> Block {
        Block::new(offset, AlignedBytes::zeroed(len), len)
    }

    #[test]
    fn blocks_are_found_by_offset() {
        let mut store = Store::new(BLOCK, 100);
        store.publish(block(0, 10), 0);
        store.publish(block(10, 5), 0);
        assert_eq!(store.block_at(9).unwrap().offset, 0);
        assert_eq!(store.block_at(10).unwrap().offset, 10);
        assert!(store.block_at(15).is_none());
        store.release(10);
        assert!(store.block_at(9).is_none());
        assert_eq!(store.held, 5);
    }

    #[test]
    fn only_sent_blocks_are_dropped_when_over_budget() {
        let mut store = Store::new(BLOCK, 20);
        for i in 0..4 {
            store.publish(block(i * 10, 10), 15);
        }
        assert!(store.block_at(5).is_none(), "sent, and over the budget");
        assert!(store.block_at(15).is_some(), "not wholly sent");
    }

    #[test]
    fn keep_more_doubles_the_kept_bytes_up_to_the_limit() {
        let mut store = Store::new(BLOCK, 10 * MIN_KEPT_OF_LARGE + 1);
        assert_eq!(store.keep_of_large, 0);
        store.keep_more();
        assert_eq!(store.keep_of_large, MIN_KEPT_OF_LARGE);
        store.keep_more();
        assert_eq!(store.keep_of_large, 2 * MIN_KEPT_OF_LARGE);
        for _ in 0..20 {
            store.keep_more();
        }
        assert_eq!(store.keep_of_large, store.keep);
    }

    #[test]
    fn only_the_last_sent_blocks_of_large_parts_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        let file = Arc::new(SourceFile {
            entry: 0,
            source_root: Arc::new(
                SourceRoot::new(
                    &Root::Anywhere,
                    dir.path().as_os_str().as_encoded_bytes(),
                    0,
                    LinkChoice::default(),
                )
                .unwrap(),
            ),
            path: b"f".to_vec(),
            shape: Arc::new(Shape::new(0, &[])),
            identity: Identity::of(&rustix::fs::stat(dir.path().join("f")).unwrap()),
            growth: Growth::Refuse,
        });
        let mut store = Store { keep_of_large: 10, ..Store::new(BLOCK, 1000) };
        let opened = Arc::new(File::open(dir.path().join("f")).unwrap());
        let part = |at, len| {
            let sections = Arc::new(Sections::new(iter::once(0..len), None));
            SentPart { at, sections, file: file.clone() }
        };
        store.add_part(part(0, 15), None);
        store.add_part(part(15, 65), Some(opened.clone()));
        let publish = |store: &mut Store, number: u64, sent| store.publish(block(number * 10, 10), sent);
        for (number, sent) in [(0, 0), (1, 10), (2, 20), (3, 30)] {
            publish(&mut store, number, sent);
        }
        assert!(store.block_at(0).is_some(), "it has bytes of a small file");
        store.release(15);
        publish(&mut store, 4, 35);
        assert!(store.block_at(15).is_some(), "it too");
        store.release(20);
        publish(&mut store, 5, 39);
        assert!(store.block_at(25).is_some(), "it was sent just now");
        publish(&mut store, 6, 40);
        assert_eq!(store.blocks.front().unwrap().offset, 30);
        assert_eq!(Arc::strong_count(&opened), 2);
        store.release(80);
        assert_eq!(Arc::strong_count(&opened), 1, "what has arrived holds no file open");
        for n in 8..8 + 3 * MAX_OPENED as u64 {
            store.add_part(part(n * 10, 10), Some(opened.clone()));
        }
        assert_eq!(Arc::strong_count(&opened), 1 + MAX_OPENED, "nor do all of a long round");
        let is_open = |at| store.part_at(at).unwrap().1.is_some();
        assert!(!is_open(80) && is_open(80 + 10 * (3 * MAX_OPENED as u64 - 1)));
    }
}

#[cfg(test)]
mod sections_tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    #[test]
    fn a_reservation_is_returned_when_the_last_user_is_dropped() {
        let budget = Budget::new(haul_base::Bytes(100));
        let reserved = budget.reserve(40).unwrap();
        let sections = Arc::new(Sections::new(std::iter::once(0..5), Some(reserved)));
        let other = sections.clone();
        drop(sections);
        assert!(budget.reserve(40).is_err());
        drop(other);
        assert!(budget.reserve(20).is_ok());
    }

    proptest! {
        #[test]
        fn sections_locate_every_byte(gaps in vec((0..5u64, 1..5u64), 1..40)) {
            let mut end = 0;
            let ranges: Vec<Range<u64>> = gaps
                .iter()
                .map(|(gap, len)| {
                    let start = end + gap;
                    end = start + len;
                    start..end
                })
                .collect();
            let sections = Sections::new(ranges.iter().cloned(), None);
            prop_assert_eq!(sections.ranges().collect::<Vec<_>>(), ranges.clone());
            let bytes: Vec<(u64, u64)> =
                ranges.iter().flat_map(|range| range.clone().map(|byte| (byte, range.end - byte))).collect();
            prop_assert_eq!(sections.len, bytes.len() as u64);
            for (at, byte) in bytes.into_iter().enumerate() {
                prop_assert_eq!(sections.locate(at as u64), byte);
            }
            for offset in 0..end + 2 {
                let after: Vec<_> = ranges.iter().filter(|range| range.end > offset).cloned().collect();
                prop_assert_eq!(sections.ranges_after(offset).collect::<Vec<_>>(), after);
            }
        }
    }
}
