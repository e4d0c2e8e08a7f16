//! The control channel as the mover uses it, and sending lists over it.

use std::time::Duration;

use haul_wire::control::{ControlMessage, Fault, MAX_FRAME, encoded_len};
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
}

/// Target size of one message in bytes; the last item may exceed it. Items are far smaller than the rest of
/// the frame.
const PART_BYTES: usize = MAX_FRAME / 4;

/// Sends a list in as many messages as necessary, at most `most` items each.
pub(crate) fn send_list<T: Serialize>(
    link: &dyn ControlLink,
    mut items: Vec<T>,
    most: usize,
    message: impl Fn(Vec<T>) -> ControlMessage,
) -> Result<(), Fault> {
    while !items.is_empty() {
        link.send(message(next_part(&mut items, most, encoded_len)))?;
    }
    Ok(())
}

/// Splits off the items of the next message: as many as fit, at least one if `items` is not empty.
fn next_part<T>(items: &mut Vec<T>, most: usize, size: impl Fn(&T) -> usize) -> Vec<T> {
    let mut bytes = 0;
    let fits = items.iter().take(most).take_while(|item| {
        let before = bytes;
        bytes += size(item);
        before < PART_BYTES
    });
    let len = fits.count();
    let rest = items.split_off(len);
    std::mem::replace(items, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bounded_in_items_and_bytes_and_lose_nothing() {
        let mut items: Vec<usize> = (0..100).map(|i| i * 1000).collect();
        let all = items.clone();
        let mut back = Vec::new();
        while !items.is_empty() {
            let part = next_part(&mut items, 40, |&bytes| bytes);
            assert!(!part.is_empty() && part.len() <= 40);
            assert!(part.iter().sum::<usize>() < MAX_FRAME);
            back.extend(part);
        }
        assert_eq!(back, all);
    }
}
