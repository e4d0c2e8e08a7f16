//! Shared by laws with a measuring interval of their own: the measurements of an interval, and the reaction
//! of ASYNCH to them (asynch, section 3).

use haul_base::{Rate, Span, Time};
use haul_stack::{configuration, parameter};

use super::{ControllerConfig, ControllerError, FeedbackSample, MIN_RATE};

parameter!(pub(super) first_rate: Rate = "unlimited", "initial rate; `unlimited`: the maximum rate");
// During a moment without a processor the drain rate can be 0.
parameter!(pub(super) least: f64 in (0.0, 1.0) = "0.05", "minimum rate, as a fraction of the initial rate");
// The full rate, for laws whose steps are shares of it.
parameter!(pub(super) capacity: Rate = "unlimited", "path capacity; `unlimited`: the maximum rate");
parameter!(pub(super) interval: Span in (Span::from_millis(1), Span::from_secs(60)) = "100ms",
    "length of the law's interval, which ends with the next feedback");

configuration! {
    /// Parameters of `asynch`: see [`Reaction`].
    pub struct AsynchConfig: "asynch" {
        first_rate: Rate = first_rate;
        interval: Span = interval;
        raised: u64 in (1, 1_000) = "2", "intervals of raised loss before the rate falls";
        clean: u64 in (1, 1_000_000) = "3", "intervals without loss before the rate rises (the paper's k)";
        rise: f64 in (0.0, 1.0) = "0.05", "step up, as a fraction of the rate";
        tolerance: f64 in (0.0, 1.0) = "0", "loss rates, and increases of them, up to this are ignored";
        least: f64 = least;
    }
}

/// Returns the given rate or the ceiling, whichever is lower.
///
/// # Errors
/// If neither is limited.
pub(super) fn rate_or_ceiling(
    law: &'static str,
    rate: Rate,
    config: &ControllerConfig,
) -> Result<Rate, ControllerError> {
    let rate = rate.min(config.ceiling.unwrap_or(Rate::MAX));
    if rate < Rate::MAX { Ok(rate) } else { Err(ControllerError::NeedsRate(law)) }
}

/// Clamps `rate` to the range allowed for a law.
pub(super) fn clamped(rate: Rate, ceiling: Option<Rate>) -> Rate {
    rate.max(MIN_RATE).min(ceiling.unwrap_or(Rate::MAX))
}

/// Lowers `rate` to the drain rate, but not below `least`; never raises it.
pub(super) fn reduced_rate(rate: Rate, drain: Rate, least: Rate, ceiling: Option<Rate>) -> Rate {
    clamped(drain.max(least).min(rate), ceiling)
}

/// Measurements of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    /// Packets declared lost.
    pub(super) lost: u64,
    /// Packets acknowledged or declared lost.
    pub(super) packets: u64,
    /// Drain rate of the receiver: mean of the reported rates, or the rate of acknowledgements without any.
    pub(super) drain: Rate,
    /// Whether the sender had less to send than it was allowed to, in all feedback.
    pub(super) app_limited: bool,
}

impl Interval {
    pub(super) fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

/// Accumulates feedback. Feedback while the sender had too little to send is ignored for the drain rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FeedbackSums {
    began: Option<Time>,
    lost: u64,
    acked: u64,
    acked_bytes: u64,
    drain_bps: f64,
    drains: u32,
    is_used: bool,
}

impl FeedbackSums {
    pub(super) fn add(&mut self, sample: &FeedbackSample<'_>) {
        self.began.get_or_insert(sample.now);
        self.is_used |= !sample.app_limited;
        // A congestion mark (ECN CE) counts as a loss.
        let marked = sample.ecn_ce.min(sample.acked_packets);
        self.lost = self.lost.saturating_add(sample.lost_packets).saturating_add(marked);
        self.acked = self.acked.saturating_add(sample.acked_packets - marked);
        let bytes = sample.acked_packets.saturating_mul(sample.datagram);
        self.acked_bytes = self.acked_bytes.saturating_add(bytes);
        if let Some(drain) = sample.drain_rate.filter(|_| !sample.app_limited) {
            self.drain_bps += drain.as_bps() as f64;
            self.drains += 1;
        }
    }

    /// Whether the sender had less to send than it was allowed to, in all feedback.
    pub(super) fn are_app_limited(&self) -> bool {
        !self.is_used
    }

