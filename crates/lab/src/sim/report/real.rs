//! Report of a real run: `haul`'s own results, combined with the counters of the emulated path.

use haul_base::{Cause, CauseCounts};
use haul_sim::{DropReason, Drops, Ended, FlowTruth, LinkSummary, PathCounters, Rates};
use serde_json::Value;

use super::verdicts::{RecordedWindow, drops_by_cause};
use super::{DiagnosisReport, RatesReport, RunReport, SessionReport, share};
use crate::sim::direct::{Drive, virtual_transfer};
use crate::sim::real::{Labels, RealWindow};
use crate::sim::scenario::Scenario;
use crate::sim::sweep::Values;

/// Raw results of a real run.
#[derive(Debug)]
pub(in crate::sim) struct Real {
    /// The result of `haul bench --json`.
    pub result: Value,
    /// The lines of its `--events`.
    pub events: Vec<Value>,
    /// Counters of the path.
    pub counters: Value,
    /// Its transmission windows, if kept.
    pub windows: Vec<RealWindow>,
}

/// State of a sender at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Seconds since the start of the session.
    at: f64,
    acked_bytes: f64,
    law_bps: u64,
    lost: f64,
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn drops(counters: &Value) -> Drops {
    let mut drops = Drops::default();
    for reason in DropReason::ALL {
        drops.count(reason, count(&counters["drops"][reason.name()]));
    }
    drops
}

fn path_counters(direction: &Value) -> PathCounters {
    PathCounters {
        offered: count(&direction["sent"]["packets"]),
        offered_bytes: count(&direction["sent"]["bytes"]),
        delivered: count(&direction["received"]["packets"]),
        delivered_bytes: count(&direction["received"]["bytes"]),
        copies: count(&direction["copies"]),
        marked: count(&direction["marked"]),
        damaged: count(&direction["damaged"]),
        inside: count(&direction["inside"]),
        drops: drops(direction),
        stages: Vec::new(),
    }
}

/// Returns the counters of all packets in one direction, including the few of the control channel.
fn truth(counters: &PathCounters) -> FlowTruth {
    FlowTruth {
        offered: counters.offered,
        offered_bytes: counters.offered_bytes,
        delivered: counters.delivered,
        delivered_bytes: counters.delivered_bytes,
        copies: counters.copies,
        drops: counters.drops,
    }
}

impl Real {
    fn samples(&self) -> Vec<Sample> {
        let time = |event: &Value| event["t"].as_f64().unwrap_or(0.0);
        let of = |kind: &'static str| self.events.iter().filter(move |event| event["event"] == kind);
        let begin = of("session").next().map_or(0.0, time);
        let sample = |event: &Value| {
            let data = event.get("data").filter(|data| data.is_object())?;
            Some(Sample {
                at: time(event) - begin,
                acked_bytes: data["acked_bytes"].as_f64()?,
                law_bps: count(&data["rate_bps"]),
                lost: data["lost"].as_f64().unwrap_or(0.0),
            })
        };
        std::iter::once(Sample::default()).chain(of("progress").filter_map(sample)).collect()
    }

    /// Returns the last counters of the sender.
    fn last(&self) -> &Value {
        let progress = self.events.iter().rev().find(|event| event["data"].is_object());
        progress.map_or(&Value::Null, |event| &event["data"])
    }

    /// Returns the packets lost by the receiving host. Its socket counts buffers, which hold several packets
    /// with GRO; if windows are kept, the drop log gives the exact number.
    fn lost_at_socket(&self, last: &Value) -> u64 {
        if self.windows.is_empty() {
            return count(&last["receiver_drops"]);
        }
        self.windows.iter().map(|window| window.labels.truth.of(Cause::ReceiverHost)).sum()
    }

    fn session(&self, name: &str, controller: &str, directions: [&PathCounters; 2]) -> SessionReport {
        let (result, last) = (&self.result, self.last());
        let mut data = truth(directions[0]);
        let socket = self.lost_at_socket(last).min(data.delivered);
        data.drops.count(DropReason::SocketBuffer, socket);
        data.delivered -= socket;
        let (packets, resent) = (count(&result["packets_sent"]), count(&result["packets_resent"]));
        SessionReport {
            name: name.to_owned(),
            controller: controller.to_owned(),
            complete: result["ok"] == true,
            bytes: count(&result["bytes"]),
            seconds: result["seconds"].as_f64().unwrap_or(0.0),
            goodput_bps: result["goodput_bps"].as_f64().unwrap_or(0.0) as u64,
            packets,
            resent,
            resent_share: share(resent, packets),
            datagram: count(&last["datagram"]) as u16,
            rtt_ms: last["rtt_ms"].as_f64().unwrap_or(0.0),
            min_rtt_ms: last["min_rtt_ms"].as_f64().unwrap_or(0.0),
            silences: 0,
            longest_wait_ms: None,
            probe_timeouts: 0,
            limited_by: result["limited_by"].as_str().map(str::to_owned),
            limit_evidence: None,
            diagnosis: self.diagnosis(&data),
            data,
            feedback: truth(directions[1]),
        }
    }

