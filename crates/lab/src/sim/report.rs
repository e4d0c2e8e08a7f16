//! Results of a run.

mod real;
mod verdicts;

use std::collections::BTreeMap;

use haul_base::{Cause, Rate, Span, Time};
use haul_proto::SenderStats;
use haul_sim::{DropReason, Ended, FlowTruth, LinkSummary, Rates};
use serde::Serialize;

use super::build::Built;
use super::checks::{CheckReport, Condition, Measure, Subject};
use super::direct::{Drive, virtual_transfer};
use super::discriminate::Watched;
use super::flows::Session;
use super::scenario::{CheckEntry, Scenario};
use super::service::ServiceReport;
use super::sweep::Values;
pub(super) use real::Real;
pub(crate) use verdicts::RecordedWindow;
use verdicts::{is_limit, limit};

/// Results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    pub seed: u64,
    /// Values from the sweep and `--set`.
    pub(super) values: serde_json::Map<String, serde_json::Value>,
    /// How the run ended.
    pub(super) ended: Ended,
    /// Simulated seconds.
    pub(super) seconds: f64,
    pub(super) sessions: Vec<SessionReport>,
    /// Message services.
    pub(super) services: Vec<ServiceReport>,
    /// Other traffic.
    pub(super) traffic: Vec<TrafficReport>,
    /// Links, each direction separately.
    pub(super) links: Vec<LinkSummary>,
    /// Rates over time; flows and nodes are in the order of `flows` and `nodes`.
    pub(super) rates: Option<RatesReport>,
    /// Whether every packet is accounted for.
    pub(super) adds_up: bool,
    pub(super) checks: Vec<CheckReport>,
    /// Problems other than failed conditions.
    pub problems: Vec<String>,
    /// Whether there were no problems and no failed conditions.
    pub(super) passed: bool,
}

/// Rates over time, with the names of flows and nodes.
#[derive(Debug, Serialize)]
pub(super) struct RatesReport {
    flows: Vec<String>,
    nodes: Vec<String>,
    links: Vec<String>,
    hosts: Vec<String>,
    #[serde(flatten)]
    rates: Rates,
}

/// Results of one transfer.
#[derive(Debug, Serialize)]
pub(super) struct SessionReport {
    name: String,
    controller: String,
    complete: bool,
    /// Object bytes delivered.
    bytes: u64,
    /// From its start to its end, or to the end of the run.
    seconds: f64,
    goodput_bps: u64,
    /// Data packets sent, including retransmissions.
    packets: u64,
    resent: u64,
    resent_share: f64,
    datagram: u16,
    rtt_ms: f64,
    min_rtt_ms: f64,
    silences: u64,
    /// Longest time for which the receiver waited for the core, on a simulated host.
    longest_wait_ms: Option<f64>,
    probe_timeouts: u32,
    /// Limiting factor according to the sender.
    limited_by: Option<String>,
    limit_evidence: Option<String>,
    /// Results of its diagnosis.
    diagnosis: DiagnosisReport,
    /// Fate of its data packets.
    data: FlowTruth,
    /// Fate of its feedback packets.
    feedback: FlowTruth,
}

/// A sender's diagnosis of its losses, compared with the truth.
#[derive(Debug, Serialize)]
pub(super) struct DiagnosisReport {
    /// Transmission windows in the model's range of loss rates, by the verdict of their signatures.
    windows_host: u64,
    windows_network: u64,
    windows_inconclusive: u64,
    /// Transmission windows outside that range.
    windows_out_of_range: u64,
    /// Lost packets by attributed cause.
    lost_by_host: u64,
    lost_by_congestion: u64,
    lost_by_random: u64,
    lost_by_outage: u64,
    lost_inconclusive: u64,
    /// Share of all losses, true or reported, that were attributed correctly.
    attributed: f64,
    /// Goodput of a virtual transfer on 10 Gbit/s driven by the losses, with the diagnosis and without.
    virtual_goodput_bps: Option<f64>,
    virtual_goodput_unaware_bps: Option<f64>,
    /// Windows with losses, if kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<RecordedWindow>,
    /// Share of lost packets that each published discriminator attributes to congestion, if enabled.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    discriminators: BTreeMap<&'static str, f64>,
}

