//! One direction of the emulated path: reads packets from one TUN device, takes them through the stages, and
//! writes them to the other when they are due.

mod carrier;
mod drop_log;
mod outlet;
mod pool;
mod snapshot;
mod thread;
mod wait;
mod writer;

pub(crate) use drop_log::DropLog;
pub use snapshot::{Snapshot, Traffic};
pub(crate) use thread::{Link, LinkOptions};
pub use wait::Clock;
