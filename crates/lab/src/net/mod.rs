//! Network namespaces, TUN devices and the kernel's settings inside of a namespace.

mod namespace;
mod netlink;
mod sweep;
mod sys;
mod tun;

pub(crate) use namespace::{Namespace, enter, private_user_namespace};
pub(crate) use netlink::{Address, configure};
pub(crate) use sweep::{kill_inside, sweep};
pub(crate) use sys::run_before_others;
pub(crate) use tun::{CLONE_DEVICE, Offloads, Tun};
