//! The engine's clock, the only one.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haul_base::{Span, Time};

/// Later than anything waits; a sum of an instant and a longer time may be none.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// The instant so long from now, or thirty years from now if that is sooner: who waits without an end may say so with
/// the longest duration there is.
pub fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(FAR)
}

/// Turns the machine's monotonic clock into [`Time`]. Copies share the epoch, so their times can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock whose epoch is now.
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// The present time.
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// The time of an instant; the epoch for what lies before it.
    pub fn time(&self, instant: Instant) -> Time {
        Time::ZERO + Span::from(instant.saturating_duration_since(self.epoch))
    }
}

/// Seconds since 1970 by the system's clock; zero if that is set to before.
pub(crate) fn unix_now() -> u64 {
    unix_micros() / 1_000_000
}

/// The same in microseconds.
pub(crate) fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
