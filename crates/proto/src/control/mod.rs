//! Rate controllers: one file per control law, with one line each in the registry.
//!
//! A controller turns shared measurements into limits. It imports no other controller, report format,
//! retransmission strategy or session.

mod asynch;
mod bbr;
#[cfg(test)]
mod bounds;
mod cause_aware;
pub(crate) mod config;
mod cubic;
mod delivery;
mod equation;
#[cfg(test)]
mod false_feedback;
mod fast;
mod fixed;
mod gtp;
pub(crate) mod held_rate;
mod highspeed;
mod ledbat_plus_plus;
pub(crate) mod ledger;
mod loss_events;
mod non_aggressive;
mod predictor;
mod proactive;
mod rapid_plus;
mod reaction;
mod registration;
mod registry;
mod reno;
mod sabul;
mod sample;
mod scalable;
mod state_based;
mod stop_and_go;
pub mod suspension;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tfrc;
mod udt;
mod window;

use std::fmt::Debug;

use haul_base::{Rate, Span, Time};

use crate::rtt::RttEstimator;

pub use cause_aware::CauseAware;
pub use delivery::Delivery;
pub use fixed::Fixed;
pub use highspeed::response as highspeed_response;
pub use registration::{BuildLaw, ControllerConfig, ControllerError, LawRegistration};
pub(crate) use registry::add_law;
pub use registry::{build_controller, law, law_names, laws};
#[cfg(test)]
pub(crate) use sample::LostPacket;
pub use sample::{Boundary, FeedbackSample, LocalHostSample, LossRun, LossRuns, SentBatch, Unit};

/// What a controller permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Send nothing before this time. Then [`RateController::on_deadline`] is called and the law is queried
    /// again; if it still returns no later time, or one more than [`MAX_PAUSE`] ahead, the session ends
    /// with an error that names the law.
    Pause(Time),
    /// Send within these limits.
    Go(Limits),
}

/// Longest time for which a law may hold. After a longer one the peer would consider the session dead.
pub const MAX_PAUSE: Span = Span::from_secs(10);

/// Limits on sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// UDP payload bits per second; above 0 and at most the ceiling.
    pub rate: Rate,
    /// UDP payload bytes that may be in flight, at least two packets; `None` if only the rate limits.
    pub window: Option<u64>,
    /// UDP payload bytes allowed beyond the window that count as in flight only because reports are delayed.
    pub unreported: u64,
    /// UDP payload bytes that may be sent back to back, from one packet to 65,507.
    pub burst: u64,
}

/// Minimum window: two packets, so that one is in flight while the other is being reported.
pub const MIN_WINDOW: u64 = MIN_WINDOW_DATAGRAMS * 1_472;
/// Minimum window in datagrams of the current size (RFC 9002, section 7.2).
pub(crate) const MIN_WINDOW_DATAGRAMS: u64 = 2;

impl Limits {
    /// Limits at `rate`, with the default burst and no window.
    pub fn at_rate(rate: Rate) -> Self {
        Self { rate, window: None, unreported: 0, burst: burst_for(rate) }
    }

    /// Returns the sending rate under these limits on a path with this round-trip time.
    pub fn effective_rate(&self, rtt: Span) -> Rate {
        let rtt = rtt.max(Span::from_micros(1));
        self.window.map_or(self.rate, |window| self.rate.min(Rate::from_transfer(window, rtt)))
    }

    /// Clamps the limits of a law to the allowed range.
    pub(crate) fn within(self, ceiling: Option<Rate>) -> Self {
        Self {
            rate: self.rate.max(MIN_RATE).min(ceiling.unwrap_or(Rate::MAX)),
            window: self.window.map(|window| window.max(MIN_WINDOW)),
            ..self
        }
    }

    /// Limits for a window of `bytes`: paced at one window per round trip times `pacing_gain`, with the
    /// default burst. The rate is at least [`MIN_RATE`] and at most `ceiling`.
    pub fn of_window(bytes: f64, rtt: Span, pacing_gain: f64, ceiling: Rate) -> Self {
        let window = if bytes.is_finite() { (bytes as u64).max(MIN_WINDOW) } else { MIN_WINDOW };
        let paced = Rate::from_transfer(window, rtt.max(Span::from_micros(1))).mul_f64(pacing_gain);
        let rate = paced.max(MIN_RATE).min(ceiling);
        Self { rate, window: Some(window), unreported: 0, burst: burst_for(rate) }
    }
}

/// Minimum rate of every law: about one packet of 1,472 bytes per second.
pub const MIN_RATE: Rate = Rate::from_bps(12_000);

/// State of a law for events and plots; not for control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    /// Name of the law's current phase.
    pub phase: &'static str,
    /// Current rate.
    pub rate: Rate,
}

/// A rate control law: callbacks over shared measurements. `now` is passed to each call and never goes back.
pub trait RateController: Debug + Send {
    /// Returns the current limits. Called before each batch, so it must be cheap; its result may change only
    /// through the other methods.
    fn permit(&self) -> Permit;

    /// A batch was sent.
    fn on_sent(&mut self, sent: &SentBatch) {
        let _ = sent;
    }

