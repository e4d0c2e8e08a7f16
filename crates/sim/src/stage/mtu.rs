//! Maximum packet length.

use haul_base::Time;

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// Silently drops longer packets, as a black hole does (RFC 8899 section 4.3).
#[derive(Debug)]
pub(super) struct Mtu {
    longest: u32,
}

impl Mtu {
    pub(super) fn new(longest: u32) -> Self {
        Self { longest }
    }
}

impl Stage for Mtu {
    fn admit(&mut self, _: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        if parcel.bytes_of(0).max(parcel.bytes_of(parcel.offered_packets() - 1)) <= self.longest {
            out.pass(parcel);
            return;
        }
        let too_large = |index: &usize| parcel.bytes_of(*index) > self.longest;
        let dead = parcel.indices().filter(too_large).fold(0, |dead, index| dead | 1 << index);
        out.drop(parcel.only(dead), DropReason::TooLarge);
        out.pass(parcel.without(dead));
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        if let StageChange::Mtu(longest) = change {
            self.longest = *longest;
            return true;
        }
        false
    }
}
