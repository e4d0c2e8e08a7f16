//! Pacing by debt: packets are released on a schedule, and a late wake-up is made good afterwards.

use haul_base::{Rate, Span, Time};

/// Releases bytes at a rate. It knows a rate and nothing of the law behind it.
///
/// Two clocks run: the *schedule*, which falls behind when the sender wakes late, by at most `debt`; and the
/// *spacing*, which lets a late sender catch up at no more than 1.05 times the rate, because a rate is often set
/// just below what the line carries. So a descheduled sender
/// does not lose rate, its catch-up is no burst, and the bytes sent since the start never exceed
/// rate x time plus one batch.
#[derive(Clone, Debug)]
pub struct Pacer {
    schedule: Time,
    spacing: Time,
    debt: Short,
    slack: Short,
}

/// A span in whole microseconds, up to an hour: a base station has a pacer for each of its sensors.
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

/// How much faster than its rate a late sender may go until it has caught up.
const CATCH_UP_GAIN: f64 = 1.05;

/// Lateness that is made good at once, at least; longer lateness is repaid at [`CATCH_UP_GAIN`].
const SLACK: Span = Span::from_millis(1);

impl Pacer {
    /// A pacer that makes good at most `debt` of lateness.
    pub fn new(debt: Span) -> Self {
        Self { schedule: Time::ZERO, spacing: Time::ZERO, debt: Short::new(debt), slack: Short::new(SLACK) }
    }

    /// Lets so much lateness be made good at once, if it is more than the least. A sender that wakes late again and
    /// again keeps its rate up to here, as it wakes late while it repays too.
    pub fn set_slack(&mut self, slack: Span) {
        self.slack = Short::new(slack.max(SLACK));
    }

    /// Whether it is so far behind its schedule at `now` that it will hardly make it good: half of what it makes good
    /// at all.
    pub fn is_behind(&self, now: Time) -> bool {
        now.since(self.schedule) > self.debt.span() / 2
    }

    /// When the next batch may leave.
    pub fn release_at(&self) -> Time {
        self.schedule.max(self.spacing)
    }

    /// Notes that `bytes` left at `now` under `rate`.
    pub fn on_sent(&mut self, now: Time, bytes: u64, rate: Rate) {
        self.schedule = self.schedule.max(now - self.debt.span()) + rate.time_for(bytes);
        self.spacing =
            self.spacing.max(now - self.slack.span()) + rate.mul_f64(CATCH_UP_GAIN).time_for(bytes);
    }

    /// Notes that a higher rate holds from `now` on: a pause that the old one has set ends.
    pub fn on_higher_rate(&mut self, now: Time) {
        self.schedule = self.schedule.min(now);
        self.spacing = self.spacing.min(now);
    }

    /// Notes that there was nothing to send at `now`: time not used is no credit.
    pub fn on_idle(&mut self, now: Time) {
        self.schedule = self.schedule.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate::from_mbps(1000);

    /// Sends 15,000-byte batches whenever released until `until`, waking late by what `lateness` says.
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
        // 5 ms late about every 120 ms: without debt that would cost 4 % of the rate.
        let sent = run(Time::ZERO + Span::from_secs(2), |n| {
            if n % 1_000 == 999 { Span::from_millis(5) } else { Span::from_micros(60) }
        });
        assert!(sent > 247_000_000, "{sent}");
    }

    #[test]
    fn slack_keeps_the_rate_of_one_who_is_always_late() {
        let late = |_| Span::from_millis(4);
        let until = Time::ZERO + Span::from_secs(2);
        let mut lenient = Pacer::new(Span::from_millis(100));
        lenient.set_slack(Span::from_millis(5));
        let (strict, lenient) = (run(until, late), run_with(lenient, until, late));
        assert!(strict < 90_000_000, "{strict}");
        assert!((247_000_000..=250_520_000).contains(&lenient), "{lenient}");
    }

    #[test]
    fn it_is_behind_when_lateness_adds_up_and_not_for_a_late_wake_up() {
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
    fn idle_time_is_no_credit() {
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
        fn the_rate_is_never_exceeded_whatever_the_lateness(late in prop::collection::vec(0u64..40_000_000, 1..50)) {
            let until = Time::ZERO + Span::from_millis(500);
            let sent = run(until, |n| Span::from_nanos(late[n as usize % late.len()]));
            // The loop may overshoot `until` by one lateness of at most 40 ms.
            let bound = RATE.bytes_in(Span::from_millis(540)) + 15_000;
            prop_assert!(sent <= bound, "{} > {}", sent, bound);
        }
    }
}
