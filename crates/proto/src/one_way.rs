//! One-way delay between two unsynchronised clocks.

use haul_base::{Span, Time};

use crate::rtt::{MIN_RTT_WINDOW, WindowedMin};

/// One-way delay of packets relative to its minimum, from the difference of two unsynchronised clocks.
#[derive(Debug)]
pub(crate) struct OneWayDelay {
    window: Span,
    /// First clock difference in microseconds; later differences are relative to it.
    first: Option<u32>,
    least: Option<WindowedMin>,
    latest: Option<(Time, i64)>,
    trend: f64,
}

impl Default for OneWayDelay {
    fn default() -> Self {
        Self::within(MIN_RTT_WINDOW)
    }
}

impl OneWayDelay {
    /// Creates a meter whose minimum delay is taken over `window`.
    pub(crate) fn within(window: Span) -> Self {
        Self { window, first: None, least: None, latest: None, trend: 0.0 }
    }

    /// Weight of the newest sample in the trend.
    const GAIN: f64 = 1.0 / 8.0;
    /// Limit of the slope, seconds per second: a faster change means that a clock was set.
    const STEEPEST: f64 = 1.0;

    /// Adds a packet's send and arrival times (wrapped microseconds); returns its delay above the minimum.
    pub(crate) fn on_arrival(&mut self, now: Time, sent_at: u32, arrived_at: u32) -> Span {
        let difference = arrived_at.wrapping_sub(sent_at);
        let first = *self.first.get_or_insert(difference);
        let delay = i64::from(difference.wrapping_sub(first).cast_signed());
        let least = self.least.get_or_insert_with(|| WindowedMin::new(self.window)).on_value(now, delay);
        if let Some((before, known)) = self.latest
            && now > before
        {
            let slope = (delay - known) as f64 / 1e6 / now.since(before).as_secs_f64();
            self.trend += (slope.clamp(-Self::STEEPEST, Self::STEEPEST) - self.trend) * Self::GAIN;
        }
        self.latest = Some((now, delay));
        Span::from_micros((delay - least).unsigned_abs())
    }

    /// Returns the growth of the delay in seconds per second.
    pub(crate) fn trend(&self) -> f64 {
        self.trend
    }
}