impl DiagnosisReport {
    fn new(session: &Session, stats: &SenderStats, truth: &FlowTruth) -> Self {
        let driven = session.windows.as_ref().map(|windows| {
            let windows = windows.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            virtual_transfer(windows.iter().map(Drive::simulated))
        });
        let attributed = stats.lost_by_cause;
        let dropped = verdicts::drops_by_cause(truth);
        let right: u64 = Cause::ALL.iter().map(|cause| attributed.of(*cause).min(dropped.of(*cause))).sum();
        Self {
            windows_host: stats.windows.host,
            windows_network: stats.windows.network,
            windows_inconclusive: stats.windows.inconclusive,
            windows_out_of_range: stats.windows.out_of_range,
            lost_by_host: attributed.of(Cause::ReceiverHost),
            lost_by_congestion: attributed.of(Cause::Congestion),
            lost_by_random: attributed.of(Cause::Random),
            lost_by_outage: attributed.of(Cause::Outage),
            lost_inconclusive: attributed.of(Cause::Inconclusive),
            attributed: share(right, attributed.total().max(dropped.total())),
            virtual_goodput_bps: driven.map(|driven| driven.with),
            virtual_goodput_unaware_bps: driven.map(|driven| driven.without),
            kept: session.kept.as_ref().map(|kept| RecordedWindow::all(kept, truth)).unwrap_or_default(),
            discriminators: session.watched.as_ref().map(Watched::shares).unwrap_or_default(),
        }
    }

    fn windows(&self) -> u64 {
        self.windows_host + self.windows_network + self.windows_inconclusive
    }

    fn lost(&self) -> u64 {
        self.lost_by_host
            + self.lost_by_congestion
            + self.lost_by_random
            + self.lost_by_outage
            + self.lost_inconclusive
    }
}

/// Results of other traffic.
#[derive(Debug, Serialize)]
pub(super) struct TrafficReport {
    name: String,
    kind: &'static str,
    goodput_bps: u64,
    data: FlowTruth,
}

fn values_of(values: &Values) -> serde_json::Map<String, serde_json::Value> {
    let value = |value: &toml::Value| serde_json::to_value(value).unwrap_or_default();
    values.iter().map(|(key, of)| (key.clone(), value(of))).collect()
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// Returns Jain's fairness index: 1 if all are equal, 1/n if one has all.
fn fairness(rates: &[u64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(s, q), r| (s + *r as f64, q + (*r as f64) * (*r as f64)));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 1.0 }
}

fn drops(truth: &FlowTruth, reason: Option<DropReason>) -> f64 {
    reason.map_or_else(|| truth.drops.total(), |reason| truth.drops.of(reason)) as f64
}

fn sessions(built: &Built) -> Vec<SessionReport> {
    let world = &built.world;
    let report = |session: &Session| {
        let (stats, bytes) = (session.stats(world), session.bytes(world));
        let limit = limit(session, world, &stats);
        let time = session.finished(world).unwrap_or(world.now()).since(session.start);
        SessionReport {
            name: session.name.clone(),
            controller: session.controller.clone(),
            complete: session.is_over(world),
            bytes,
            seconds: time.as_secs_f64(),
            goodput_bps: Rate::from_transfer(bytes, time).as_bps(),
            packets: stats.packets,
            resent: stats.resent,
            resent_share: share(stats.resent, stats.packets),
            datagram: stats.datagram,
            rtt_ms: stats.rtt.as_millis_f64(),
            min_rtt_ms: stats.min_rtt.as_millis_f64(),
            silences: session.silences(world),
            longest_wait_ms: Some(session.longest_wait(world).as_millis_f64()),
            probe_timeouts: stats.probe_timeouts,
            limited_by: limit.as_ref().map(|limit| limit.what.to_string()),
            limit_evidence: limit.map(|limit| limit.evidence),
            diagnosis: DiagnosisReport::new(session, &stats, &world.truth(session.data)),
            data: world.truth(session.data),
            feedback: world.truth(session.feedback),
        }
    };
    built.sessions.iter().map(report).collect()
}

