//! Real runs: the built `haul` transfers over a scenario's stages on the emulator, to a host with its loads.

mod ends;
mod task;
mod windows;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use haul_base::Span;
use haul_sim::{PathSpec, StageSpec};
use toml::{Table, Value};

use super::report::RunReport;
use super::scenario::{
    Direction, EventEntry, HostEntry, LoadEntry, LoadKind, Scenario, SessionEntry, TcpLaw, TrafficEntry, Way,
};
use super::sweep::Values;
use crate::emulator::{Emulator, Job, PathFile};
use crate::load::Quota;
use crate::problem::{Problem, While};
pub(crate) use ends::{EndArgs, end};
use task::{Application, CONTROL, Change, EVENTS, Suspension, TASK, Task};
pub(crate) use windows::{Dropped, Labels, RealWindow};

/// MTU of the devices, unless a stage of the path has a smaller one.
const JUMBO: u32 = 9_000;
const DROPS: &str = "drops";

/// A real run to be made.
#[derive(Debug)]
pub(crate) struct RealJob {
    scenario: Scenario,
    values: Values,
}

/// Builds the run of a scenario that has no file. The error names what the emulator does not support.
pub(crate) fn prepare(scenario: Table, values: Values) -> Result<RealJob, String> {
    let scenario: Scenario =
        Value::Table(scenario).try_into().map_err(|error: toml::de::Error| error.to_string())?;
    let job = RealJob { scenario, values };
    match job.impossible() {
        None => Ok(job),
        Some(what) => Err(format!("on the emulator {what}")),
    }
}

/// Returns the `haul` to measure: the path in `HAUL`, or the one beside this program.
///
/// # Errors
/// If there is none.
pub(crate) fn haul() -> Result<PathBuf, Problem> {
    let beside = || std::env::current_exe().map(|program| program.with_file_name("haul"));
    let haul = std::env::var_os("HAUL").map_or_else(beside, |haul| Ok(haul.into()));
    let haul = haul.while_doing("cannot find this program")?;
    if haul.is_file() {
        return Ok(haul);
    }
    let hint = "build it as this program was built (cargo build --release -p haul-cli), or name one in HAUL";
    Err(Problem::usage(format!("there is no program {}", haul.display()), hint))
}

fn millis(span: Span) -> u64 {
    span.as_micros() / 1_000
}

impl RealJob {
    fn session(&self) -> &SessionEntry {
        &self.scenario.session[0]
    }

    fn host(&self) -> Option<&HostEntry> {
        let name = self.session().host.as_ref()?;
        self.scenario.host.iter().find(|host| host.name == *name)
    }

    fn sender_host(&self) -> Option<&HostEntry> {
        let name = self.session().sender_host.as_ref()?;
        self.scenario.host.iter().find(|host| host.name == *name)
    }

    /// Returns the slow application: it writes for a sender with `reads`, or reads for a receiver with
    /// `writes`.
    fn application(&self) -> Option<Application> {
        let SessionEntry { bytes, reads, writes, .. } = self.session();
        let bytes = bytes.map_or(0, |bytes| bytes.0.0);
        match (reads, writes) {
            (Some(rate), _) => Some(Application::Writes { bytes, bps: rate.0.as_bps() }),
            (None, Some(rate)) => Some(Application::Reads { bytes, bps: rate.0.as_bps() }),
            (None, None) => None,
        }
    }

    fn loads(&self) -> impl Iterator<Item = &LoadEntry> {
        self.host().into_iter().flat_map(|host| &host.loads)
    }

