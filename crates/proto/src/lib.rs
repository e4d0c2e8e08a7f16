//! The sans-IO transport of Haulage: micro-protocols, the recipes that compose them, connections, rate
//! controllers, and the sender and receiver of the bulk transport (see `haul_base::Machine`). No clocks,
//! sockets or threads.

mod bulk;
pub mod check;
pub mod config;
pub mod connection;
mod control;
mod delivery_rate;
mod diagnosis;
pub mod group;
mod limit;
mod link;
mod longer_path;
pub mod micro;
mod mtu;
pub mod multiplexer;
mod one_way;
mod pacer;
pub mod presets;
mod rtt;

pub use haul_diagnosis::Model as LossModel;
pub use haul_stack::{
    Available, ObjectSink, ObjectSource, Open, ParameterKind, ParameterSpec, Part, Seal, SourceWait,
    Unauthentic,
};

pub use bulk::{
    Counters, ObjectEnd, Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats, Sender, SenderConfig,
    SenderEvent, SenderStats, Sending, check_object_recipe,
};
pub use control::suspension;
pub use control::{
    Boundary, BuildLaw, CauseAware, ControllerConfig, ControllerError, Delivery, FeedbackSample, Fixed,
    LawRegistration, Limits, LocalHostSample, LossRun, LossRuns, MAX_PAUSE, MIN_RATE, MIN_WINDOW, Permit,
    RateController, RateState, SentBatch, Unit, build_controller, burst_for, highspeed_response, law,
    law_names, laws,
};
pub use diagnosis::{Attribution, DiagnosedWindow, EVIDENCE, WindowCounts};
pub use limit::{Limit, LimitEvidence, UNSEEN_LIMIT, limit_of_receiver, limit_of_sender};
pub use link::Link;
pub use micro::rate_control::{ChosenLaw, LAW_CHOSEN, LawChange, register_law};
pub use micro::shared::{LawNow, PeerHost, Waiting, WaitingFor};
pub use mtu::{BASE_DATAGRAM, MtuSearch};
pub use pacer::Pacer;
pub use rtt::{MIN_RTT_WINDOW, RttEstimator};
