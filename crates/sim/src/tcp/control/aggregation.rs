//! BBR's allowance for aggregated acknowledgements (`bbr_update_ack_aggregation` of Linux's `tcp_bbr.c`).

use haul_base::{Rate, Span, Time};

use super::AckSample;

/// Round trips per stretch; an excess is kept for two stretches.
const ROUNDS: u64 = 5;
/// Acknowledged segments after which an epoch restarts.
const MAX_EPOCH: u64 = 1 << 20;
/// Maximum allowance, as a time at the bandwidth.
const MAX_EXTRA: Span = Span::from_millis(100);

/// Tracks how far acknowledgements have recently run ahead of the bandwidth.
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    epoch: Time,
    acked: u64,
    rounds: u64,
    /// Largest excess of this stretch and of the previous one, segments.
    excess: [u64; 2],
}

impl Aggregation {
    /// Processes an acknowledgement; `window` bounds the excess that one acknowledgement can show.
    pub(super) fn on_ack(&mut self, ack: &AckSample, bandwidth: Rate, wire_bytes: u32, window: u64) {
        if ack.acked == 0 || ack.rate.is_none() {
            return;
        }
        self.rounds += u64::from(ack.round_start);
        if self.rounds >= ROUNDS {
            self.rounds = 0;
            self.excess = [0, self.excess[0]];
        }
        let mut expected = bandwidth.bytes_in(ack.now.since(self.epoch)) / u64::from(wire_bytes);
        if self.acked <= expected || self.acked + ack.acked >= MAX_EPOCH {
            (self.acked, self.epoch, expected) = (0, ack.now, 0);
        }
        self.acked += ack.acked;
        self.excess[0] = self.excess[0].max(self.acked.saturating_sub(expected).min(window));
    }

    /// Returns the segments that the window may hold beyond the bandwidth-delay product.
    pub(super) fn allowance(&self, bandwidth: Rate, wire_bytes: u32) -> u64 {
        let most = bandwidth.bytes_in(MAX_EXTRA) / u64::from(wire_bytes);
        self.excess[0].max(self.excess[1]).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::RateSample;
    use super::*;

    const RATE: Rate = Rate::from_mbps(12);

    fn ack(ms: u64, acked: u64, round_start: bool) -> AckSample {
        AckSample {
            now: Time::ZERO + Span::from_millis(ms),
            acked,
            lost: 0,
            in_flight: 0,
            delivered: 0,
            rtt: None,
            srtt: None,
            rate: Some(RateSample { delivered: 1, interval: Span::from_millis(1), prior_delivered: 0 }),
            round_start,
            recovering: false,
            window_limited: true,
        }
    }

    #[test]
    fn an_aggregate_of_thirty_is_remembered_for_two_intervals() {
        // 12 Mbit/s: one segment of 1,500 bytes per millisecond.
        let mut seen = Aggregation::default();
        for ms in 1..20 {
            seen.on_ack(&ack(ms, 1, false), RATE, 1_500, 1_000);
        }
        assert_eq!(seen.allowance(RATE, 1_500), 1);
        seen.on_ack(&ack(50, 30, false), RATE, 1_500, 1_000);
        assert_eq!(seen.allowance(RATE, 1_500), 30);
        for round in 0..9 {
            seen.on_ack(&ack(100 + 50 * round, 1, true), RATE, 1_500, 1_000);
            assert_eq!(seen.allowance(RATE, 1_500), 30, "round {round}");
        }
        seen.on_ack(&ack(600, 1, true), RATE, 1_500, 1_000);
        assert_eq!(seen.allowance(RATE, 1_500), 1);
        // At most the window, and at most 100 ms at the bandwidth.
        seen.on_ack(&ack(700, 5_000, false), RATE, 1_500, 40);
        assert_eq!(seen.allowance(RATE, 1_500), 40);
        seen.on_ack(&ack(710, 5_000, false), RATE, 1_500, 4_000);
        assert_eq!(seen.allowance(RATE, 1_500), 100);
    }
}
