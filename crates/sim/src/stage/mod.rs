//! The stages that a path is made of, one file each. `docs/simulator.md` says how to write another one.

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
use crate::line::Line;
use crate::parcel::{DropReason, Exit, Parcel};

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

/// One thing that a path does to packets. Everything that a stage decides, it decides from its own state, its own
/// random numbers, and the time that it is given.
pub trait Stage: Debug + Send {
    /// A parcel arrives. Every packet of it must be passed, forwarded, dropped or held.
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>);

    /// Whether packets that left together may be treated together. If one stage of a path says no, the path takes
    /// batches apart at its entry.
    fn takes_batches(&self) -> bool {
        true
    }

    /// When [`Stage::on_event`] is due, for stages that hold packets themselves.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// What the stage waited for has come.
    fn on_event(&mut self, _now: Time, _out: &mut Emitter<'_>) {}

    /// Packets that the stage itself holds.
    fn held(&self) -> u64 {
        0
    }

    /// What waits inside, where that means something.
    fn standing_queue(&self, _now: Time) -> Option<StandingQueue> {
        None
    }

    /// Changes the stage while it runs; packets inside stay. `false` if that change is not for this stage.
    fn change(&mut self, now: Time, change: &StageChange) -> bool;
}

/// What can be changed while packets are under way. Each fits some stages only; times count from the change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageChange {
    /// Of `delay`.
    Delay(#[serde(with = "crate::text")] Span),
    /// Of `bottleneck`: another rate, for what is queued too.
    Rate(#[serde(with = "crate::text")] Rate),
    /// Of `bottleneck`: another discipline or limit; what is queued stays.
    Queue(QueueSpec),
    /// Of `bottleneck`: both.
    Bottleneck(BottleneckSpec),
    /// Of `policer`: another rate and burst.
    Policer(PolicerSpec),
    /// Of `loss`, `reordering`, `duplication`, `corruption`: another share of the packets.
    Share(#[serde(with = "crate::text")] Probability),
    /// Of `gilbert_elliott` and `burst_loss`.
    GilbertElliott(GilbertElliottSpec),
    /// Of `gilbert_elliott` and `burst_loss`.
    BurstLoss(BurstLossSpec),
    /// Of `outages`: one more, that begins now and lasts so long.
    Outage(#[serde(with = "crate::text")] Span),
    /// Of `outages`: another schedule.
    Outages(Vec<Outage>),
    /// Of `jitter`.
    Jitter(JitterSpec),
    /// Of `reordering`.
    Reordering(ReorderingSpec),
    /// Of `corruption`.
    Corruption(CorruptionSpec),
    /// Of `mtu`.
    Mtu(u32),
}

/// Where a stage puts what becomes of packets.
#[derive(Debug)]
pub struct Emitter<'a> {
    pub(crate) now: Time,
    /// What leaves later.
    pub(crate) exits: &'a mut Line<Parcel>,
    /// What leaves now.
    pub(crate) passed: &'a mut Vec<Parcel>,
    pub(crate) counters: &'a mut StageCounters,
    pub(crate) reports: &'a mut VecDeque<(Time, Parcel, Exit)>,
}

impl Emitter<'_> {
    /// The parcel leaves now.
    pub fn pass(&mut self, parcel: Parcel) {
        self.forward(self.now, parcel);
    }

    /// The parcel leaves at `at`.
    pub fn forward(&mut self, at: Time, parcel: Parcel) {
        if parcel.is_empty() {
            return;
        }
        // What leaves now must not overtake what was to leave now already.
        if at <= self.now && self.exits.next().is_none_or(|next| next > self.now) {
            self.passed.push(parcel);
        } else {
            self.counters.inside += u64::from(parcel.packets());
            self.exits.push(at.max(self.now), parcel);
        }
    }

    /// The parcel dies now.
    pub fn drop(&mut self, parcel: Parcel, reason: DropReason) {
        if parcel.is_empty() {
            return;
        }
        self.counters.drops.add(reason, &parcel);
        self.reports.push_back((self.now, parcel, Exit::Dropped(reason)));
    }

    /// A copy of the parcel leaves at `at`, beside the parcel itself.
    pub fn copy(&mut self, at: Time, parcel: Parcel) {
        if parcel.is_empty() {
            return;
        }
        let copy = parcel.copied();
        self.counters.copies += u64::from(copy.packets());
        self.reports.push_back((self.now, copy, Exit::Copied));
        self.forward(at, copy);
    }

    /// Notes that packets were marked "congestion experienced" in place of a drop.
    pub fn note_marks(&mut self, packets: u32) {
        self.counters.marked += u64::from(packets);
    }

    /// Notes that packets were damaged and go on.
    pub fn note_damage(&mut self, packets: u32) {
        self.counters.damaged += u64::from(packets);
    }
}
