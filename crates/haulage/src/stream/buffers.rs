//! What lies between the application and the data path of a stream.

use std::sync::Arc;

use haul_base::Piece;
use haul_engine::{FIRST_LIMIT, Monitor};
use haul_proto::multiplexer::{Reassembly, SendBuffer};
use haul_proto::{Available, ObjectSink, ObjectSource};

/// The data path's end of what was written.
pub(super) struct Source(pub(super) Arc<Monitor<SendBuffer>>);

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        self.0.lock().available()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        self.0.lock().read(offset, into);
    }

    /// What was written is to arrive, whether or not more follows.
    fn is_urgent(&mut self) -> bool {
        true
    }

    fn release(&mut self, offset: u64) {
        self.0.update(|outbox| outbox.release(offset));
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
}
