//! Associations: stacks of micro-protocols on real packets, without a connection.
//!
//! Two ends *associate* over the TLS control channel: they agree on a recipe and a secret, and the TCP connection is
//! gone. From then on the client may begin a *flight* at any time with its first packet: a run of the stack under keys
//! that are made from the secret, an epoch that only rises, and a salt. An [`Endpoint`] is one UDP socket and one
//! thread for any number of flights, relieved by threads that wait; a [`Channel`] is one end of one of them. `docs/security.md` says why none of this
//! can be replayed.

mod accept;
mod address;
mod channel;
mod connect;
mod departing;
mod driver;
mod event_loop;
mod guard;
mod handle;
mod inner;
mod options;
mod phase;
mod shared;
mod table;
mod terms;
mod ticket;
mod words;

pub use channel::{Channel, Message};
pub use connect::associate;
pub use handle::{Endpoint, EndpointStats};
pub use options::ChannelOptions;
pub(crate) use shared::EndpointLimits;
pub use terms::Terms;
pub use ticket::{Ticket, TicketError, TicketFile};
