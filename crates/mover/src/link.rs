//! The control channel as the mover uses it, and sending lists over it.

use std::time::Duration;

use haul_wire::control::{ControlMessage, Fault, Item, MAX_FRAME, encoded_len};
use serde::Serialize;

/// Maximum wait for a message before checking again whether the job is over.
pub(crate) const RECV_TIMEOUT: Duration = Duration::from_millis(50);

/// An ordered, reliable channel of control messages to the peer, used from several threads at once.
pub trait ControlLink: Send + Sync {
    /// Queues `message` for the peer. May block for as long as the channel is congested.
    ///
    /// # Errors
    /// The channel is broken; the fault says how and ends the job.
    fn send(&self, message: ControlMessage) -> Result<(), Fault>;

    /// Returns the peer's next message, or `None` if none was received within `timeout`.
    ///
    /// # Errors
    /// The channel is broken; the fault says how and ends the job.
    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault>;

    /// Reports a change of a name: a removal, or in a dry run or with `--verbose` any change. Called from the
    /// threads of the job.
    fn changed(&self, _item: &Item) {}
}

/// Target size of one message in bytes; the last item may exceed it. Items are far smaller than the rest of
/// the frame.
const PART_BYTES: usize = MAX_FRAME / 4;

/// Sends a list in as many messages as necessary, at most `max_items` items each.
pub(crate) fn send_list<T: Serialize>(
    link: &dyn ControlLink,
    mut items: Vec<T>,
    max_items: usize,
    message: impl Fn(Vec<T>) -> ControlMessage,
) -> Result<(), Fault> {
    while !items.is_empty() {
        let mut bytes = 0;
        let fits = items.iter().take(max_items).take_while(|item| {
            let before = bytes;
            bytes += encoded_len(item);
            before < PART_BYTES
        });
        let len = fits.count();
        let remaining = items.split_off(len);
        link.send(message(std::mem::replace(&mut items, remaining)))?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Drops what is sent, and receives nothing.
    pub(crate) struct NullLink;

    impl ControlLink for NullLink {
        fn send(&self, _: ControlMessage) -> Result<(), Fault> {
            Ok(())
        }

        fn recv(&self, _: Duration) -> Result<Option<ControlMessage>, Fault> {
            Ok(None)
        }
    }

    #[test]
    fn parts_are_bounded_in_items_and_bytes_and_lose_nothing() {
        let items: Vec<Vec<u8>> = (0..100).map(|i| vec![i as u8; i * 1000]).collect();
        let parts = RefCell::new(Vec::new());
        let record = |part| {
            parts.borrow_mut().push(part);
            ControlMessage::Close
        };
        send_list(&NullLink, items.clone(), 40, record).unwrap();
        let parts = parts.into_inner();
        for part in &parts {
            assert!(!part.is_empty() && part.len() <= 40);
            assert!(part.iter().map(Vec::len).sum::<usize>() < MAX_FRAME);
        }
        assert_eq!(parts.concat(), items);
    }
}
