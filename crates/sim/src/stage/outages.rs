//! Periods in which the link is down.

use haul_base::{Span, Time};
use serde::{Deserialize, Serialize};

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// A single or periodic outage: packets that arrive in `at <= t < at + length` are dropped. Times count from
/// the start of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Virtual time at which the outage starts.
    #[serde(with = "crate::text")]
    pub at: Span,
    /// Length of the outage.
    #[serde(with = "crate::text")]
    pub length: Span,
    /// Period from one start to the next; `None` for a single outage.
    #[serde(with = "crate::text::optional", default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
}

impl Outage {
    fn covers(&self, now: Time) -> bool {
        let at = Time::ZERO + self.at;
        if now < at {
            return false;
        }
        let since = now.since(at).as_nanos();
        let since = self.every.map_or(since, |every| since % every.as_nanos().max(1));
        since < self.length.as_nanos()
    }
}

#[derive(Debug)]
pub(super) struct Outages {
    schedule: Vec<Outage>,
}

impl Outages {
    pub(super) fn new(schedule: Vec<Outage>) -> Self {
        Self { schedule }
    }
}

impl Stage for Outages {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        if self.schedule.iter().any(|outage| outage.covers(now)) {
            out.drop(parcel, DropReason::Outage);
        } else {
            out.pass(parcel);
        }
    }

    fn change(&mut self, now: Time, change: &StageChange) -> bool {
        match change {
            StageChange::Outage(length) => {
                // Outages that are over are removed.
                self.schedule.retain(|o| o.every.is_some() || Time::ZERO + o.at + o.length > now);
                let at = now.since(Time::ZERO);
                self.schedule.push(Outage { at, length: *length, every: None });
            }
            StageChange::Outages(schedule) => self.schedule.clone_from(schedule),
            _ => return false,
        }
        true
    }
}
