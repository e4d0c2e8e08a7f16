//! Builds a world from a scenario.

use std::collections::BTreeMap;

use haul_base::{Rng, Span, Time};
use haul_sim::host::scheduler::{FairConfig, O1Config, SchedulerKind};
use haul_sim::host::{Gro, HostConfig, NicConfig, ReceiverConfig, SimulatedHost, SocketConfig};
use haul_sim::{Effect, HostId, LinkId, Path, PathSpec, StageSpec, World};

use super::checks::{Condition, Subject};
use super::flows::{self, Session, Traffic};
use super::loads::load_of;
use super::locate::{Fault, Step};
use super::scenario::{Direction, HostEntry, PathEntry, Scenario, SchedulerName};
use super::service::{self, Service};
use super::site::{Duplex, Site, known};

/// A scenario that is ready to run.
#[derive(Debug)]
pub(super) struct Built {
    /// The world at time zero.
    pub world: World,
    pub sessions: Vec<Session>,
    /// Message services.
    pub services: Vec<Service>,
    /// Traffic beside sessions and services.
    pub traffic: Vec<Traffic>,
    /// Conditions, in the order of the checks.
    pub conditions: Vec<Condition>,
}

/// Checks that names are unique within a list, as reports and keys use them.
fn check_names<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Fault> {
    let mut seen = BTreeMap::new();
    for (index, name) in names.enumerate() {
        if name.is_empty() || name.contains(['.', ',']) {
            return Err(Fault::of(list, index, "name", "a name is not empty and has neither dot nor comma"));
        }
        if seen.insert(name, index).is_some() {
            return Err(Fault::of(
                list,
                index,
                "name",
                format!("`{name}` is taken; each {list} needs its own"),
            ));
        }
    }
    Ok(())
}

fn spec_of(entry: &PathEntry, direction: Direction) -> PathSpec {
    let stages = match direction {
        Direction::Back => entry.back.as_ref().unwrap_or(&entry.forward),
        _ => &entry.forward,
    };
    PathSpec { stages: stages.clone() }
}

fn add_paths(scenario: &Scenario, world: &mut World) -> Result<Vec<Duplex>, Fault> {
    let add = |(index, entry): (usize, &PathEntry)| {
        let mut add_link = |name: &str, direction, field| {
            let spec = spec_of(entry, direction);
            let link = world.add_link(name, &spec);
            link.map(|link| (link, spec)).map_err(|error| Fault::of("path", index, field, error.to_string()))
        };
        let (forward, there) = add_link(&entry.name, Direction::Forward, "forward")?;
        let field = if entry.back.is_some() { "back" } else { "forward" };
        let (back, here) = add_link(&format!("{} back", entry.name), Direction::Back, field)?;
        let stages = || there.stages.iter().chain(&here.stages);
        let delay = stages().fold(Span::ZERO, |sum, stage| match stage {
            StageSpec::Delay(delay) => sum + *delay,
            _ => sum,
        });
        let damages =
            stages().any(|s| matches!(s, StageSpec::Corruption(c) if !matches!(c.effect, Effect::Drop)));
        Ok(Duplex { name: entry.name.clone(), forward, back, delay, damages })
    };
    scenario.path.iter().enumerate().map(add).collect()
}

