//! The reverse path, as reports show it: whether they queue there, how fast it serves them, and which interval it
//! carries.

use haul_base::{Span, Time};

use crate::one_way::OneWay;

/// The interval is never longer.
pub(super) const LONGEST: Span = Span::from_secs(1);
/// A report has queued if it took longer than the fastest one by this, or by a quarter of the round trip if that is
/// more.
pub(super) const QUEUED: Span = Span::from_millis(10);
/// So many queued reports in a row show how fast the reverse path serves them.
const BUSY_PERIOD: u64 = 8;
/// Reports are too frequent if a busy reverse path delivers them further apart than they were sent by this factor.
/// Queues of other traffic delay them and keep their mean spacing.
const SPREAD: f64 = 1.1;
/// Then the interval becomes this multiple of their service time, so that the queue drains.
const HEADROOM: u64 = 2;
/// Once the queue has had the time to drain, so many reports show whether it did. Jitter of seconds that keeps the order
/// looks like a queue, but fewer reports do not shorten it. (What grows on is a path that takes even fewer.)
const TRIED: u32 = 8;
/// If they did not, no service time counts for so many times as long as it took to see that. A choice.
const DISBELIEF: u64 = 10;
/// After this time without a queued report the interval shrinks by this factor.
const QUIET: Span = Span::from_secs(2);
const SHRINK: f64 = 0.8;
/// A receiver has heard of another interval by then, even where a packet was lost. As often is it told.
const HEARD: Span = Span::from_secs(1);

/// When a report arrived, and which one it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportArrival {
    pub(super) at: Time,
    /// Its packet number.
    pub(super) pn: u64,
    /// Reports received so far, this one included.
    pub(super) number: u64,
}

/// Reports that queued one behind the other.
#[derive(Clone, Copy, Debug)]
struct BusyPeriod {
    first: ReportArrival,
    /// When the first one was sent (receiver's clock, wrapped microseconds).
    sent_at: u32,
    /// The number of the last one.
    last: u64,
}

/// What a report shows of the reverse path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queueing {
    /// How much longer than the fastest one it took.
    excess: Span,
    has_queued: bool,
    /// The mean service time of a report, if they are sent faster than that.
    service: Option<Span>,
}

/// The queue of the reverse path, as reports show it.
#[derive(Debug, Default)]
pub(super) struct ReversePath {
    delay: OneWay,
    busy: Option<BusyPeriod>,
}

impl ReversePath {
    pub(super) fn on_report(&mut self, report: ReportArrival, sent_at: u32, queued: Span) -> Queueing {
        let excess = self.delay.on_arrival(report.at, sent_at, report.at.as_wrapped_micros());
        let has_queued = excess > queued;
        let service = if has_queued {
            self.service(report, sent_at)
        } else {
            self.busy = None;
            None
        };
        Queueing { excess, has_queued, service }
    }

    /// The mean service time of a busy period, which this report prolongs.
    fn service(&mut self, report: ReportArrival, sent_at: u32) -> Option<Span> {
        // What overtakes another one has not queued behind it. (One that comes twice looks the same.)
        let busy = self.busy.take_if(|busy| busy.last + 1 == report.number);
        let BusyPeriod { first, sent_at: sent, .. } =
            busy.unwrap_or(BusyPeriod { first: report, sent_at, last: report.number });
        self.busy = Some(BusyPeriod { first, sent_at: sent, last: report.number });
        let followed = report.number - first.number;
        if followed == 0 {
            return None;
        }
        let service = report.at.since(first.at) / followed;
        // Lost reports were sent, too.
        let spacing =
            Span::from_micros(u64::from(sent_at.wrapping_sub(sent))) / (report.pn - first.pn).max(1);
        let is_slower = followed >= BUSY_PERIOD && service > spacing.mul_f64(SPREAD);
        is_slower.then_some(service)
    }
}

/// A longer interval, until it is known whether it has shortened the queue.
#[derive(Clone, Copy, Debug)]
struct Trial {
    began: Time,
    /// The sustainable interval before.
    before: Span,
    tried: Span,
    /// The delay that reports had beyond the path's.
    excess: Span,
    /// A queue of reports has drained by then.
    drained: Time,
    /// Reports since then, how many of them have queued, and the least delay of those beyond the path's.
    reports: u32,
    queued: u32,
    least: Span,
}

/// The shortest interval that the reverse path carries, as far as it is known.
#[derive(Debug)]
pub(super) struct Sustainable {
    pub(super) interval: Span,
    /// When it changed, or a report had queued.
    changed: Time,
    trial: Option<Trial>,
    /// Service times do not count before this.
    disbelieves_until: Time,
}

impl Sustainable {
    pub(super) fn new(now: Time) -> Self {
        Self { interval: Span::ZERO, changed: now, trial: None, disbelieves_until: now }
    }

    /// What a report shows. `min_rtt` is the path's, `shortest` the recipe's interval.
    pub(super) fn on_report(&mut self, now: Time, seen: Queueing, min_rtt: Span, shortest: Span) {
        self.judge(now, seen);
        if seen.has_queued {
            self.changed = now;
            if let Some(service) = seen.service.filter(|_| now >= self.disbelieves_until) {
                self.raise(now, (service * HEADROOM).min(LONGEST), seen.excess, min_rtt);
            }
        } else if now.since(self.changed) >= QUIET && self.interval > shortest {
            self.changed = now;
            self.interval = self.interval.mul_f64(SHRINK);
        }
    }

    /// A busy reverse path wants so long an interval, which lets the queue of this delay drain.
    fn raise(&mut self, now: Time, wanted: Span, excess: Span, min_rtt: Span) {
        if wanted <= self.interval {
            return;
        }
        let begun = Trial {
            began: now,
            before: self.interval,
            tried: wanted,
            excess,
            drained: now + HEARD + (excess + min_rtt) * 3,
            reports: 0,
            queued: 0,
            least: Span::MAX,
        };
        let trial = self.trial.get_or_insert(begun);
        // The first service times of a queue that grows can be too short.
        if wanted >= trial.tried * 2 {
            *trial = Trial { began: trial.began, before: trial.before, ..begun };
        }
        self.interval = wanted;
    }

    fn judge(&mut self, now: Time, seen: Queueing) {
        let Some(trial) = self.trial.as_mut().filter(|trial| now >= trial.drained) else { return };
        trial.reports += 1;
        trial.queued += u32::from(seen.has_queued);
        trial.least = trial.least.min(seen.excess);
        if trial.reports < TRIED {
            return;
        }
        let Trial { began, before, queued, least, excess, .. } = *trial;
        self.trial = None;
        if queued * 2 > TRIED && least <= excess {
            self.interval = before;
            self.disbelieves_until = now + now.since(began) * DISBELIEF;
        }
    }
}
