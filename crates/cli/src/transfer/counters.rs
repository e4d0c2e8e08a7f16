//! Counters of a session, as JSON for the trace and `haul ctl`, and for the peer's report.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use haul_base::{Cause, HostSample, Rate, Span};
use haul_diagnosis::write_signature;
use haul_engine::{Counters, Transfer};
use haul_host::process_cpu;
use haul_proto::{Attribution, DiagnosedWindow, Limit, LimitEvidence, SenderStats, limit_of_sender};
use haul_udp::{Offload, Options, UdpSocket};
use haul_wire::control::CountedSending;
use parking_lot::Mutex;
use serde_json::json;

use crate::output::{EventLog, by_cause};
use crate::settings::Settings;

/// Returns the object bytes that have arrived, as far as this side knows.
pub(crate) fn arrived_bytes(counters: Option<&Counters>) -> u64 {
    match counters {
        Some(Counters::Sending(sending)) => sending.stats.object_acked,
        Some(Counters::Receiving(stats)) => stats.object_bytes,
        None => 0,
    }
}

/// Returns a number that rises with packets from the peer, and with finished files, which it still reports
/// when all data has arrived.
pub(crate) fn peer_activity(counters: Option<&Counters>, files_done: u64) -> u64 {
    let packets = match counters {
        Some(Counters::Sending(sending)) => sending.stats.feedback,
        Some(Counters::Receiving(stats)) => stats.packets + stats.duplicates,
        None => 0,
    };
    packets + files_done
}

pub(crate) fn counters_json(counters: &Counters) -> serde_json::Value {
    match counters {
        Counters::Sending(sending) => {
            let stats = &sending.stats;
            json!({
                "rate_bps": sending.rate.as_bps(),
                "controller": stats.law.map(|law| law.name),
                "ceiling_bps": stats.law.and_then(|law| law.ceiling).map(Rate::as_bps),
                "phase": sending.phase,
                "in_flight": sending.in_flight,
                "packets": stats.packets,
                "resent": stats.resent,
                "lost": stats.lost,
                "acked_bytes": stats.object_acked,
                "rtt_ms": stats.rtt.as_millis_f64(),
                "min_rtt_ms": stats.min_rtt.as_millis_f64(),
                "datagram": stats.datagram,
                "peak_delivery_bps": stats.peak_delivery_bps,
                "law_switches": stats.law_switches,
                "receiver_drops": stats.receiver_drops,
                "lost_by_cause": by_cause(stats.lost_by_cause),
                "receiver_arrival_bps": stats.receiver_host.arrival_rate.map(Rate::as_bps),
                "receiver_drain_bps": stats.receiver_host.drain_rate.map(Rate::as_bps),
                "receiver_read_delay_ms": stats.receiver_host.read_delay.map(Span::as_millis_f64),
                "receiver_host": stats.receiver_host.sample.map(|host| host_json(&host)),
            })
        }
        Counters::Receiving(stats) => json!({
            "packets": stats.packets,
            "duplicates": stats.duplicates,
            "rejected": stats.rejected,
            "object_bytes": stats.object_bytes,
            "socket_drops": stats.socket_drops,
            "feedback_sent": stats.feedback_sent,
            "receiver_host": stats.host.map(|host| host_json(&host)),
        }),
    }
}

/// Writes the transmission windows with losses that were diagnosed since the last call.
pub(crate) fn write_windows(events: &EventLog, transfer: &Transfer) {
    if !events.is_enabled() {
        return;
    }
    let has_losses = |window: &&DiagnosedWindow| window.sample.lost > 0 || window.counts.total() > 0;
    for window in transfer.take_windows().iter().filter(has_losses) {
        events.write("window", window_json(window));
    }
}

fn window_json(window: &DiagnosedWindow) -> serde_json::Value {
    let diagnosis = &window.by_signature;
    json!({
        "number": window.number,
        "first_pn": window.first_pn,
        "signature": (window.signature.packets() > 0).then(|| write_signature(&window.signature).trim_end().to_owned()),
        "by_signature": diagnosis.metric.map(|_| diagnosis.cause().name()),
        "p_host": diagnosis.metric.map(|_| diagnosis.p_host),
        "lost_by_cause": by_cause(window.counts),
        "losses": window.attributions.iter().map(losses_json).collect::<Vec<_>>(),
    })
}

