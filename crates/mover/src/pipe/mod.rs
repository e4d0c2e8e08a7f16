//! Bytes whose length is not known beforehand, into one file; and files, one after the other, out of a pipe.
//!
//! A stream is read once, so what was sent is kept in memory until it has arrived, and nothing can be resumed. Its
//! entry follows it, when its length and its hash are known.

mod drain;
mod feed;
mod store;

use std::time::Duration;

pub use drain::receive_to;
pub use feed::send_stream;
pub use store::receive_stream;

/// What the entry of a stream is called while it travels; the receiver gives it the destination's name.
const STREAM: &[u8] = b"stdin";

/// Longest wait before it is looked again whether everything is written.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
