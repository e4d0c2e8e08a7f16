//! Times at which the link is down.

use haul_base::{Span, Time};
use serde::{Deserialize, Serialize};

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// One outage, or one that repeats: packets that arrive in `at <= t < at + length` die. Times count from the start
/// of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Virtual time at which the outage begins.
    #[serde(with = "crate::text")]
    pub at: Span,
    /// How long it lasts.
    #[serde(with = "crate::text")]
    pub length: Span,
    /// If it comes again, the time from one beginning to the next.
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
                // What is over needs no more looks.
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
