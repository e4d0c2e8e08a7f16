//! Kernel arrival timestamps on the caller's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_base::{Span, Time};

/// When the kernel received a buffer (`SO_TIMESTAMPNS`), taken from `CLOCK_REALTIME` before the datagram is
/// queued on the socket; with GRO, that of the buffer's first datagram. [`ArrivalClock`] converts it to the
/// caller's [`Time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(Duration);

impl Arrival {
    /// Size of the kernel's timestamp: seconds and nanoseconds, 64 bits each.
    const BYTES: usize = 16;

    /// Returns the time of day as the time since 1970 (UTC).
    pub const fn since_unix_epoch(self) -> Duration {
        self.0
    }

    /// Parses the `struct timespec` of a control message.
    pub(crate) fn from_timespec(data: &[u8]) -> Option<Self> {
        // Kernels and C libraries with 32-bit time write half as many bytes.
        let (secs, nanos) = if data.len() < Self::BYTES {
            (
                i32::from_ne_bytes(*data.first_chunk()?).into(),
                i32::from_ne_bytes(*data.get(4..)?.first_chunk()?).into(),
            )
        } else {
            (i64::from_ne_bytes(*data.first_chunk()?), i64::from_ne_bytes(*data.get(8..)?.first_chunk()?))
        };
        let nanos = u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000)?;
        Some(Self(Duration::new(u64::try_from(secs).ok()?, nanos)))
    }
}

/// Converts [`Arrival`]s to the caller's clock.
///
/// The time of day can be changed, so the clocks must be compared repeatedly: call [`sync`](Self::sync) after
/// each receive, with the same `now` as for the received buffers. It costs one clock reading (about 25 ns).
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrivalClock {
    together: Option<(Time, Duration)>,
}

impl ArrivalClock {
    /// Maximum distance of an arrival from the last comparison; beyond it, the time of day was changed.
    const MAX_DISTANCE: Duration = Duration::from_secs(10);

    /// Creates a clock that returns nothing until the first [`sync`](Self::sync).
    pub const fn new() -> Self {
        Self { together: None }
    }

    /// Relates `now` on the caller's clock to the time of day.
    pub fn sync(&mut self, now: Time) {
        self.together = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|today| (now, today));
    }

    /// Converts `arrival`, never to later than the `now` of the last [`sync`](Self::sync). `None` before the
    /// first one, and if the two are more than 10 s apart, which means that the time of day was changed in
    /// between.
    pub fn time_of(&self, arrival: Arrival) -> Option<Time> {
        let (now, today) = self.together?;
        let age = today.checked_sub(arrival.0).unwrap_or_default();
        let ahead = arrival.0.checked_sub(today).unwrap_or_default();
        (age <= Self::MAX_DISTANCE && ahead <= Self::MAX_DISTANCE).then(|| now - Span::from(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> ArrivalClock {
        ArrivalClock { together: Some((Time::from_nanos(5_000), Duration::new(100, 400))) }
    }

    #[test]
    fn arrival_times_are_converted_by_the_real_time_clock() {
        assert_eq!(clock().time_of(Arrival(Duration::new(100, 100))), Some(Time::from_nanos(4_700)));
        assert_eq!(clock().time_of(Arrival(Duration::new(100, 900))), Some(Time::from_nanos(5_000)));
    }

    #[test]
    fn a_clock_step_gives_no_arrival_time() {
        assert_eq!(clock().time_of(Arrival(Duration::new(80, 0))), None);
        assert_eq!(clock().time_of(Arrival(Duration::new(120, 0))), None);
        assert_eq!(ArrivalClock::new().time_of(Arrival(Duration::ZERO)), None);
    }

    #[test]
    fn timestamps_of_both_widths_are_read_and_invalid_ones_are_not() {
        let wide: Vec<u8> = [3i64, 7].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let narrow: Vec<u8> = [3i32, 7].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let expected = Some(Arrival(Duration::new(3, 7)));
        assert_eq!(Arrival::from_timespec(&wide), expected);
        assert_eq!(Arrival::from_timespec(&narrow), expected);
        let nonsense: Vec<u8> = [3i64, -7].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(Arrival::from_timespec(&nonsense), None);
        assert_eq!(Arrival::from_timespec(&[1, 2, 3]), None);
    }
}
