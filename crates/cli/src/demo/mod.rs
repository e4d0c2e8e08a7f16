//! What `haul demo` needs besides the program itself: a long path on one machine, and files to send over it.

mod fileset;
mod line;
mod model;
mod path;
mod tcp;
mod udp;

pub use fileset::{FileSet, FileSetSpec};
pub use model::{DropReason, Fate, PathModel, PathSpec};
pub use path::{DirectionCounts, EmulatedPath, PathCounts};
