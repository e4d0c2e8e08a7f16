//! Controlled delay (RFC 8289).

use haul_base::{Span, Time};
use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::signal::Signal;
use crate::parcel::Parcel;

/// Parameters of `CoDel`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelSpec {
    /// Acceptable standing queue delay (RFC 8289 section 4.3: 5 ms).
    #[serde(with = "crate::text", default = "default_target")]
    pub target: Span,
    /// Time for which `target` may be exceeded: about a round-trip time (RFC 8289 section 4.4: 100 ms).
    #[serde(with = "crate::text", default = "default_interval")]
    pub interval: Span,
    /// Hard limit of the queue.
    #[serde(with = "crate::text")]
    pub limit: Limit,
    /// Whether to drop or mark.
    #[serde(default)]
    pub signal: Signal,
}

fn default_target() -> Span {
    Span::from_millis(5)
}

fn default_interval() -> Span {
    Span::from_millis(100)
}

/// Decision on the packet at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    Mark,
    Drop,
}

/// State of the algorithm between two packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not dropping.
    BelowTarget,
    /// Dropping; the next drop is due at this time.
    Dropping(Time),
    /// Has just dropped the first packet and examines the next one.
    Entering,
    /// Has dropped a packet that was due at this time and examines the next one.
    Continuing(Time),
}

#[derive(Debug)]
pub(super) struct Codel {
    spec: CodelSpec,
    first_above: Option<Time>,
    phase: Phase,
    /// When the next drop was due; kept after dropping ends.
    drop_next: Time,
    count: u64,
    last_count: u64,
    largest_packet: u64,
}

impl Codel {
    pub(super) fn new(spec: CodelSpec) -> Self {
        Self {
            spec,
            first_above: None,
            phase: Phase::BelowTarget,
            drop_next: Time::ZERO,
            count: 0,
            last_count: 0,
            largest_packet: 0,
        }
    }

    /// `t + interval / sqrt(count)`.
    fn control_law(&self, t: Time, count: u64) -> Time {
        let nanos = self.spec.interval.as_nanos() as f64 / (count.max(1) as f64).sqrt();
        t + Span::from_nanos(nanos as u64)
    }

    /// Whether the delay has exceeded the target for an interval (`dodequeue` of RFC 8289 section 5.6).
    fn may_drop(&mut self, now: Time, sojourn: Span, queued: u64) -> bool {
        if sojourn < self.spec.target || queued <= self.largest_packet {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + self.spec.interval);
                false
            }
            Some(at) => now >= at,
        }
    }

    /// Decides on the packet at the front, which was queued for `sojourn` and leaves `queued` bytes in the
    /// queue (`deque` of RFC 8289 section 5.5, one iteration per call).
    pub(super) fn decide(&mut self, now: Time, sojourn: Span, queued: u64, packet: &Parcel) -> Verdict {
        self.largest_packet = self.largest_packet.max(packet.bytes());
        let too_slow = self.may_drop(now, sojourn, queued);
        if self.phase == Phase::Entering {
            self.enter(now);
        } else if let (Phase::Continuing(due), true) = (self.phase, too_slow) {
            self.continue_from(due);
        }
        match self.phase {
            _ if !too_slow => {
                self.phase = Phase::BelowTarget;
                Verdict::Send
            }
            Phase::Dropping(due) if now >= due => {
                self.count += 1;
                self.signal(packet, Phase::Continuing(due))
            }
            Phase::Dropping(_) => Verdict::Send,
            Phase::BelowTarget | Phase::Entering | Phase::Continuing(_) => self.begin(now, packet),
        }
    }

    /// Starts a dropping phase.
    fn begin(&mut self, now: Time, packet: &Parcel) -> Verdict {
        let verdict = self.signal(packet, Phase::Entering);
        if verdict == Verdict::Mark {
            self.enter(now);
        }
        verdict
    }

    fn enter(&mut self, now: Time) {
        let recent = self.count - self.last_count.min(self.count);
        let soon = now.since(self.drop_next) < self.spec.interval * 16;
        self.count = if recent > 1 && soon { recent } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now, self.count);
        self.phase = Phase::Dropping(self.drop_next);
    }

    fn continue_from(&mut self, due: Time) {
        self.drop_next = self.control_law(due, self.count);
        self.phase = Phase::Dropping(self.drop_next);
    }

    /// Marks or drops the packet. Only after a drop the next packet is examined immediately.
    fn signal(&mut self, packet: &Parcel, after_drop: Phase) -> Verdict {
        if self.spec.signal == Signal::Mark && packet.is_ecn_capable() {
            if let Phase::Continuing(due) = after_drop {
                self.continue_from(due);
            }
            return Verdict::Mark;
        }
        self.phase = after_drop;
        Verdict::Drop
    }
}
