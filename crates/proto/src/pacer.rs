//! Pacing with debt: packets are released on a schedule, and the lateness of wake-ups is compensated.

use haul_base::{Rate, Span, Time};

/// Releases bytes at a rate. Independent of the control law that sets the rate.
///
/// It keeps two clocks: the *schedule*, which lags when the sender wakes late, by at most `debt`; and the
/// *spacing*, which lets a late sender catch up at no more than 1.05 times the rate, because a rate is often
/// set just below the line's. So a descheduled sender does not lose rate, its catch-up is no burst, and the
/// total sent never exceeds rate x time plus one batch.
#[derive(Clone, Debug)]
pub struct Pacer {
    schedule: Time,
    spacing: Time,
    debt: Short,
    slack: Short,
}

/// A span in whole microseconds, up to an hour: small, because a base station has a pacer per sensor.
#[derive(Clone, Copy, Debug)]
struct Short(u32);

impl Short {
    fn new(span: Span) -> Self {
        Self(u32::try_from(span.as_micros()).unwrap_or(u32::MAX))
    }

    fn span(self) -> Span {
        Span::from_micros(self.0.into())
    }
}

/// Factor on the rate at which a late sender catches up.
const CATCH_UP_GAIN: f64 = 1.05;

/// Minimum lateness that is compensated at once; more is repaid at [`CATCH_UP_GAIN`].
const SLACK: Span = Span::from_millis(1);

impl Pacer {
    /// Creates a pacer that compensates at most `debt` of lateness.
    pub fn new(debt: Span) -> Self {
        Self { schedule: Time::ZERO, spacing: Time::ZERO, debt: Short::new(debt), slack: Short::new(SLACK) }
    }

    /// Sets the lateness that is compensated at once, if it is more than the minimum. A sender whose wake-ups
    /// are late every time keeps its rate up to this value, because it is late while it repays, too.
    pub fn set_slack(&mut self, slack: Span) {
        self.slack = Short::new(slack.max(SLACK));
    }

    /// Whether the pacer is so far behind its schedule at `now` that it is unlikely to catch up: more than
    /// half of its debt limit.
    pub fn is_behind(&self, now: Time) -> bool {
        now.since(self.schedule) > self.debt.span() / 2
    }

    /// Returns when the next batch may be sent.
    pub fn release_at(&self) -> Time {
        self.schedule.max(self.spacing)
    }

    /// Records that `bytes` were sent at `now` under `rate`.
    pub fn on_sent(&mut self, now: Time, bytes: u64, rate: Rate) {
        self.schedule = self.schedule.max(now - self.debt.span()) + rate.time_for(bytes);
        self.spacing =
            self.spacing.max(now - self.slack.span()) + rate.mul_f64(CATCH_UP_GAIN).time_for(bytes);
    }

    /// Records that a higher rate applies from `now` on: a pause due to the old rate ends.
    pub fn on_higher_rate(&mut self, now: Time) {
        self.schedule = self.schedule.min(now);
        self.spacing = self.spacing.min(now);
    }

    /// Records that there was nothing to send at `now`: unused time is no credit.
    pub fn on_idle(&mut self, now: Time) {
        self.schedule = self.schedule.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate::from_mbps(1000);

    /// Sends 15,000-byte batches when released until `until`, with each wake-up late by `lateness`.
    fn run(until: Time, lateness: impl FnMut(u64) -> Span) -> u64 {
        run_with(Pacer::new(Span::from_millis(100)), until, lateness)
    }

    fn run_with(mut pacer: Pacer, until: Time, mut lateness: impl FnMut(u64) -> Span) -> u64 {
        let (mut now, mut sent, mut n) = (Time::ZERO, 0, 0);
        pacer.on_idle(now);
        while now < until {
            if pacer.release_at() <= now {
                pacer.on_sent(now, 15_000, RATE);
                sent += 15_000;
            } else {
                now = pacer.release_at() + lateness(n);
                n += 1;
            }
        }
        sent
    }

    #[test]
    fn a_punctual_sender_gets_its_rate_exactly() {
        let sent = run(Time::ZERO + Span::from_secs(1), |_| Span::ZERO);
        assert!((125_000_000..=125_015_000).contains(&sent), "{sent}");
    }

    #[test]
    fn late_wake_ups_do_not_lose_rate() {
        // 5 ms late about every 120 ms: without debt, this would cost 4 % of the rate.
        let sent = run(Time::ZERO + Span::from_secs(2), |n| {
            if n % 1_000 == 999 { Span::from_millis(5) } else { Span::from_micros(60) }
        });
        assert!(sent > 247_000_000, "{sent}");
    }

    #[test]
    fn slack_keeps_the_rate_of_an_always_late_sender() {
        let late = |_| Span::from_millis(4);
        let until = Time::ZERO + Span::from_secs(2);
        let mut lenient = Pacer::new(Span::from_millis(100));
        lenient.set_slack(Span::from_millis(5));
        let (strict, lenient) = (run(until, late), run_with(lenient, until, late));
        assert!(strict < 90_000_000, "{strict}");
        assert!((247_000_000..=250_520_000).contains(&lenient), "{lenient}");
    }

    #[test]
    fn the_pacer_is_behind_only_if_lateness_accumulates() {
        let late = |each: u64| {
            let mut pacer = Pacer::new(Span::from_millis(100));
            let mut now = Time::ZERO;
            for _ in 0..20 {
                now = pacer.release_at().max(now) + Span::from_millis(each);
                pacer.on_sent(now, 15_000, RATE);
            }
            pacer.is_behind(now)
        };
        assert_eq!((late(0), late(2), late(20)), (false, false, true));
        let mut pacer = Pacer::new(Span::from_millis(100));
        let later = Time::ZERO + Span::from_secs(5);
        assert!(pacer.is_behind(later));
        pacer.on_idle(later);
        assert!(!pacer.is_behind(later), "there was nothing to send");
    }

    #[test]
    fn idle_time_gives_no_credit() {
        let mut pacer = Pacer::new(Span::from_millis(100));
        let later = Time::ZERO + Span::from_secs(5);
        pacer.on_idle(later);
        pacer.on_sent(later, 125_000, RATE);
        assert_eq!(pacer.release_at(), later + Span::from_millis(1));
    }

    #[test]
    fn a_pause_does_not_outlive_its_rate() {
        let mut pacer = Pacer::new(Span::from_millis(100));
        let start = Time::ZERO + Span::from_secs(5);
        pacer.on_idle(start);
        pacer.on_sent(start, 125_000, Rate::from_bps(1_000));
        let raised = start + Span::from_millis(20);
        assert!(pacer.release_at() > raised);
        pacer.on_higher_rate(raised);
        assert_eq!(pacer.release_at(), raised);
        pacer.on_sent(raised, 125_000, RATE);
        assert_eq!(pacer.release_at(), raised + Span::from_millis(1));
    }

    proptest! {
        #[test]
        fn the_rate_is_never_exceeded_with_any_lateness(late in prop::collection::vec(0u64..40_000_000, 1..50)) {
            let until = Time::ZERO + Span::from_millis(500);
            let sent = run(until, |n| Span::from_nanos(late[n as usize % late.len()]));
            // The loop may overshoot `until` by one lateness of at most 40 ms.
            let bound = RATE.bytes_in(Span::from_millis(540)) + 15_000;
            prop_assert!(sent <= bound, "{} > {}", sent, bound);
        }
    }
}
