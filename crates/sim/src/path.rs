//! A path: a sequence of stages, and the packets in transit through them.

use std::collections::VecDeque;

use haul_base::Time;

use crate::counters::{PathCounters, StageCounters};
use crate::parcel::{Exit, MAX_PARCEL, PacketInfo, Parcel};
use crate::stage::{Emitter, PathSpec, SpecError, Stage, StageChange, StageRef, StageSpec, StandingQueue};
use crate::time_queue::TimeQueue;

/// One direction of a path, usable in virtual time (simulator) and in real time (emulator). The caller
/// offers packets with their arrival time, reads the time of the next event and collects what has left.
/// `now` should not go back between calls; an earlier time counts as the latest one.
#[derive(Debug)]
pub struct Path {
    slots: Vec<Slot>,
    reports: VecDeque<(Time, Parcel, Exit)>,
    clock: Time,
    granularity: Granularity,
    delivered: Delivered,
}

/// Whether batches stay whole or are split into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granularity {
    Batch,
    Packet,
}

#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    packets: u64,
    bytes: u64,
}

/// A stage with the parcels that have left it but not yet entered the next one.
#[derive(Debug)]
struct Slot {
    stage: Box<dyn Stage>,
    kind: StageSpec,
    exits: TimeQueue<Parcel>,
    passed: Vec<Parcel>,
    counters: StageCounters,
    /// Earlier of the first exit and the stage's own event.
    next: Option<Time>,
}

/// Initial capacity of each queue, in parcels.
const INITIAL_CAPACITY: usize = 1_024;

/// Derives the seed of the stage at `index`, so that its random numbers do not depend on other stages' draws.
fn seed_of(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Names a stage by its kind; the second one of a kind is `kind-2`.
fn name_of(stages: &[StageSpec], index: usize) -> String {
    let kind = stages[index].kind();
    match stages[..index].iter().filter(|other| other.kind() == kind).count() {
        0 => kind.to_owned(),
        before => format!("{kind}-{}", before + 1),
    }
}

impl Slot {
    fn emitter<'a>(
        &'a mut self,
        now: Time,
        reports: &'a mut VecDeque<(Time, Parcel, Exit)>,
    ) -> (&'a mut dyn Stage, Emitter<'a>) {
        let Self { stage, exits, passed, counters, .. } = self;
        (stage.as_mut(), Emitter { now, exits, passed, counters, reports })
    }

    fn refresh(&mut self) {
        self.next = earlier(self.exits.next(), self.stage.next_event());
    }

    fn counters(&self) -> StageCounters {
        let mut counters = self.counters.clone();
        counters.inside += self.stage.held();
        counters
    }
}

fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Path {
    /// Creates a path. All its random decisions follow from `seed`.
    ///
    /// # Errors
    /// [`SpecError::Stage`] if a parameter of a stage is invalid.
    pub fn new(spec: &PathSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let slot = |(index, stage): (usize, &StageSpec)| Slot {
            stage: stage.build(seed_of(seed, index)),
            kind: stage.clone(),
            exits: TimeQueue::with_capacity(INITIAL_CAPACITY),
            passed: Vec::with_capacity(2 * MAX_PARCEL),
            counters: StageCounters { name: name_of(&spec.stages, index), ..StageCounters::default() },
            next: None,
        };
        Ok(Self::from_slots(spec.stages.iter().enumerate().map(slot).collect()))
    }

    fn from_slots(slots: Vec<Slot>) -> Self {
        let takes_batches = slots.iter().all(|slot| slot.stage.takes_batches());
        Self {
            slots,
            reports: VecDeque::with_capacity(INITIAL_CAPACITY),
            clock: Time::ZERO,
            granularity: if takes_batches { Granularity::Batch } else { Granularity::Packet },
            delivered: Delivered::default(),
        }
    }

    /// Appends a user-defined stage.
    pub fn push_stage(&mut self, name: &str, stage: Box<dyn Stage>) {
        if !stage.takes_batches() {
            self.granularity = Granularity::Packet;
        }
        self.slots.push(Slot {
            stage,
            // Placeholder for error messages: a user-defined stage decides itself which changes it accepts.
            kind: StageSpec::Outages(Vec::new()),
            exits: TimeQueue::with_capacity(INITIAL_CAPACITY),
            passed: Vec::with_capacity(2 * MAX_PARCEL),
            counters: StageCounters { name: name.to_owned(), ..StageCounters::default() },
            next: None,
        });
    }

    /// Whether batches travel whole, because no stage has to process packets singly.
    pub fn carries_batches(&self) -> bool {
        self.granularity == Granularity::Batch
    }

    /// Offers a packet at the near end.
    pub fn offer(&mut self, now: Time, packet: PacketInfo) {
        self.offer_batch(now, packet.into());
    }

    /// Offers a batch at the near end.
    pub fn offer_batch(&mut self, now: Time, parcel: Parcel) {
        self.run(now);
        let now = self.clock;
        if self.granularity == Granularity::Batch {
            self.enter(0, now, parcel);
            return;
        }
        for index in parcel.indices() {
            self.enter(0, now, parcel.only(1 << index));
        }
    }

    /// Returns when to call [`Path::advance`] next.
    pub fn next_event(&self) -> Option<Time> {
        match self.reports.front() {
            Some((at, _, _)) => Some(*at),
            None => self.slots.iter().fold(None, |first, slot| earlier(first, slot.next)),
        }
    }

    /// Advances to `now` and passes everything that has left the path by then to `sink`, in time order.
    /// The bytes of a batch may be released when as many packets were delivered and dropped as were
    /// offered and copied.
    pub fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, &Parcel, Exit)) {
        self.run(now);
        while let Some((at, parcel, exit)) = self.reports.pop_front() {
            sink(at, &parcel, exit);
        }
    }

    /// Changes a stage. Packets inside stay there.
    ///
    /// # Errors
    /// [`SpecError::Change`] if the parameters are invalid, [`SpecError::NoStage`] if no stage has that
    /// name, [`SpecError::WrongChange`] if the stage does not support the change.
    pub fn change(&mut self, now: Time, which: &StageRef, change: &StageChange) -> Result<(), SpecError> {
        change.check()?;
        self.run(now);
        let now = self.clock;
        let found = match which {
            StageRef::Index(index) => self.slots.get_mut(*index),
            StageRef::Name(name) => self.slots.iter_mut().find(|slot| slot.counters.name == *name),
        };
        let Some(slot) = found else {
            return Err(SpecError::NoStage(which.clone(), self.names()));
        };
        if !slot.stage.change(now, change) {
            let (stage, takes) = (slot.counters.name.clone(), slot.kind.takes());
            return Err(SpecError::WrongChange { stage, change: change.kind(), takes });
        }
        slot.refresh();
        Ok(())
    }

    /// Returns the stage names in order, separated by commas.
    fn names(&self) -> String {
        self.slots.iter().map(|slot| slot.counters.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> PathCounters {
        let stages: Vec<StageCounters> = self.slots.iter().map(Slot::counters).collect();
        let first = stages.first();
        let mut counters = PathCounters {
            offered: first.map_or(self.delivered.packets, |stage| stage.offered),
            offered_bytes: first.map_or(self.delivered.bytes, |stage| stage.offered_bytes),
            delivered: self.delivered.packets,
            delivered_bytes: self.delivered.bytes,
            ..PathCounters::default()
        };
        for stage in &stages {
            counters.copies += stage.copies;
            counters.marked += stage.marked;
            counters.damaged += stage.damaged;
            counters.inside += stage.inside;
            counters.drops.merge(&stage.drops);
        }
        counters.stages = stages;
        counters
    }

    /// Returns the queue in front of the first bottleneck at `now`.
    pub fn standing_queue(&self, now: Time) -> Option<StandingQueue> {
        self.slots.iter().find_map(|slot| slot.stage.standing_queue(now))
    }

    /// Processes all events up to `now`. Of simultaneous events the one furthest along the path comes
    /// first, so that a departure frees queue space before an arrival needs it.
    fn run(&mut self, now: Time) {
        loop {
            let mut first: Option<(Time, usize)> = None;
            for (index, slot) in self.slots.iter().enumerate() {
                if let Some(at) = slot.next
                    && first.is_none_or(|(earliest, _)| at <= earliest)
                {
                    first = Some((at, index));
                }
            }
            match first.filter(|(at, _)| *at <= now) {
                Some((at, index)) => self.step(index, at),
                None => break,
            }
        }
        self.clock = self.clock.max(now);
    }

    /// Processes the next event of stage `index`, due at `at`.
    fn step(&mut self, index: usize, at: Time) {
        let at = at.max(self.clock);
        self.clock = at;
        let slot = &mut self.slots[index];
        if let Some((_, parcel)) = slot.exits.pop_due(at) {
            slot.counters.inside -= u64::from(parcel.packets());
            slot.refresh();
            self.leave(index, at, parcel);
        } else {
            let (stage, mut out) = slot.emitter(at, &mut self.reports);
            stage.on_event(at, &mut out);
            self.forward_passed(index, at);
        }
    }

    /// Passes the parcel to stage `index`.
    fn enter(&mut self, index: usize, now: Time, parcel: Parcel) {
        let Some(slot) = self.slots.get_mut(index) else {
            self.delivered.packets += u64::from(parcel.packets());
            self.delivered.bytes += parcel.bytes();
            self.reports.push_back((now, parcel, Exit::Delivered));
            return;
        };
        slot.counters.offered += u64::from(parcel.packets());
        slot.counters.offered_bytes += parcel.bytes();
        let (stage, mut out) = slot.emitter(now, &mut self.reports);
        stage.admit(now, parcel, &mut out);
        self.forward_passed(index, now);
    }

    /// Forwards what stage `index` passed without delay.
    fn forward_passed(&mut self, index: usize, now: Time) {
        let slot = &mut self.slots[index];
        slot.refresh();
        if slot.passed.len() <= 1 {
            if let Some(parcel) = slot.passed.pop() {
                self.leave(index, now, parcel);
            }
            return;
        }
        let mut passed = std::mem::take(&mut slot.passed);
        for parcel in passed.drain(..) {
            self.leave(index, now, parcel);
        }
        self.slots[index].passed = passed;
    }

    fn leave(&mut self, index: usize, now: Time, parcel: Parcel) {
        let counters = &mut self.slots[index].counters;
        counters.forwarded += u64::from(parcel.packets());
        counters.forwarded_bytes += parcel.bytes();
        self.enter(index + 1, now, parcel);
    }
}

#[cfg(test)]
mod tests;
