//! Delay in one direction, between two clocks.

use haul_base::{Span, Time};

use crate::rtt::{MIN_RTT_WINDOW, WindowedMin};

/// How long packets are under way, in one direction: the difference of two clocks that know nothing of each other.
#[derive(Debug)]
pub(crate) struct OneWay {
    window: Span,
    /// The first difference, microseconds; later ones count from it.
    first: Option<u32>,
    least: Option<WindowedMin>,
    latest: Option<(Time, i64)>,
    trend: f64,
}

impl Default for OneWay {
    fn default() -> Self {
        Self::within(MIN_RTT_WINDOW)
    }
}

impl OneWay {
    /// What the quickest packet lately is: that of this window.
    pub(crate) fn within(window: Span) -> Self {
        Self { window, first: None, least: None, latest: None, trend: 0.0 }
    }

    /// Weight of the newest in the trend.
    const GAIN: f64 = 1.0 / 8.0;
    /// Faster changes than a second of delay a second are a clock that was set.
    const STEEPEST: f64 = 1.0;

    /// Takes when a packet was sent and when it arrived; gives how much longer it took than the quickest lately.
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

    /// By how much the delay grows, seconds in each second.
    pub(crate) fn trend(&self) -> f64 {
        self.trend
    }
}
