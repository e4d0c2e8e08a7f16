//! Model of the path (draft-ietf-ccwg-bbr, section "Updating Network Path Model Parameters"): its recent
//! bandwidth, the reduction of it due to congestion, and the excess of bytes that are acknowledged at once.

use haul_base::{Rate, Span, Time};

/// Maximum over the current and the previous period; the user says when a period ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TwoSlotMax<T> {
    slots: [T; 2],
}

impl<T: Copy + Ord + Default> TwoSlotMax<T> {
    pub(super) fn on_value(&mut self, value: T) {
        self.slots[0] = self.slots[0].max(value);
    }

    pub(super) fn get(&self) -> T {
        self.slots[0].max(self.slots[1])
    }

    /// Ends the period.
    pub(super) fn advance(&mut self) {
        self.slots = [T::default(), self.slots[0]];
    }

    /// Ends the period, unless it has no values: then the known maximum is kept.
    pub(super) fn advance_known(&mut self) {
        if self.slots[0] > T::default() {
            self.advance();
        }
    }

    /// Discards everything and starts with this value.
    pub(super) fn reset(&mut self, value: T) {
        self.slots = [value, T::default()];
    }
}

/// Bounds of the short-term model, learnt from congestion since the last probe.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShortTerm {
    pub(super) bandwidth: Option<Rate>,
    /// UDP payload bytes in flight.
    pub(super) in_flight: Option<u64>,
}

impl ShortTerm {
    /// Handles a round trip with congestion: both bounds fall by `beta`, but not below what was just
    /// delivered (the draft's `InitLowerBounds` and `LossLowerBounds`). `present` is used where there is no
    /// bound yet.
    pub(super) fn lower(&mut self, present: (Rate, u64), delivered: (Rate, u64), beta: f64) {
        let bandwidth = self.bandwidth.unwrap_or(present.0).mul_f64(beta);
        self.bandwidth = Some(bandwidth.max(delivered.0));
        let in_flight = (self.in_flight.unwrap_or(present.1) as f64 * beta) as u64;
        self.in_flight = Some(in_flight.max(delivered.1));
    }
}

/// Excess of bytes acknowledged at once over those explained by the bandwidth (the draft's
/// `UpdateACKAggregation`).
#[derive(Debug, Default)]
pub(super) struct Aggregation {
    since: Time,
    /// UDP payload bytes acknowledged since `since`.
    acked: u64,
    /// Maximum over five to ten rounds; the draft has ten.
    most: TwoSlotMax<u64>,
    rounds: u32,
}

impl Aggregation {
    const ROUNDS: u32 = 5;

    /// Restarts counting.
    pub(super) fn restart(&mut self, now: Time) {
        (self.since, self.acked) = (now, 0);
    }

    /// Adds acknowledged bytes, at a window of `window` and this bandwidth.
    pub(super) fn on_acked(&mut self, now: Time, bytes: u64, bandwidth: Rate, window: u64) {
        let expected = |since: Time| bandwidth.bytes_in(now.since(since));
        if self.acked <= expected(self.since) {
            self.restart(now);
        }
        self.acked = self.acked.saturating_add(bytes);
        let extra = self.acked.saturating_sub(expected(self.since));
        self.most.on_value(extra.min(window));
    }

    /// Ends a round; in Startup only the last one counts.
    pub(super) fn on_round(&mut self, in_startup: bool) {
        self.rounds += 1;
        if in_startup || self.rounds >= Self::ROUNDS {
            self.rounds = 0;
            self.most.advance();
        }
    }

    /// Returns the excess in UDP payload bytes.
    pub(super) fn extra(&self) -> u64 {
        self.most.get()
    }
}

/// Detects when sending faster no longer increases the delivery rate (the draft's `CheckFullBWReached`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plateau {
    base: Rate,
    rounds: u32,
    is_reached: bool,
}

impl Plateau {
    /// Less growth in a round counts as none; this many rounds without growth are a plateau.
    const GROWTH: f64 = 1.25;
    const ROUNDS: u32 = 3;

    /// Restarts from this rate.
    pub(super) fn reset(&mut self, base: Rate) {
        *self = Self { base, rounds: 0, is_reached: false };
    }

    /// Adds a round that was not app-limited and its delivery rate.
    pub(super) fn on_round(&mut self, delivered: Rate) {
        if self.is_reached {
            return;
        }
        if delivered >= self.base.mul_f64(Self::GROWTH) {
            self.reset(delivered);
            return;
        }
        self.rounds += 1;
        self.is_reached = self.rounds >= Self::ROUNDS;
    }

    /// Whether the plateau is reached.
    pub(super) fn is_reached(&self) -> bool {
        self.is_reached
    }
}

/// Returns the bytes sent at this rate, times `gain`, in `span`.
pub(super) fn volume(rate: Rate, gain: f64, span: Span) -> u64 {
    rate.mul_f64(gain).bytes_in(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    const MBPS: fn(u64) -> Rate = Rate::from_mbps;

    #[test]
    fn the_highest_of_two_intervals_counts_and_empty_ones_are_ignored() {
        let mut most = TwoSlotMax::<Rate>::default();
        most.on_value(MBPS(100));
        most.advance_known();
        most.on_value(MBPS(50));
        assert_eq!(most.get(), MBPS(100));
        most.advance_known();
        assert_eq!(most.get(), MBPS(50));
        most.advance_known();
        assert_eq!(most.get(), MBPS(50));
        most.advance();
        most.advance();
        assert_eq!(most.get(), Rate::ZERO);
        most.reset(MBPS(7));
        assert_eq!(most.get(), MBPS(7));
    }

    #[test]
    fn congestion_lowers_by_beta_but_not_below_the_delivered_amount() {
        let mut bounds = ShortTerm::default();
        bounds.lower((MBPS(100), 1_000), (MBPS(50), 900), 0.7);
        assert_eq!((bounds.bandwidth, bounds.in_flight), (Some(MBPS(70)), Some(900)));
        bounds.lower((MBPS(100), 1_000), (MBPS(50), 100), 0.7);
        assert_eq!((bounds.bandwidth, bounds.in_flight), (Some(MBPS(50)), Some(630)));
    }

    #[test]
    fn aggregation_is_the_excess_over_the_expected_arrivals() {
        // 8 Mbit/s are 1,000 bytes per millisecond, reported every 10 ms.
        let mut aggregation = Aggregation::default();
        aggregation.restart(at(0));
        for n in 1..=100 {
            aggregation.on_acked(at(n * 10), 10_000, MBPS(8), 1 << 20);
            if n % 4 == 0 {
                aggregation.on_round(false);
            }
        }
        assert_eq!(aggregation.extra(), 10_000);
        aggregation.on_acked(at(1_010), 60_000, MBPS(8), 25_000);
        assert_eq!(aggregation.extra(), 25_000, "no more than the window");
    }

    #[test]
    fn three_rounds_without_25_percent_growth_are_a_plateau() {
        let mut plateau = Plateau::default();
        for (mbps, is_reached) in [(10, false), (20, false), (24, false), (24, false), (24, true), (99, true)]
        {
            plateau.on_round(MBPS(mbps));
            assert_eq!(plateau.is_reached(), is_reached, "{mbps}");
        }
    }
}
