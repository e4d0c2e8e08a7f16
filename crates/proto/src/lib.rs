//! The sans-IO transport of Haulage: sender and receiver as machines (see `haul_base::Machine`), with their
//! measurement, pacing, path MTU discovery and rate controllers. No clock, no socket, no thread.

mod control;
mod delivery_rate;
pub mod group;
mod link;
pub mod micro;
mod mtu;
mod pacer;
pub mod presets;
mod receiver;
mod rtt;
mod sender;

pub use haul_stack::{Available, ObjectSink, ObjectSource, Open, Seal, Unauthentic};

pub use control::{
    CONTROLLERS, ControllerConfig, ControllerError, Delivery, FeedbackSample, Fixed, Limits, Permit,
    RateController, RateState, SentBatch, build_controller,
};
pub use link::Link;
pub use mtu::{BASE_DATAGRAM, MtuSearch};
pub use pacer::Pacer;
pub use receiver::{Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats};
pub use rtt::RttEstimator;
pub use sender::{Sender, SenderConfig, SenderEvent, SenderStats, Waiting, WaitingFor};
