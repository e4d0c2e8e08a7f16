//! A running path with its loads and scheduled changes.

use haul_base::{Span, Time};
use haul_sim::{Path, StageChange, StageRef};
use haul_wan::{Emulator, EmulatorOptions, Names, PathDirection, Privilege, Snapshot, V4, World};
use serde_json::{Value, json};

use super::args::WanArgs;
use super::change::{Change, Scheduled};
use super::control::Command;
use super::plan::{Plan, Present};
use super::report::{AppliedChange, DirectionReport, Report};
use crate::load::{Burners, Flow, Generator, last_cpu};
use crate::problem::{Problem, While};

/// The seeds of the path and of the load must differ.
const GENERATOR: u64 = 0x94D0_49BB_1331_11EB;

/// Everything that runs. Dropping it ends and cleans up, loads first and namespaces last.
#[derive(Debug)]
pub(crate) struct Running {
    loads: Loads,
    emulator: Emulator,
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

impl Running {
    /// Creates the sides, the path between them, and the loads.
    ///
    /// # Errors
    /// If a system call fails. Nothing is left behind in that case.
    pub(crate) fn start(
        args: &WanArgs,
        plan: Plan,
        privilege: Privilege,
        seed: u64,
    ) -> Result<Self, Problem> {
        let emulator = Emulator::start(&EmulatorOptions {
            forth: &plan.forth,
            back: &plan.back,
            seed,
            mtu: args.mtu,
            offload: !args.no_offload,
            window: args.tcp_window.unwrap_or_default(),
            cpu: args.path_cpu,
            names: Names::from(privilege),
            drop_log: args.drop_log.as_deref(),
        })?;
        let mut schedule = args.change.clone();
        schedule.sort_by_key(|scheduled| std::cmp::Reverse(scheduled.at));
        let mut running = Self {
            loads: Loads::default(),
            emulator,
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
        let World { a, b } = &self.emulator.world;
        let (a, b) = (&a.namespace, &b.namespace);
        for kind in &args.load.background {
            let flow = Flow::start(kind, a, b, V4[1]);
            self.loads.flows.push(flow.while_doing("cannot start a background flow")?);
        }
        if args.load.burners > 0 {
            let burners = Burners::start(args.load.burners, cpu).while_doing("cannot start burners")?;
            self.loads.burners = Some(burners);
        }
        if args.load.generator {
            let generator = Generator::start(self.seed ^ GENERATOR, cpu, self.emulator.clock());
            self.loads.generator = Some(generator.while_doing("cannot start the load generator")?);
        }
        Ok(())
    }

    /// Returns the two sides.
    pub(crate) fn world(&self) -> &World {
        &self.emulator.world
    }

    /// Returns the counters of both directions, if both work.
    pub(crate) fn directions(&self) -> Option<[Snapshot; 2]> {
        self.emulator.snapshots()
    }

    /// Returns the error that ended the path, if it has ended.
    pub(crate) fn failure(&mut self) -> Option<std::io::Error> {
        self.emulator.failure()
    }

    /// Returns the time until the next scheduled change.
    pub(crate) fn until_change(&self) -> Option<Span> {
        self.schedule.last().map(|next| next.at.saturating_sub(self.emulator.age()))
    }

    /// Makes the changes that are due. Returns those that the path refuses, with the reason.
    pub(crate) fn make_due_changes(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        while let Some(next) = self.schedule.pop_if(|next| next.at <= self.emulator.age()) {
            if let Err(error) = self.change(&next.change) {
                refused.push(format!("--change {}: {error}", next.change));
            }
        }
        refused
    }

    /// Checks, before anything starts, whether the path supports all scheduled changes.
    pub(crate) fn check_changes(args: &WanArgs, plan: &Plan) -> Result<(), Problem> {
        let mut present = Present::new(&args.path, args.mtu, args.path_file.is_none());
        let build = |spec| Path::new(spec, 0).map_err(|e| Problem::usage(e.to_string(), ""));
        let (mut forth, mut back) = (build(&plan.forth)?, build(&plan.back)?);
        for Scheduled { change, .. } in &args.change {
            for (way, stage, step) in present.apply(change) {
                let path = if way == PathDirection::Forth { &mut forth } else { &mut back };
                path.change(Time::ZERO, &stage, &step).map_err(|error| {
                    let hint = "a stage to be changed has to exist from the start: give its option, for \
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
        self.log_change(change.to_string());
        Ok(())
    }

    fn step(&self, way: PathDirection, stage: StageRef, step: StageChange) -> Result<(), String> {
        let changed = self.emulator.change(way, stage, step).ok_or("the path has failed")?;
        changed.map_err(|error| error.to_string())
    }

    fn log_change(&mut self, change: String) {
        self.changes.push(AppliedChange { at: self.emulator.age().as_secs_f64(), change });
    }

    /// Executes a command from the control socket.
    pub(crate) fn answer(&mut self, command: &Command) -> Value {
        let done = match command {
            Command::Counters => return json!(self.report()),
            Command::Stop => Ok(()),
            Command::Set(change) => self.change(change),
            Command::Stage(way, name, step) => {
                let done = self.step(*way, StageRef::Name(name.clone()), step.clone());
                if done.is_ok() {
                    self.log_change(format!("{way:?} {name} {step:?}"));
                }
                done
            }
        };
        match done {
            Ok(()) => json!({ "ok": true }),
            Err(error) => json!({ "error": error }),
        }
    }

    /// Ends the loads, and all processes on both sides.
    pub(crate) fn end_processes(&mut self) {
        if let Some(burners) = self.loads.burners.take() {
            drop(burners);
        }
        self.world().end_processes();
    }

    /// Returns the results so far; `None` if a direction has failed.
    pub(crate) fn report(&self) -> Option<Report> {
        let [forth, back] = self.directions()?;
        let World { a, b } = self.world();
        Some(Report {
            schema: 1,
            seed: self.seed,
            seconds: self.emulator.age().as_secs_f64(),
            path: self.plan.clone(),
            offloads: a.offloads(),
            forth: DirectionReport::new(forth, a.device_drops().unwrap_or(0)),
            back: DirectionReport::new(back, b.device_drops().unwrap_or(0)),
            load: self.loads.generator.as_ref().map(Generator::events).unwrap_or_default(),
            background: self.loads.flows.iter().map(Flow::report).collect(),
            changes: self.changes.clone(),
        })
    }
}
