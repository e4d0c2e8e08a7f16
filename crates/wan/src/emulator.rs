//! An emulated path: two sides, and one thread per direction.

use std::fs::File;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;

use haul_base::{Rate, Span, Time};
use haul_sim::{Path, PathSpec, SpecError, StageChange, StageRef, StageSpec};

use crate::error::{WanError, While};
use crate::link::{Clock, DropLog, Link, LinkOptions, PathDirection, Snapshot};
use crate::world::{Names, Side, TcpWindow, World, WorldOptions};

/// The seeds of a direction and of its packet damage must differ.
const DAMAGE: u64 = 0xBF58_476D_1CE4_E5B9;
/// A super-packet is split into parts that the bottleneck sends in this time, so that it arrives like the
/// packets of which it consists.
pub const MAX_GRANULARITY: Span = Span::from_micros(100);

/// Configuration of an emulated path.
#[derive(Debug, Clone, Copy)]
pub struct EmulatorOptions<'a> {
    /// Stages from A to B.
    pub forth: &'a PathSpec,
    /// Stages from B to A.
    pub back: &'a PathSpec,
    /// Seed of all random decisions.
    pub seed: u64,
    /// MTU of the devices, bytes.
    pub mtu: u32,
    /// Whether super-packets pass the devices whole.
    pub offload: bool,
    /// Maximum TCP window.
    pub window: TcpWindow,
    /// Processor to which both directions are pinned.
    pub cpu: Option<usize>,
    /// Whether the namespaces get names.
    pub names: Names,
    /// Drop log: a new file with a line for each packet that the path drops or damages; see
    /// `docs/wan-emulator.md`.
    pub drop_log: Option<&'a FilePath>,
}

/// A running path. Dropping it ends the path and all processes on both sides.
#[derive(Debug)]
pub struct Emulator {
    forth: Link,
    back: Link,
    /// Both sides.
    pub world: World,
    clock: Clock,
}

impl Emulator {
    /// Creates the sides and the path between them.
    ///
    /// # Errors
    /// When the path is invalid or a system call fails. Nothing is left behind in that case.
    pub fn start(options: &EmulatorOptions<'_>) -> Result<Self, WanError> {
        let EmulatorOptions { forth, back, mtu, offload, window, names, .. } = *options;
        let path = (rate_of(forth).max(rate_of(back)), rtt_of(forth, back));
        let world = World::create(names, &WorldOptions { mtu, offload, window, path })?;
        let clock = Clock::start();
        let log = options.drop_log.map(File::create).transpose().while_doing("cannot make the drop log")?;
        let log = log.map(DropLog::new);
        let link = |direction| link(direction, &world, options, (clock, log.clone()));
        let (forth, back) = (link(PathDirection::Forth)?, link(PathDirection::Back)?);
        Ok(Self { forth, back, world, clock })
    }

    /// Returns the path's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the time since the start.
    pub fn age(&self) -> Span {
        self.clock.now().since(Time::ZERO)
    }

    /// Returns the counters of both directions, forth first; `None` if one has failed.
    pub fn snapshots(&self) -> Option<[Snapshot; 2]> {
        Some([self.forth.snapshot()?, self.back.snapshot()?])
    }

    /// Returns the error that ended a direction, if one has ended.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.forth.failure().or_else(|| self.back.failure())
    }

    /// Changes a stage of one direction. Returns `None` if that direction has failed.
    pub fn change(
        &self,
        direction: PathDirection,
        which: StageRef,
        change: StageChange,
    ) -> Option<Result<(), SpecError>> {
        let link = match direction {
            PathDirection::Forth => &self.forth,
            PathDirection::Back => &self.back,
        };
        let rate = match &change {
            StageChange::Rate(rate) => Some(*rate),
            StageChange::Bottleneck(spec) => Some(spec.rate),
            _ => None,
        };
        let changed = link.change(which, change)?;
        if let (Ok(()), Some(rate)) = (&changed, rate) {
            link.set_granularity(rate.bytes_in(MAX_GRANULARITY));
        }
        Some(changed)
    }
}

/// Starts the thread of one direction.
fn link(
    direction: PathDirection,
    world: &World,
    options: &EmulatorOptions<'_>,
    (clock, drop_log): (Clock, Option<DropLog>),
) -> Result<Link, WanError> {
    let (name, from, to, spec): (_, &Side, &Side, _) = match direction {
        PathDirection::Forth => ("wan-forth", &world.a, &world.b, options.forth),
        PathDirection::Back => ("wan-back", &world.b, &world.a, options.back),
    };
    let seed = direction.seed(options.seed);
    let options = LinkOptions {
        name: name.to_owned(),
        input: Arc::clone(&from.tun),
        output: Arc::clone(&to.tun),
        path: Path::new(spec, seed)?,
        clock,
        seed: seed ^ DAMAGE,
        granularity: rate_of(spec).bytes_in(MAX_GRANULARITY),
        cpu: options.cpu,
        drop_log: drop_log.map(|log| log.of(direction)),
    };
    Link::start(options).while_doing("cannot start the path")
}

/// Returns the lowest rate on the path; `Rate::MAX` without a bottleneck.
pub fn rate_of(spec: &PathSpec) -> Rate {
    let rates = spec.stages.iter().filter_map(|stage| match stage {
        StageSpec::Bottleneck(spec) => Some(spec.rate),
        _ => None,
    });
    rates.min().unwrap_or(Rate::MAX)
}

/// Returns the round-trip time without queueing.
pub fn rtt_of(forth: &PathSpec, back: &PathSpec) -> Span {
    let stages = forth.stages.iter().chain(&back.stages);
    stages.fold(Span::ZERO, |sum, stage| match stage {
        StageSpec::Delay(delay) => sum + *delay,
        _ => sum,
    })
}
