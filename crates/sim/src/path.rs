//! A path: stages one behind the other, and the packets on their way through them.

use std::collections::VecDeque;

use haul_base::Time;

use crate::counters::{PathCounters, StageCounters};
use crate::line::Line;
use crate::parcel::{Exit, MAX_PARCEL, PacketInfo, Parcel};
use crate::stage::{Emitter, PathSpec, SpecError, Stage, StageChange, StageRef, StageSpec, StandingQueue};

/// One direction of a path. The same code runs in virtual time (the simulator) and in real time (the emulator):
/// offer packets with the time at which they arrive, ask when something happens next, and collect what has
/// happened. `now` of successive calls should not go back; a time that does counts as the latest one.
#[derive(Debug)]
pub struct Path {
    slots: Vec<Slot>,
    reports: VecDeque<(Time, Parcel, Exit)>,
    clock: Time,
    grain: Grain,
    delivered: Delivered,
}

/// Whether batches stay whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grain {
    Batch,
    Packet,
}

#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    packets: u64,
    bytes: u64,
}

/// A stage with what has left it but not yet entered the next one.
#[derive(Debug)]
struct Slot {
    stage: Box<dyn Stage>,
    kind: StageSpec,
    exits: Line<Parcel>,
    passed: Vec<Parcel>,
    counters: StageCounters,
    /// The earlier of the first exit and the stage's own event.
    next: Option<Time>,
}

/// Parcels for which every line has room before it allocates.
const ROOM: usize = 1_024;

/// The seed of the stage at `index`, so that a stage's numbers do not depend on what the others draw.
fn seed_of(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Names by kind; the second one of a kind is `kind-2`.
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
    /// A path whose every random decision follows from `seed`.
    ///
    /// # Errors
    /// [`SpecError::Stage`] if a parameter of a stage makes no sense.
    pub fn new(spec: &PathSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let slot = |(index, stage): (usize, &StageSpec)| Slot {
            stage: stage.build(seed_of(seed, index)),
            kind: stage.clone(),
            exits: Line::with_capacity(ROOM),
            passed: Vec::with_capacity(2 * MAX_PARCEL),
            counters: StageCounters { name: name_of(&spec.stages, index), ..StageCounters::default() },
            next: None,
        };
        Ok(Self::from_slots(spec.stages.iter().enumerate().map(slot).collect()))
    }

    fn from_slots(slots: Vec<Slot>) -> Self {
        let whole = slots.iter().all(|slot| slot.stage.takes_batches());
        Self {
            slots,
            reports: VecDeque::with_capacity(ROOM),
            clock: Time::ZERO,
            grain: if whole { Grain::Batch } else { Grain::Packet },
            delivered: Delivered::default(),
        }
    }

    /// Puts a stage of your own at the end of the path.
    pub fn push_stage(&mut self, name: &str, stage: Box<dyn Stage>) {
        if !stage.takes_batches() {
            self.grain = Grain::Packet;
        }
        self.slots.push(Slot {
            stage,
            // What it takes is its own business; the text is for errors only.
            kind: StageSpec::Outages(Vec::new()),
            exits: Line::with_capacity(ROOM),
            passed: Vec::with_capacity(2 * MAX_PARCEL),
            counters: StageCounters { name: name.to_owned(), ..StageCounters::default() },
            next: None,
        });
    }

    /// Whether batches travel whole: no stage needs to treat their packets one by one.
    pub fn carries_batches(&self) -> bool {
        self.grain == Grain::Batch
    }

    /// A packet arrives at the near end.
    pub fn offer(&mut self, now: Time, packet: PacketInfo) {
        self.offer_batch(now, packet.into());
    }

    /// Several packets arrive together.
    pub fn offer_batch(&mut self, now: Time, parcel: Parcel) {
        self.run(now);
        let now = self.clock;
        if self.grain == Grain::Batch {
            self.enter(0, now, parcel);
            return;
        }
        for index in parcel.indices() {
            self.enter(0, now, parcel.only(1 << index));
        }
    }

    /// When something happens next: call [`Path::advance`] then.
    pub fn next_event(&self) -> Option<Time> {
        match self.reports.front() {
            Some((at, _, _)) => Some(*at),
            None => self.slots.iter().fold(None, |first, slot| earlier(first, slot.next)),
        }
    }

    /// Lets time pass, and hands over what has left the path up to `now`, in order: when, what, and how. Whoever
    /// keeps the bytes of a batch may let go of them when as many packets were delivered and dropped as were
    /// offered and copied.
    pub fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, &Parcel, Exit)) {
        self.run(now);
        while let Some((at, parcel, exit)) = self.reports.pop_front() {
            sink(at, &parcel, exit);
        }
    }

    /// Changes a stage; what is inside stays there.
    ///
    /// # Errors
    /// [`SpecError::Change`] if the parameters make no sense, [`SpecError::NoStage`] if no stage is called that,
    /// [`SpecError::WrongChange`] if that stage does not take such a change.
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

    /// The names of the stages, in order.
    fn names(&self) -> String {
        self.slots.iter().map(|slot| slot.counters.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The truth so far.
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

    /// What waits in front of the first bottleneck at `now`.
    pub fn standing_queue(&self, now: Time) -> Option<StandingQueue> {
        self.slots.iter().find_map(|slot| slot.stage.standing_queue(now))
    }

    /// Everything that happens up to `now`. Of what happens at the same time, what is further along comes first:
    /// a departure makes room before an arrival looks for it.
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

    /// What happens next at the stage `index`, which is at `at`.
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
            self.pass_on(index, at);
        }
    }

    /// The parcel enters the stage `index`.
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
        self.pass_on(index, now);
    }

    /// What the stage `index` has let through at once goes on.
    fn pass_on(&mut self, index: usize, now: Time) {
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
