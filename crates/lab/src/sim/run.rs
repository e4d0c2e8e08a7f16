//! Runs scenarios, singly or in parallel.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use haul_base::Time;
use haul_sim::{Exit, Place, TraceEvent, World};
use serde::Serialize;

use super::build::Built;
use super::flows::{Session, Windows};
use super::report::RunReport;
use super::scenario::Scenario;
use super::sweep::Values;
use crate::problem::{Problem, While};

/// A run to be made.
#[derive(Debug)]
pub(crate) struct Job {
    /// Scenario.
    pub(super) scenario: Scenario,
    /// Values from the sweep and `--set`.
    pub(super) values: Values,
    pub(super) built: Built,
}

impl Built {
    /// Whether everything that the run waits for has happened; false if it waits for nothing.
    pub(super) fn is_over(&self) -> bool {
        self.is_over_in(&self.world)
    }

    fn is_over_in(&self, world: &World) -> bool {
        let mut waits = self.sessions.len() + self.services.len();
        if waits == 0 {
            waits = self.traffic.iter().filter(|traffic| traffic.ends.is_some()).count();
            return waits > 0 && self.traffic.iter().all(|traffic| traffic.is_over(world));
        }
        self.sessions.iter().all(|session| session.is_over(world))
            && self.services.iter().all(|service| service.is_over(world))
    }
}

/// Recorded windows of a session.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Name of the session.
    pub(crate) session: String,
    pub(crate) windows: Windows,
}

impl Job {
    /// Starts to record the transmission windows of all sessions.
    pub(crate) fn record_windows(&mut self) -> Vec<Recorded> {
        let (world, sessions) = (&mut self.built.world, &self.built.sessions);
        let mut record = |session: &Session| Recorded {
            session: session.name.clone(),
            windows: session.record_windows(world),
        };
        sessions.iter().map(&mut record).collect()
    }

    fn run(mut self) -> RunReport {
        let cap = Time::ZERO + self.scenario.cap.0;
        let mut world = std::mem::replace(&mut self.built.world, World::new(0));
        let ended = world.run_while(cap, |world| !self.built.is_over_in(world));
        self.built.world = world;
        RunReport::new(&self.scenario, &self.values, &self.built, ended)
    }
}

/// Runs all jobs on `threads` threads. The reports are in the order of the jobs.
pub(crate) fn run_all(jobs: Vec<Job>, threads: usize) -> Vec<RunReport> {
    let count = jobs.len();
    let jobs: Vec<Mutex<Option<Job>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let reports: Vec<Mutex<Option<RunReport>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = jobs.get(at) else { return };
            let job = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            *reports[at].lock().unwrap_or_else(PoisonError::into_inner) = job.map(Job::run);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
    reports
        .into_iter()
        .filter_map(|report| report.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

/// One line of a trace file.
#[derive(Serialize)]
struct Line {
    at_ns: u64,
    place: Place,
    flow: u32,
    id: u64,
    packets: u32,
    bytes: u64,
    exit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl Line {
    fn new(event: &TraceEvent<'_>) -> Self {
        let (exit, reason) = match event.exit {
            Exit::Delivered => ("delivered", None),
            Exit::Dropped(reason) => ("dropped", Some(reason.name())),
            Exit::Copied => ("copied", None),
        };
        let parcel = event.parcel;
        Self {
            at_ns: event.at.as_nanos(),
            place: event.place,
            flow: parcel.flow().0,
            id: parcel.id(),
            packets: parcel.packets(),
            bytes: parcel.bytes(),
            exit,
            reason,
        }
    }
}

/// A trace file under construction: one JSON object per line for each exit at each place.
#[derive(Debug, Clone)]
pub(super) struct TraceFile(Arc<Mutex<(BufWriter<File>, std::io::Result<()>)>>);

impl TraceFile {
    /// Creates the file and lets `world` write to it.
    pub(super) fn attach(path: &Path, world: &mut World) -> Result<Self, Problem> {
        let file = File::create(path).while_doing(&format!("creating {}", path.display()))?;
        let shared = Arc::new(Mutex::new((BufWriter::new(file), Ok(()))));
        let writer = shared.clone();
        world.set_trace(move |event| {
            let mut guard = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let (file, state) = &mut *guard;
            if state.is_ok() {
                let line = serde_json::to_writer(&mut *file, &Line::new(event)).map_err(std::io::Error::from);
                *state = line.and_then(|()| file.write_all(b"\n"));
            }
        });
        Ok(Self(shared))
    }

    /// Flushes the file. Reports any earlier write error.
    pub(super) fn finish(&self, path: &Path) -> Result<(), Problem> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, state) = &mut *guard;
        let state = std::mem::replace(state, Ok(()));
        state.and_then(|()| file.flush()).while_doing(&format!("writing {}", path.display()))
    }
}
