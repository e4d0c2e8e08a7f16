//! The sans-IO transport of Haulage: sender and receiver as machines (see `haul_base::Machine`), with their
//! measurement, pacing, path MTU discovery and rate controllers. No clock, no socket, no thread.

mod bulk;
mod control;
mod delivery_rate;
mod link;
pub mod micro;
mod mtu;
mod pacer;
pub mod presets;
mod receiver;
mod rtt;
mod sender;

pub use haul_stack::{Available, ObjectSink, ObjectSource, Open, Seal, Unauthentic};

pub use bulk::{
    Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats, Sender, SenderConfig, SenderEvent, SenderStats,
};
pub use control::{
    CONTROLLERS, ControllerConfig, ControllerError, Delivery, FeedbackSample, Fixed, Limits, Permit,
    RateController, RateState, SentBatch, build_controller,
};
pub use link::Link;
pub use micro::shared::{Waiting, WaitingFor};
pub use mtu::{BASE_DATAGRAM, MtuSearch};
pub use pacer::Pacer;
pub use rtt::RttEstimator;

#[doc(hidden)]
pub mod old {
    pub use crate::receiver::*;
    pub use crate::sender::*;
}
