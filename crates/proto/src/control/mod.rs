//! Rate controllers. One file per law, one line each in [`CONTROLLERS`].
//!
//! A controller sees shared measurements and answers with limits. It imports no other controller, no report
//! format, no repair strategy and no session.

mod delivery;
mod fixed;

use std::fmt::Debug;

use haul_base::{Rate, Span, Time};

use crate::rtt::RttEstimator;

pub use delivery::Delivery;
pub use fixed::Fixed;

/// What a controller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Send nothing now.
    Hold,
    /// Send within these limits.
    Go(Limits),
}

/// Limits on sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// UDP payload bits per second.
    pub rate: Rate,
    /// UDP payload bytes that may be in flight; `None` if only the rate counts.
    pub window: Option<u64>,
    /// UDP payload bytes that may leave back to back.
    pub burst: u64,
}

/// A batch that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentBatch {
    /// When.
    pub now: Time,
    /// UDP payload bytes.
    pub bytes: u64,
    /// UDP payload bytes in flight, this batch included.
    pub in_flight: u64,
}

/// What one feedback packet brought, as every controller sees it.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackSample<'a> {
    /// When it was processed.
    pub now: Time,
    /// Packets newly known to have arrived.
    pub acked_packets: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// UDP payload bytes in flight after it.
    pub in_flight: u64,
    /// Round-trip time.
    pub rtt: &'a RttEstimator,
    /// The rate at which data arrived at the receiver, by its own clock, over about one round trip.
    pub delivery_rate: Option<Rate>,
    /// Whether the sender lately had less to send than it was allowed.
    pub app_limited: bool,
}

/// For events and plots, never for control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    /// Name of the state the law is in.
    pub phase: &'static str,
    /// Its present rate.
    pub rate: Rate,
}

/// A rate control law.
pub trait RateController: Debug + Send {
    /// The present limits.
    fn permit(&self) -> Permit;
    /// A batch has left.
    fn on_sent(&mut self, sent: &SentBatch);
    /// Feedback has arrived.
    fn on_feedback(&mut self, feedback: &FeedbackSample<'_>);
    /// Nothing was heard for a probe timeout, the `count`-th in a row.
    fn on_silence(&mut self, now: Time, count: u32);
    /// The ceiling that it was built with and keeps to, by which "Limited by" tells it from the path.
    fn ceiling(&self) -> Option<Rate>;
    /// For events and plots.
    fn state(&self) -> RateState;
}

/// What every controller is built from.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Ceiling that is never exceeded; also the rate of `fixed`.
    pub ceiling: Option<Rate>,
    /// First guess of the round-trip time.
    pub initial_rtt: Span,
    /// How often the receiver reports at least while data arrives.
    pub feedback_interval: Span,
}

/// Why a controller cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// No controller has this name.
    #[error("there is no controller named `{0}`; known are: {known}", known = names())]
    Unknown(String),
    /// The controller needs a rate.
    #[error("controller `{0}` needs a rate, for example --rate 950Mbit")]
    NeedsRate(&'static str),
}

/// Builds a controller, or says what it lacks.
type Build = fn(&ControllerConfig) -> Result<Box<dyn RateController>, ControllerError>;

/// Every controller by name.
pub const CONTROLLERS: &[(&str, &str, Build)] = &[
    ("delivery", "follows the rate at which data is delivered (default)", Delivery::build),
    ("fixed", "sends at the given rate, whatever is lost", Fixed::build),
];

fn names() -> String {
    CONTROLLERS.iter().map(|c| c.0).collect::<Vec<_>>().join(", ")
}

/// Builds the controller called `name`.
pub fn build_controller(
    name: &str,
    config: &ControllerConfig,
) -> Result<Box<dyn RateController>, ControllerError> {
    let found = CONTROLLERS.iter().find(|c| c.0 == name);
    found.ok_or_else(|| ControllerError::Unknown(name.to_owned())).and_then(|c| (c.2)(config))
}

