//! Bytes whose length is not known beforehand, into one file; and files, one after the other, out of a pipe.
//!
//! A stream is read once, so what was sent is kept in memory until it has arrived, and nothing can be resumed. Its
//! entry follows it, when its length and its hash are known.

mod drain;
mod feed;
mod store;

use std::time::{Duration, Instant};

use haul_wire::control::ControlMessage;

use crate::link::ControlLink;

pub use drain::receive_to;
pub use feed::send_stream;
pub use store::receive_stream;

/// What the entry of a stream is called while it travels; the receiver gives it the destination's name.
const STREAM: &[u8] = b"stdin";

/// How long the sender may take to say `Bye`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait before it is looked again whether everything is written.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until the sender has heard how it ended, or has gone.
fn await_close(link: &dyn ControlLink) {
    let until = Instant::now() + CLOSE_TIMEOUT;
    while Instant::now() < until {
        if let Ok(Some(ControlMessage::Bye)) | Err(_) = link.recv(LOOK_AGAIN) {
            return;
        }
    }
}
