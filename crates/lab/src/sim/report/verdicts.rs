//! A sender's reports: its windows, and what limited it.

use std::sync::PoisonError;

use haul_base::{Cause, CauseCounts, Rate};
use haul_diagnosis::{Diagnosis, Metric, Model, Sample, Signature};
use haul_proto::{Limit, LimitEvidence, SenderStats, limit_of_sender};
use haul_sim::{FlowTruth, World};
use serde::Serialize;

use crate::sim::flows::{Session, Windows};
use crate::sim::real::{Labels, RealWindow};

/// A transmission window with losses.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedWindow {
    pub loss_rate: f64,
    pub complexity: Option<f64>,
    pub success_proportion: Option<f64>,
    /// Posterior probability that the receiving host lost the packets; `None` if the model cannot judge the
    /// signature.
    pub p_host: Option<f64>,
    /// Whether it was the host, judged by nearly all lost packets of the run (for real runs, of the window).
    /// `None` if neither the host nor a queue lost nearly all.
    pub by_host: Option<bool>,
    /// Lost packets by true and by attributed cause; real runs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// Signature of the window.
    #[serde(skip)]
    pub signature: Signature,
    /// Packets sent in the window.
    pub packets: u64,
    /// Indices of its lost packets, from 0; first window of a run only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<u64>,
}

/// Share of a flow's drops from which its windows count as having one cause.
const NEARLY_ALL: f64 = 0.99;

/// Returns the dropped packets by cause.
pub(super) fn drops_by_cause(truth: &FlowTruth) -> CauseCounts {
    let mut dropped = CauseCounts::default();
    let causes = truth.drops.iter().filter_map(|(why, packets)| Some((why.cause()?, packets)));
    causes.for_each(|(cause, packets)| dropped.add(cause, packets));
    dropped
}

/// Returns whether nearly all were dropped by the receiving host (true) or by a queue (false).
fn of_one_cause(dropped: &CauseCounts) -> Option<bool> {
    let share = |cause| dropped.of(cause) as f64 / dropped.total().max(1) as f64;
    let causes = [(Cause::ReceiverHost, true), (Cause::Congestion, false)];
    causes.into_iter().find(|(cause, _)| share(*cause) >= NEARLY_ALL).map(|(_, by_host)| by_host)
}

impl RecordedWindow {
    pub(super) fn all(windows: &Windows, truth: &FlowTruth) -> Vec<Self> {
        let by_host = of_one_cause(&drops_by_cause(truth));
        let windows = windows.lock().unwrap_or_else(PoisonError::into_inner);
        let lossy = windows.iter().filter(|window| window.sample.lost > 0).enumerate();
        lossy
            .map(|(index, window)| Self {
                loss_rate: window.sample.loss_rate(),
                complexity: window.sample.complexity,
                success_proportion: window.sample.success_proportion,
                p_host: window.by_signature.metric.map(|_| window.by_signature.p_host),
                by_host,
                labels: None,
                packets: window.sample.packets,
                lost: window.signature.lost_positions().filter(|_| index == 0).collect(),
                signature: window.signature.clone(),
            })
            .collect()
    }

    /// Converts the windows of a real run, measured with the shipped model's word length.
    pub(super) fn real(windows: &[RealWindow]) -> Vec<Self> {
        let mut words = Model::shipped().words();
        let mut window = |(index, window): (usize, &RealWindow)| {
            let sample = Sample::of(&window.signature, &mut words);
            Self {
                loss_rate: sample.loss_rate(),
                complexity: sample.complexity,
                success_proportion: sample.success_proportion,
                p_host: window.p_host,
                by_host: of_one_cause(&window.labels.truth),
                labels: Some(window.labels.clone()),
                packets: sample.packets,
                lost: window.signature.lost_positions().filter(|_| index == 0).collect(),
                signature: window.signature.clone(),
            }
        };
        windows.iter().enumerate().map(&mut window).collect()
    }

    /// Returns the cause of nearly all of its losses: the host or a queue.
    pub(crate) fn cause(&self) -> Option<Cause> {
        Some(if self.by_host? { Cause::ReceiverHost } else { Cause::Congestion })
    }

    /// Returns the verdict of its signature.
    pub(crate) fn by_signature(&self) -> Diagnosis {
        let by = |p_host| Diagnosis { metric: Some(Metric::Complexity), p_host };
        self.p_host.map_or(Diagnosis::NOTHING, by)
    }
}

/// Returns what limited a session, from the same evidence as in a real session.
pub(super) fn limit(session: &Session, world: &World, stats: &SenderStats) -> Option<Limit> {
    let elapsed = session.finished(world).unwrap_or(world.now()).since(session.start);
    limit_of_sender(&LimitEvidence {
        waiting: stats.waiting,
        silent: stats.silent,
        min_rtt: stats.min_rtt,
        elapsed,
        sent: Rate::from_transfer(stats.datagram_bytes, elapsed),
        peak_delivery: Rate::from_bps(stats.peak_delivery_bps),
        ceiling: session.ceiling,
        packets: stats.packets,
        lost: stats.lost,
        lost_by_cause: stats.lost_by_cause,
        receiver_drops: u64::from(stats.receiver_drops),
        receiver_waited: stats.receiver_host.waited(),
    })
}

/// Measures, and the verdicts for which they hold.
const LIMITS: [(&str, &str); 8] = [
    ("limited_by_path", "path"),
    ("limited_by_law", "law"),
    ("limited_by_ceiling", "rate_ceiling"),
    ("limited_by_host", "receiver_host"),
    ("limited_by_reading", "sender_storage"),
    ("limited_by_writing", "receiver_storage"),
    ("limited_by_sending", "sender_cpu"),
    ("limited_by_application", "application"),
];

/// Whether a measure stands for this verdict.
pub(super) fn is_limit(measure: &str, verdict: &str) -> bool {
    LIMITS.contains(&(measure, verdict))
}