impl RunReport {
    /// Creates the report of a finished run.
    pub(super) fn new(scenario: &Scenario, values: &Values, built: &Built, ended: Ended) -> Self {
        let world = &built.world;
        let summary = world.summary();
        let goodput = |id: haul_sim::NodeId| summary.nodes.get(id.0 as usize).and_then(|n| n.goodput_bps);
        let traffic = built.traffic.iter().map(|traffic| TrafficReport {
            name: traffic.name.clone(),
            kind: traffic.kind,
            goodput_bps: goodput(traffic.receiver).unwrap_or(0),
            data: world.truth(traffic.data),
        });
        let rates = summary.rates.map(|rates| RatesReport {
            flows: summary.flows.iter().map(|flow| flow.name.clone()).collect(),
            nodes: summary.nodes.iter().map(|node| node.name.clone()).collect(),
            links: summary.links.iter().map(|link| link.name.clone()).collect(),
            hosts: scenario.host.iter().map(|host| host.name.clone()).collect(),
            rates,
        });
        let mut report = Self {
            seed: scenario.seed,
            values: values_of(values),
            ended,
            seconds: world.now().since(Time::ZERO).as_secs_f64(),
            sessions: sessions(built),
            services: built.services.iter().map(|service| service.report(world)).collect(),
            traffic: traffic.collect(),
            links: summary.links,
            rates,
            adds_up: world.adds_up(),
            checks: Vec::new(),
            problems: Vec::new(),
            passed: true,
        };
        let checks = scenario.check.iter().zip(&built.conditions);
        report.checks = checks.map(|(check, condition)| report.evaluate(check, condition)).collect();
        if !report.adds_up {
            report.problems.push("the packets do not add up: a bug in the simulator".to_owned());
        }
        if ended == Ended::Cap && !scenario.expect_cap {
            report
                .problems
                .push(format!("stopped at its cap of {} s before it was complete", report.seconds));
        }
        if ended == Ended::Idle && !built.is_over() {
            report.problems.push("no events are left, and it is not complete".to_owned());
        }
        report.passed = report.problems.is_empty() && report.checks.iter().all(|check| check.passed);
        report
    }

    /// Returns the seed and values of the run as text.
    pub(crate) fn run_values(&self) -> String {
        let values = self.values.iter().map(|(key, value)| format!(", {key} = {value}"));
        std::iter::once(format!("seed {}", self.seed)).chain(values).collect()
    }

    /// Returns the dropped data packets of a session by reason, as text.
    pub(crate) fn drops_text(&self, session: &str) -> String {
        let session = self.sessions.iter().find(|known| known.name == session);
        let drops = session.into_iter().flat_map(|session| session.data.drops.iter());
        let counts: Vec<_> = drops
            .filter(|drop| drop.1 > 0)
            .map(|(why, packets)| format!("{} {packets}", why.name()))
            .collect();
        if counts.is_empty() { "no drops".to_owned() } else { counts.join(", ") }
    }

    fn evaluate(&self, check: &CheckEntry, condition: &Condition) -> CheckReport {
        let (subject, name) = match (&check.session, &check.service, &check.traffic, &check.path) {
            (Some(name), ..) => (Subject::Session, name.as_str()),
            (_, Some(name), ..) => (Subject::Service, name.as_str()),
            (_, _, Some(name), _) => (Subject::Traffic, name.as_str()),
            (.., Some(name)) => (Subject::Path, name.as_str()),
            _ => (Subject::Run, ""),
        };
        let of = format!("{} {name}", subject.name()).trim_end().to_owned();
        condition.evaluate(of, &check.that, self.value(subject, name, condition.measure))
    }

