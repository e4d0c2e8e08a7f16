//! Others on the same processor.

use haul_base::{Span, Time};

/// So long nobody looks after looking has cost more than it gained, at first and at most.
const PAUSE: Span = Span::from_millis(200);
const LONGEST_PAUSE: Span = Span::from_secs(20);
/// It has to gain so many times what it costs: a few messages wait for long where many gain a little, which the mean does not show.
const WORTH: u64 = 2;
/// More than this is not put by: a processor that was free for long may be crowded from now on. A turn of more than half of it stops the
/// looking in any case, as only who has work without end takes so long.
const MOST_GAINED: Span = Span::from_millis(5);

/// Who looks is not woken by what comes, and waits for its turn behind the others; a sleeper is. So looking pays only as long as
/// it gains more than they take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    /// No looking until then.
    until: Time,
    pause: Span,
    /// What looking has gained, less what it has cost since.
    gained: Span,
}

impl Crowd {
    pub(super) fn keeps_out(&self, at: Time) -> bool {
        at < self.until
    }

    /// A message was looked for and has come; to a sleeper it would have come so much later.
    pub(super) fn gain(&mut self, sooner: Span) {
        self.gained = (self.gained + sooner).min(MOST_GAINED);
    }

    /// Others have kept a thread that looked from its processor for so long. Each pause soon after the one before is twice as long.
    pub(super) fn lose(&mut self, now: Time, kept: Span) {
        let cost = kept * WORTH;
        if cost <= self.gained {
            self.gained = self.gained.saturating_sub(cost);
            return;
        }
        self.gained = Span::ZERO;
        let is_again = self.pause > Span::ZERO && now < self.until + self.pause;
        self.pause = if is_again { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
        self.until = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAIN: Span = Span::from_micros(60);
    const TURN: Span = Span::from_millis(1);
    const LONG_TURN: Span = Span::from_millis(4);

    /// So many messages, one a millisecond, of which every `each`th is kept back by a `turn` of others; how many are looked for.
    fn looked_for(messages: u64, each: u64, turn: Span) -> u64 {
        let (mut crowd, mut looked) = (Crowd::default(), 0);
        for n in 1..=messages {
            let now = Time::from_nanos(n * 1_000_000);
            if crowd.keeps_out(now) {
                continue;
            }
            looked += 1;
            if n % each == 0 { crowd.lose(now, turn) } else { crowd.gain(GAIN) }
        }
        looked
    }

    #[test]
    fn who_gains_more_than_others_take_goes_on() {
        let looked = |each| looked_for(60_000, each, TURN);
        assert_eq!(looked(100), 60_000);
        assert!(looked(20) < 6_000, "{}", looked(20));
        assert!(looked(1) < 20, "{}", looked(1));
        let long = looked_for(60_000, 100, LONG_TURN);
        assert!(long < 12_000, "{long}");
    }

    #[test]
    fn a_long_quiet_time_is_no_licence() {
        let mut crowd = Crowd::default();
        (0..1_000_000).for_each(|_| crowd.gain(GAIN));
        crowd.lose(Time::ZERO, TURN);
        crowd.lose(Time::ZERO, TURN);
        assert!(!crowd.keeps_out(Time::ZERO));
        crowd.lose(Time::ZERO, TURN);
        assert!(crowd.keeps_out(Time::ZERO));
    }

    #[test]
    fn pauses_grow_while_they_follow_each_other() {
        let (mut crowd, mut now) = (Crowd::default(), Time::from_nanos(5));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let met = now;
            crowd.lose(now, TURN);
            while crowd.keeps_out(now) {
                now += Span::from_millis(1);
            }
            pauses.push(now.since(met).as_micros() / 1_000);
        }
        assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 20_000, 20_000, 20_000]);
        now += LONGEST_PAUSE;
        crowd.lose(now, TURN);
        assert!(!crowd.keeps_out(now + PAUSE), "the first one after a long time");
    }
}
