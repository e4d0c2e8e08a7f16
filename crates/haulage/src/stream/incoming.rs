//! Bytes that have come and were not read yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use haul_base::{Piece, RangeSet};
use haul_engine::FIRST_LIMIT;
use haul_proto::ObjectSink;

use crate::blocking::wake_later;

/// Room for bytes that nobody has read: what a sender may send before it hears of any limit. Memory is taken as they
/// come, not before.
const ROOM: u64 = FIRST_LIMIT;
/// The sender is told of new room when a quarter of it is free again.
const WORTH_TELLING: u64 = ROOM / 4;

#[derive(Default)]
pub(super) struct Inbox(Mutex<State>);

#[derive(Default)]
struct State {
    /// Byte `offset` of the stream lies at `offset % ROOM`.
    ring: Vec<u8>,
    arrived: RangeSet,
    /// Everything before has been read.
    read: u64,
    told: u64,
    end: Option<u64>,
    broken: bool,
    wakers: Vec<Waker>,
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

impl State {
    /// How many bytes can be read.
    fn ready(&self) -> u64 {
        self.arrived.containing(self.read).map_or(0, |range| range.end - self.read)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        if offset < self.read || offset + bytes.len() as u64 > self.read + ROOM {
            self.broken = true;
            return;
        }
        if self.ring.is_empty() {
            self.ring = vec![0; ROOM as usize];
        }
        let at = (offset % ROOM) as usize;
        let first = bytes.len().min(ROOM as usize - at);
        self.ring[at..at + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.arrived.insert(offset..offset + bytes.len() as u64);
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes in order; if there are none, `waker` is woken when there are.
    pub(super) fn pull(&self, into: &mut [u8], waker: &Waker) -> Taken {
        let mut state = self.lock();
        let bytes = (state.ready()).min(into.len() as u64) as usize;
        if bytes > 0 {
            let at = (state.read % ROOM) as usize;
            let first = bytes.min(ROOM as usize - at);
            into[..first].copy_from_slice(&state.ring[at..at + first]);
            into[first..bytes].copy_from_slice(&state.ring[..bytes - first]);
            let (from, to) = (state.read, state.read + bytes as u64);
            state.arrived.remove(from..to);
            state.read = to;
        } else {
            wake_later(&mut state.wakers, waker);
        }
        let has_freed_room = state.read - state.told >= WORTH_TELLING;
        if has_freed_room {
            state.told = state.read;
        }
        Taken { bytes, is_end: state.end == Some(state.read), has_freed_room }
    }

    pub(super) fn is_readable(&self) -> bool {
        let state = self.lock();
        state.ready() > 0 || state.end == Some(state.read)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    pub(super) fn sink(self: &Arc<Self>) -> Sink {
        Sink(self.clone())
    }

    fn release(mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The data path's end.
pub(super) struct Sink(Arc<Inbox>);

impl ObjectSink for Sink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut state = self.0.lock();
        for piece in pieces {
            state.put(piece.offset, &data[piece.range.clone()]);
        }
        if state.ready() > 0 || state.broken {
            Inbox::release(state);
        }
    }

    fn limit(&mut self) -> u64 {
        self.0.lock().read + ROOM
    }

    fn complete(&mut self, len: u64) {
        let mut state = self.0.lock();
        state.end = Some(len);
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
    fn bytes_come_in_any_order_and_are_read_in_one() {
        let inbox = Arc::new(Inbox::default());
        let mut sink = inbox.sink();
        let data: Vec<u8> = (0..100).collect();
        let piece = |range: std::ops::Range<usize>| Piece { offset: range.start as u64, range };
        sink.deliver(&data, &[piece(50..100)]);
        let mut out = [0; 100];
        assert_eq!(inbox.pull(&mut out, Waker::noop()).bytes, 0);
        sink.deliver(&data, &[piece(0..20), piece(20..50)]);
        sink.complete(100);
        assert_eq!(inbox.pull(&mut out[..70], Waker::noop()).bytes, 70);
        let taken = inbox.pull(&mut out[70..], Waker::noop());
        assert!(taken.bytes == 30 && taken.is_end && out[..] == data[..]);
    }

    #[test]
    fn a_task_that_polls_again_and_again_is_remembered_once() {
        let inbox = Inbox::default();
        for _ in 0..100 {
            assert_eq!(inbox.pull(&mut [0], Waker::noop()).bytes, 0);
        }
        assert_eq!(inbox.lock().wakers.len(), 1);
    }

    #[test]
    fn the_ring_goes_round_and_a_sender_that_sends_too_much_is_found_out() {
        let inbox = Arc::new(Inbox::default());
        let mut sink = inbox.sink();
        let (mut chunk, mut out) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        for round in 0..ROOM >> 19 {
            chunk.fill(round as u8);
            let range = 0..chunk.len() - 3;
            let offset = round * (chunk.len() as u64 - 3);
            assert!(sink.limit() >= offset + ROOM);
            sink.deliver(&chunk, &[Piece { offset, range: range.clone() }]);
            assert_eq!(inbox.pull(&mut out, Waker::noop()).bytes, range.len());
            assert!(out[..range.len()] == chunk[..range.len()], "round {round}");
        }
        assert!(!inbox.is_broken());
        let offset = sink.limit();
        sink.deliver(&chunk, &[Piece { offset, range: 0..1 }]);
        assert!(inbox.is_broken());
    }
}