fn add_host(entry: &HostEntry, index: usize, world: &mut World) -> Result<HostId, Fault> {
    let mut socket = SocketConfig::default();
    if let Some(size) = entry.socket_buffer {
        (socket.requested, socket.permitted) = (size.0, size.0);
    }
    let mut template = ReceiverConfig { socket, ..ReceiverConfig::default() };
    if let Some(cost) = entry.per_packet {
        template.per_packet = cost.0;
    }
    if let Some(cost) = entry.per_sent {
        template.per_sent = cost.0;
    }
    let mut nic = NicConfig { gro: entry.gro.unwrap_or(false).then(Gro::default), ..NicConfig::default() };
    if let Some(cost) = entry.interrupt {
        // A packet that arrives alone is passed up the stack alone.
        nic.per_skb = nic.per_skb.min(cost.0);
        nic.per_packet = cost.0.saturating_sub(nic.per_skb);
    }
    if let Some(slots) = entry.ring {
        nic.slots = slots;
    }
    let scheduler = match entry.scheduler {
        SchedulerName::O1 => SchedulerKind::O1(O1Config::default()),
        SchedulerName::Fair => SchedulerKind::Fair(FairConfig::default()),
    };
    let seed = world.seed_for((1 << 32) + index as u64);
    let config = HostConfig { scheduler, nic, receivers: Vec::new(), loads: Vec::new(), seed };
    let host = world.add_host(SimulatedHost::new(&config, template));
    for load in &entry.loads {
        let kind = load_of(load).map_err(|message| Fault::of("host", index, "loads", message))?;
        let length = load.length;
        world.at(Time::ZERO + load.at.0, move |world| {
            let Some(model) = world.host_mut::<SimulatedHost>(host) else { return };
            let id = model.host_mut().start_load(kind);
            let Some(length) = length else { return };
            world.at(world.now() + length.0, move |world| {
                if let Some(model) = world.host_mut::<SimulatedHost>(host) {
                    model.host_mut().stop_load(id);
                }
            });
        });
    }
    Ok(host)
}

fn add_events(scenario: &Scenario, world: &mut World, links: &[Duplex]) -> Result<(), Fault> {
    for (index, event) in scenario.event.iter().enumerate() {
        let Some(at) = links.iter().position(|link| link.name == event.path) else {
            let list = known(links.iter().map(|link| link.name.as_str()));
            let message = format!("there is no path `{}`; there are: {list}", event.path);
            return Err(Fault::of("event", index, "path", message));
        };
        let directions: &[(Direction, LinkId)] = match event.direction {
            Direction::Forward => &[(Direction::Forward, links[at].forward)],
            Direction::Back => &[(Direction::Back, links[at].back)],
            Direction::Both => &[(Direction::Forward, links[at].forward), (Direction::Back, links[at].back)],
        };
        for &(direction, link) in directions {
            let (stage, change) = (event.stage.clone(), event.change.clone());
            let wrong = |error: haul_sim::SpecError| Fault::of("event", index, "change", error.to_string());
            change.check().map_err(wrong)?;
            let spec = spec_of(&scenario.path[at], direction);
            let mut trial = Path::new(&spec, 0).map_err(wrong)?;
            let tried = trial.change(Time::ZERO, &stage, &change);
            tried.map_err(|error| Fault::of("event", index, "stage", error.to_string()))?;
            world.at(Time::ZERO + event.at.0, move |world| {
                // Was tested on an equal path.
                let _ = world.change_link(link, &stage, &change);
            });
        }
    }
    Ok(())
}

fn conditions(scenario: &Scenario) -> Result<Vec<Condition>, Fault> {
    let parse = |(index, check): (usize, &super::scenario::CheckEntry)| {
        let fault = |key: &str, message: String| Fault::of("check", index, key, message);
        let named = [
            ("session", &check.session, Subject::Session),
            ("service", &check.service, Subject::Service),
            ("traffic", &check.traffic, Subject::Traffic),
            ("path", &check.path, Subject::Path),
        ];
        let mut subjects =
            named.iter().filter_map(|(key, name, subject)| Some((*key, name.as_ref()?, *subject)));
        let subject = match (subjects.next(), subjects.next()) {
            (None, _) => Subject::Run,
            (Some((key, name, subject)), None) => {
                let names = scenario.names(key);
                if !names.contains(&name.as_str()) {
                    let list = known(names.into_iter());
                    return Err(fault(key, format!("there is no {key} `{name}`; there are: {list}")));
                }
                subject
            }
            _ => {
                return Err(fault(
                    "that",
                    "name one of session, service, traffic and path, or none".to_owned(),
                ));
            }
        };
        Condition::parse(subject, &check.that).map_err(|message| fault("that", message))
    };
    scenario.check.iter().enumerate().map(parse).collect()
}

/// Distinguishes the draw of the start from those of links and hosts, which use the same seed.
const START: u64 = 0x5354_4152_5400_0000;

