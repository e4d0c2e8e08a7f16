//! Proportional rate reduction: how the window comes down during a fast recovery (RFC 6937, with the bound of slow
//! start, as `tcp_cwnd_reduction` of Linux has it).

/// The window of one fast recovery: not at once what the law wants, but by so much less than arrives that it is there
/// when all that was in flight has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reduction {
    prior: u64,
    target: u64,
    delivered: u64,
    sent: u64,
    window: u64,
}

impl Reduction {
    /// From a window of `prior` segments to `target`.
    pub(super) fn new(prior: u64, target: u64) -> Self {
        Self { prior: prior.max(1), target, delivered: 0, sent: 0, window: target }
    }

    /// An acknowledgement of `acked` segments, after which so many are in flight. `smoothly`: it moved the first
    /// outstanding segment on and told of no further loss.
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
            let owed = self.delivered.saturating_sub(self.sent).max(acked) + u64::from(smoothly);
            owed.min(room)
        };
        // The first lost segment goes at once.
        self.window = in_flight + count.max(u64::from(self.sent == 0));
    }

    /// So many segments were sent, new ones or again.
    pub(super) fn on_sent(&mut self, count: u64) {
        self.sent += count;
    }

    /// Most segments in flight now.
    pub(super) fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_of_ten_arrivals_let_one_out_on_the_way_from_100_to_70() {
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
        // 50 arrivals, 35 departures: 99 - 50 + 35.
        assert_eq!((sent, in_flight), (35, 84));
    }

    #[test]
    fn below_its_target_it_grows_back_as_slow_start_does() {
        // A burst of losses has left 20 in flight; 70 are wanted.
        let mut reduction = Reduction::new(100, 70);
        reduction.on_ack(1, 20, false);
        assert_eq!(reduction.window(), 21);
        reduction.on_sent(1);
        reduction.on_ack(2, 19, true);
        // Two have arrived, one more for the advance.
        assert_eq!(reduction.window(), 22);
        reduction.on_sent(3);
        reduction.on_ack(10, 69, true);
        assert_eq!(reduction.window(), 70, "never beyond the target");
    }

    #[test]
    fn what_was_lost_first_goes_at_once_and_nothing_without_an_arrival() {
        let mut reduction = Reduction::new(10, 1);
        reduction.on_ack(1, 8, false);
        assert_eq!(reduction.window(), 9);
        let before = reduction;
        reduction.on_ack(0, 8, true);
        assert_eq!(reduction, before);
    }
}
