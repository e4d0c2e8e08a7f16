//! Buffers between the application and a stream's data path.

use std::sync::Arc;

use haul_base::Piece;
use haul_engine::{INITIAL_LIMIT, Monitor};
use haul_proto::multiplexer::{Reassembly, SendBuffer};
use haul_proto::{Available, ObjectSink, ObjectSource};

/// The data path's handle to the send buffer.
pub(super) struct Source(pub(super) Arc<Monitor<SendBuffer>>);

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        self.0.lock().available()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        self.0.lock().read(offset, into);
    }

    /// Written bytes are sent even if no more follow.
    fn is_urgent(&mut self) -> bool {
        true
    }

    fn release(&mut self, offset: u64) {
        self.0.update(|outbox| outbox.release(offset));
    }
}

impl Drop for Source {
    /// Wakes all waiters: the transfer has ended or failed, so nothing else would.
    fn drop(&mut self) {
        self.0.update(|_| ());
    }
}

/// Capacity for unread bytes: what a sender may send before the first limit. Allocated as bytes arrive.
const CAPACITY: u64 = INITIAL_LIMIT;

/// Received bytes that were not read yet.
pub(super) struct Inbox {
    bytes: Reassembly,
    /// Whether the sender exceeded its limit.
    pub(super) limit_exceeded: bool,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: Reassembly::new(CAPACITY), limit_exceeded: false }
    }
}

impl Inbox {
    /// Reads bytes in order, 0 at the end of the stream; also returns whether the sender should be sent a new
    /// limit. `None` if no bytes are readable now.
    pub(super) fn pull(&mut self, into: &mut [u8]) -> Option<(usize, bool)> {
        let bytes = self.bytes.pull(into);
        let is_result = bytes > 0 || into.is_empty() || self.bytes.is_at_end();
        is_result.then(|| (bytes, self.bytes.new_limit().is_some()))
    }

    pub(super) fn is_readable(&self) -> bool {
        self.bytes.ready() > 0 || self.bytes.is_at_end()
    }
}

/// The data path's handle to an [`Inbox`].
pub(super) struct Sink(pub(super) Arc<Monitor<Inbox>>);

impl ObjectSink for Sink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut inbox = self.0.lock();
        for piece in pieces {
            inbox.limit_exceeded |= !inbox.bytes.put(piece.offset, &data[piece.range.clone()]);
        }
        if inbox.bytes.ready() > 0 || inbox.limit_exceeded {
            Monitor::release(inbox);
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().bytes.limit()
    }

    fn complete(&mut self, len: u64) {
        self.0.update(|inbox| inbox.limit_exceeded |= !inbox.bytes.set_end(len));
    }
}

impl Drop for Sink {
    /// Wakes all waiters: the transfer has ended or failed, so nothing else would.
    fn drop(&mut self) {
        self.0.update(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_exceeds_its_limit_is_detected() {
        let inbox = Arc::new(Monitor::<Inbox>::default());
        assert_eq!(inbox.lock().pull(&mut [0]), None);
        let mut sink = Sink(inbox.clone());
        let offset = sink.limit();
        sink.deliver(&[1], &[Piece { offset: offset - 1, range: 0..1 }]);
        assert!(!inbox.lock().limit_exceeded);
        sink.deliver(&[1], &[Piece { offset, range: 0..1 }]);
        assert!(inbox.lock().limit_exceeded);
    }
}
