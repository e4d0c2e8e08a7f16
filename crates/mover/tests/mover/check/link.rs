//! A control channel in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_mover::ControlLink;
use haul_wire::control::{ControlMessage, Fault, FaultCode, Item, encode_frame};

/// One end of the channel.
pub(crate) struct Link {
    pub(super) out: Sender<ControlMessage>,
    pub(super) inc: Receiver<ControlMessage>,
    /// Changes of names that the job at this end has reported.
    pub(crate) items: Arc<Mutex<Vec<Item>>>,
}

/// Creates both ends of a channel.
pub(crate) fn links() -> (Link, Link) {
    let (a, b) = (unbounded(), unbounded());
    let link = |out, inc| Link { out, inc, items: Arc::default() };
    (link(a.0, b.1), link(b.0, a.1))
}

fn lost() -> Fault {
    Fault::new(FaultCode::ControlLost, "the other end is gone", "")
}

impl ControlLink for Link {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        encode_frame(&message, &mut Vec::new()).expect("every message fits a frame");
        self.out.send(message).map_err(|_| lost())
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        match self.inc.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }

    fn changed(&self, item: &Item) {
        self.items.lock().expect("no holder panics").push(item.clone());
    }
}
