//! Detection of receivers that wait for segments that their sender has given up.

use haul_base::{Span, Time};

/// Detects that a sender has given up the segments that this receiver waits for. A sender that retransmits
/// until acknowledged has done so only if it is further ahead than its window allows; one that retransmits
/// what is reported missing (`negative_ack`) gives up sooner.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    /// Whether senders drop segments that were not reported missing in time (`negative_ack`).
    pub(super) forgetful: bool,
    since: Option<Time>,
    seconds: u32,
}

impl StallDetector {
    /// Seconds with refusals and without progress after which such a sender has dropped the segments: it
    /// would have resent them. Seconds in which nothing arrives do not count.
    const LONGEST: u32 = 10;

    /// Records at `now` that a segment was refused; returns whether to give up what is missing.
    pub(super) fn is_stalled(&mut self, now: Time) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= Span::from_secs(1)) {
            self.since = Some(now);
            self.seconds += 1;
        }
        let has_stalled = self.forgetful && self.seconds > Self::LONGEST;
        if has_stalled {
            self.on_progress();
        }
        has_stalled
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
    fn a_stall_is_seconds_of_refusals_and_not_of_silence() {
        let mut stall = StallDetector { forgetful: true, ..StallDetector::default() };
        let at = |seconds| T0 + Span::from_secs(seconds);
        assert!(!stall.is_stalled(at(0)));
        assert!(!stall.is_stalled(at(500)));
        assert!((0..100_000).all(|_| !stall.is_stalled(at(500))));
        stall.on_progress();
        assert_eq!((0..100).position(|second| stall.is_stalled(at(600 + second))), Some(10));
    }
}