    /// Returns the results of the diagnosis. The truth is from the drop log if windows are kept, otherwise
    /// from the receiver's socket.
    fn diagnosis(&self, truth: &FlowTruth) -> DiagnosisReport {
        let mut attributed = CauseCounts::default();
        for cause in Cause::ALL {
            attributed.add(cause, count(&self.result["lost_by_cause"][cause.name()]));
        }
        let matched = |dropped: &CauseCounts, attributed: &CauseCounts| {
            let right: u64 =
                Cause::ALL.iter().map(|cause| dropped.of(*cause).min(attributed.of(*cause))).sum();
            (right, dropped.total().max(attributed.total()))
        };
        let of_windows = self.windows.iter().map(|window| {
            let Labels { truth, attributed, right } = &window.labels;
            (right.total(), truth.total().max(attributed.total()))
        });
        let (right, total) = of_windows
            .reduce(|sum, of| (sum.0 + of.0, sum.1 + of.1))
            .unwrap_or_else(|| matched(&drops_by_cause(truth), &attributed));
        let by_signature = |cause| {
            let attributed = self.windows.iter().filter_map(RealWindow::by_signature);
            attributed.filter(|attributed| *attributed == cause).count() as u64
        };
        let driven = (!self.windows.is_empty()).then(|| virtual_transfer(Drive::real(&self.windows)));
        DiagnosisReport {
            windows_host: by_signature(Cause::ReceiverHost),
            windows_network: by_signature(Cause::Congestion),
            windows_inconclusive: by_signature(Cause::Inconclusive),
            windows_out_of_range: self.windows.iter().filter(|window| window.p_host.is_none()).count() as u64,
            lost_by_host: attributed.of(Cause::ReceiverHost),
            lost_by_congestion: attributed.of(Cause::Congestion),
            lost_by_random: attributed.of(Cause::Random),
            lost_by_outage: attributed.of(Cause::Outage),
            lost_inconclusive: attributed.of(Cause::Inconclusive),
            attributed: share(right, total),
            virtual_goodput_bps: driven.map(|driven| driven.with),
            virtual_goodput_unaware_bps: driven.map(|driven| driven.without),
            kept: RecordedWindow::real(&self.windows),
            discriminators: std::collections::BTreeMap::new(),
        }
    }
}

/// Interpolates linearly between two samples.
fn at(samples: &[Sample], time: f64, of: fn(&Sample) -> f64) -> f64 {
    let next = samples.partition_point(|sample| sample.at < time);
    match (next.checked_sub(1).and_then(|before| samples.get(before)), samples.get(next)) {
        (Some(before), Some(after)) => {
            let share = (time - before.at) / (after.at - before.at).max(1e-9);
            of(before) + (of(after) - of(before)) * share
        }
        (Some(only), None) | (None, Some(only)) => of(only),
        (None, None) => 0.0,
    }
}

/// Resamples at the regular intervals of the simulator's recordings.
fn rates(samples: &[Sample], interval: f64) -> Rates {
    let end = samples.last().map_or(0.0, |sample| sample.at);
    let count = (end / interval) as usize;
    let growth = |of: fn(&Sample) -> f64| -> Vec<f64> {
        let step =
            |n: usize| at(samples, (n + 1) as f64 * interval, of) - at(samples, n as f64 * interval, of);
        (0..count).map(step).collect()
    };
    let goodput =
        growth(|sample| sample.acked_bytes).iter().map(|bytes| (bytes * 8.0 / interval) as u64).collect();
    let dropped = growth(|sample| sample.lost).iter().map(|packets| packets.round() as u64).collect();
    let law = (1..=count).map(|n| {
        let after = samples.partition_point(|sample| sample.at <= n as f64 * interval);
        samples.get(after.saturating_sub(1)).map_or(0, |sample| sample.law_bps)
    });
    Rates {
        interval_ns: (interval * 1e9).round() as u64,
        dropped: vec![dropped],
        goodput_bps: vec![Vec::new(), goodput],
        law_bps: vec![law.collect(), Vec::new()],
        ..Rates::default()
    }
}