/// Bytes that may leave back to back at `rate`: half a millisecond's worth, at least two and at most one
/// super-buffer of the kernel. Small bursts keep tail-drop queues from losing whole super-buffers.
pub(crate) fn burst_for(rate: Rate) -> u64 {
    rate.bytes_in(Span::from_micros(500)).clamp(3_000, 65_507)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(ceiling: Option<Rate>) -> ControllerConfig {
        ControllerConfig {
            ceiling,
            initial_rtt: Span::from_millis(20),
            feedback_interval: Span::from_millis(2),
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = build_controller("warp", &config(None)).unwrap_err().to_string();
        assert!(error.contains("warp") && error.contains("fixed") && error.contains("delivery"), "{error}");
    }

    #[test]
    fn fixed_without_a_rate_says_what_it_needs() {
        let error = build_controller("fixed", &config(None)).unwrap_err();
        assert_eq!(error, ControllerError::NeedsRate("fixed"));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Sent(u64),
        Feedback { acked: u64, lost: u64, rtt_us: u64, rate_bps: Option<u64>, in_flight: u64, app: bool },
        Silence(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u64..70_000).prop_map(Op::Sent),
            (
                0u64..5_000,
                0u64..5_000,
                1u64..2_000_000,
                prop::option::of(0u64..u64::MAX),
                any::<u64>(),
                any::<bool>()
            )
                .prop_map(|(acked, lost, rtt_us, rate_bps, in_flight, app)| Op::Feedback {
                    acked,
                    lost,
                    rtt_us,
                    rate_bps,
                    in_flight,
                    app
                }),
            (1u32..40).prop_map(Op::Silence),
        ]
    }

    fn drive(controller: &mut dyn RateController, ops: &[Op], mut check: impl FnMut(Permit)) {
        let mut now = Time::ZERO;
        let mut rtt = RttEstimator::new(Span::from_millis(20));
        for op in ops {
            now += Span::from_micros(700);
            match *op {
                Op::Sent(bytes) => controller.on_sent(&SentBatch { now, bytes, in_flight: bytes }),
                Op::Silence(count) => controller.on_silence(now, count),
                Op::Feedback { acked, lost, rtt_us, rate_bps, in_flight, app } => {
                    rtt.on_sample(Span::from_micros(rtt_us));
                    controller.on_feedback(&FeedbackSample {
                        now,
                        acked_packets: acked,
                        lost_packets: lost,
                        in_flight,
                        rtt: &rtt,
                        delivery_rate: rate_bps.map(Rate::from_bps),
                        app_limited: app,
                    });
                }
            }
            check(controller.permit());
        }
    }

    proptest! {
        #[test]
        fn every_controller_keeps_its_limits_sane(ops in prop::collection::vec(op(), 1..200)) {
            let ceiling = Rate::from_mbps(950);
            for (name, _, _) in CONTROLLERS {
                let mut controller = build_controller(name, &config(Some(ceiling))).unwrap();
                drive(controller.as_mut(), &ops, |permit| {
                    if let Permit::Go(limits) = permit {
                        assert!(limits.rate > Rate::ZERO && limits.rate <= ceiling, "{name}: {limits:?}");
                        assert!((1_472..=65_507).contains(&limits.burst), "{name}: {limits:?}");
                        assert!(limits.window.is_none_or(|w| w >= 2 * 1_472), "{name}: {limits:?}");
                    }
                });
            }
        }

        #[test]
        fn equal_inputs_give_equal_traces(ops in prop::collection::vec(op(), 1..60)) {
            for (name, _, _) in CONTROLLERS {
                let trace = || {
                    let mut out = Vec::new();
                    let mut c = build_controller(name, &config(Some(Rate::from_mbps(500)))).unwrap();
                    drive(c.as_mut(), &ops, |p| out.push(p));
                    out
                };
                prop_assert_eq!(trace(), trace());
            }
        }
    }
}
