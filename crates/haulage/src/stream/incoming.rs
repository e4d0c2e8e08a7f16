//! Bytes that have come and were not read yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use haul_base::Piece;
use haul_engine::{FIRST_LIMIT, WakerList};
use haul_proto::ObjectSink;

use crate::reassembly::Reassembly;

/// Room for bytes that nobody has read: what a sender may send before it hears of any limit. Memory is taken as they
/// come, not before.
const ROOM: u64 = FIRST_LIMIT;

pub(super) struct Inbox(Mutex<State>);

struct State {
    bytes: Reassembly,
    broken: bool,
    wakers: WakerList,
}

impl Default for Inbox {
    fn default() -> Self {
        Self(Mutex::new(State { bytes: Reassembly::new(ROOM), broken: false, wakers: WakerList::default() }))
    }
}

/// What a read came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) bytes: usize,
    /// Nothing comes any more.
    pub(super) is_end: bool,
    /// The sender should be told.
    pub(super) has_freed_room: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes in order; if there are none, `waker` is woken when there are.
    pub(super) fn pull(&self, into: &mut [u8], waker: &Waker) -> Taken {
        let mut state = self.lock();
        let bytes = state.bytes.pull(into);
        if bytes == 0 {
            state.wakers.add(waker);
        }
        let has_freed_room = state.bytes.new_limit().is_some();
        Taken { bytes, is_end: state.bytes.is_at_end(), has_freed_room }
    }

    pub(super) fn is_readable(&self) -> bool {
        let state = self.lock();
        state.bytes.ready() > 0 || state.bytes.is_at_end()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    pub(super) fn sink(self: &Arc<Self>) -> Sink {
        Sink(self.clone())
    }

    fn release(mut state: MutexGuard<'_, State>) {
        let wakers = state.wakers.take();
        drop(state);
        wakers.wake();
    }
}

/// The data path's end.
pub(super) struct Sink(Arc<Inbox>);

impl ObjectSink for Sink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut state = self.0.lock();
        for piece in pieces {
            state.broken |= !state.bytes.put(piece.offset, &data[piece.range.clone()]);
        }
        if state.bytes.ready() > 0 || state.broken {
            Inbox::release(state);
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().bytes.limit()
    }

    fn complete(&mut self, len: u64) {
        let mut state = self.0.lock();
        state.broken |= !state.bytes.set_end(len);
        Inbox::release(state);
    }
}

impl Drop for Sink {
    /// The transfer is over, also if it has failed: nobody would be woken any more.
    fn drop(&mut self) {
        Inbox::release(self.0.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_polls_again_and_again_is_remembered_once() {
        let inbox = Inbox::default();
        for _ in 0..100 {
            assert_eq!(inbox.pull(&mut [0], Waker::noop()).bytes, 0);
        }
        assert_eq!(inbox.lock().wakers.len(), 1);
    }

    #[test]
    fn a_sender_that_sends_too_much_is_found_out() {
        let inbox = Arc::new(Inbox::default());
        let mut sink = inbox.sink();
        let offset = sink.limit();
        sink.deliver(&[1], &[Piece { offset: offset - 1, range: 0..1 }]);
        assert!(!inbox.is_broken());
        sink.deliver(&[1], &[Piece { offset, range: 0..1 }]);
        assert!(inbox.is_broken());
    }
}
