use std::collections::VecDeque;

use haul_stack::Available;

/// Bytes of a stream that were written and are not acknowledged yet.
#[derive(Debug)]
pub struct SendBuffer {
    bytes: VecDeque<u8>,
    /// Offset of the first byte in the stream.
    base: u64,
    capacity: usize,
    is_finished: bool,
}

impl SendBuffer {
    /// Creates a buffer of at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), base: 0, capacity, is_finished: false }
    }

    /// Buffers as many bytes as fit. `None`: the buffer is full.
    pub fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        let taken = bytes.len().min(self.capacity - self.bytes.len());
        self.bytes.extend(&bytes[..taken]);
        (taken > 0 || bytes.is_empty()).then_some(taken)
    }

    /// Marks the end of the stream.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Returns the number of unacknowledged bytes.
    pub fn outstanding(&self) -> usize {
        self.bytes.len()
    }

    /// Returns how far the stream can be read.
    pub fn available(&self) -> Available {
        Available { upto: self.base + self.bytes.len() as u64, end: self.is_finished }
    }

    /// Copies the bytes from `offset` on to `into`.
    ///
    /// # Panics
    /// If they are not available, or released.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let start = offset.saturating_sub(self.base) as usize;
        let (first, second) = self.bytes.as_slices();
        let from_first = first.get(start..).unwrap_or_default();
        let here = from_first.len().min(into.len());
        into[..here].copy_from_slice(&from_first[..here]);
        let rest = &mut into[here..];
        let at = (start + here).saturating_sub(first.len());
        rest.copy_from_slice(&second[at..at + rest.len()]);
    }

    /// Drops the bytes below `offset`, which have arrived.
    pub fn release(&mut self, offset: u64) {
        let gone = (offset.saturating_sub(self.base) as usize).min(self.bytes.len());
        self.bytes.drain(..gone);
        self.base += gone as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_they_are_released_and_read_across_the_seam() {
        let mut buffer = SendBuffer::new(1 << 20);
        let mut written = 0u64;
        for round in 0u64..200 {
            let bytes: Vec<u8> = (written..written + 777).map(|i| (i % 251) as u8).collect();
            assert_eq!(buffer.push(&bytes), Some(777));
            written += 777;
            assert_eq!(buffer.available(), Available { upto: written, end: false });
            let mut out = [0; 500];
            let from = written - 700;
            buffer.read(from, &mut out);
            assert!(out.iter().zip(from..).all(|(&byte, i)| byte == (i % 251) as u8), "round {round}");
            buffer.release(written - 750);
        }
        assert_eq!(buffer.outstanding(), 750);
        buffer.finish();
        assert!(buffer.available().end);
    }

    #[test]
    fn a_full_buffer_takes_no_more_until_something_is_released() {
        let mut buffer = SendBuffer::new(1_000);
        assert_eq!(buffer.push(&[1; 2_000]), Some(1_000));
        assert_eq!((buffer.push(&[1]), buffer.push(&[])), (None, Some(0)));
        buffer.release(10);
        assert_eq!(buffer.push(&[1; 2_000]), Some(10));
    }
}