    /// Returns the recorded series with this name (`law_bps.bulk`, `goodput_bps.bulk receiver`,
    /// `queue_bytes.wan`, `host_load.rx` and so on): the interval in seconds, and its values.
    pub(crate) fn recorded(&self, series: &str) -> Option<(f64, &[u64])> {
        let report = self.rates.as_ref()?;
        let seconds = report.rates.interval_ns as f64 / 1e9;
        let (kind, name) = series.split_once('.')?;
        if let Some(reason) = kind.strip_prefix("dropped_by_") {
            let flow = report.flows.iter().position(|known| known == name)?;
            return Some((seconds, report.rates.dropped_by.get(flow)?.get(reason)?.as_slice()));
        }
        let (names, lists) = match kind {
            "delivered_bps" => (&report.flows, &report.rates.delivered_bps),
            "dropped" => (&report.flows, &report.rates.dropped),
            "goodput_bps" => (&report.nodes, &report.rates.goodput_bps),
            "law_bps" => (&report.nodes, &report.rates.law_bps),
            "waited" => (&report.nodes, &report.rates.waited),
            "socket_fill" => (&report.nodes, &report.rates.socket_fill),
            "sleep_average_us" => (&report.nodes, &report.rates.sleep_average_us),
            "host_load" => (&report.hosts, &report.rates.host_load),
            "queue_bytes" => (&report.links, &report.rates.queue_bytes),
            _ => return None,
        };
        // The goodput of a session or a TCP flow is counted at its receiver.
        let ends = ["", " receiver", " end"].map(|end| format!("{name}{end}"));
        let named = ends.iter().filter_map(|name| lists.get(names.iter().position(|known| known == name)?));
        let list = named.into_iter().find(|list| !list.is_empty())?;
        Some((seconds, list.as_slice()))
    }

    /// Returns the kept windows of its sessions.
    pub(crate) fn windows(&self) -> impl Iterator<Item = &RecordedWindow> {
        self.sessions.iter().flat_map(|session| &session.diagnosis.kept)
    }

    /// Returns the value of a subject's measure: bit/s, seconds, bytes, packets, a share, or 1 for true.
    pub(crate) fn value(&self, subject: Subject, name: &str, measure: Measure) -> Option<f64> {
        match subject {
            Subject::Session => self.of_session(name, measure),
            Subject::Service => self.of_service(name, measure),
            Subject::Traffic => self.of_traffic(name, measure),
            Subject::Path => self.of_path(name, measure),
            Subject::Run => self.of_run(measure),
        }
    }

    fn of_session(&self, name: &str, measure: Measure) -> Option<f64> {
        let session = self.sessions.iter().find(|session| session.name == name)?;
        Some(match measure.name {
            "complete" => f64::from(u8::from(session.complete)),
            "goodput" => session.goodput_bps as f64,
            "time" => session.seconds,
            "rtt" => session.rtt_ms / 1e3,
            "min_rtt" => session.min_rtt_ms / 1e3,
            "bytes" => session.bytes as f64,
            "packets" => session.packets as f64,
            "resent" => session.resent as f64,
            "resent_share" => session.resent_share,
            "lost_share" => share(session.data.drops.total(), session.data.offered),
            "datagram" => f64::from(session.datagram),
            "silences" => session.silences as f64,
            "longest_wait" => session.longest_wait_ms? / 1e3,
            "told_host" => share(session.diagnosis.windows_host, session.diagnosis.windows()),
            "told_network" => share(session.diagnosis.windows_network, session.diagnosis.windows()),
            "told_nothing" => share(session.diagnosis.windows_inconclusive, session.diagnosis.windows()),
            "windows_host" => session.diagnosis.windows_host as f64,
            "windows_network" => session.diagnosis.windows_network as f64,
            "windows_nothing" => session.diagnosis.windows_inconclusive as f64,
            "attributed" => session.diagnosis.attributed,
            "put_on_network" => share(session.diagnosis.lost_by_congestion, session.diagnosis.lost()),
            "biaz" | "mbiaz" | "spike" | "zigzag" | "zbs" => {
                *session.diagnosis.discriminators.get(measure.name)?
            }
            "put_on_host" => share(session.diagnosis.lost_by_host, session.diagnosis.lost()),
            "windows" => session.diagnosis.windows() as f64,
            "virtual_goodput" => session.diagnosis.virtual_goodput_bps?,
            "virtual_goodput_unaware" => session.diagnosis.virtual_goodput_unaware_bps?,
            name if name.starts_with("limited_by_") => {
                f64::from(u8::from(is_limit(name, session.limited_by.as_deref()?)))
            }
            "drops" => drops(&session.data, measure.reason),
            "drops_back" => drops(&session.feedback, measure.reason),
            _ => return None,
        })
    }

