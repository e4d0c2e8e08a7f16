//! The rate that the receiver assigns this sender: an upper bound, whatever the law permits.

use haul_base::Rate;

use crate::control::{Limits, burst_for};

/// Minimum: lower quotas count as this, about a packet per second, which keeps the sender in contact.
const MIN_QUOTA: Rate = Rate::from_bps(10_000);
/// A path that delivers less than this fraction of the quota is itself the limit. Above it, the difference
/// may be random loss: with more, the `delivery` law considers a loss heavy.
const DELIVERED_SHARE: f64 = 0.9;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaBound {
    pub(super) rate: Rate,
    /// The previous rate, for packets below this number.
    before: (Rate, u64),
    /// Whether the law would have permitted more for the current batch.
    pub(super) binds: bool,
    /// Packets below this number were sent while the quota was the limit.
    pub(super) bound_below: u64,
}

impl QuotaBound {
    pub(super) const ANYTHING: Self =
        Self { rate: Rate::MAX, before: (Rate::MAX, 0), binds: false, bound_below: 0 };

    /// Sets another rate, for packets from `next_pn` on.
    pub(super) fn set(&mut self, rate: Rate, next_pn: u64) {
        self.before = (self.rate, next_pn);
        self.rate = rate.max(MIN_QUOTA);
    }

    /// Returns the law's limits, bounded by the quota.
    pub(super) fn bound(&mut self, law: Limits) -> Limits {
        self.binds = self.rate < law.rate;
        if self.binds {
            Limits { rate: self.rate, burst: law.burst.min(burst_for(self.rate)), ..law }
        } else {
            law
        }
    }

    /// Whether the quota, not the path, explains a delivery rate, for packets up to `largest_pn`.
    pub(super) fn explains(&self, delivered: Option<Rate>, largest_pn: u64) -> bool {
        let (before, below) = self.before;
        let rate = if largest_pn < below { self.rate.min(before) } else { self.rate };
        largest_pn < self.bound_below
            && delivered.is_none_or(|delivered| delivered >= rate.mul_f64(DELIVERED_SHARE))
    }
}
