//! The WAN emulator: two network namespaces of this machine with a TUN device each, and between them a path made of
//! the stages of `haul-sim`, in real time, for the traffic of any program. It needs the right to make network
//! namespaces; [`acquire`] gets it, or says what is missing. A [`Relay`] on the loopback interface needs no right.

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

pub use emulator::{Emulator, EmulatorOptions, GRAIN, rate_of, rtt_of};
pub use error::WanError;
pub use guard::{die_with_parent, hurry, pin};
pub use link::{Clock, Snapshot, Traffic, Way};
pub use net::{Namespace, Offloads, enter, sweep};
pub use privilege::{Privilege, acquire};
pub use relay::{Relay, Relayed};
pub use tcp::{accept, drain, fill};
pub use world::{Names, PREFIX, Side, TcpWindow, V4, V6, World};
