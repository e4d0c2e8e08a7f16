//! Says what is done to names, here and to the sender.

use std::sync::{Mutex, PoisonError};

use haul_wire::control::{Action, ControlMessage, Fault, Item, RelPath, encoded_len};

use crate::batch::next_part;
use crate::receive::shared::Shared;

/// Items in one message at most.
const BATCH: usize = 1024;

/// Items that the sender has not been told yet.
#[derive(Default)]
pub(crate) struct Untold(Mutex<Vec<Item>>);

impl Shared {
    /// Something was done to an entry, if that is to be said.
    pub(crate) fn narrate(&self, path: &[u8], action: Action) -> Result<(), Fault> {
        if self.narrates() { self.tell(self.place.local(path), action) } else { Ok(()) }
    }

    /// Something is done to a name, which is relative to the destination, or would be.
    pub(crate) fn tell(&self, local: Vec<u8>, action: Action) -> Result<(), Fault> {
        // A path that is too long to travel is counted all the same.
        let Ok(path) = RelPath::new(local) else { return Ok(()) };
        let item = Item { path, action };
        self.progress.tell(&item);
        // Who wants to know it is on this side.
        if self.narrates() && self.asked.is_some() {
            return Ok(());
        }
        let mut untold = self.untold.0.lock().unwrap_or_else(PoisonError::into_inner);
        untold.push(item);
        let full = untold.len() >= BATCH;
        drop(untold);
        if full { self.tell_the_rest() } else { Ok(()) }
    }

    /// Nothing is kept back any longer.
    pub(crate) fn tell_the_rest(&self) -> Result<(), Fault> {
        let mut untold = self.untold.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut items = std::mem::take(&mut *untold);
        drop(untold);
        while !items.is_empty() {
            let part = next_part(&mut items, BATCH, encoded_len);
            self.link.send(ControlMessage::Items(part))?;
        }
        Ok(())
    }
}