/// A run of lost packets, with the probabilities above 0 of its causes.
fn losses_json(losses: &Attribution) -> serde_json::Value {
    let mut object = json!({ "first_pn": losses.run.first_pn, "packets": losses.run.packets });
    for cause in Cause::ALL {
        let share = (losses.causes.share(cause) * 1e4).round() / 1e4;
        if share > 0.0 {
            object[cause.name()] = share.into();
        }
    }
    object
}

/// Load of a receiving host: totals since the start of the session; null if unknown.
fn host_json(host: &HostSample) -> serde_json::Value {
    let millis = |span: Option<Span>| span.map(Span::as_millis_f64);
    let percent = |thousandths: Option<u16>| thousandths.map(|thousandths| f64::from(thousandths) / 10.0);
    json!({
        "run_delay_ms": millis(host.run_delay),
        "involuntary_switches": host.involuntary_switches,
        "socket_fill_percent": percent(host.socket_fill),
        "cpu_pressure_percent": percent(host.cpu_pressure),
        "disk_pressure_percent": percent(host.disk_pressure),
        "steal_ms": millis(host.steal),
        "sleep_average_ms": millis(host.sleep_average),
        "early_drops": host.early_drops,
    })
}

/// What the processor time of this side is measured of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cpu {
    /// The process, without the time that it had used before.
    Process { since: Span },
    /// The data thread, as both sides share the process.
    DataThread,
}

impl Cpu {
    pub(crate) const ALL: Self = Self::Process { since: Span::ZERO };

    pub(crate) fn from_now() -> Self {
        Self::Process { since: process_cpu() }
    }

    pub(crate) fn used(self, data_thread: Span) -> Span {
        match self {
            Self::Process { since } => process_cpu().saturating_sub(since),
            Self::DataThread => data_thread,
        }
    }
}

/// Returns the sender's counters and its limit; `agreed` is the negotiated ceiling.
pub(crate) fn counted_sending(
    stats: &SenderStats,
    round_trip: Span,
    agreed: Option<Rate>,
    moving: Span,
) -> CountedSending {
    let ceiling = ceiling_of_all(stats, agreed);
    let seen = LimitEvidence { ceiling, ..LimitEvidence::of(stats, round_trip, agreed, moving) };
    let (limited_by, evidence) = limit_of_sender(&seen)
        .map(|Limit { what, evidence }| (what.into_owned(), evidence))
        .unwrap_or_default();
    CountedSending {
        packets: stats.packets,
        resent: stats.resent,
        lost: stats.lost,
        lost_by_host: stats.lost_by_cause.of(Cause::ReceiverHost),
        lost_by_congestion: stats.lost_by_cause.of(Cause::Congestion),
        lost_by_random: stats.lost_by_cause.of(Cause::Random),
        lost_by_outage: stats.lost_by_cause.of(Cause::Outage),
        min_rtt_us: stats.min_rtt.as_micros(),
        peak_delivery_bps: stats.peak_delivery_bps,
        limited_by,
        evidence,
    }
}

/// Returns the ceiling of the whole run, `agreed` if the sender has no law; `None` if it was changed.
pub(crate) fn ceiling_of_all(stats: &SenderStats, agreed: Option<Rate>) -> Option<Rate> {
    stats.law.map_or(agreed, |law| law.ceiling).filter(|_| stats.ceiling_changes == 0)
}

type Fallbacks = Arc<[String]>;
/// Returns the requested features that this system lacks, and what to do about each. Tested with a socket once.
pub(crate) fn fallbacks(settings: &Settings) -> Fallbacks {
    static KNOWN: Mutex<BTreeMap<(bool, u64), Fallbacks>> = Mutex::new(BTreeMap::new());
    let find = || {
        let options = Options {
            offload: if settings.offload { Offload::Auto } else { Offload::Off },
            recv_buffer: settings.socket_buffer,
            send_buffer: settings.socket_buffer,
            ..Options::default()
        };
        let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options);
        socket.iter().flat_map(|socket| socket.capabilities().fallbacks()).map(|it| it.to_string()).collect()
    };
    KNOWN.lock().entry((settings.offload, settings.socket_buffer.0)).or_insert_with(find).clone()
}

