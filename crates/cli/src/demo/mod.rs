//! What `haul demo` needs besides the program itself: a long path on one machine, files to send over it, and TCP to
//! compare with.

mod beside;
mod counters;
mod direction;
mod fileset;
mod path;
mod ring;
mod spec;
mod tcp;
mod udp;

pub use beside::{CONGESTIONS, TcpBeside, TcpFlow, TcpJob, TcpNews, run_tcp_flows};
pub use counters::DirectionCounts;
pub use fileset::{FileSet, FileSetSpec};
pub use path::{EmulatedPath, PathCounts};
pub use spec::PathSpec;
