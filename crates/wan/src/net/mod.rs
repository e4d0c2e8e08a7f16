//! Network namespaces, TUN devices and kernel settings inside a namespace.

mod namespace;
mod netlink;
mod sweep;
mod sys;
mod tun;

pub(crate) use namespace::private_user_namespace;
pub use namespace::{Namespace, enter};
pub(crate) use netlink::{Address, configure};
pub use sweep::sweep;
pub(crate) use sweep::{kill_processes_in, process_name};
pub(crate) use sys::run_before_others;
pub use tun::Offloads;
pub(crate) use tun::{CLONE_DEVICE, Tun};
