//! Proportional rate reduction during fast recovery (RFC 6937, with the slow-start reduction bound, as in
//! Linux's `tcp_cwnd_reduction`).

/// Window of one fast recovery. It falls gradually and reaches the law's target when everything that was in
/// flight has been acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reduction {
    prior: u64,
    target: u64,
    delivered: u64,
    sent: u64,
    window: u64,
}

impl Reduction {
    /// Starts a reduction from a window of `prior` segments to `target`.
    pub(super) fn new(prior: u64, target: u64) -> Self {
        Self { prior: prior.max(1), target, delivered: 0, sent: 0, window: target }
    }

    /// Processes an acknowledgement of `acked` segments that leaves `in_flight`. `smoothly`: it advanced the
    /// first outstanding segment and showed no further loss.
    pub(super) fn on_ack(&mut self, acked: u64, in_flight: u64, smoothly: bool) {
        if acked == 0 {
            return;
        }
        self.delivered += acked;
        let share = (self.target * self.delivered).div_ceil(self.prior).saturating_sub(self.sent);
        let room = self.target.saturating_sub(in_flight);
        let count = if in_flight > self.target {
            share
        } else {
            let allowed = self.delivered.saturating_sub(self.sent).max(acked) + u64::from(smoothly);
            allowed.min(room)
        };
        // The first lost segment is retransmitted immediately.
        self.window = in_flight + count.max(u64::from(self.sent == 0));
    }

    /// Registers sent segments, new or retransmitted.
    pub(super) fn on_sent(&mut self, count: u64) {
        self.sent += count;
    }

    /// Returns the maximum number of segments in flight.
    pub(super) fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_from_100_to_70_sends_seven_packets_per_ten_arrivals() {
        let mut reduction = Reduction::new(100, 70);
        let mut in_flight = 99;
        let mut sent = 0;
        for _ in 0..50 {
            in_flight -= 1;
            reduction.on_ack(1, in_flight, false);
            let now = reduction.window().saturating_sub(in_flight);
            reduction.on_sent(now);
            (in_flight, sent) = (in_flight + now, sent + now);
            assert!(now <= 1);
        }
        // 50 delivered, 35 sent: 99 - 50 + 35.
        assert_eq!((sent, in_flight), (35, 84));
    }

    #[test]
    fn below_its_target_the_window_grows_as_in_slow_start() {
        // A burst of losses has left 20 in flight; the target is 70.
        let mut reduction = Reduction::new(100, 70);
        reduction.on_ack(1, 20, false);
        assert_eq!(reduction.window(), 21);
        reduction.on_sent(1);
        reduction.on_ack(2, 19, true);
        // Two delivered, and one more because the first outstanding segment advanced.
        assert_eq!(reduction.window(), 22);
        reduction.on_sent(3);
        reduction.on_ack(10, 69, true);
        assert_eq!(reduction.window(), 70, "never beyond the target");
    }

    #[test]
    fn the_first_loss_is_retransmitted_at_once_and_others_on_arrivals() {
        let mut reduction = Reduction::new(10, 1);
        reduction.on_ack(1, 8, false);
        assert_eq!(reduction.window(), 9);
        let before = reduction;
        reduction.on_ack(0, 8, true);
        assert_eq!(reduction, before);
    }
}
