//! Memory for large copies.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Cache line size of current processors in bytes.
const CACHE_LINE: usize = 64;

/// A byte buffer aligned to a cache line.
///
/// The system's allocator returns large blocks 16 bytes after the start of a page. The kernel copies files
/// and packets with `rep movsb`, which is slow on some processors (AMD Zen 3 and 4) if source and destination
/// differ by a few bytes in their page offsets: reading a file takes up to 1.7 times as long at 16 bytes, and
/// 3 times at 1 or 8 (`docs/performance.md`, "tmpfs to tmpfs").
pub struct AlignedBytes {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Allocates `len` zeroed bytes. As with `vec![0; len]`, pages are mapped only when touched.
    pub fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + CACHE_LINE].into_boxed_slice();
        // `align_offset` can fail only in const evaluation.
        let start = memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        Self { memory, start, len }
    }
}

impl Default for AlignedBytes {
    /// Creates an empty buffer.
    fn default() -> Self {
        Self { memory: Box::default(), start: 0, len: 0 }
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_cache_line_aligned_when_moved() {
        for len in [0, 1, 63, 64, 100_000, 1 << 20] {
            let bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|byte| *byte == 0));
            let moved = Box::new(bytes);
            assert_eq!(moved.as_ptr().align_offset(CACHE_LINE), 0, "{len}");
        }
        assert!(AlignedBytes::default().is_empty());
    }

    #[test]
    fn a_copy_has_the_same_bytes() {
        let mut copy = AlignedBytes::from(&b"haulage"[..]);
        assert_eq!(&*copy, b"haulage");
        copy[0] = b'H';
        assert_eq!(&*copy, b"Haulage");
    }
}
