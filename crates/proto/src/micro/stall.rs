//! Receivers that wait for what will not come.

use haul_base::{Span, Time};

/// Detects that a sender has given up the segments that this receiver waits for. A sender that repeats until it is
/// acknowledged has given up only if it is further ahead than its window allows; one that repeats what is reported
/// missing (`negative_ack`) gives up sooner.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    /// Whether senders forget what was not missed in time (`negative_ack`).
    pub(super) forgetful: bool,
    since: Option<Time>,
    seconds: u32,
}

impl StallDetector {
    /// Seconds with refusals and without progress after which a forgetful sender has forgotten: it would have sent what
    /// is missing again. Seconds in which nothing comes at all do not count.
    const LONGEST: u32 = 10;

    /// Something could not be taken in at `now`; whether it is time to give up what is in the way.
    pub(super) fn is_stalled(&mut self, now: Time) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= Span::from_secs(1)) {
            self.since = Some(now);
            self.seconds += 1;
        }
        let over = self.forgetful && self.seconds > Self::LONGEST;
        if over {
            self.on_progress();
        }
        over
    }

    pub(super) fn on_progress(&mut self) {
        (self.since, self.seconds) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::testing::T0;

    #[test]
    fn a_standstill_is_seconds_of_refusals_and_not_of_silence() {
        let mut stall = StallDetector { forgetful: true, ..StallDetector::default() };
        let at = |seconds| T0 + Span::from_secs(seconds);
        assert!(!stall.is_stalled(at(0)));
        assert!(!stall.is_stalled(at(500)));
        assert!((0..100_000).all(|_| !stall.is_stalled(at(500))));
        stall.on_progress();
        assert_eq!((0..100).position(|second| stall.is_stalled(at(600 + second))), Some(10));
    }
}
