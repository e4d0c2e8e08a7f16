//! Rate controllers. One file per law, one line each in the registry.
//!
//! A controller sees shared measurements and answers with limits. It imports no other controller, no report
//! format, no repair strategy and no session.

mod asynch;
mod bbr;
#[cfg(test)]
mod borders;
mod cause_aware;
pub(crate) mod config;
mod cubic;
mod delivery;
mod equation;
mod fast;
mod fixed;
mod gtp;
pub(crate) mod held_rate;
mod highspeed;
mod ledbat_plus_plus;
pub(crate) mod ledger;
#[cfg(test)]
mod lies;
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
pub use sample::{Boundary, FeedbackSample, LossRun, LossRuns, OwnHost, SentBatch, Unit};

/// What a controller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Send nothing before this time. Then [`RateController::on_deadline`] is called and the law is asked again; if it
    /// still names no later time, or one more than [`LONGEST_HOLD`] ahead, the session is ended by its name.
    Hold(Time),
    /// Send within these limits.
    Go(Limits),
}

/// A law that would send nothing for longer holds for ever: the other side would take the session for dead.
pub const LONGEST_HOLD: Span = Span::from_secs(10);

/// Limits on sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// UDP payload bits per second; above 0, and no more than the ceiling.
    pub rate: Rate,
    /// UDP payload bytes that may be in flight, at least two packets; `None` if only the rate counts.
    pub window: Option<u64>,
    /// UDP payload bytes beyond the window that count as in flight only because the receiver waits with its reports.
    pub unreported: u64,
    /// UDP payload bytes that may leave back to back, from one packet to 65,507.
    pub burst: u64,
}

/// The least window: two packets, so that one is on its way while the other is reported.
pub const MIN_WINDOW: u64 = MIN_WINDOW_DATAGRAMS * 1_472;
/// The same in datagrams of the size in use (RFC 9002, section 7.2).
pub(crate) const MIN_WINDOW_DATAGRAMS: u64 = 2;

impl Limits {
    /// Limits at `rate`, with the usual burst and no window.
    pub fn at_rate(rate: Rate) -> Self {
        Self { rate, window: None, unreported: 0, burst: burst_for(rate) }
    }

    /// The rate at which these let send over a path of this round trip.
    pub fn effective_rate(&self, rtt: Span) -> Rate {
        let rtt = rtt.max(Span::from_micros(1));
        self.window.map_or(self.rate, |window| self.rate.min(Rate::from_transfer(window, rtt)))
    }

    /// What a law may say at all, whatever it says.
    pub(crate) fn within(self, ceiling: Option<Rate>) -> Self {
        Self {
            rate: self.rate.max(MIN_RATE).min(ceiling.unwrap_or(Rate::MAX)),
            window: self.window.map(|window| window.max(MIN_WINDOW)),
            ..self
        }
    }

    /// Limits for a law that knows a window of `bytes`: paced at that window a round trip, times `pacing_gain`, with
    /// the usual burst. The rate is at least [`MIN_RATE`] and at most `ceiling`.
    pub fn of_window(bytes: f64, rtt: Span, pacing_gain: f64, ceiling: Rate) -> Self {
        let window = if bytes.is_finite() { (bytes as u64).max(MIN_WINDOW) } else { MIN_WINDOW };
        let paced = Rate::from_transfer(window, rtt.max(Span::from_micros(1))).mul_f64(pacing_gain);
        let rate = paced.max(MIN_RATE).min(ceiling);
        Self { rate, window: Some(window), unreported: 0, burst: burst_for(rate) }
    }
}

/// No law need go slower: a packet of 1,472 bytes about every second.
pub const MIN_RATE: Rate = Rate::from_bps(12_000);

/// For events and plots, never for control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    /// Name of the state the law is in.
    pub phase: &'static str,
    /// Its present rate.
    pub rate: Rate,
}

/// A rate control law: a small table of functions over shared measurements. It has no clock; `now` comes with each call
/// and never goes back.
pub trait RateController: Debug + Send {
    /// The present limits. Asked before each batch, so it must be cheap, and may change only by the other functions.
    fn permit(&self) -> Permit;

    /// A batch has left.
    fn on_sent(&mut self, sent: &SentBatch) {
        let _ = sent;
    }

