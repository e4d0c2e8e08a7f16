//! The engine's clock, the only one in the project.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haul_base::{Span, Time};

/// Upper limit of every timeout: adding a longer one to an instant could overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// Returns the instant `timeout` from now, at most 30 years from now: [`Duration::MAX`] means no timeout.
pub fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

/// Converts the machine's monotonic clock to [`Time`]. Copies share the epoch, so their times are comparable.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Creates a clock whose epoch is now.
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// Converts an instant; one before the epoch becomes the epoch.
    pub fn time(&self, instant: Instant) -> Time {
        Time::ZERO + Span::from(instant.saturating_duration_since(self.epoch))
    }
}

/// Seconds since 1970 by the system clock; zero if it is set to an earlier time.
pub(crate) fn unix_now() -> u64 {
    unix_micros() / 1_000_000
}

/// Whether this time, in seconds since 1970, has been reached; never for `None`.
pub(crate) fn is_past(expires: Option<u64>) -> bool {
    expires.is_some_and(|at| unix_now() >= at)
}

/// Microseconds since 1970, as [`unix_now`].
pub(crate) fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
