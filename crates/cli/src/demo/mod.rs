//! What `haul demo` needs besides the program itself: a long path on one machine, files to send over it, and TCP to
//! compare with.

mod beside;
mod direction;
mod fileset;
mod path;
mod relay;
mod spec;
mod tcp;
mod udp;

pub use beside::{CONGESTIONS, FlowError, TcpBeside, TcpFlow, flow};
pub use fileset::{FileSet, FileSetSpec};
pub use path::{EmulatedPath, Namespaces};
pub use spec::{DirectionCounts, PathCounts, PathSpec};
