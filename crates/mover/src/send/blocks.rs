//! What has been read of the object and may still be asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use haul_base::AlignedBytes;

use crate::send::walk::Top;
use crate::stream::Shape;

/// Bytes that are read at a time, and the size of a block.
pub(crate) const BLOCK: usize = 256 << 10;

/// A stretch of the object in memory.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    memory: AlignedBytes,
    len: usize,
}

impl Block {
    /// Of the first `len` bytes of `memory`.
    pub(crate) fn new(offset: u64, memory: AlignedBytes, len: usize) -> Self {
        let len = len.min(memory.len());
        Self { offset, memory, len }
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// A file and how to open it.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) top: Arc<Top>,
    pub(crate) path: Vec<u8>,
    pub(crate) shape: Shape,
}

/// A stretch of a file's stream in the object.
#[derive(Debug)]
pub(crate) struct SentPart {
    /// Where it begins in the object.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Where it begins in the stream.
    pub(crate) start: u64,
    pub(crate) file: Arc<SourceFile>,
}

/// Blocks and parts of files from the first byte that was not released on.
#[derive(Debug, Default)]
pub(crate) struct Store {
    blocks: VecDeque<Arc<Block>>,
    parts: VecDeque<Arc<SentPart>>,
    /// Emptied buffers for the next blocks, the one that was used last at the end. New ones are made only when there
    /// is none, so there are never more buffers than blocks were held at a time.
    spare: Vec<AlignedBytes>,
    held: u64,
}

impl Store {
    /// A buffer for a block that was used before.
    pub(crate) fn take_spare(&mut self) -> Option<AlignedBytes> {
        self.spare.pop()
    }

    /// Appends a block. While more than `budget` bytes are held, the oldest blocks below `sent` go: they are
    /// read from their files again if they are lost on the way.
    pub(crate) fn publish(&mut self, block: Block, sent: u64, budget: u64) {
        self.held += block.len as u64;
        self.blocks.push_back(Arc::new(block));
        while self.held > budget && self.blocks.front().is_some_and(|b| b.end() <= sent) {
            self.drop_front();
        }
    }

    /// Forgets everything that ends at or before `offset`.
    pub(crate) fn release(&mut self, offset: u64) {
        while self.blocks.front().is_some_and(|b| b.end() <= offset) {
            self.drop_front();
        }
        while self.parts.front().is_some_and(|part| part.at + part.len <= offset) {
            self.parts.pop_front();
        }
    }

    fn drop_front(&mut self) {
        let Some(block) = self.blocks.pop_front() else {
            return;
        };
        self.held -= block.len as u64;
        if let Ok(block) = Arc::try_unwrap(block)
            && block.memory.len() == BLOCK
        {
            self.spare.push(block.memory);
        }
    }

    /// How many blocks there are, and their bytes.
    pub(crate) fn held(&self) -> (usize, u64) {
        (self.blocks.len(), self.held)
    }

    /// The block that holds the byte at `offset`.
    pub(crate) fn block_at(&self, offset: u64) -> Option<Arc<Block>> {
        let index = self.blocks.partition_point(|b| b.end() <= offset);
        self.blocks.get(index).filter(|b| b.offset <= offset).cloned()
    }

    pub(crate) fn add_part(&mut self, part: SentPart) {
        if part.len > 0 {
            self.parts.push_back(Arc::new(part));
        }
    }

    /// The part of a file that holds the byte at `offset`.
    pub(crate) fn part_at(&self, offset: u64) -> Option<Arc<SentPart>> {
        let index = self.parts.partition_point(|part| part.at + part.len <= offset);
        self.parts.get(index).filter(|part| part.at <= offset).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(offset: u64, len: usize) -> Block {
        Block::new(offset, AlignedBytes::zeroed(len), len)
    }

    #[test]
    fn blocks_are_found_by_their_bytes() {
        let mut store = Store::default();
        store.publish(block(0, 10), 0, 100);
        store.publish(block(10, 5), 0, 100);
        assert_eq!(store.block_at(9).unwrap().offset, 0);
        assert_eq!(store.block_at(10).unwrap().offset, 10);
        assert!(store.block_at(15).is_none());
        store.release(10);
        assert!(store.block_at(9).is_none());
        assert_eq!(store.held, 5);
    }

    #[test]
    fn only_what_was_sent_leaves_for_want_of_memory() {
        let mut store = Store::default();
        for i in 0..4 {
            store.publish(block(i * 10, 10), 15, 20);
        }
        assert!(store.block_at(5).is_none(), "sent, and over the budget");
        assert!(store.block_at(15).is_some(), "not wholly sent");
    }
}
