//! What `haul demo` needs besides the program itself: a long path on one machine, and files to send over it.

mod direction;
mod fileset;
mod path;
mod ring;
mod spec;
mod tcp;
mod udp;

pub use fileset::{FileSet, FileSetSpec};
pub use path::{DirectionCounts, EmulatedPath, PathCounts};
pub use spec::PathSpec;
