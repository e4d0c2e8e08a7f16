//! Congestion control laws: inputs and interface.

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
    /// The flow's delivered count when the latest of them was sent.
    pub prior_delivered: u64,
}

/// An acknowledgement with new information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckSample {
    /// Current time.
    pub now: Time,
    /// Segments newly delivered.
    pub acked: u64,
    /// Segments detected as lost by this acknowledgement.
    pub lost: u64,
    /// Segments in flight afterwards.
    pub in_flight: u64,
    /// Total segments delivered by the flow.
    pub delivered: u64,
    /// Round-trip time sample, if any.
    pub rtt: Option<Span>,
    /// Smoothed round-trip time (RFC 6298).
    pub srtt: Option<Span>,
    /// Delivery rate sample, if any.
    pub rate: Option<RateSample>,
    /// Whether a new round trip starts with this acknowledgement.
    pub round_start: bool,
    /// Whether fast recovery is in progress.
    pub recovering: bool,
    /// Whether the window rather than the application limits the sender.
    pub window_limited: bool,
}

/// The first loss of a window, which starts fast recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossSample {
    /// Current time.
    pub now: Time,
    /// Segments in flight, without lost ones.
    pub in_flight: u64,
    /// Segments delivered by the same acknowledgement.
    pub acked: u64,
}

/// A congestion control law. Windows are in segments.
pub trait Control: Debug + Send {
    /// Returns the name in reports, as in Linux.
    fn name(&self) -> &'static str;
    /// Processes delivered segments, after [`Control::on_loss`] if the same acknowledgement showed a loss.
    fn on_ack(&mut self, ack: &AckSample);
    /// Handles the start of fast recovery.
    fn on_loss(&mut self, loss: &LossSample);
    /// Handles the end of recovery: all segments outstanding at its start have arrived.
    fn on_recovered(&mut self, now: Time);
    /// Handles a retransmission timeout: all segments in flight are considered lost.
    fn on_timeout(&mut self, now: Time);
    /// Returns the maximum number of segments in flight.
    fn window(&self) -> u64;
    /// Returns the pacing rate in bits per second on the wire; `None` if only the window limits sending.
    fn pacing_rate(&self) -> Option<Rate>;
    /// Whether fast recovery reduces the window gradually (RFC 6937) to the law's value.
    fn reduces_in_proportion(&self) -> bool {
        true
    }
    /// Returns the name of the current phase.
    fn phase(&self) -> &'static str;
}