    fn of_service(&self, name: &str, measure: Measure) -> Option<f64> {
        let service = self.services.iter().find(|service| service.name == name)?;
        Some(match measure.name {
            "complete" => f64::from(u8::from(service.delivered == service.messages)),
            "delivered" => service.delivered as f64,
            "goodput" => service.goodput_bps as f64,
            "delay" => service.delay_mean_ms / 1e3,
            "delay_p99" => service.delay_p99_ms / 1e3,
            "packets" => service.packets as f64,
            "resent" => service.resent as f64,
            "lost_share" => share(service.there.drops.total(), service.there.offered),
            "drops" => drops(&service.there, measure.reason),
            "drops_back" => drops(&service.back, measure.reason),
            _ => return None,
        })
    }

    fn of_traffic(&self, name: &str, measure: Measure) -> Option<f64> {
        let traffic = self.traffic.iter().find(|traffic| traffic.name == name)?;
        Some(match measure.name {
            "goodput" => traffic.goodput_bps as f64,
            "packets" => traffic.data.offered as f64,
            "lost_share" => share(traffic.data.drops.total(), traffic.data.offered),
            "drops" => drops(&traffic.data, measure.reason),
            _ => return None,
        })
    }

    fn of_path(&self, name: &str, measure: Measure) -> Option<f64> {
        let at = self.links.iter().step_by(2).position(|link| link.name == name)? * 2;
        let (there, back) = (&self.links.get(at)?.counters, &self.links.get(at + 1)?.counters);
        let of = |all: &haul_sim::Drops| measure.reason.map_or_else(|| all.total(), |reason| all.of(reason));
        Some(match measure.name {
            "packets" => there.offered as f64,
            "lost_share" => share(there.drops.total(), there.offered),
            "drops" => of(&there.drops) as f64,
            "drops_back" => of(&back.drops) as f64,
            "inside" => (there.inside + back.inside) as f64,
            _ => return None,
        })
    }

    fn of_run(&self, measure: Measure) -> Option<f64> {
        let truths = || {
            let sessions = self.sessions.iter().map(|session| &session.data);
            let sessions = sessions.chain(self.services.iter().map(|service| &service.there));
            sessions.chain(self.traffic.iter().map(|traffic| &traffic.data))
        };
        let rates: Vec<u64> = self.sessions.iter().map(|session| session.goodput_bps).collect();
        Some(match measure.name {
            "complete" => f64::from(u8::from(self.sessions.iter().all(|session| session.complete))),
            "adds_up" => f64::from(u8::from(self.adds_up)),
            "goodput" => {
                let bytes = self.sessions.iter().map(|session| session.bytes).sum();
                Rate::from_transfer(bytes, Span::from_secs_f64(self.seconds)).as_bps() as f64
            }
            "time" => self.seconds,
            "fairness" => fairness(&rates),
            "lost_share" => {
                let lost = truths().map(|truth| truth.drops.total()).sum();
                share(lost, truths().map(|truth| truth.offered).sum())
            }
            "drops" => truths().map(|truth| drops(truth, measure.reason)).sum(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equal_flows_and_one_nth_for_a_single_user() {
        assert!((fairness(&[5, 5, 5]) - 1.0).abs() < 1e-12);
        assert!((fairness(&[5, 0, 0, 0]) - 0.25).abs() < 1e-12);
        assert!((fairness(&[]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn every_available_measure_has_a_unit() {
        for subject in [Subject::Session, Subject::Service, Subject::Traffic, Subject::Path, Subject::Run] {
            for measure in subject.measures() {
                let values = ["true", "1", "1s", "1Mbit", "1B"];
                assert!(
                    values.iter().any(|v| Condition::parse(subject, &format!("{measure} = {v}")).is_ok())
                );
            }
        }
    }
}
