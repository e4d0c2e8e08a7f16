//! Laws whose window is a function of the long-term loss rate `p`, and whose rate is that window per round
//! trip.
//!
//! Choices where the sources are silent:
//! - `p` is one over the mean interval between loss events, weighted as in TFRC (RFC 5348, section 5.4),
//!   where the losses of one round trip are one event; or it is the share of lost packets, with exponential
//!   forgetting. For single losses both are the same.
//! - Until the first loss the window grows as in slow start (RFC 5681, section 3.1). The first interval is
//!   the one that gives half the current window (RFC 5348, section 6.3.1, has the same idea).
//! - The window is computed each round trip (TFRC), at loss events only (FOBS as a rate-based system), or at
//!   the end of each transmission window (FOBS as a window-based one).
//! - After silence the window is halved, as by TFRC's no-feedback timer (RFC 5348, section 4.4), and doubles
//!   each round trip until it reaches the equation's. The losses meanwhile are one event.

use std::fmt::Debug;

use haul_base::{Rate, Span, Time};
use haul_stack::choice;

use super::loss_events::{Intervals, LossEvents};
use super::reaction::clamped;
use super::window::MAX_PACKETS;
use super::{
    Boundary, ControllerConfig, FeedbackSample, Limits, MIN_WINDOW, Permit, RateController, RateState, Unit,
    burst_for,
};
use crate::longer_path::LongerPath;

/// A response function.
pub(super) trait Response: Debug + Send {
    /// Returns the window in packets at the loss rate `p`, above 0 and at most 1.
    fn window(&self, p: f64) -> f64;

    /// Returns the loss rate at which the window is `window` packets.
    fn loss_for(&self, window: f64) -> f64;

    /// Returns the name of the part of the function that gave this window.
    fn phase(&self, window: f64) -> &'static str;
}

/// Share of lost packets, with exponential forgetting.
#[derive(Debug)]
struct Share {
    memory: f64,
    lost: f64,
    packets: f64,
}

impl Share {
    fn add(&mut self, lost: f64, packets: f64) {
        let decay = (-packets / self.memory).exp();
        self.lost = self.lost * decay + lost;
        self.packets = self.packets * decay + packets;
    }
}

choice! {
    /// When the window is computed.
    pub enum Decide {
        /// Each round trip.
        RoundTrip = "round_trip",
        /// At loss events.
        Event = "event",
        /// After each transmission window.
        Window = "window",
    }
}

/// Law driven by a [`Response`]: see the module documentation.
#[derive(Debug)]
pub(super) struct Equation<R> {
    response: R,
    ceiling: Option<Rate>,
    decide: Decide,
    by_packets: bool,
    intervals: Intervals,
    share: Share,
    /// Last computed window in packets, and its rate.
    window: f64,
    rate: Rate,
    /// Reduced window after silence.
    bound: Option<f64>,
    datagram: f64,
    rtt: Span,
    events: LossEvents,
    next_pn: u64,
    in_silence: bool,
    decide_at: Time,
    /// `None` if slow start is never restarted.
    path: Option<LongerPath>,
}

impl<R: Response> Equation<R> {
    /// Creates a law with this initial window (packets) that decides each round trip, by the mean of
    /// `intervals` loss intervals.
    pub(super) fn new(response: R, intervals: usize, initial_window: u64, config: &ControllerConfig) -> Self {
        let mut law = Self {
            response,
            ceiling: config.ceiling,
            decide: Decide::RoundTrip,
            by_packets: false,
            intervals: Intervals::new(intervals),
            share: Share { memory: 1.0, lost: 0.0, packets: 0.0 },
            window: initial_window as f64,
            rate: Rate::ZERO,
            bound: None,
            datagram: 1_472.0,
            rtt: config.initial_rtt,
            events: LossEvents::default(),
            next_pn: 0,
            in_silence: false,
            decide_at: Time::ZERO,
            path: None,
        };
        law.set_rate();
        law
    }

    /// If `longer_path`, restarts when the round-trip time has more than doubled. At an unchanged loss rate
    /// the equation gives the same window for any round-trip time; without random losses, it takes hours to
    /// find the window of the longer path.
    pub(super) fn with_longer_path(self, longer_path: bool) -> Self {
        Self { path: longer_path.then(LongerPath::default), ..self }
    }

    /// Sets when the window is computed.
    pub(super) fn deciding(self, decide: Decide) -> Self {
        Self { decide, ..self }
    }