    /// Feedback has arrived.
    fn on_feedback(&mut self, sample: &FeedbackSample<'_>);

    /// A stretch of the transmission has ended and its losses are known. Called after the feedback that made them
    /// known; if several end with one feedback, older ones first, windows before segments, chunks and rounds.
    fn on_boundary(&mut self, end: &Boundary) {
        let _ = end;
    }

    /// Nothing was heard for a probe timeout, the `count`-th in a row, counted from 1.
    fn on_silence(&mut self, now: Time, count: u32);

    /// This law replaces another in the middle of a session, which sent at `rate` over a path of this round trip: it
    /// goes on from there, as far as that makes sense to it. Called once, before anything else; not after a law that was
    /// as good as stopped.
    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        let _ = (rate, rtt);
    }

    /// The time of [`RateController::deadline`] or of a [`Permit::Hold`] has come; calling early is harmless.
    fn on_deadline(&mut self, now: Time) {
        let _ = now;
    }

    /// When to call [`RateController::on_deadline`]; read again after each call of the others. One that has passed is
    /// called once more at most every 100 us.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// The receiver asks to be sent nothing for so long, at most [`LONGEST_HOLD`], because it guesses that it will not
    /// read. A law that does not know what to do with it goes on.
    fn on_pause(&mut self, now: Time, lasts: Span) {
        let _ = (now, lasts);
    }

    /// The receiving end has a law of the same recipe, which sends nothing. It is told of that end's own host whenever
    /// that is looked at, and when its deadline has come, and says for how long the sender should pause, if it should.
    fn advise(&mut self, own: &OwnHost) -> Option<Span> {
        let _ = own;
        None
    }

    /// The report interval that it wants, where the recipe lets it decide (`bitmap_ack.when = "law"`); `None`: the
    /// recipe's. Read again after each call of the others.
    fn report_interval(&self) -> Option<Span> {
        None
    }

    /// Whether reports may be further apart than a round trip, up to a quarter of a second, so that they are at most 2
    /// % of the packets (1 % above 100 Mbit/s). Its rate and window must hold so long,
    /// [`FeedbackSample::report_interval`].
    fn allows_rare_reports(&self) -> bool {
        false
    }

    /// Whether it takes a mark of congestion (ECN CE) for a loss. Recipes with a law that does not send no ECN-capable
    /// packets: RFC 3168, section 6.1, demands an answer to marks.
    fn answers_marks(&self) -> bool {
        true
    }

    /// The ceiling that it was built with and keeps to, by which "Limited by" tells it from the path.
    fn ceiling(&self) -> Option<Rate>;

    /// For events and plots.
    fn state(&self) -> RateState;
}

/// Writes the methods that a controller around another one, `self.law`, forwards unchanged. The impl denies
/// `clippy::missing_trait_methods`: with the default of a new method, the inner law would never see its calls.
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

        fn on_pause(&mut self, now: haul_base::Time, lasts: haul_base::Span) {
            self.law.on_pause(now, lasts);
        }

        fn advise(&mut self, own: &$crate::control::OwnHost) -> Option<haul_base::Span> {
            self.law.advise(own)
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

/// The burst that any path takes: the initial window of RFC 9002, sections 7.2 and 7.7.
const INITIAL_WINDOW: u64 = 14_720;

/// Lets `law` take over from another one, which sent at `rate`. One that would have taken longer than a second for the
/// burst that any path takes was stopped, by its ceiling or an outage, and tells nothing of the path: `law` then starts
/// as it does in a new session. Laws that add a little at a time would need minutes from there.
pub(crate) fn hand_over(law: &mut dyn RateController, rate: Rate, rtt: &RttEstimator) {
    if rate.bytes_in(Span::from_secs(1)) >= INITIAL_WINDOW {
        law.take_over(rate, rtt);
    }
}

/// Bytes that may leave back to back at `rate`: half a millisecond's worth, at least two packets and at most one
/// super-buffer of the kernel. Small bursts keep tail-drop queues from losing whole super-buffers. Where that is
/// less than the initial window, it is up to 3 ms' worth of it: each burst costs the processor a wake-up.
pub fn burst_for(rate: Rate) -> u64 {
    let few_wakes = rate.bytes_in(Span::from_millis(3)).min(INITIAL_WINDOW);
    short_burst_for(rate).max(few_wakes)
}

/// The same for a path that loses what leaves back to back, whatever wake-ups cost.
pub(crate) fn short_burst_for(rate: Rate) -> u64 {
    rate.bytes_in(Span::from_micros(500)).clamp(3_000, 65_507)
}
