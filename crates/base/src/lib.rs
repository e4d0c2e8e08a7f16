//! What every other crate of Haulage speaks: time in integer nanoseconds, units, ranges, seeded random
//! numbers, and the contract of a sans-IO machine. Nothing here reads a clock, opens a socket or starts a
//! thread.

mod machine;
mod memory;
mod nearest;
mod ranges;
mod rng;
mod time;
mod units;

pub use machine::{Deadline, DeadlineReason, Ecn, Machine, PathId, Piece, Received, Transmit};
pub use memory::AlignedBytes;
pub use nearest::{nearest, suggestion};
pub use ranges::RangeSet;
pub use rng::Rng;
pub use time::{Span, Time};
pub use units::{Bytes, Probability, Rate, UnitError};