impl RunReport {
    /// Creates the report of a real run with one session on one path.
    pub(in crate::sim) fn real(scenario: &Scenario, values: &Values, real: &Real) -> Self {
        let (path, session) = (&scenario.path[0], &scenario.session[0]);
        let directions = ["forth", "back"].map(|way| path_counters(&real.counters[way]));
        let controller = real.result["controller"].as_str().unwrap_or_default();
        let report = real.session(&session.name, controller, [&directions[0], &directions[1]]);
        let error = real.result["error"].get("message").map(|message| format!("haul has failed: {message}"));
        let problems: Vec<String> = error.into_iter().collect();
        let recorded = scenario.record.map(|interval| rates(&real.samples(), interval.0.as_secs_f64()));
        let [forth, back] = directions;
        let named = |name: String, counters| LinkSummary { name, counters };
        let links = vec![named(path.name.clone(), forth), named(format!("{} back", path.name), back)];
        Self {
            seed: scenario.seed,
            values: super::values_of(values),
            ended: Ended::Done,
            seconds: report.seconds,
            rates: recorded.map(|rates| RatesReport {
                flows: vec![session.name.clone()],
                nodes: vec![session.name.clone(), format!("{} receiver", session.name)],
                links: Vec::new(),
                hosts: Vec::new(),
                rates,
            }),
            sessions: vec![report],
            services: Vec::new(),
            traffic: Vec::new(),
            links,
            adds_up: ["forth", "back"].iter().all(|way| real.counters[way]["adds_up"] == true),
            checks: Vec::new(),
            passed: problems.is_empty(),
            problems,
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_diagnosis::Signature;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trace_becomes_rates_at_regular_intervals() {
        let progress = |t: f64, bytes: u64, rate: u64, lost: u64| json!({ "t": t, "event": "progress", "data": { "acked_bytes": bytes, "rate_bps": rate, "lost": lost } });
        let events = vec![
            json!({ "t": 0.5, "event": "session" }),
            json!({ "t": 0.55, "event": "progress", "data": null }),
            progress(0.7, 25_000, 1_000_000, 0),
            progress(1.0, 62_500, 2_000_000, 4),
            progress(1.5, 187_500, 3_000_000, 4),
        ];
        let real = Real { result: Value::Null, events, counters: Value::Null, windows: Vec::new() };
        let rates = rates(&real.samples(), 0.5);
        // 62,500 bytes in the first half second, 125,000 in the second.
        assert_eq!(rates.goodput_bps[1], [1_000_000, 2_000_000]);
        assert_eq!(rates.law_bps[0], [2_000_000, 3_000_000]);
        assert_eq!(rates.dropped[0], [4, 0]);
    }

    #[test]
    fn socket_drops_are_reported_with_path_drops() {
        let counters =
            json!({ "sent": { "packets": 100 }, "received": { "packets": 90 }, "drops": { "random": 10 } });
        let progress = json!({ "t": 1.0, "event": "progress", "data": { "receiver_drops": 30 } });
        let result = json!({ "ok": true, "lost_by_cause": { "receiver_host": 28, "random": 12 } });
        let real = Real { result, events: vec![progress], counters: Value::Null, windows: Vec::new() };
        let way = path_counters(&counters);
        let report = real.session("bulk", "bbr", [&way, &way]);
        assert_eq!((report.data.delivered, report.data.drops.total()), (60, 40));
        assert!((report.diagnosis.attributed - 38.0 / 40.0).abs() < 1e-12, "{:?}", report.diagnosis);
    }

    #[test]
    fn windows_are_judged_by_the_drop_log_and_not_by_the_socket() {
        let window = |truth: [u64; 2], attributed: [u64; 2], p_host| {
            let counts = |[host, queue]: [u64; 2]| {
                let mut counts = CauseCounts::default();
                counts.add(Cause::ReceiverHost, host);
                counts.add(Cause::Congestion, queue);
                counts
            };
            let right = [0, 1].map(|cause| truth[cause].min(attributed[cause]));
            let labels =
                Labels { truth: counts(truth), attributed: counts(attributed), right: counts(right) };
            let signature = Signature::of_lost(40_000, 0..truth[0] + truth[1]);
            RealWindow { number: 0, signature, labels, p_host }
        };
        let windows = vec![
            window([100, 0], [100, 0], Some(0.99)),
            window([100, 1], [101, 0], Some(0.5)),
            window([0, 200], [50, 150], Some(0.97)),
            // Two causes, and a loss rate outside the model's range.
            window([60, 40], [60, 40], Some(0.99)),
            window([0, 3], [0, 3], None),
        ];
        let progress = json!({ "t": 1.0, "event": "progress", "data": { "receiver_drops": 7 } });
        let real =
            Real { result: json!({ "ok": true }), events: vec![progress], counters: Value::Null, windows };
        let way = path_counters(&json!({ "sent": { "packets": 1_000 }, "received": { "packets": 1_000 } }));
        let complete_report = real.session("bulk", "fixed", [&way, &way]);
        let report = complete_report.diagnosis;
        let windows = [report.windows_host, report.windows_inconclusive, report.windows_out_of_range];
        assert_eq!(windows, [3, 1, 1]);
        // The socket has dropped seven buffers.
        assert_eq!(complete_report.data.drops.of(DropReason::SocketBuffer), 260);
        let attributed = report.kept.iter().map(|window| (window.cause(), window.by_signature().cause()));
        let (host, queue, none) = (Cause::ReceiverHost, Cause::Congestion, Cause::Inconclusive);
        let expected =
            [(Some(host), host), (Some(host), none), (Some(queue), host), (None, host), (Some(queue), none)];
        assert_eq!(attributed.collect::<Vec<_>>(), expected);
        let (right, all) = (100.0 + 100.0 + 150.0 + 100.0 + 3.0, 504.0);
        assert!((report.attributed - right / all).abs() < 1e-12, "{report:?}");
        let kept = serde_json::to_value(&report.kept[2]).unwrap();
        assert_eq!((&kept["by_host"], &kept["labels"]["truth"]["congestion"]), (&false.into(), &200.into()));
    }
}