    /// Returns the feature of the scenario that only the simulator supports, if any.
    fn impossible(&self) -> Option<&'static str> {
        let scenario = &self.scenario;
        let ([session], [_]) = (scenario.session.as_slice(), scenario.path.as_slice()) else {
            return Some("there is exactly one session on one path");
        };
        let is_unsupported_load = |load: &LoadEntry| {
            let is_known = matches!(
                load.kind,
                LoadKind::Computation | LoadKind::Generator | LoadKind::Suspension | LoadKind::Quota
            );
            let is_plain = load.at.0 == Span::ZERO && load.length.is_none();
            let has_task_options = load.nice.is_some() || load.sleep_average.is_some();
            !is_known || !is_plain || has_task_options || load.runs.is_some() || load.pauses.is_some()
        };
        let has = [
            (!scenario.service.is_empty(), "there are no messages beside the session"),
            (
                !scenario.traffic.iter().all(is_background),
                "traffic is TCP flows toward the receiver, from the start and without end",
            ),
            (!scenario.check.is_empty(), "the plan has the checks, not the scenario"),
            (session.start.0 + scenario.start_within.0 != Span::ZERO, "a session starts at once"),
            (
                !self.sender_host().into_iter().all(has_only_quotas),
                "the sender's host has a quota of processor time and no model",
            ),
            (session.truth, "a sender does not know the truth"),
            (
                session.virtual_transfer && !session.windows,
                "a virtual transfer needs the windows of the real one (`windows = true`)",
            ),
            (session.datagram.is_some(), "`haul` finds the size of datagrams itself"),
            (!session.switch.is_empty(), "the law is not switched"),
            (!session.pause.is_empty(), "the application does not pause"),
            (!session.clock_jump.is_empty(), "clocks do not jump"),
            (
                self.application().is_some()
                    && (session.bytes.is_none() || session.windows || !scenario.event.is_empty()),
                "a slow application has `bytes` to read or to write, and the path has neither windows nor events",
            ),
            (session.reads.is_some() && session.writes.is_some(), "at most one application is slow"),
            (
                self.loads().any(is_unsupported_load),
                "loads are `computation`, `generator`, `suspension` and `quota`, for the whole run and with their usual costs",
            ),
        ];
        has.into_iter().find(|(is_there, _)| *is_there).map(|(_, what)| what)
    }

    /// Returns the stages towards the receiver and back.
    fn path(&self) -> (PathSpec, PathSpec) {
        let entry = &self.scenario.path[0];
        let back = entry.back.as_ref().unwrap_or(&entry.forward);
        (PathSpec { stages: entry.forward.clone() }, PathSpec { stages: back.clone() })
    }

    fn wan_options(&self, directory: &Path) -> Result<Vec<OsString>, Problem> {
        let (forth, back) = self.path();
        let mtus = forth.stages.iter().chain(&back.stages).filter_map(|stage| match stage {
            StageSpec::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        let mtu = mtus.min().unwrap_or(JUMBO).to_string();
        let seed = self.scenario.seed.to_string();
        let mut options: Vec<OsString> = ["--seed", &seed, "--mtu", &mtu].map(OsString::from).into();
        options.extend(PathFile { forth: &forth, back: &back }.save(directory)?);
        options.extend(["--control".into(), directory.join(CONTROL).into()]);
        if self.session().windows {
            options.extend(["--drop-log".into(), directory.join(DROPS).into()]);
        }
        if self.host().is_some_and(|host| host.gro == Some(false)) {
            options.push("--no-offload".into());
        }
        for flow in &self.scenario.traffic {
            options.extend([
                "--background".into(),
                flow.tcp.map_or("cubic", |tcp| law_name(tcp.control)).into(),
            ]);
        }
        let mut burners = 0;
        for load in self.loads() {
            match load.kind {
                LoadKind::Computation => burners += load.processes.unwrap_or(1),
                LoadKind::Generator => options.push("--generator".into()),
                _ => {}
            }
        }
        if burners > 0 {
            options.extend(["--burners".into(), burners.to_string().into()]);
        }
        let last = crate::load::last_cpu();
        if self.loads().next().is_some() && last > 0 {
            // Only its loads share the receiver's core.
            let pins = [("--cpu-b", last), ("--cpu-a", 0), ("--path-cpu", 0)];
            options.extend(pins.iter().flat_map(|(option, cpu)| [option.into(), cpu.to_string().into()]));
        }
        Ok(options)
    }

    fn client(&self) -> Vec<String> {
        let session = self.session();
        let mut words = if self.application().is_some() {
            vec!["cp".to_owned()]
        } else {
            let time = session.time.map(|time| ("--time", time.0.exact()));
            let bytes = session.bytes.map(|bytes| ("--bytes", bytes.0.exact()));
            let length = time.into_iter().chain(bytes).flat_map(|(option, value)| [option.to_owned(), value]);
            ["bench", "--json"].map(str::to_owned).into_iter().chain(length).collect()
        };
        words.extend(["--preset".to_owned(), session.recipe.clone()]);
        let fields = [
            ("rate_control.controller", session.controller.clone()),
            ("rate_control.rate", session.rate.map(|rate| rate.0.exact())),
            ("object.chunk", session.chunk.map(|chunk| chunk.0.exact())),
            ("bitmap_ack.interval", session.feedback.map(|span| span.0.exact())),
            ("socket_buffer", self.host().and_then(|host| host.socket_buffer).map(|size| size.0.exact())),
        ];
        let fields = fields.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        let set = session.set.iter().map(|(key, value)| format!("{key}={value}"));
        words.extend(set.chain(fields).flat_map(|setting| ["--set".to_owned(), setting]));
        words
    }

    fn changes(&self) -> Result<Vec<Change>, Problem> {
        let mut changes = Vec::new();
        for event in &self.scenario.event {
            let EventEntry { at, stage, change, direction, .. } = event;
            let change = serde_json::to_string(change).map_err(|e| Problem::failed(e.to_string(), ""))?;
            let directions: &[&str] = match direction {
                Direction::Forward => &["forth"],
                Direction::Back => &["back"],
                Direction::Both => &["forth", "back"],
            };
            let name = stage.to_string().replace('`', "");
            let line =
                |way: &&str| Change { at_ms: millis(at.0), line: format!("stage {way} {name} {change}") };
            changes.extend(directions.iter().map(line));
        }
        changes.sort_by_key(|change| change.at_ms);
        Ok(changes)
    }

    /// Makes the run.
    ///
    /// # Errors
    /// If the path cannot be created, or `haul` fails.
    pub(crate) fn run(&self, emulator: &Emulator, haul: &Path) -> Result<RunReport, Problem> {
        let directory = emulator.directory()?;
        let suspension = self.loads().find(|load| load.kind == LoadKind::Suspension);
        let suspension = suspension.and_then(|load| {
            Some(Suspension { every_ms: millis(load.every?.0), stop_ms: millis(load.stop?.0) })
        });
        let groups = [("client", self.sender_host()), ("server", self.host())];
        let [client, server] = groups.map(|(end, host)| quota(host, end, &directory));
        let (client, server) = (client?, server?);
        let task = Task {
            haul: haul.to_owned(),
            client: self.client(),
            application: self.application(),
            changes: self.changes()?,
            suspension,
            client_group: client.as_ref().map(Quota::members),
            server_group: server.as_ref().map(Quota::members),
        };
        let text = serde_json::to_vec(&task).map_err(|e| Problem::failed(e.to_string(), ""))?;
        fs::write(directory.join(TASK), text).while_doing("cannot write the job")?;
        let end = |side: &str| vec!["real-end".into(), side.into(), directory.clone().into()];
        let job = Job { options: self.wan_options(&directory)?, server: end("b"), client: end("a") };
        let output = emulator.run(&directory, &job)?;
        let events = fs::read_to_string(directory.join(EVENTS)).while_doing("cannot read haul's trace")?;
        let events: Vec<_> = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let windows = if self.session().windows { labelled(&directory, &events)? } else { Vec::new() };
        let real = super::report::Real {
            result: crate::emulator::parsed(&output.printed)?,
            events,
            counters: output.counters,
            windows,
        };
        Ok(RunReport::real(&self.scenario, &self.values, &real))
    }
}

/// Creates the control group of an end, if its CPU time is limited.
fn quota(host: Option<&HostEntry>, end: &str, directory: &Path) -> Result<Option<Quota>, Problem> {
    let bound = host.and_then(|host| host.loads.iter().find(|load| load.kind == LoadKind::Quota));
    let Some((run, every)) = bound.and_then(|load| Some((load.run?.0, load.every?.0))) else {
        return Ok(None);
    };
    let number = directory.file_name().unwrap_or_default().display();
    let name = format!("haul-lab-{}-{number}-{end}", std::process::id());
    Quota::new(&name, run, every).while_doing("cannot make a control group").map(Some)
}

fn has_only_quotas(host: &HostEntry) -> bool {
    host.per_sent.is_none() && host.loads.iter().all(|load| load.kind == LoadKind::Quota)
}

/// Whether `haul-lab wan` supports such a flow.
fn is_background(traffic: &TrafficEntry) -> bool {
    let is_plain = |tcp: &super::scenario::TcpEntry| {
        tcp.bytes.is_none() && tcp.start.0 == Span::ZERO && tcp.buffer.is_none()
    };
    traffic.tcp.as_ref().is_some_and(is_plain) && traffic.direction == Way::Forward && traffic.host.is_none()
}

const fn law_name(law: TcpLaw) -> &'static str {
    match law {
        TcpLaw::Reno => "reno",
        TcpLaw::Cubic => "cubic",
        TcpLaw::Bbr => "bbr",
    }
}