#[cfg(test)]
mod tests {
    use haul_engine::Sending;
    use haul_proto::{PeerHost, ReceiverStats, SenderStats};

    use super::*;

    #[test]
    fn both_sides_trace_the_load_of_the_host_with_null_for_unknown_values() {
        let sample = HostSample {
            run_delay: Some(Span::from_micros(12_500)),
            socket_fill: Some(375),
            involuntary_switches: Some(7),
            steal: Some(Span::from_millis(20)),
            early_drops: Some(3),
            ..HostSample::default()
        };
        let host = json!({
            "run_delay_ms": 12.5, "involuntary_switches": 7, "socket_fill_percent": 37.5,
            "cpu_pressure_percent": null, "disk_pressure_percent": null, "steal_ms": 20.0, "sleep_average_ms": null,
            "early_drops": 3,
        });
        let stats = ReceiverStats { host: Some(sample), ..ReceiverStats::default() };
        assert_eq!(counters_json(&Counters::Receiving(stats))["receiver_host"], host);
        let mut stats = SenderStats::default();
        let sending = |stats| Counters::Sending(Sending { stats, rate: Rate::ZERO, phase: "", in_flight: 0 });
        assert!(counters_json(&sending(stats))["receiver_host"].is_null());
        let read_delay = Some(Span::from_micros(250));
        let drain_rate = Some(Rate::from_mbps(80));
        stats.receiver_host =
            PeerHost { sample: Some(sample), drain_rate, read_delay, ..PeerHost::default() };
        let object = counters_json(&sending(stats));
        assert_eq!(object["receiver_host"], host);
        assert_eq!(
            (&object["receiver_drain_bps"], &object["receiver_arrival_bps"]),
            (&80_000_000.into(), &().into())
        );
        assert_eq!(object["receiver_read_delay_ms"], 0.25);
    }

    #[test]
    fn files_reported_as_done_count_as_contact_without_packets() {
        let stats = SenderStats { feedback: 7, ..SenderStats::default() };
        let sending = Counters::Sending(Sending { stats, rate: Rate::ZERO, phase: "", in_flight: 0 });
        assert!(peer_activity(Some(&sending), 2) > peer_activity(Some(&sending), 1));
        let receiving = Counters::Receiving(ReceiverStats { packets: 7, ..ReceiverStats::default() });
        assert!(peer_activity(Some(&receiving), 2) > peer_activity(Some(&receiving), 1));
    }
}

#[cfg(test)]
mod sending_tests {
    use haul_proto::{LawNow, Waiting};

    use super::*;

    #[test]
    fn a_ceiling_that_changed_is_not_compared_with_the_mean_rate() {
        let law = Some(LawNow { name: "bbr", ceiling: Some(Rate::from_bps(1_000)) });
        let stats = SenderStats { law, ..SenderStats::default() };
        assert_eq!(ceiling_of_all(&stats, None), Some(Rate::from_bps(1_000)));
        let stats = SenderStats { ceiling_changes: 1, ..stats };
        assert_eq!(ceiling_of_all(&stats, Some(Rate::from_mbps(9))), None);

        let waiting =
            Waiting { ceiling: Span::from_secs(3), pacer: Span::from_secs(1), ..Waiting::default() };
        let stats =
            SenderStats { waiting, datagram_bytes: 60_000_000, peak_delivery_bps: 90_000_000, ..stats };
        let found = counted_sending(&stats, Span::from_millis(1), None, Span::from_secs(5));
        assert_eq!(found.limited_by, "rate_ceiling");
        assert_eq!(found.evidence, "it was given one on the way, and 96.0 Mbit/s was sent");
    }
}

#[cfg(test)]
mod usage_tests {
    use super::*;
    use crate::settings::Preset;

    #[test]
    fn missing_features_are_determined_once_for_equal_settings() {
        let mut settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        let first = fallbacks(&settings);
        assert!(Arc::ptr_eq(&first, &fallbacks(&settings)));
        settings.offload = false;
        assert!(!Arc::ptr_eq(&first, &fallbacks(&settings)));
    }
}
