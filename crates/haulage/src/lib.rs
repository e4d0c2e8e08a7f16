//! Sockets for long fat networks, each with the transport that its data needs.
//!
//! A [`Listener`] binds a port and makes a URL; whoever has the URL connects. What travels between the two is decided
//! by a [`Recipe`], a stack of micro-protocols written as data:
//!
//! | preset | what it is for |
//! |---|---|
//! | `viz` | a stream at the rate that the receiver asks for, as even as can be, nothing repeated |
//! | `msg` | messages that arrive, with the least delay |
//! | `sensor` | readings, with the fewest packets |
//! | `streams` | several streams of bytes ([`SendStream`], [`RecvStream`]), and messages beside them |
//!
//! An [`Endpoint`] is one socket and one thread for any number of [`Connection`]s. [`ByteWriter`] and [`ByteReader`] carry a reliable stream of bytes over the bulk transport, or by any other
//! recipe of an object (`fobs`, `rbudp`).
//!
//! ```no_run
//! use std::time::Duration;
//! use haulage::{Connection, Listener, Options};
//!
//! # fn main() -> Result<(), haulage::Error> {
//! let listener = Listener::bind("0.0.0.0:2640".parse().unwrap())?;
//! println!("{}", listener.url("server.example.org"));
//! let there = listener.accept().wait()?;
//! println!("{:?}", there.recv().wait_for(Duration::from_secs(5))?);
//!
//! // elsewhere
//! let url = "haul://server.example.org:2640/?k=..." ;
//! let here = Connection::open(url, &haulage::preset("msg")?, &Options::default()).wait()?;
//! here.send(b"hello").wait()?;
//! here.close(Duration::from_secs(5))?;
//! # Ok(()) }
//! ```
//!
//! Connecting, accepting, sending and receiving are [`Operation`]s: threads wait for them, tasks of any executor await
//! them. No executor is needed, and none is brought along. Micro-protocols of your own go into a [`Registry`]; see
//! `examples/own_protocol.rs`. Control laws of your own are registered once; see `examples/own_controller.rs` and
//! [`control`].

mod connection;
mod endpoint;
mod error;
mod group;
mod listener;
mod operation;
mod options;
mod stream;
mod streams;

pub use connection::{Connection, Statistics};
pub use endpoint::Endpoint;
pub use error::{AcceptError, ConnectionError, OpenError, SendError, WaitError};
pub use group::Group;
pub use haul_base::{Bytes, Cause, CauseCounts, Rate, Span, Time};
pub use haul_engine::{
    ConnectionOptions, EndpointStats, EngineError as Error, HaulUrl as Url, Message, UrlError,
};
pub use haul_proto::config;
pub use haul_proto::micro::{registry, stats};
pub use haul_proto::presets::PRESETS;
pub use haul_proto::{Limit, LossModel};
pub use haul_stack as stack;
pub use haul_stack::{Ends, Recipe, RecipeError, Registry, SendOptions, StackEvent as Event};
pub use haul_wire::control::Cipher;
pub use listener::{Accepted, Listener};
pub use operation::{Operation, Polled};
pub use options::{ListenOptions, Options, StreamsPermitted};
pub use stream::{ByteReader, ByteWriter, LawRequestError, LawRequests, StreamStatistics};
pub use streams::{RecvStream, SendStream};

/// What control laws of your own are made of; see `examples/own_controller.rs`.
pub mod control {
    pub use haul_proto::{
        Boundary, ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit,
        RateController, RateState, SentBatch, laws, register_law,
    };
}

/// The shipped recipe of this name; [`PRESETS`] lists them.
///
/// # Errors
/// [`Error::Recipe`] if there is none.
pub fn preset(name: &str) -> Result<Recipe, Error> {
    let found = haul_proto::presets::preset(name).unwrap_or_else(|| {
        let known: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
        let message = format!("there is no preset `{name}`; there are: {}", known.join(", "));
        Err(RecipeError::Text { line: 1, column: 1, message })
    });
    Ok(found?)
}