/// Returns the windows of a trace, with the truth from the drop log in this directory.
fn labelled(directory: &Path, events: &[serde_json::Value]) -> Result<Vec<RealWindow>, Problem> {
    let log = fs::read_to_string(directory.join(DROPS)).while_doing("cannot read the drop log")?;
    let dropped = Dropped::read(&log).map_err(|message| Problem::failed(message, ""))?;
    Ok(RealWindow::all(events, &dropped))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<RealJob, String> {
        prepare(text.parse().unwrap(), Values::new())
    }

    const PATH: &str =
        "cap = '9s'\npath = [{ name = 'wan', forward = [{ mtu = 1500 }, { delay = '10ms' }] }]\n";

    #[test]
    fn the_scenario_becomes_arguments_of_haul() {
        let text = format!(
            "{PATH}host = [{{ name = 'rx', socket_buffer = '208KiB', loads = [{{ kind = 'computation', processes = 2 }}] }}]\n\
             session = [{{ name = 'bulk', path = 'wan', host = 'rx', time = '5s', controller = 'bbr', rate = '100Mbit', \
             set = {{ 'bbr.beta' = '0.8' }} }}]\n\
             event = [{{ at = '2s', path = 'wan', stage = 'delay', change = {{ delay = '30ms' }} }}]"
        );
        let job = job(&text).unwrap();
        let client = job.client().join(" ");
        let settings = "--set bbr.beta=0.8 --set rate_control.controller=bbr --set rate_control.rate=100Mbit \
                        --set socket_buffer=208KiB";
        assert_eq!(client, format!("bench --json --time 5s --preset bulk {settings}"));
        let lines: Vec<String> = job.changes().unwrap().into_iter().map(|change| change.line).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("stage forth delay {\"delay\":"), "{lines:?}");
        let directory = tempfile::tempdir().unwrap();
        let options = job.wan_options(directory.path()).unwrap().join(" ".as_ref());
        let options = options.to_string_lossy();
        assert!(options.contains("--mtu 1500") && options.contains("--burners 2"), "{options}");
    }

    #[test]
    fn windows_flows_and_offloads_become_path_options() {
        let text = format!(
            "{PATH}host = [{{ name = 'rx', gro = false, loads = [{{ kind = 'quota', run = '20ms', every = '100ms' }}] }}]\n\
             session = [{{ name = 'bulk', path = 'wan', host = 'rx', time = '5s', windows = true }}]\n\
             traffic = [{{ name = 'a', path = 'wan', tcp = {{ control = 'reno' }} }}]"
        );
        let directory = tempfile::tempdir().unwrap();
        let options = job(&text).unwrap().wan_options(directory.path()).unwrap().join(" ".as_ref());
        let options = options.to_string_lossy();
        for option in ["--drop-log /", "--no-offload", "--background reno"] {
            assert!(options.contains(option), "{options}");
        }
        assert!(job(&text.replace("'reno'", "'reno', start = '1s'")).unwrap_err().contains("without end"));
    }

    #[test]
    fn slow_storage_becomes_an_application_at_the_end_of_a_copy() {
        let session =
            "session = [{ name = 'bulk', path = 'wan', bytes = '6MB', reads = '15Mbit', rate = '90Mbit' }]";
        let reading = job(&format!("{PATH}{session}")).unwrap();
        let client = reading.client().join(" ");
        assert_eq!(client, "cp --preset bulk --set rate_control.rate=90Mbit");
        let (bytes, bps) = (6_000_000, 15_000_000);
        assert_eq!(reading.application(), Some(Application::Writes { bytes, bps }));
        let writing = job(&format!("{PATH}{}", session.replace("reads", "writes"))).unwrap();
        assert_eq!(writing.application(), Some(Application::Reads { bytes, bps }));
    }

    #[test]
    fn features_only_the_simulator_has_are_refused() {
        let session =
            |more: &str| job(&format!("{PATH}session = [{{ name = 'a', path = 'wan', time = '1s'{more} }}]"));
        assert!(session("").is_ok());
        assert!(session(", truth = true").unwrap_err().contains("the truth"));
        assert!(session(", start = '1s'").unwrap_err().contains("at once"));
        assert!(session(", pause = [{ at = '1s', length = '1s' }]").unwrap_err().contains("pause"));
        assert!(session(", reads = '1Mbit'").unwrap_err().contains("`bytes`"));
    }
}