    /// Uses the share of lost packets as loss rate; after `memory` packets, a packet weighs 1/e.
    pub(super) fn by_packets(self, memory: f64) -> Self {
        Self { by_packets: true, share: Share { memory, lost: 0.0, packets: 0.0 }, ..self }
    }

    fn in_use(&self) -> f64 {
        self.bound.map_or(self.window, |bound| bound.min(self.window))
    }

    fn set_rate(&mut self) {
        let bytes = (self.in_use() * self.datagram) as u64;
        self.rate = clamped(Rate::from_transfer(bytes, self.rtt.max(Span::from_micros(1))), self.ceiling);
    }

    fn on_event(&mut self, next_pn: u64) {
        let first = 1.0 / self.response.loss_for((self.in_use() / 2.0).max(1.0));
        let packets = if self.intervals.count() == 0 { first } else { self.intervals.open };
        if self.intervals.count() == 0 {
            // As if that had been the first interval.
            (self.share.lost, self.share.packets) = (1.0, first);
        }
        self.intervals.close(packets);
        self.events.close(next_pn);
    }

    /// Returns the window at the long-term loss rate; `None` before the first loss.
    fn decided(&self) -> Option<f64> {
        let mean = self.intervals.mean()?;
        let p = if self.by_packets { self.share.lost / self.share.packets.max(1.0) } else { 1.0 / mean };
        Some(self.response.window(p.clamp(1e-12, 1.0)))
    }

    fn grow(&mut self, acked: f64, may_grow: bool) {
        if let Some(bound) = self.bound {
            self.bound = Some(bound + acked).filter(|&bound| bound < self.window);
        } else if (self.intervals.count() == 0) && may_grow {
            // More than twice what the ceiling needs is never used.
            let most = self.ceiling.map_or(MAX_PACKETS, |ceiling| {
                (2.0 * ceiling.bytes_in(self.rtt) as f64 / self.datagram).clamp(self.window, MAX_PACKETS)
            });
            self.window = (self.window + acked).min(most);
        }
    }
}

impl<R: Response> RateController for Equation<R> {
    fn permit(&self) -> Permit {
        // Twice the window: no limit while feedback arrives, but it bounds what is sent into an outage.
        let window = ((2.0 * self.in_use() * self.datagram) as u64).max(MIN_WINDOW);
        Permit::Go(Limits {
            rate: self.rate,
            window: Some(window),
            unreported: 0,
            burst: burst_for(self.rate),
        })
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        (self.datagram, self.rtt) = (sample.datagram.max(1) as f64, sample.rtt.smoothed());
        self.next_pn = sample.next_pn;
        let (acked, lost) = (sample.acked_packets as f64, sample.lost_packets as f64);
        self.intervals.open += acked + lost;
        self.share.add(lost + sample.ecn_ce as f64, acked + lost);
        let is_event = self.events.is_new_or_marked(sample);
        if self.path.as_mut().is_some_and(|path| path.has_doubled(sample)) {
            self.intervals.clear();
        }
        if is_event {
            self.on_event(sample.next_pn);
        }
        if acked > 0.0 && std::mem::take(&mut self.in_silence) {
            self.events.close(sample.next_pn);
        }
        self.grow(acked, !sample.app_limited);
        let is_due = self.decide == Decide::RoundTrip && sample.now >= self.decide_at;
        let is_first = self.intervals.count() == 1 && is_event;
        if let Some(window) = self.decided()
            && (is_due || is_first || (is_event && self.decide != Decide::Window))
        {
            self.window = window;
            self.decide_at = sample.now + self.rtt;
        }
        // In between the rate is constant, though the round-trip time varies.
        if is_due || is_event || self.bound.is_some() || (self.intervals.count() == 0) {
            self.set_rate();
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if end.unit == Unit::Window
            && self.decide == Decide::Window
            && let Some(window) = self.decided()
        {
            self.window = window;
            self.set_rate();
        }
    }

    fn on_silence(&mut self, _: Time, _: u32) {
        self.bound = Some((self.in_use() / 2.0).max(2.0));
        self.in_silence = true;
        self.set_rate();
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = if self.bound.is_some() {
            "silence"
        } else if self.intervals.count() == 0 {
            "start"
        } else {
            self.response.phase(self.window)
        };
        RateState { phase, rate: self.rate }
    }
}
