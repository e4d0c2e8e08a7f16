//! Propagation delay.

use haul_base::{Span, Time};

use super::{Emitter, Stage, StageChange};
use crate::parcel::Parcel;

/// Delays every packet by the same time. Shortening the delay does not reorder packets in transit.
#[derive(Debug)]
pub(super) struct Delay {
    delay: Span,
    last: Time,
}

impl Delay {
    pub(super) fn new(delay: Span) -> Self {
        Self { delay, last: Time::ZERO }
    }
}

impl Stage for Delay {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        self.last = self.last.max(now + self.delay);
        out.forward(self.last, parcel);
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        if let StageChange::Delay(delay) = change {
            self.delay = *delay;
            return true;
        }
        false
    }
}
