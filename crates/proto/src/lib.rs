//! The sans-IO transport of Haulage: sender and receiver as machines (see `haul_base::Machine`), with their
//! measurement, pacing, path MTU discovery and rate controllers. No clock, no socket, no thread.

mod control;
mod delivery_rate;
mod link;
mod mtu;
mod object;
mod pacer;
mod protect;
mod receiver;
mod rtt;
mod sender;

pub use control::{
    CONTROLLERS, ControllerConfig, ControllerError, Delivery, FeedbackSample, Fixed, Limits, Permit,
    RateController, RateState, SentBatch, build_controller,
};
pub use link::Link;
pub use mtu::{BASE_DATAGRAM, MtuSearch};
pub use object::{Available, ObjectSink, ObjectSource};
pub use pacer::Pacer;
pub use protect::{Open, Seal, Unauthentic};
pub use receiver::{Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats};
pub use rtt::RttEstimator;
pub use sender::{Sender, SenderConfig, SenderEvent, SenderStats, Waiting, WaitingFor};
