//! The stages of a path, one file each. `docs/simulator.md` explains how to write another one.

mod bottleneck;
mod corruption;
mod delay;
mod duplication;
mod gilbert_elliott;
mod jitter;
mod loss;
mod mtu;
mod outages;
mod policer;
mod random;
mod reordering;
mod spec;

use std::collections::VecDeque;
use std::fmt::Debug;

use haul_base::{Probability, Rate, Span, Time};
use serde::{Deserialize, Serialize};

use crate::counters::StageCounters;
use crate::parcel::{DropReason, Exit, Parcel};
use crate::time_queue::TimeQueue;

pub use bottleneck::{
    AboveMaximum, BottleneckSpec, CodelSpec, Limit, QueueSpec, RedSpec, Signal, StandingQueue,
};
pub use corruption::{CorruptionSpec, Effect};
pub use gilbert_elliott::{BurstLossSpec, GilbertElliottSpec};
pub use jitter::{JitterSpec, Order};
pub use outages::Outage;
pub use policer::PolicerSpec;
pub use random::Distribution;
pub(crate) use random::{Chance, exponential, pareto_bytes};
pub use reordering::ReorderingSpec;
pub use spec::{PathSpec, SpecError, StageRef, StageSpec};

/// One effect of a path on packets. A stage's decisions depend only on its own state, its own random numbers
/// and the time passed to it.
pub trait Stage: Debug + Send {
    /// Handles an arriving parcel. Every packet of it must be passed, forwarded, dropped or held.
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>);

    /// Whether the stage can process batches. If one stage cannot, the path splits batches at its entry.
    fn takes_batches(&self) -> bool {
        true
    }

    /// Returns when [`Stage::on_event`] is due, for stages that hold packets themselves.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// Handles the event announced by [`Stage::next_event`].
    fn on_event(&mut self, _now: Time, _out: &mut Emitter<'_>) {}

    /// Returns the number of packets held by the stage itself.
    fn held(&self) -> u64 {
        0
    }

    /// Returns the stage's queue, if it has one.
    fn standing_queue(&self, _now: Time) -> Option<StandingQueue> {
        None
    }

    /// Changes the running stage; packets inside stay. Returns false if it does not support the change.
    fn change(&mut self, now: Time, change: &StageChange) -> bool;
}

/// A change while packets are in transit. Each applies to some stages only; times count from the change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageChange {
    /// `delay`: new delay.
    Delay(#[serde(with = "crate::text")] Span),
    /// `bottleneck`: new rate, which also applies to queued packets.
    Rate(#[serde(with = "crate::text")] Rate),
    /// `bottleneck`: new discipline or limit; queued packets stay.
    Queue(QueueSpec),
    /// `bottleneck`: new rate and queue.
    Bottleneck(BottleneckSpec),
    /// `policer`: new rate and burst.
    Policer(PolicerSpec),
    /// `loss`, `reordering`, `duplication`, `corruption`: new share of packets.
    Share(#[serde(with = "crate::text")] Probability),
    /// `gilbert_elliott` and `burst_loss`: new channel.
    GilbertElliott(GilbertElliottSpec),
    /// `gilbert_elliott` and `burst_loss`: new share and run length.
    BurstLoss(BurstLossSpec),
    /// `outages`: one more outage of this length, starting now.
    Outage(#[serde(with = "crate::text")] Span),
    /// `outages`: new schedule.
    Outages(Vec<Outage>),
    /// `jitter`: new parameters.
    Jitter(JitterSpec),
    /// `reordering`: new parameters.
    Reordering(ReorderingSpec),
    /// `corruption`: new parameters.
    Corruption(CorruptionSpec),
    /// `mtu`: new MTU in bytes.
    Mtu(u32),
}

/// Collects a stage's decisions on packets.
#[derive(Debug)]
pub struct Emitter<'a> {
    pub(crate) now: Time,
    /// Parcels that leave later.
    pub(crate) exits: &'a mut TimeQueue<Parcel>,
    /// Parcels that leave now.
    pub(crate) passed: &'a mut Vec<Parcel>,
    pub(crate) counters: &'a mut StageCounters,
    pub(crate) reports: &'a mut VecDeque<(Time, Parcel, Exit)>,
}

impl Emitter<'_> {
    /// Lets the parcel leave now.
    pub fn pass(&mut self, parcel: Parcel) {
        self.forward(self.now, parcel);
    }

    /// Lets the parcel leave at `at`.
    pub fn forward(&mut self, at: Time, parcel: Parcel) {
        if parcel.is_empty() {
            return;
        }
        // A parcel that leaves now must not overtake one that is due now already.
        if at <= self.now && self.exits.next().is_none_or(|next| next > self.now) {
            self.passed.push(parcel);
        } else {
            self.counters.inside += u64::from(parcel.packets());
            self.exits.push(at.max(self.now), parcel);
        }
    }

    /// Drops the parcel.
    pub fn drop(&mut self, parcel: Parcel, reason: DropReason) {
        if parcel.is_empty() {
            return;
        }
        self.counters.drops.add(reason, &parcel);
        self.reports.push_back((self.now, parcel, Exit::Dropped(reason)));
    }

    /// Lets a copy of the parcel leave at `at`, in addition to the parcel itself.
    pub fn copy(&mut self, at: Time, parcel: Parcel) {
        if parcel.is_empty() {
            return;
        }
        let copy = parcel.copied();
        self.counters.copies += u64::from(copy.packets());
        self.reports.push_back((self.now, copy, Exit::Copied));
        self.forward(at, copy);
    }

    /// Counts packets marked "congestion experienced" instead of being dropped.
    pub fn count_marked(&mut self, packets: u32) {
        self.counters.marked += u64::from(packets);
    }

    /// Counts packets that were damaged and forwarded.
    pub fn count_damaged(&mut self, packets: u32) {
        self.counters.damaged += u64::from(packets);
    }
}
