//! Messages of the transport on the control channel. They go from data thread to data thread; the channel's users do
//! not see them.
//!
//! No data thread waits for the channel, and neither end keeps more than a few messages. At most one waits to be sent:
//! the data thread writes the next when it has left. Of those that were received and not taken, the oldest are dropped.
//! A report that is dropped costs no more than one that is lost over UDP.

use std::sync::OnceLock;

use crossbeam_queue::ArrayQueue;
use haul_wire::control::{ControlMessage, MAX_TRANSPORT};

use crate::{EngineError, Waker};

/// Messages of the other side that may wait for the data thread.
const MOST_INCOMING: usize = 16;

/// The messages of one end that wait. The data thread looks at both queues in each turn, without a lock.
pub(super) struct Transport {
    pub(super) outgoing: ArrayQueue<Vec<u8>>,
    pub(super) incoming: ArrayQueue<Vec<u8>>,
    /// To be woken when a message comes, and when another one may be sent.
    pub(super) data_thread: OnceLock<Waker>,
}

impl Default for Transport {
    fn default() -> Self {
        let (outgoing, incoming) = (ArrayQueue::new(1), ArrayQueue::new(MOST_INCOMING));
        Self { outgoing, incoming, data_thread: OnceLock::new() }
    }
}

impl Transport {
    pub(super) fn take_outgoing(&self) -> Option<ControlMessage> {
        let message = self.outgoing.pop()?;
        self.wake_data_thread();
        Some(ControlMessage::Transport(message))
    }

    fn wake_data_thread(&self) {
        if let Some(data_thread) = self.data_thread.get() {
            data_thread.wake();
        }
    }

    /// Takes a message that has come.
    ///
    /// # Errors
    /// If it is too long.
    pub(super) fn deliver(&self, message: Vec<u8>) -> Result<(), EngineError> {
        let len = message.len();
        if len > MAX_TRANSPORT {
            return Err(EngineError::protocol(format!("a message of the transport has {len} bytes")));
        }
        self.incoming.force_push(message);
        self.wake_data_thread();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_to_be_sent_and_of_those_that_come_the_newest_few() {
        let transport = Transport::default();
        assert!(transport.take_outgoing().is_none());
        transport.outgoing.push(vec![2]).unwrap();
        assert!(transport.outgoing.is_full());
        assert_eq!(transport.take_outgoing(), Some(ControlMessage::Transport(vec![2])));
        assert!(!transport.outgoing.is_full() && transport.take_outgoing().is_none());
        for n in 0..1_000_u32 {
            transport.deliver(n.to_be_bytes().to_vec()).unwrap();
        }
        let came: Vec<_> = std::iter::from_fn(|| transport.incoming.pop()).collect();
        assert_eq!(came.len(), MOST_INCOMING);
        assert_eq!(came.last().unwrap()[..], 999_u32.to_be_bytes());
        transport.deliver(vec![0; MAX_TRANSPORT]).unwrap();
        assert!(matches!(transport.deliver(vec![0; MAX_TRANSPORT + 1]), Err(EngineError::Protocol { .. })));
    }
}
