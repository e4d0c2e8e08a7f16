//! Congestion control laws: what they see, and what they decide.

mod aggregation;
mod bbr;
mod cubic;
mod hystart;
mod kind;
mod reno;

use std::fmt::Debug;

use haul_base::{Rate, Span, Time};

pub use bbr::{Bbr, BbrConfig};
pub use cubic::{Cubic, CubicConfig, cubic_k, cubic_window};
pub use hystart::HystartConfig;
pub use kind::ControlKind;
pub use reno::Reno;

/// Segments delivered over an interval (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// Segments delivered in `interval`.
    pub delivered: u64,
    /// Time in which they were delivered.
    pub interval: Span,
    /// What the flow had delivered when the latest of them was sent.
    pub prior_delivered: u64,
}

/// An acknowledgement that brought something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckSample {
    /// The present time.
    pub now: Time,
    /// Segments newly delivered.
    pub acked: u64,
    /// Segments found lost by it.
    pub lost: u64,
    /// Segments in flight after it.
    pub in_flight: u64,
    /// All that the flow has delivered.
    pub delivered: u64,
    /// Its round-trip time, if it has one.
    pub rtt: Option<Span>,
    /// The smoothed round-trip time (RFC 6298).
    pub srtt: Option<Span>,
    /// Its delivery rate, if it has one.
    pub rate: Option<RateSample>,
    /// Whether a round trip has passed since this was true last.
    pub round_start: bool,
    /// Whether a fast recovery is going on.
    pub recovering: bool,
    /// Whether the window, not the application, has held the sender back.
    pub window_limited: bool,
}

/// The first loss of a window: fast recovery begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossSample {
    /// The present time.
    pub now: Time,
    /// Segments in flight, without the lost ones.
    pub in_flight: u64,
    /// Segments delivered by the same acknowledgement.
    pub acked: u64,
}

/// A congestion control law. Windows count segments.
pub trait Control: Debug + Send {
    /// The name in reports, as Linux spells it.
    fn name(&self) -> &'static str;
    /// Something was delivered. Called after [`Control::on_loss`] if the same acknowledgement brought a loss.
    fn on_ack(&mut self, ack: &AckSample);
    /// Fast recovery begins.
    fn on_loss(&mut self, loss: &LossSample);
    /// All that was outstanding when recovery began has arrived.
    fn on_recovered(&mut self, now: Time);
    /// The retransmission timeout has passed, and all in flight counts as lost.
    fn on_timeout(&mut self, now: Time);
    /// Most segments in flight.
    fn window(&self) -> u64;
    /// At which rate to send, in bits on the wire, if not as fast as the window permits.
    fn pacing_rate(&self) -> Option<Rate>;
    /// Whether the window comes down gradually during a fast recovery (RFC 6937) to what the law has set.
    fn reduces_in_proportion(&self) -> bool {
        true
    }
    /// What it is doing.
    fn phase(&self) -> &'static str;
}
