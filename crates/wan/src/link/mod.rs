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

/// The seeds of the two directions must differ.
const BACK: u64 = 0x9E37_79B9_7F4A_7C15;

/// Which of the directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From A to B.
    Forth,
    /// From B to A.
    Back,
}

impl Way {
    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forth => "forth",
            Self::Back => "back",
        }
    }

    /// The seed of this direction of a path with the seed `seed`: the two directions draw independently.
    pub fn seed(self, seed: u64) -> u64 {
        match self {
            Self::Forth => seed,
            Self::Back => seed ^ BACK,
        }
    }
}