    /// Returns the receiver's drain rate since the interval began.
    fn drain(&self, now: Time) -> Rate {
        if self.drains > 0 {
            return Rate::from_bps((self.drain_bps / f64::from(self.drains)) as u64);
        }
        Rate::from_transfer(self.acked_bytes, now.since(self.began.unwrap_or(now)))
    }

    /// Ends the interval if it has lasted for `length` and contains any packets, and starts the next.
    pub(super) fn end(&mut self, now: Time, length: Span) -> Option<Interval> {
        let began = self.began?;
        let packets = self.lost.saturating_add(self.acked);
        if now.since(began) < length || packets == 0 {
            return None;
        }
        let ended = Interval { lost: self.lost, packets, drain: self.drain(now), app_limited: !self.is_used };
        *self = Self { began: Some(now), ..Self::default() };
        Some(ended)
    }

    /// As [`FeedbackSums::end`], but the next interval starts when this one was due, so that late reports do
    /// not lengthen intervals.
    pub(super) fn end_when_due(&mut self, now: Time, length: Span) -> Option<Interval> {
        let began = self.began?;
        let ended = self.end(now, length)?;
        let late = now.since(began).as_nanos() % length.as_nanos().max(1);
        self.began = Some(now - Span::from_nanos(late));
        Some(ended)
    }
}

/// ASYNCH's rate. Loss is *raised* if it exceeds the reference: the loss of the last interval that was not
/// raised, or of the one at which the rate last fell, so that a loss which does not depend on the rate causes
/// no further fall. A single raised interval is a spike. There is no feedback during an outage, so an outage
/// counts as one. Unlike the paper, whose sender always has data, it does not count app-limited intervals as
/// loss-free: an unused rate would rise without bound, and later data would leave at line rate. What drains
/// in such an interval says nothing about the path, so raised loss there lowers the rate by its own share, to
/// what would have drained at the full rate.
#[derive(Debug)]
pub(super) struct Reaction {
    pub(super) rate: Rate,
    pub(super) ceiling: Option<Rate>,
    pub(super) phase: &'static str,
    pub(super) interval: Span,
    needs_raised: u64,
    needs_clean: u64,
    rise: f64,
    tolerance: f64,
    least: Rate,
    sums: FeedbackSums,
    reference: f64,
    raised: u64,
    clean: u64,
}

impl Reaction {
    pub(super) fn new(
        law: &'static str,
        parameters: &AsynchConfig,
        config: &ControllerConfig,
    ) -> Result<Self, ControllerError> {
        let rate = rate_or_ceiling(law, parameters.first_rate, config)?;
        Ok(Self {
            rate: clamped(rate, config.ceiling),
            ceiling: config.ceiling,
            phase: "steady",
            interval: parameters.interval,
            needs_raised: parameters.raised,
            needs_clean: parameters.clean,
            rise: parameters.rise,
            tolerance: parameters.tolerance,
            least: rate.mul_f64(parameters.least),
            sums: FeedbackSums::default(),
            reference: 0.0,
            raised: 0,
            clean: 0,
        })
    }

    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.sums.add(sample);
        // If reports come at the law's own interval, one that arrives slightly early also ends the interval.
        let is_regular = sample.report_interval * 2 > self.interval;
        let early = if is_regular { sample.report_interval / 2 } else { Span::ZERO };
        if let Some(ended) = self.sums.end(sample.now, self.interval.saturating_sub(early)) {
            self.on_interval(&ended);
        }
    }

    fn on_interval(&mut self, ended: &Interval) {
        let loss = ended.loss_rate();
        self.clean = if loss <= self.tolerance { self.clean + u64::from(!ended.app_limited) } else { 0 };
        self.raised = if loss > self.reference + self.tolerance { self.raised + 1 } else { 0 };
        self.phase = "steady";
        if self.raised == 0 {
            self.reference = loss;
        } else if self.raised >= self.needs_raised {
            (self.raised, self.reference, self.phase) = (0, loss, "fall");
            let drain = if ended.app_limited { self.rate.mul_f64(1.0 - loss) } else { ended.drain };
            self.rate = reduced_rate(self.rate, drain, self.least, self.ceiling);
        }
        if self.clean >= self.needs_clean {
            (self.clean, self.phase) = (0, "rise");
            self.rate = clamped(self.rate.mul_f64(1.0 + self.rise), self.ceiling);
        }
    }
}
