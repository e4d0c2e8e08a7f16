//! Haulage on real sockets, threads and clocks: the TLS 1.3 control channel, authentication, the listener,
//! and opening sessions from URLs.
//!
//! A server binds a [`Listener`], publishes [`Listener::url`] and accepts [`Incoming`] sessions from it; a
//! client calls [`connect`]. Both get a [`Session`]: its [`Control`] channel carries messages, and
//! [`Session::start_sending`] and [`Session::start_receiving`] move one object in a separate thread.
//! `docs/security.md` describes what is protected, and how.

mod clock;
mod connect;
mod control;
mod endpoint;
mod error;
mod identity;
mod listener;
mod secret_file;
mod session;
mod socket_reader;
mod spawn;
mod tls;
mod transfer;
mod wake;

pub use clock::{Clock, after};
pub use connect::{ConnectOptions, ResumptionFile, connect};
pub use control::Control;
pub use endpoint::{Channel, Endpoint, EndpointStats, Message, OpenOptions};
pub use error::{EngineError, SharedIoError};
pub use haul_proto::connection::{
    ConnectionOptions, Direction, HandshakeLimits, ResumptionError, Role, SavedResumption, Terms, ceiling,
    offer, take_parameters,
};
pub use haul_proto::{Counters, Sending};
pub use haul_wire::secret::Secret;
pub use haul_wire::url::{HaulUrl, UrlError};
pub use listener::{Admit, Incoming, ListenOptions, Listener, ListenerStats};
pub use secret_file::write_secret_file;
pub use session::{SOCKET_BUFFER, Session};
pub use spawn::spawn;
pub use transfer::{INITIAL_LIMIT, Transfer};
pub use wake::{Monitor, Waker, WakerList, block_on, block_until, lock, wait_for};
