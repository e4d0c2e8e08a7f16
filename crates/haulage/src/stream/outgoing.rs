//! Bytes that were written and have not arrived for certain.

use std::collections::VecDeque;
use std::sync::Arc;

use haul_engine::Monitor;
use haul_proto::{Available, ObjectSource};

/// Most bytes that are kept: what fits into 100 ms at 5 Gbit/s.
const MOST: usize = 64 << 20;

#[derive(Default)]
pub(super) struct Outbox {
    pub(super) bytes: VecDeque<u8>,
    /// Where the first of them lies in the stream.
    base: u64,
    pub(super) ended: bool,
}

impl Outbox {
    /// Takes as many bytes as there is room for. `None`: there is none.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        let taken = bytes.len().min(MOST - self.bytes.len());
        self.bytes.extend(&bytes[..taken]);
        (taken > 0 || bytes.is_empty()).then_some(taken)
    }
}

/// The data path's end.
pub(super) struct Source(pub(super) Arc<Monitor<Outbox>>);

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        let outbox = self.0.lock();
        Available { upto: outbox.base + outbox.bytes.len() as u64, end: outbox.ended }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        let outbox = self.0.lock();
        let start = offset.saturating_sub(outbox.base) as usize;
        let (first, second) = outbox.bytes.as_slices();
        let from_first = first.get(start..).unwrap_or_default();
        let here = from_first.len().min(into.len());
        into[..here].copy_from_slice(&from_first[..here]);
        let rest = &mut into[here..];
        let at = (start + here).saturating_sub(first.len());
        rest.copy_from_slice(&second[at..at + rest.len()]);
    }

    /// What was written is to arrive, whether or not more follows.
    fn is_urgent(&mut self) -> bool {
        true
    }

    fn release(&mut self, offset: u64) {
        self.0.update(|outbox| {
            let gone = (offset.saturating_sub(outbox.base) as usize).min(outbox.bytes.len());
            outbox.bytes.drain(..gone);
            outbox.base += gone as u64;
        });
    }
}

impl Drop for Source {
    /// The transfer is over, also if it has failed: nobody would be woken any more.
    fn drop(&mut self) {
        self.0.update(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_they_are_released_and_read_across_the_seam() {
        let outbox = Arc::new(Monitor::<Outbox>::default());
        let mut source = Source(outbox.clone());
        let mut written = 0u64;
        for round in 0u64..200 {
            let bytes: Vec<u8> = (written..written + 777).map(|i| (i % 251) as u8).collect();
            assert_eq!(outbox.lock().push(&bytes), Some(777));
            written += 777;
            assert_eq!(source.available(), Available { upto: written, end: false });
            let mut out = [0; 500];
            let from = written - 700;
            source.read(from, &mut out);
            assert!(out.iter().zip(from..).all(|(&byte, i)| byte == (i % 251) as u8), "round {round}");
            source.release(written - 750);
        }
        assert_eq!(outbox.lock().bytes.len(), 750);
        outbox.lock().ended = true;
        assert!(source.available().end);
    }

    #[test]
    fn a_full_box_takes_no_more_until_something_is_released() {
        let outbox = Arc::new(Monitor::<Outbox>::default());
        let bytes = vec![1; MOST];
        assert_eq!(outbox.lock().push(&bytes), Some(MOST));
        assert_eq!(outbox.lock().push(&bytes), None);
        Source(outbox.clone()).release(10);
        assert_eq!(outbox.lock().push(&bytes), Some(10));
    }
}