/// Maximum processes per load.
const MAX_PROCESSES: u32 = 1_024;

/// Maximum samples of rates over time per run: they are kept in memory until its end.
const MAX_SAMPLES: u64 = 1_000_000;

/// Returns the scenario with all starts as determined by its seed ([`Scenario::start_within`]).
fn started(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    let later = scenario.start_within.0.mul_f64(Rng::from_seed(scenario.seed ^ START).next_f64());
    let of_sessions = scenario.session.iter_mut().map(|entry| &mut entry.start);
    let of_services = scenario.service.iter_mut().map(|entry| &mut entry.start);
    let flows = scenario.traffic.iter_mut().filter_map(|entry| entry.tcp.as_mut());
    for start in of_sessions.chain(of_services).chain(flows.map(|tcp| &mut tcp.start)) {
        start.0 = start.0 + later;
    }
    scenario
}

/// Builds the world. The error names the invalid field.
pub(super) fn build(scenario: &Scenario) -> Result<Built, Fault> {
    let scenario = &started(scenario);
    let top = |key: &str, message: &str| Fault {
        field: vec![Step::Key(key.to_owned())],
        message: message.to_owned(),
    };
    if scenario.cap.0 == Span::ZERO {
        return Err(top("cap", "must be above zero; it is the longest simulated time"));
    }
    if scenario.session.is_empty() && scenario.service.is_empty() && scenario.traffic.is_empty() {
        return Err(top(
            "session",
            "there is nothing to run; add a [[session]], a [[service]] or [[traffic]]",
        ));
    }
    check_names("path", scenario.path.iter().map(|entry| entry.name.as_str()))?;
    check_names("host", scenario.host.iter().map(|entry| entry.name.as_str()))?;
    check_names("session", scenario.session.iter().map(|entry| entry.name.as_str()))?;
    check_names("service", scenario.service.iter().map(|entry| entry.name.as_str()))?;
    check_names("traffic", scenario.traffic.iter().map(|entry| entry.name.as_str()))?;
    let mut world = World::new(scenario.seed);
    let links = add_paths(scenario, &mut world)?;
    let mut hosts = Vec::new();
    for (index, entry) in scenario.host.iter().enumerate() {
        if entry.ring == Some(0) {
            return Err(Fault::of("host", index, "ring", "needs at least one slot"));
        }
        if entry.loads.iter().any(|load| load.processes.is_some_and(|n| n > MAX_PROCESSES)) {
            let allowed = format!("a load has at most {MAX_PROCESSES} processes");
            return Err(Fault::of("host", index, "loads", allowed));
        }
        hosts.push((entry.name.clone(), add_host(entry, index, &mut world)?));
    }
    let mut site = Site { world: &mut world, links: &links, hosts: &hosts };
    let mut sessions = Vec::new();
    for (index, entry) in scenario.session.iter().enumerate() {
        sessions.push(flows::add_session(&mut site, index, entry)?);
    }
    let watched: Vec<_> = sessions.iter().filter_map(|session| session.watched.clone()).collect();
    if !watched.is_empty() {
        site.world.set_trace(move |event| watched.iter().for_each(|watched| watched.on_event(event)));
    }
    let mut services = Vec::new();
    for (index, entry) in scenario.service.iter().enumerate() {
        services.push(service::add_service(&mut site, index, entry)?);
    }
    let mut traffic = Vec::new();
    for (index, entry) in scenario.traffic.iter().enumerate() {
        traffic.push(flows::add_traffic(&mut site, index, entry)?);
    }
    add_events(scenario, &mut world, &links)?;
    let conditions = conditions(scenario)?;
    if let Some(interval) = scenario.record {
        let samples = scenario.cap.0.as_nanos() / interval.0.as_nanos().max(1);
        if interval.0 < Span::from_micros(1) || samples > MAX_SAMPLES {
            return Err(top("record", "must be at least 1us and at least a millionth of the cap"));
        }
        world.record_every(interval.0);
    }
    Ok(Built { world, sessions, services, traffic, conditions })
}