    /// Feedback has arrived.
    fn on_feedback(&mut self, sample: &FeedbackSample<'_>);

    /// A unit of the transmission has ended and its losses are known. Called after the feedback that
    /// completed it; if one feedback completes several, older ones first, windows before segments, chunks and
    /// rounds.
    fn on_boundary(&mut self, end: &Boundary) {
        let _ = end;
    }

    /// A probe timeout expired without feedback, for the `count`-th time in a row, counted from 1.
    fn on_silence(&mut self, now: Time, count: u32);

    /// Takes over from another law in the middle of a session, which sent at `rate` over a path of this
    /// round-trip time, and continues from there as far as possible. Called once, before anything else; not
    /// called if the old law had practically stopped.
    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        let _ = (rate, rtt);
    }

    /// The time of [`RateController::deadline`] or [`Permit::Pause`] was reached; calling early is harmless.
    fn on_deadline(&mut self, now: Time) {
        let _ = now;
    }

    /// When to call [`RateController::on_deadline`]; read again after each call of the other methods. A
    /// deadline in the past is repeated at most every 100 us.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// The receiver asks for a pause of this length, at most [`MAX_PAUSE`], because it expects not to
    /// read. By default ignored.
    fn on_pause(&mut self, now: Time, duration: Span) {
        let _ = (now, duration);
    }

    /// Called on the receiver's instance of the recipe's law, which sends nothing: with each load sample of
    /// the receiver's host, and at the law's deadline. Returns for how long the sender should pause, if it
    /// should.
    fn advise(&mut self, sample: &LocalHostSample) -> Option<Span> {
        let _ = sample;
        None
    }

    /// Report interval that the law requests, if the recipe leaves it to the law (`bitmap_ack.when = "law"`);
    /// `None`: the recipe's. Read again after each call of the other methods.
    fn report_interval(&self) -> Option<Span> {
        None
    }

    /// Whether reports may be further apart than a round trip, up to 250 ms, so that they are at most 2 % of
    /// the packets (1 % above 100 Mbit/s). The law's rate and window must be valid for that time
    /// ([`FeedbackSample::report_interval`]).
    fn allows_rare_reports(&self) -> bool {
        false
    }

    /// Whether the law treats a congestion mark (ECN CE) as a loss. If not, the recipe sends no ECN-capable
    /// packets: RFC 3168, section 6.1, requires a response to marks.
    fn answers_marks(&self) -> bool {
        true
    }

    /// Ceiling that the law was built with. "Limited by" uses it to tell a ceiling from the path's limit.
    fn ceiling(&self) -> Option<Rate>;

    /// Returns the state for events and plots.
    fn state(&self) -> RateState;
}

/// Forwards methods of a wrapping controller to `self.law` unchanged. The impl denies
/// `clippy::missing_trait_methods`: with the default of a new method, the inner law would never see its
/// calls.
macro_rules! forward_to_law {
    () => {
        fn on_sent(&mut self, sent: &$crate::control::SentBatch) {
            self.law.on_sent(sent);
        }

        fn on_deadline(&mut self, now: haul_base::Time) {
            self.law.on_deadline(now);
        }

        fn deadline(&self) -> Option<haul_base::Time> {
            self.law.deadline()
        }

        fn on_pause(&mut self, now: haul_base::Time, duration: haul_base::Span) {
            self.law.on_pause(now, duration);
        }

        fn advise(&mut self, sample: &$crate::control::LocalHostSample) -> Option<haul_base::Span> {
            self.law.advise(sample)
        }

        fn report_interval(&self) -> Option<haul_base::Span> {
            self.law.report_interval()
        }

        fn allows_rare_reports(&self) -> bool {
            self.law.allows_rare_reports()
        }

        fn answers_marks(&self) -> bool {
            self.law.answers_marks()
        }

        fn ceiling(&self) -> Option<haul_base::Rate> {
            self.law.ceiling()
        }
    };
}
use forward_to_law;

/// Burst that every path can absorb: the initial window of RFC 9002, sections 7.2 and 7.7.
const INITIAL_WINDOW: u64 = 14_720;

/// Lets `law` take over from another law that sent at `rate`. If [`INITIAL_WINDOW`] takes longer than a
/// second at `rate`, the old law was stopped by its ceiling or an outage, and the rate says nothing about the
/// path: `law` then starts as in a new session. From such a rate, laws with additive increase would need
/// minutes.
pub(crate) fn hand_over(law: &mut dyn RateController, rate: Rate, rtt: &RttEstimator) {
    if rate.bytes_in(Span::from_secs(1)) >= INITIAL_WINDOW {
        law.take_over(rate, rtt);
    }
}

/// Returns the bytes that may be sent back to back at `rate`: 0.5 ms worth of data, at least two packets and
/// at most one kernel super-buffer. Small bursts keep tail-drop queues from losing whole super-buffers. Below
/// the initial window up to 3 ms worth are allowed, as each burst costs a wake-up.
pub fn burst_for(rate: Rate) -> u64 {
    let few_wakes = rate.bytes_in(Span::from_millis(3)).min(INITIAL_WINDOW);
    short_burst_for(rate).max(few_wakes)
}

/// [`burst_for`] without the allowance for fewer wake-ups, for paths that lose bursts.
pub(crate) fn short_burst_for(rate: Rate) -> u64 {
    rate.bytes_in(Span::from_micros(500)).clamp(3_000, 65_507)
}
