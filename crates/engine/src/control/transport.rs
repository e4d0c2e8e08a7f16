//! Messages of the transport on the control channel. They go from data thread to data thread; the channel's users do
//! not see them.
//!
//! No data thread waits for the channel, and neither end keeps more than a few messages. At most one waits to be sent:
//! the data thread writes the next when it has left. Of those that were received and not taken, the oldest are dropped.
//! A report that is dropped costs no more than one that is lost over UDP.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use haul_wire::control::{ControlMessage, MAX_TRANSPORT};

use crate::guard::lock;
use crate::{EngineError, Waker};

/// Messages of the other side that may wait for the data thread.
const MOST_INCOMING: usize = 16;

#[derive(Default)]
struct Waiting {
    outgoing: Option<Vec<u8>>,
    incoming: VecDeque<Vec<u8>>,
    data_thread: Option<Waker>,
}

/// The messages of one end that wait.
#[derive(Default)]
pub(super) struct Transport {
    waiting: Mutex<Waiting>,
    /// Whether one waits to be sent, and whether any has come. The data thread reads both in each turn, without the
    /// lock.
    is_full: AtomicBool,
    has_come: AtomicBool,
}

impl Transport {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// The data thread to wake when a message comes, and when another one may be sent.
    pub(super) fn set_data_thread(&self, waker: Waker) {
        self.lock().data_thread = Some(waker);
    }

    /// Whether one waits to be sent.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Leaves a message to be sent.
    pub(super) fn put(&self, message: Vec<u8>) {
        self.lock().outgoing = Some(message);
        self.is_full.store(true, Ordering::Release);
    }

    /// Takes the message to be sent.
    pub(super) fn take_outgoing(&self) -> Option<ControlMessage> {
        if !self.is_full() {
            return None;
        }
        let mut waiting = self.lock();
        let message = waiting.outgoing.take();
        self.is_full.store(false, Ordering::Release);
        if let Some(data_thread) = &waiting.data_thread {
            data_thread.wake();
        }
        message.map(ControlMessage::Transport)
    }

    /// Takes a message that has come.
    ///
    /// # Errors
    /// If it is too long.
    pub(super) fn deliver(&self, message: Vec<u8>) -> Result<(), EngineError> {
        if message.len() > MAX_TRANSPORT {
            return Err(EngineError::protocol(format!(
                "a message of the transport has {} bytes",
                message.len()
            )));
        }
        let mut waiting = self.lock();
        if waiting.incoming.len() == MOST_INCOMING {
            waiting.incoming.pop_front();
        }
        waiting.incoming.push_back(message);
        self.has_come.store(true, Ordering::Release);
        if let Some(data_thread) = &waiting.data_thread {
            data_thread.wake();
        }
        Ok(())
    }

    /// Takes the messages that have come since the last call.
    pub(super) fn take_incoming(&self) -> VecDeque<Vec<u8>> {
        if !self.has_come.swap(false, Ordering::Acquire) {
            return VecDeque::new();
        }
        std::mem::take(&mut self.lock().incoming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_to_be_sent_and_of_those_that_come_the_newest_few() {
        let transport = Transport::default();
        assert!(!transport.is_full() && transport.take_outgoing().is_none());
        transport.put(vec![1]);
        transport.put(vec![2]);
        assert!(transport.is_full());
        assert_eq!(transport.take_outgoing(), Some(ControlMessage::Transport(vec![2])));
        assert!(!transport.is_full() && transport.take_outgoing().is_none());
        for n in 0..1_000_u32 {
            transport.deliver(n.to_be_bytes().to_vec()).unwrap();
        }
        let came = transport.take_incoming();
        assert_eq!(came.len(), MOST_INCOMING);
        assert_eq!(came.back().unwrap()[..], 999_u32.to_be_bytes());
        assert!(transport.take_incoming().is_empty());
        transport.deliver(vec![0; MAX_TRANSPORT]).unwrap();
        assert!(matches!(transport.deliver(vec![0; MAX_TRANSPORT + 1]), Err(EngineError::Protocol { .. })));
    }
}
