//! What `haul demo` needs besides the program itself: a long path on one machine, files to send over it, and TCP to
//! compare with.

mod beside;
mod fileset;
mod path;

pub(crate) use beside::{CONGESTIONS, FlowError, TcpFlow, flow};
pub(crate) use fileset::FileSet;
pub(crate) use path::{EmulatedPath, Namespaces, PathSpec, acquire_namespaces, told};
