//! Reno with selective acknowledgements (RFC 5681, RFC 6675), with byte counting as in RFC 3465.

use haul_base::{Rate, Time};

use super::{AckSample, Control, LossSample};

/// Minimum window after a loss (RFC 5681, equation 4).
const MIN_WINDOW: u64 = 2;

/// Adds one segment per round trip and halves the window on a loss.
#[derive(Clone, Debug)]
pub struct Reno {
    window: u64,
    threshold: u64,
    /// Segments delivered since the window last grew.
    acked: u64,
}

impl Reno {
    /// Creates the law in slow start, with `initial` segments.
    pub fn new(initial: u64) -> Self {
        Self { window: initial, threshold: u64::MAX, acked: 0 }
    }
}

impl Control for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn on_ack(&mut self, ack: &AckSample) {
        if ack.recovering || !ack.window_limited {
            return;
        }
        let slow = ack.acked.min(self.threshold.saturating_sub(self.window));
        self.window += slow;
        self.acked += ack.acked - slow;
        while self.acked >= self.window {
            self.acked -= self.window;
            self.window += 1;
        }
    }

    fn on_loss(&mut self, _: &LossSample) {
        self.threshold = (self.window / 2).max(MIN_WINDOW);
        self.window = self.threshold;
        self.acked = 0;
    }

    fn on_recovered(&mut self, _: Time) {}

    fn on_timeout(&mut self, _: Time) {
        self.threshold = (self.window / 2).max(MIN_WINDOW);
        self.window = 1;
        self.acked = 0;
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    fn phase(&self) -> &'static str {
        if self.window < self.threshold { "slow start" } else { "avoidance" }
    }
}
