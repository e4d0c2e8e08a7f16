//! The reverse path as seen from reports: whether they queue there, how fast it serves them, and which
//! interval it can carry.

use haul_base::{Span, Time};

use crate::one_way::OneWayDelay;

/// Maximum interval.
pub(super) const LONGEST: Span = Span::from_secs(1);
/// A report has queued if it took longer than the fastest one by this, or by a quarter of the round trip if
/// that is longer.
pub(super) const QUEUED: Span = Span::from_millis(10);
/// Consecutive queued reports that show how fast the reverse path serves them.
const BUSY_PERIOD: u64 = 8;
/// Reports are too frequent if a busy reverse path delivers them further apart than they were sent by this
/// factor. Queues of other traffic delay them without changing their mean spacing.
const SPREAD: f64 = 1.1;
/// The interval then becomes this multiple of their service time, so that the queue drains.
const HEADROOM: u64 = 2;
/// Number of reports that show whether the queue did drain, once it had the time. Jitter of seconds that
/// keeps the order looks like a queue, but fewer reports do not shorten it. (If the delay grows, the path
/// carries even fewer.)
const MAX_TRIALS: u32 = 8;
/// If it did not, service times are ignored for this multiple of the time that the trial took. A choice.
const IGNORED_TRIALS: u64 = 10;
/// After this time without a queued report the interval shrinks by the factor [`SHRINK`].
const QUIET: Span = Span::from_secs(2);
const SHRINK: f64 = 0.8;
/// Time by which a receiver has received another interval, even if a packet was lost. The request is repeated
/// as often.
const RECEIVED_WITHIN: Span = Span::from_secs(1);

/// Arrival of a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportArrival {
    pub(super) at: Time,
    /// Packet number.
    pub(super) pn: u64,
    /// Reports received so far, including this one.
    pub(super) number: u64,
}

/// Reports that queued directly after one another.
#[derive(Clone, Copy, Debug)]
struct BusyPeriod {
    first: ReportArrival,
    /// When the first one was sent (receiver's clock, wrapped microseconds).
    sent_at: u32,
    /// Number of the last one.
    last: u64,
}

/// What a report shows about the reverse path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queueing {
    /// Delay in excess of the fastest report's.
    excess: Span,
    has_queued: bool,
    /// Mean service time of a report, if they are sent faster than that.
    service: Option<Span>,
}

/// State of the reverse path's queue.
#[derive(Debug, Default)]
pub(super) struct ReversePath {
    delay: OneWayDelay,
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

    /// Returns the mean service time of the busy period that this report extends.
    fn service(&mut self, report: ReportArrival, sent_at: u32) -> Option<Span> {
        // A report that overtakes another has not queued behind it. (A duplicate looks the same.)
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

/// A longer interval, until it is known whether it shortens the queue.
#[derive(Clone, Copy, Debug)]
struct Trial {
    began: Time,
    /// The sustainable interval before.
    before: Span,
    tried: Span,
    /// Delay of reports in excess of the path's.
    excess: Span,
    /// Time by which a queue of reports has drained.
    drained: Time,
    /// Reports since then; how many of them queued; and the minimum excess delay of those.
    reports: u32,
    queued: u32,
    min_excess: Span,
}

/// The shortest interval that the reverse path can carry, as far as known.
#[derive(Debug)]
pub(super) struct Sustainable {
    pub(super) interval: Span,
    /// When the interval changed, or a report was last queued.
    changed: Time,
    trial: Option<Trial>,
    /// Service times are ignored before this.
    ignored_until: Time,
}

impl Sustainable {
    pub(super) fn new(now: Time) -> Self {
        Self { interval: Span::ZERO, changed: now, trial: None, ignored_until: now }
    }

    /// Processes the result of a report. `min_rtt` is the path's, `shortest` the recipe's interval.
    pub(super) fn on_report(&mut self, now: Time, seen: Queueing, min_rtt: Span, shortest: Span) {
        self.evaluate(now, seen);
        if seen.has_queued {
            self.changed = now;
            if let Some(service) = seen.service.filter(|_| now >= self.ignored_until) {
                self.raise(now, (service * HEADROOM).min(LONGEST), seen.excess, min_rtt);
            }
        } else if now.since(self.changed) >= QUIET && self.interval > shortest {
            self.changed = now;
            self.interval = self.interval.mul_f64(SHRINK);
        }
    }

    /// Raises the interval to what a busy reverse path needs, so that a queue with this delay drains.
    fn raise(&mut self, now: Time, target: Span, excess: Span, min_rtt: Span) {
        if target <= self.interval {
            return;
        }
        let begun = Trial {
            began: now,
            before: self.interval,
            tried: target,
            excess,
            drained: now + RECEIVED_WITHIN + (excess + min_rtt) * 3,
            reports: 0,
            queued: 0,
            min_excess: Span::MAX,
        };
        let trial = self.trial.get_or_insert(begun);
        // The first service times of a growing queue can be too short.
        if target >= trial.tried * 2 {
            *trial = Trial { began: trial.began, before: trial.before, ..begun };
        }
        self.interval = target;
    }

    fn evaluate(&mut self, now: Time, seen: Queueing) {
        let Some(trial) = self.trial.as_mut().filter(|trial| now >= trial.drained) else { return };
        trial.reports += 1;
        trial.queued += u32::from(seen.has_queued);
        trial.min_excess = trial.min_excess.min(seen.excess);
        if trial.reports < MAX_TRIALS {
            return;
        }
        let Trial { began, before, queued, min_excess, excess, .. } = *trial;
        self.trial = None;
        if queued * 2 > MAX_TRIALS && min_excess <= excess {
            self.interval = before;
            self.ignored_until = now + now.since(began) * IGNORED_TRIALS;
        }
    }
}
