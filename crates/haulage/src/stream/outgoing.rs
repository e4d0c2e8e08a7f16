//! Bytes that were written and have not arrived for certain.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use haul_engine::WakerList;
use haul_proto::{Available, ObjectSource};

/// Most bytes that are kept: what fits into 100 ms at 5 Gbit/s.
const MOST: usize = 64 << 20;

#[derive(Default)]
pub(super) struct Outbox(Mutex<State>);

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Where the first of them lies in the stream.
    base: u64,
    ended: bool,
    wakers: WakerList,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().bytes.len()
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
    }

    /// Takes as many bytes as there is room for; if there is none, `waker` is woken when there is.
    pub(super) fn push(&self, bytes: &[u8], waker: &Waker) -> usize {
        let mut state = self.lock();
        let taken = bytes.len().min(MOST - state.bytes.len());
        state.bytes.extend(&bytes[..taken]);
        if taken == 0 {
            state.wakers.add(waker);
        }
        taken
    }

    pub(super) fn source(self: &Arc<Self>) -> Source {
        Source(self.clone())
    }
}

/// The data path's end.
pub(super) struct Source(Arc<Outbox>);

impl ObjectSource for Source {
    fn available(&mut self) -> Available {
        let state = self.0.lock();
        Available { upto: state.base + state.bytes.len() as u64, end: state.ended }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        let state = self.0.lock();
        let start = offset.saturating_sub(state.base) as usize;
        let (first, second) = state.bytes.as_slices();
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
        let mut state = self.0.lock();
        let gone = (offset.saturating_sub(state.base) as usize).min(state.bytes.len());
        state.bytes.drain(..gone);
        state.base += gone as u64;
        let wakers = state.wakers.take();
        drop(state);
        wakers.wake();
    }
}

impl Drop for Source {
    /// The transfer is over, also if it has failed: nobody would be woken any more.
    fn drop(&mut self) {
        let wakers = self.0.lock().wakers.take();
        wakers.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_they_are_released_and_read_across_the_seam() {
        let outbox = Arc::new(Outbox::default());
        let mut source = outbox.source();
        let mut written = 0u64;
        for round in 0u64..200 {
            let bytes: Vec<u8> = (written..written + 777).map(|i| (i % 251) as u8).collect();
            assert_eq!(outbox.push(&bytes, Waker::noop()), 777);
            written += 777;
            assert_eq!(source.available(), Available { upto: written, end: false });
            let mut out = [0; 500];
            let from = written - 700;
            source.read(from, &mut out);
            assert!(out.iter().zip(from..).all(|(&byte, i)| byte == (i % 251) as u8), "round {round}");
            source.release(written - 750);
        }
        assert_eq!(outbox.len(), 750);
        outbox.end();
        assert!(source.available().end);
    }

    #[test]
    fn a_full_box_takes_no_more_until_something_is_released() {
        let outbox = Arc::new(Outbox::default());
        let bytes = vec![1; MOST];
        assert_eq!(outbox.push(&bytes, Waker::noop()), MOST);
        for _ in 0..100 {
            assert_eq!(outbox.push(&bytes, Waker::noop()), 0);
        }
        assert_eq!(outbox.lock().wakers.len(), 1, "a task that polls again and again is remembered once");
        outbox.source().release(10);
        assert_eq!(outbox.push(&bytes, Waker::noop()), 10);
    }
}
