//! A path that carries packets, with everything around it.

use std::io;
use std::sync::Arc;

use haul_base::{Span, Time};
use haul_sim::{Path, PathSpec, StageChange, StageRef};
use serde_json::{Value, json};

use super::args::WanArgs;
use super::change::{Change, Present, Scheduled, Way};
use super::control::Command;
use super::plan::{Plan, grain_of, rate_of};
use super::privilege::Privilege;
use super::report::{AppliedChange, DirectionReport, Report};
use super::world::{Side, V4, World, WorldOptions};
use crate::link::{Clock, Link, LinkOptions};
use crate::load::{Burners, Flow, Generator, last_cpu};
use crate::problem::{Problem, While};

/// The seeds of the two directions and of what else draws must differ.
const BACK: u64 = 0x9E37_79B9_7F4A_7C15;
const DAMAGE: u64 = 0xBF58_476D_1CE4_E5B9;
const GENERATOR: u64 = 0x94D0_49BB_1331_11EB;

/// Everything that runs. Ends and cleans up when dropped, loads first and namespaces last.
#[derive(Debug)]
pub(crate) struct Running {
    loads: Loads,
    forth: Link,
    back: Link,
    /// The two sides.
    pub world: World,
    clock: Clock,
    plan: Plan,
    seed: u64,
    present: Present,
    schedule: Vec<Scheduled>,
    changes: Vec<AppliedChange>,
}

#[derive(Debug, Default)]
struct Loads {
    burners: Option<Burners>,
    generator: Option<Generator>,
    flows: Vec<Flow>,
}

/// What a direction's thread is made from.
fn link(
    name: &str,
    (from, to): (&Side, &Side),
    spec: &PathSpec,
    seed: u64,
    clock: Clock,
    cpu: Option<usize>,
) -> Result<Link, Problem> {
    let path = Path::new(spec, seed).map_err(|e| Problem::usage(e.to_string(), ""))?;
    let options = LinkOptions {
        name: name.to_owned(),
        input: Arc::clone(&from.tun),
        output: Arc::clone(&to.tun),
        path,
        clock,
        seed: seed ^ DAMAGE,
        grain: grain_of(rate_of(spec)),
        cpu,
    };
    Link::start(options).while_doing("cannot start the path")
}

impl Running {
    /// Makes the sides, the path between them, and the loads.
    ///
    /// # Errors
    /// When the system refuses some of it; nothing is left then.
    pub(crate) fn start(
        args: &WanArgs,
        plan: Plan,
        privilege: Privilege,
        seed: u64,
    ) -> Result<Self, Problem> {
        let options = WorldOptions {
            mtu: args.mtu,
            offload: !args.no_offload,
            window: args.tcp_window,
            path: (rate_of(&plan.forth).max(rate_of(&plan.back)), plan.rtt()),
        };
        let world = World::create(privilege, &options)?;
        let clock = Clock::start();
        let (a, b) = (&world.a, &world.b);
        let forth = link("wan-forth", (a, b), &plan.forth, seed, clock, args.path_cpu)?;
        let back = link("wan-back", (b, a), &plan.back, seed ^ BACK, clock, args.path_cpu)?;
        let mut schedule = args.change.clone();
        schedule.sort_by_key(|scheduled| std::cmp::Reverse(scheduled.at));
        let mut running = Self {
            loads: Loads::default(),
            forth,
            back,
            world,
            clock,
            seed,
            present: Present::new(&args.path, args.mtu, args.path_file.is_none()),
            plan,
            schedule,
            changes: Vec::new(),
        };
        running.start_loads(args)?;
        Ok(running)
    }

    fn start_loads(&mut self, args: &WanArgs) -> Result<(), Problem> {
        let cpu = args.cpu_b.unwrap_or_else(last_cpu);
        let (a, b) = (&self.world.a.namespace, &self.world.b.namespace);
        for kind in &args.load.background {
            let flow = Flow::start(kind, a, b, V4[1]);
            self.loads.flows.push(flow.while_doing("cannot start a background flow")?);
        }
        if args.load.burners > 0 {
            let burners = Burners::start(args.load.burners, cpu).while_doing("cannot start burners")?;
            self.loads.burners = Some(burners);
        }
        if args.load.generator {
            let generator = Generator::start(self.seed ^ GENERATOR, cpu, self.clock);
            self.loads.generator = Some(generator.while_doing("cannot start the load generator")?);
        }
        Ok(())
    }

