//! UDP sockets for long fat networks whose transport protocol is chosen per connection.
//!
//! A [`Listener`] binds a port and generates a URL; any client that has the URL can connect. A [`Recipe`], a
//! stack of micro-protocols written as data, defines the protocol between the two peers:
//!
//! | preset | use |
//! |---|---|
//! | `viz` | a stream paced at the rate that the receiver requests, without retransmission |
//! | `msg` | reliable messages at low latency |
//! | `sensor` | readings, with as few packets as possible |
//! | `streams` | several byte streams ([`SendStream`], [`RecvStream`]), with messages beside them |
//!
//! An [`Endpoint`] is one UDP socket and one thread for any number of [`Connection`]s. [`ByteWriter`] and
//! [`ByteReader`] carry one reliable byte stream over `bulk` or another object recipe (`fobs`, `rbudp`).
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
//! here.close().wait_for(Duration::from_secs(5))?;
//! # Ok(()) }
//! ```
//!
//! Connecting, accepting, sending and receiving are [`Operation`]s: a thread waits for them, a task of any
//! async executor awaits them. No executor is required or started. To add a micro-protocol, put it into a
//! [`Registry`]; see `examples/own_protocol.rs`. To add a control law, register it once; see
//! `examples/own_controller.rs` and [`control`].

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
    ConnectionOptions, EndpointStats, EngineError as Error, HaulUrl as Url, Message, ResumptionError,
    UrlError,
};
pub use haul_proto::config;
pub use haul_proto::micro::{registry, stats};
pub use haul_proto::presets::PRESETS;
pub use haul_proto::{LawChange, Limit, LossModel};
pub use haul_stack as stack;
pub use haul_stack::{Ends, Recipe, RecipeError, Registry, SendOptions, StackEvent as Event};
pub use haul_wire::control::{Cipher, Fault, FaultCode};
pub use listener::{Accepted, Listener};
pub use operation::{Operation, Polled};
pub use options::{ListenOptions, Options, StreamsPermitted};
pub use stream::{ByteReader, ByteWriter, LawRequestError, LawRequests, StreamStatistics};
pub use streams::{RecvStream, SendStream};

/// Types for writing your own control law; see `examples/own_controller.rs`.
pub mod control {
    pub use haul_proto::{
        Boundary, ControllerConfig, ControllerError, FeedbackSample, LawRegistration, Limits, Permit,
        RateController, RateState, SentBatch, laws, register_law,
    };
}

/// Returns the shipped recipe with this name. [`PRESETS`] lists all names.
///
/// # Errors
/// [`Error::Recipe`] if no preset has this name.
pub fn preset(name: &str) -> Result<Recipe, Error> {
    let found = haul_proto::presets::preset(name).unwrap_or_else(|| {
        let known: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
        let message = format!("there is no preset `{name}`; there are: {}", known.join(", "));
        Err(RecipeError::Text { line: 1, column: 1, message })
    });
    Ok(found?)
}
