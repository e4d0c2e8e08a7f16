//! One direction of the emulated path: reads packets from one TUN device, passes them through the stages, and
//! writes them to the other device when they are due.

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

/// The seeds of the two directions must differ.
const BACK: u64 = 0x9E37_79B9_7F4A_7C15;

/// Direction of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathDirection {
    /// From A to B.
    Forth,
    /// From B to A.
    Back,
}

impl PathDirection {
    /// Returns the name used in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forth => "forth",
            Self::Back => "back",
        }
    }

    /// Derives this direction's seed from the path's seed: the two directions draw independently.
    pub fn seed(self, seed: u64) -> u64 {
        match self {
            Self::Forth => seed,
            Self::Back => seed ^ BACK,
        }
    }
}
