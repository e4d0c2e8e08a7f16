//! The WAN emulator: two network namespaces on this machine, each with a TUN device, connected by a path of
//! `haul-sim` stages in real time, for the traffic of any program. It needs the privilege to create network
//! namespaces; [`acquire`] obtains it or reports what is missing. A [`Relay`] on the loopback interface needs
//! no privilege.

mod emulator;
mod error;
mod guard;
mod link;
mod net;
mod packet;
mod privilege;
mod relay;
mod tcp;
mod world;

pub use emulator::{Emulator, EmulatorOptions, MAX_GRANULARITY, rate_of, rtt_of};
pub use error::WanError;
pub use guard::{die_with_parent, end_soon, pin};
pub use link::{Clock, PathDirection, Snapshot, Traffic};
pub use net::{Namespace, Offloads, enter, sweep};
pub use privilege::{Privilege, acquire};
pub use relay::{Relay, Relayed};
pub use tcp::{accept, drain, fill};
pub use world::{Names, PREFIX, Side, TcpWindow, V4, V6, World};
