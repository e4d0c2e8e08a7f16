//! Gaps between sent packets that the sender itself caused, and that therefore say nothing about the path.

use haul_base::{Span, Time};

use crate::micro::shared::{Clock, WaitingFor};

/// Delay after which a batch that could have been sent earlier follows a gap: timers are less late. Our
/// choice.
const ABSENCE: Span = Span::from_millis(2);
/// Divisor of the round trip: the delay must also exceed this fraction; the pacer catches up with less. Our
/// choice.
const ABSENCE_DIVISOR: u64 = 8;
/// A sender without data for at least this long causes a gap too; the receiver's 32-bit clock may have
/// wrapped meanwhile. Our choice.
const IDLE: Span = Span::from_secs(1);

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gaps {
    /// When the last batch was sent.
    sent_at: Time,
}

impl Gaps {
    /// Records that a batch is sent at `now`. Returns whether a gap precedes it.
    pub(super) fn on_sent(&mut self, now: Time, rtt: Span, clock: &mut Clock) -> bool {
        let idle = now.since(std::mem::replace(&mut self.sent_at, now));
        let no_data = |reason: WaitingFor| reason.is_app_limited() || reason == WaitingFor::Acknowledgement;
        let had_no_data = clock.reason().is_some_and(no_data);
        let was_absent = clock.take_absence() > ABSENCE.max(rtt / ABSENCE_DIVISOR);
        was_absent || (had_no_data && idle >= IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_and_long_pauses_are_gaps_and_a_low_rate_is_not() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let rtt = Span::from_millis(40);
        let before = |reason, released: Time, now: Time| {
            let (mut gaps, mut clock) = (Gaps::default(), Clock::default());
            gaps.on_sent(at(1_000), rtt, &mut clock);
            clock.busy(at(1_000));
            clock.wait(at(1_000), reason);
            clock.released(now, released);
            gaps.on_sent(now, rtt, &mut clock)
        };
        assert!(before(WaitingFor::Pacer, at(1_010), at(1_016)), "6 ms late");
        assert!(!before(WaitingFor::Pacer, at(1_010), at(1_014)));
        assert!(!before(WaitingFor::Pacer, at(3_000), at(3_001)), "a packet in two seconds");
        assert!(before(WaitingFor::Source, at(1_000), at(2_000)));
        assert!(!before(WaitingFor::Source, at(1_000), at(1_900)));
    }
}
