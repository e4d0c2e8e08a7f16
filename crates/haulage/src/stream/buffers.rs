//! What lies between the application and the data path of a stream.

use std::collections::VecDeque;
use std::sync::Arc;

use haul_base::Piece;
use haul_engine::{FIRST_LIMIT, Monitor};
use haul_proto::multiplexer::Reassembly;
use haul_proto::{Available, ObjectSink, ObjectSource};

/// Most bytes that are kept: what fits into 100 ms at 5 Gbit/s.
const MOST: usize = 64 << 20;

/// Bytes that were written and have not arrived for certain.
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

/// The data path's end of an [`Outbox`].
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

/// Room for bytes that nobody has read: what a sender may send before it hears of any limit. Memory is taken as they
/// come, not before.
const ROOM: u64 = FIRST_LIMIT;

/// Bytes that have come and were not read yet.
pub(super) struct Inbox {
    bytes: Reassembly,
    /// The sender has sent what it was not permitted to.
    pub(super) broken: bool,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: Reassembly::new(ROOM), broken: false }
    }
}

impl Inbox {
    /// Takes bytes in order, 0 at the end of the stream, and says whether the sender should be told of room that has
    /// become free. `None`: nothing can be read now.
    pub(super) fn pull(&mut self, into: &mut [u8]) -> Option<(usize, bool)> {
        let bytes = self.bytes.pull(into);
        let is_result = bytes > 0 || into.is_empty() || self.bytes.is_at_end();
        is_result.then(|| (bytes, self.bytes.new_limit().is_some()))
    }

    pub(super) fn is_readable(&self) -> bool {
        self.bytes.ready() > 0 || self.bytes.is_at_end()
    }
}

/// The data path's end of an [`Inbox`].
pub(super) struct Sink(pub(super) Arc<Monitor<Inbox>>);

impl ObjectSink for Sink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut inbox = self.0.lock();
        for piece in pieces {
            inbox.broken |= !inbox.bytes.put(piece.offset, &data[piece.range.clone()]);
        }
        if inbox.bytes.ready() > 0 || inbox.broken {
            Monitor::release(inbox);
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().bytes.limit()
    }

    fn complete(&mut self, len: u64) {
        self.0.update(|inbox| inbox.broken |= !inbox.bytes.set_end(len));
    }
}

impl Drop for Sink {
    /// The transfer is over, also if it has failed: nobody would be woken any more.
    fn drop(&mut self) {
        self.0.update(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_sends_too_much_is_found_out() {
        let inbox = Arc::new(Monitor::<Inbox>::default());
        assert_eq!(inbox.lock().pull(&mut [0]), None);
        let mut sink = Sink(inbox.clone());
        let offset = sink.limit();
        sink.deliver(&[1], &[Piece { offset: offset - 1, range: 0..1 }]);
        assert!(!inbox.lock().broken);
        sink.deliver(&[1], &[Piece { offset, range: 0..1 }]);
        assert!(inbox.lock().broken);
    }

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
