//! Connections on a shared UDP socket, without a TCP connection.
//!
//! Two peers agree on a recipe and a secret, the *resumption state*, over the TLS control channel, and close
//! it. From then on the client may open a connection at any time with its first packet: a run of the recipe's
//! stack under keys derived from the secret, a strictly increasing epoch and a salt. An [`Endpoint`] is one
//! UDP socket and one event loop for any number of connections; a [`Channel`] is one end of a connection.
//! `docs/security.md` explains the protection against replay.

mod accept;
mod channel;
mod connection;
mod data_thread;
mod driver;
mod event_loop;
mod handle;
mod open;
mod pending;
mod shared;
mod socket;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;

pub use channel::{Channel, Message};
pub(crate) use connection::Connection;
pub(crate) use data_thread::{DataThread, Published, SessionSide};
pub use handle::Endpoint;
pub use open::OpenOptions;
pub(crate) use pending::{PendingSession, Service, SessionTable, UdpSide, send_probes};
pub(crate) use shared::SharedEndpoint;
pub(crate) use socket::EndpointSocket;
pub use socket::EndpointStats;
