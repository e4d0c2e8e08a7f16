//! Tests of laws with a peer that reports late, twice or falsely.

use haul_base::{HostSample, Rate, Span, Time};

use super::registry::built_in_laws;
use super::testing::{Harness, PathModel, boundary, built, literal_sample, lost_packet};
use super::{FeedbackSample, LossRuns, Permit, Unit};
use crate::rtt::RttEstimator;

const CEILING: Rate = Rate::from_mbps(95);

/// Bytes of a chunk.
const CHUNK: u64 = 10_000_000;
/// Laws that are not back at 0.8 of their rate three seconds after the last lie, because they judge chunks
/// and segments as in their papers, and the honest bytes that they need: one rises by 1/20 of the capacity
/// per chunk; the other goes from Red's lowest rate to Yellow's, to Green's and on.
const BY_UNIT: [(&str, u64); 2] = [("non_aggressive", 17 * CHUNK), ("state_based", 6 * 14_720_000)];

fn running(law: &str) -> Harness {
    let path = PathModel { chunk: CHUNK, capacity: Rate::from_mbps(100), ..PathModel::default() };
    let mut run = Harness::new(built(law, &[], CEILING), path);
    run.run_for(Span::from_secs(10));
    run
}

/// The `n`-th feedback that no honest peer sends.
fn false_sample<'a>(now: Time, n: u64, rtt: &'a RttEstimator, loss: &'a LossRuns) -> FeedbackSample<'a> {
    let rate = [Rate::ZERO, Rate::MAX, Rate::from_bps(1)][n as usize % 3];
    let span = [Span::ZERO, Span::MAX, Span::from_secs(100)][n as usize % 3];
    let host = HostSample {
        run_delay: Some(span),
        socket_fill: Some(u16::MAX),
        involuntary_switches: Some(n as u32 % 2),
        sleep_average: Some(span),
        early_drops: Some([0, u32::MAX, 1][n as usize % 3]),
        ..HostSample::default()
    };
    FeedbackSample {
        acked_packets: n % 5,
        lost_packets: if n.is_multiple_of(4) { 0 } else { 1 << (n % 30) },
        loss,
        // The sender's own value: beyond all packets that can be lost.
        next_pn: loss.end_pn(),
        arrival_rate: Some(rate),
        drain_rate: Some(rate),
        read_delay: Some(span),
        queue_delay: Some(span),
        delay_trend: f64::MAX,
        host: Some(host),
        ..literal_sample(now, rtt)
    }
}

#[test]
fn duplicate_and_late_reports_change_nothing() {
    for name in built_in_laws().map(|law| law.name) {
        let (mut run, mut honest) = (running(name), running(name));
        for _ in 0..500 {
            run.run_for(Span::from_millis(10));
            // Contains nothing new, and no rates, which are only taken from the newest report.
            let rtt = run.rtt.clone();
            run.law.on_feedback(&literal_sample(run.now, &rtt));
        }
        honest.run_for(Span::from_secs(5));
        let (deceived, expected) = (run.measure(Span::from_secs(10)), honest.measure(Span::from_secs(10)));
        assert!(deceived.goodput > expected.goodput.mul_f64(0.9), "{name}: {deceived:?} {expected:?}");
    }
}

/// Feeds lies for two seconds, during which the limits must stay sane.
fn feed_false_samples(run: &mut Harness, name: &str) {
    let mut loss = LossRuns::default();
    (0..100).for_each(|n| loss.push(lost_packet(n * 3)));
    for n in 0..2_000 {
        run.run_for(Span::from_millis(1));
        let rtt = run.rtt.clone();
        run.law.on_feedback(&false_sample(run.now, n, &rtt, &loss));
        run.law.on_boundary(&boundary(Unit::ALL[n as usize % 4], u64::MAX - n, 10_000));
        match run.law.permit() {
            Permit::Go(limits) => {
                assert!(limits.rate > Rate::ZERO && limits.rate <= CEILING, "{limits:?}");
            }
            Permit::Pause(until) => {
                assert!(until <= run.now + super::MAX_PAUSE, "{name} until {until:?}");
            }
        }
    }
}

#[test]
fn false_reports_leave_sane_limits_and_laws_recover() {
    for name in built_in_laws().map(|law| law.name) {
        let mut run = running(name);
        let expected = run.measure(Span::from_secs(5)).goodput.mul_f64(0.8);
        feed_false_samples(&mut run, name);
        let Some((_, bytes)) = BY_UNIT.iter().find(|(by_unit, _)| *by_unit == name) else {
            run.run_for(Span::from_secs(3));
            let after = run.measure(Span::from_secs(5)).goodput;
            assert!(after >= expected, "{name}: {after} of {expected}");
            continue;
        };
        let sent = run.sent_bytes();
        let back = run.run_until(Span::from_secs(120), |run| run.law.state().rate >= expected);
        let sent_since = run.sent_bytes() - sent;
        assert!(back.is_some() && sent_since <= *bytes, "{name}: {back:?}, {sent_since} bytes");
        assert!(run.measure(Span::from_secs(10)).goodput >= expected, "{name}: {:?}", run.law);
    }
}
