//! What laws that judge by their own interval of time share: the measurements of an interval, and the reaction of
//! ASYNCH to them (asynch, section 3).

use haul_base::{Rate, Span, Time};
use haul_stack::{configuration, parameter};

use super::{ControllerConfig, ControllerError, FeedbackSample, MIN_RATE};

parameter!(pub(super) first_rate: Rate = "unlimited", "rate at the start; `unlimited`: the ceiling");
// A drain rate of a moment without a processor can be nothing.
parameter!(pub(super) least: f64 in (0.0, 1.0) = "0.05", "lowest rate, as a share of that at the start");
// The whole, for laws whose steps are shares of it.
parameter!(pub(super) capacity: Rate = "unlimited", "rate of the path; `unlimited`: the ceiling");
parameter!(pub(super) interval: Span in (Span::from_millis(1), Span::from_secs(60)) = "100ms",
    "length of the law's interval, which ends with the next feedback");

configuration! {
    /// Parameters of `asynch`: see [`Reaction`].
    pub struct AsynchConfig: "asynch" {
        first_rate: Rate = first_rate;
        interval: Span = interval;
        raised: u64 in (1, 1_000) = "2", "intervals of raised loss before the rate falls";
        clean: u64 in (1, 1_000_000) = "3", "intervals without loss before the rate rises (the paper's k)";
        rise: f64 in (0.0, 1.0) = "0.05", "step up, as a share of the rate";
        tolerance: f64 in (0.0, 1.0) = "0", "loss rates up to this, or higher by no more, do not count";
        least: f64 = least;
    }
}

/// The rate that is given, or the ceiling; no more than the ceiling.
///
/// # Errors
/// If there is neither.
pub(super) fn rate_or_ceiling(
    law: &'static str,
    given: Rate,
    config: &ControllerConfig,
) -> Result<Rate, ControllerError> {
    let given = given.min(config.ceiling.unwrap_or(Rate::MAX));
    if given < Rate::MAX { Ok(given) } else { Err(ControllerError::NeedsRate(law)) }
}

/// `rate` within what a law may say.
pub(super) fn clamped(rate: Rate, ceiling: Option<Rate>) -> Rate {
    rate.max(MIN_RATE).min(ceiling.unwrap_or(Rate::MAX))
}

/// What is left of `rate` when it falls to the drain rate: never more, and not less than `least`.
pub(super) fn fallen(rate: Rate, drain: Rate, least: Rate, ceiling: Option<Rate>) -> Rate {
    clamped(drain.max(least).min(rate), ceiling)
}

/// One interval, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    /// Packets found to be lost.
    pub(super) lost: u64,
    /// Packets of which anything became known.
    pub(super) packets: u64,
    /// Rate at which the receiver read: the mean of what the feedbacks say, or what arrived if they say nothing.
    pub(super) drain: Rate,
}

impl Interval {
    pub(super) fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

/// Sums up feedback. Feedback while the sender had too little to send says nothing about the drain rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    began: Option<Time>,
    lost: u64,
    acked: u64,
    acked_bytes: u64,
    drain_bps: f64,
    drains: u32,
}

impl Sums {
    pub(super) fn add(&mut self, sample: &FeedbackSample<'_>) {
        self.began.get_or_insert(sample.now);
        // A mark of congestion (ECN CE) is a loss.
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

    /// The rate at which the receiver read since the beginning.
    pub(super) fn drain(&self, now: Time) -> Rate {
        if self.drains > 0 {
            return Rate::from_bps((self.drain_bps / f64::from(self.drains)) as u64);
        }
        Rate::from_transfer(self.acked_bytes, now.since(self.began.unwrap_or(now)))
    }

    /// The interval up to now, if it has lasted for `length` and anything is known of it; then the next one begins.
    pub(super) fn end(&mut self, now: Time, length: Span) -> Option<Interval> {
        let began = self.began?;
        let packets = self.lost.saturating_add(self.acked);
        if now.since(began) < length || packets == 0 {
            return None;
        }
        let ended = Interval { lost: self.lost, packets, drain: self.drain(now) };
        *self = Self { began: Some(now), ..Self::default() };
        Some(ended)
    }

    /// The same, but the next interval begins when this one was due, so that reports which come late make none longer.
    pub(super) fn end_when_due(&mut self, now: Time, length: Span) -> Option<Interval> {
        let began = self.began?;
        let ended = self.end(now, length)?;
        let late = now.since(began).as_nanos() % length.as_nanos().max(1);
        self.began = Some(now - Span::from_nanos(late));
        Some(ended)
    }
}

/// The rate of ASYNCH. Loss is *raised* if it is higher than the reference: that of the last interval whose loss was
/// not raised, or of the one at which the rate fell last, so that a loss which the lower rate does not change is no
/// reason to fall again. One raised interval alone is a passing spike. Nothing is heard during an outage, so that it is
/// one.
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
    sums: Sums,
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
            sums: Sums::default(),
            reference: 0.0,
            raised: 0,
            clean: 0,
        })
    }

    pub(super) fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.sums.add(sample);
        // Where reports come at the law's own interval, one that the path brings a little early ends it too.
        let is_regular = sample.report_interval * 2 > self.interval;
        let early = if is_regular { sample.report_interval / 2 } else { Span::ZERO };
        if let Some(ended) = self.sums.end(sample.now, self.interval.saturating_sub(early)) {
            self.on_interval(&ended);
        }
    }

    fn on_interval(&mut self, ended: &Interval) {
        let loss = ended.loss_rate();
        self.clean = if loss <= self.tolerance { self.clean + 1 } else { 0 };
        self.raised = if loss > self.reference + self.tolerance { self.raised + 1 } else { 0 };
        self.phase = "steady";
        if self.raised == 0 {
            self.reference = loss;
        } else if self.raised >= self.needs_raised {
            (self.raised, self.reference, self.phase) = (0, loss, "fall");
            self.rate = fallen(self.rate, ended.drain, self.least, self.ceiling);
        }
        if self.clean >= self.needs_clean {
            (self.clean, self.phase) = (0, "rise");
            self.rate = clamped(self.rate.mul_f64(1.0 + self.rise), self.ceiling);
        }
    }
}
