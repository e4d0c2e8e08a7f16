//! Basic types of all other Haulage crates: time in integer nanoseconds, units, ranges, seeded random
//! numbers, and the contract of a sans-IO machine. Nothing here reads a clock, opens a socket or starts a
//! thread.

mod counter;
mod host;
mod machine;
mod memory;
mod nearest;
mod ranges;
mod rng;
mod text;
mod time;
mod units;
mod verdict;

pub use counter::AtomicCounter;
pub use host::HostSample;
pub use machine::{Deadline, DeadlineReason, Ecn, Machine, PathId, Piece, Received, Transmit};
pub use memory::AlignedBytes;
pub use nearest::{nearest, suggestion};
pub use ranges::RangeSet;
pub use rng::Rng;
pub use text::{Printable, WithCauses, is_unprintable, printable_bytes};
pub use time::{Span, Time};
pub use units::{Bytes, Probability, Rate, UnitError};
pub use verdict::{Cause, CauseCounts, Verdict};
