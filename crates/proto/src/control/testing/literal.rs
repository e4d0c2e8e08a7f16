//! Laws, feedback and boundaries from literals.

use haul_base::{Rate, Span, Time};

use super::config;
use crate::control::{Boundary, FeedbackSample, LossRuns, LostPacket, RateController, Unit, law};
use crate::rtt::RttEstimator;

/// Builds the law `name` with these parameters and a ceiling.
pub(crate) fn built(name: &str, settings: &[(&str, &str)], ceiling: Rate) -> Box<dyn RateController> {
    law(name).unwrap().build(settings, &config(Some(ceiling))).unwrap()
}

/// A lost packet with an arbitrary send time.
pub(crate) fn lost_packet(pn: u64) -> LostPacket {
    LostPacket { pn, ..LostPacket::default() }
}

/// Feedback on `acked` and `lost` packets; the receiver reads at `drain`.
pub(crate) fn feedback(
    now: Time,
    rtt: &RttEstimator,
    acked: u64,
    lost: u64,
    drain: Option<Rate>,
) -> FeedbackSample<'_> {
    FeedbackSample {
        acked_packets: acked,
        lost_packets: lost,
        drain_rate: drain,
        arrival_rate: drain,
        ..literal_sample(now, rtt)
    }
}

/// The end of a unit of 10,000 packets that began with packet `first_pn`.
pub(crate) fn boundary(unit: Unit, first_pn: u64, lost: u64) -> Boundary {
    let (began, now) = (Time::ZERO, Time::ZERO + Span::from_secs(1));
    let (packets, bytes) = (10_000, 14_720_000);
    Boundary { unit, number: 0, first_pn, packets, bytes, lost, began, ended: now, now, verdict: None }
}

/// An empty sample, to be filled in by tests.
pub(crate) fn literal_sample(now: Time, rtt: &RttEstimator) -> FeedbackSample<'_> {
    FeedbackSample {
        now,
        acked_packets: 0,
        lost_packets: 0,
        host_lost_packets: 0,
        loss: LossRuns::none(),
        in_flight: 0,
        datagram: 1_472,
        sent_bytes: 0,
        sent_packets: 0,
        next_pn: 0,
        largest_acked_pn: 0,
        rtt,
        arrival_rate: None,
        drain_rate: None,
        read_delay: None,
        queue_delay: None,
        delay_trend: 0.0,
        gro_run: None,
        duplicates: 0,
        socket_drops: 0,
        ecn_ce: 0,
        host: None,
        verdict: None,
        app_limited: false,
        sender_absent: false,
        report_interval: Span::from_millis(2),
    }
}