    fn now(&self) -> Span {
        self.clock.now().since(Time::ZERO)
    }

    /// The packets of both directions, if both work.
    pub(crate) fn directions(&self) -> Option<[crate::link::Snapshot; 2]> {
        Some([self.forth.snapshot()?, self.back.snapshot()?])
    }

    /// Whether both directions work.
    pub(crate) fn is_alive(&self) -> bool {
        self.forth.is_alive() && self.back.is_alive()
    }

    /// How long until the next scheduled change.
    pub(crate) fn until_change(&self) -> Option<Span> {
        self.schedule.last().map(|next| next.at.saturating_sub(self.now()))
    }

    /// Makes the changes whose time has come; those that the path refuses are returned with the reason.
    pub(crate) fn make_due_changes(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        while let Some(next) = self.schedule.pop_if(|next| next.at <= self.clock.now().since(Time::ZERO)) {
            if let Err(error) = self.change(&next.change) {
                refused.push(format!("--change {}: {error}", next.change));
            }
        }
        refused
    }

    /// Says which scheduled changes will be refused, before anything has started.
    pub(crate) fn check_changes(args: &WanArgs, plan: &Plan) -> Result<(), Problem> {
        let mut present = Present::new(&args.path, args.mtu, args.path_file.is_none());
        let build = |spec| Path::new(spec, 0).map_err(|e| Problem::usage(e.to_string(), ""));
        let (mut forth, mut back) = (build(&plan.forth)?, build(&plan.back)?);
        for Scheduled { change, .. } in &args.change {
            for (way, stage, step) in present.apply(change) {
                let path = if way == Way::Forth { &mut forth } else { &mut back };
                path.change(Time::ZERO, &stage, &step).map_err(|error| {
                    let hint = "a stage that is to be changed has to be there from the start: give its option, for \
                                example --rate 1Gbit, --jitter 0ms or --reorder 0%";
                    Problem::usage(format!("--change {change}: {error}"), hint)
                })?;
            }
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        for (way, stage, step) in self.present.apply(change) {
            self.step(way, stage, step)?;
        }
        self.note(change.to_string());
        Ok(())
    }

    fn step(&self, way: Way, stage: StageRef, step: StageChange) -> Result<(), String> {
        let link = if way == Way::Forth { &self.forth } else { &self.back };
        let rate = match &step {
            StageChange::Rate(rate) => Some(*rate),
            StageChange::Bottleneck(spec) => Some(spec.rate),
            _ => None,
        };
        let changed = link.change(stage, step).ok_or("the path has failed")?;
        changed.map_err(|error| error.to_string())?;
        if let Some(rate) = rate {
            link.set_grain(grain_of(rate));
        }
        Ok(())
    }

    fn note(&mut self, change: String) {
        self.changes.push(AppliedChange { at: self.now().as_secs_f64(), change });
    }

    /// Does what came over the control socket.
    pub(crate) fn answer(&mut self, command: &Command) -> Value {
        let done = match command {
            Command::Counters => return json!(self.report()),
            Command::Stop => Ok(()),
            Command::Set(change) => self.change(change),
            Command::Stage(way, name, step) => {
                let done = self.step(*way, StageRef::Name(name.clone()), step.clone());
                if done.is_ok() {
                    self.note(format!("{way:?} {name} {step:?}"));
                }
                done
            }
        };
        match done {
            Ok(()) => json!({ "ok": true }),
            Err(error) => json!({ "error": error }),
        }
    }

    /// Ends the loads, and everything that runs on either side.
    pub(crate) fn end_processes(&mut self) {
        if let Some(burners) = self.loads.burners.take() {
            drop(burners);
        }
        self.world.end_processes();
    }

    /// The truth so far; `None` if a direction has failed.
    pub(crate) fn report(&self) -> Option<Report> {
        let [forth, back] = self.directions()?;
        let overrun = |side: &Side| -> io::Result<u64> { side.device_drops() };
        Some(Report {
            schema: 1,
            seed: self.seed,
            seconds: self.now().as_secs_f64(),
            path: self.plan.clone(),
            offloads: self.world.a.tun.offloads(),
            forth: DirectionReport::new(forth, overrun(&self.world.a).unwrap_or(0)),
            back: DirectionReport::new(back, overrun(&self.world.b).unwrap_or(0)),
            load: self.loads.generator.as_ref().map(Generator::events).unwrap_or_default(),
            background: self.loads.flows.iter().map(Flow::report).collect(),
            changes: self.changes.clone(),
        })
    }
}
