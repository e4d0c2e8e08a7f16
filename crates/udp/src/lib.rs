//! UDP sockets for bulk data on Linux: segmentation and coalescing by the kernel (GSO, GRO), ECN, drop
//! counts, arrival timestamps and path MTU errors, with a fallback for each feature that the kernel lacks.
//!
//! A [`UdpSocket`] probes its [`Capabilities`] when it is opened and needs no privilege. Sending and
//! receiving never block and never allocate. Wait with [`UdpSocket::wait`], or register the socket
//! ([`std::os::fd::AsFd`]) with your own poller.
//!
//! ```
//! use haul_base::Ecn;
//! use haul_udp::{Interest, Options, Receiver, UdpSocket};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let receiving = UdpSocket::bind("127.0.0.1:0".parse()?, &Options::default())?;
//! let mut sending = UdpSocket::bind("127.0.0.1:0".parse()?, &Options::default())?;
//! sending.connect(receiving.local_addr()?)?;
//! sending.send(&[7; 3000], 1200, Ecn::Ect0)?;
//!
//! let mut receiver = Receiver::new(&receiving);
//! receiving.wait(Interest::Read, Duration::from_secs(1))?;
//! receiver.recv(&receiving)?;
//! for batch in receiver.datagrams() {
//!     println!("{} datagrams of {} bytes from {}", batch.count(), batch.stride, batch.source);
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("haul-udp needs Linux: it is made of UDP_SEGMENT, UDP_GRO, recvmmsg and SO_RXQ_OVFL");

mod capabilities;
mod clock;
mod cmsg;
mod errors;
#[cfg(feature = "faults")]
mod faults;
mod icmp;
mod name;
mod options;
mod probe;
mod recv;
mod send;
mod send_state;
mod setup;
mod socket;
mod stats;
mod sys;

pub use capabilities::{BufferGrant, Capabilities, Fallback, Gso, Support};
pub use clock::{Arrival, ArrivalClock};
pub use errors::{FullQueue, RecvError, SendError, SocketError};
#[cfg(feature = "faults")]
pub use faults::Faults;
pub use options::{Offload, Options};
pub use recv::{Datagrams, Receiver, RecvCounts};
pub use send::Sent;
pub use send_state::Method;
pub use socket::{Interest, UdpSocket};
pub use stats::{SocketMemory, Stats};
