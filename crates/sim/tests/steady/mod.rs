//! Window-based laws in the whole transport with the reports of `bulk`: their windows match those derived in
//! the sources. The unit tests of each law check exact values, with immediate reports.

#[cfg(test)]
mod each_nth;
#[cfg(test)]
mod periodic;
#[cfg(test)]
mod queues;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod windows;

use haul_base::{Rate, Span, Time};

use crate::common::{Channel, Run};

/// Returns the packets per round trip, averaged over some runs.
fn packets_in_flight(law: &str, loss: f64, rtt: Span, seconds: u64) -> f64 {
    let clear = Channel::clean(rtt / 2, Rate::from_mbps(400));
    let channel = Channel { loss, ..clear.clone() };
    let runs = [3, 5, 8, 13].map(|seed| {
        let mut run = Run::new(seed, u64::MAX >> 20, law, None, &channel, &clear);
        let skipped = Span::from_secs(seconds / 4);
        let mut acked = |until| {
            run.world.run_until(Time::ZERO + until);
            run.sent().acked
        };
        let before = acked(skipped);
        let packets = acked(Span::from_secs(seconds)) - before;
        packets as f64 / (Span::from_secs(seconds).saturating_sub(skipped).as_secs_f64() / rtt.as_secs_f64())
    });
    runs.iter().sum::<f64>() / runs.len() as f64
}

#[test]
fn windows_match_their_sources_derivation_with_any_reports() {
    let (short, long) = (Span::from_millis(40), Span::from_millis(100));
    // Reno: RFC 5681 and Mathis' formula; CUBIC in its Reno-friendly region (RFC 9438, section 4.3); Scalable
    // TCP: its paper.
    let reno = |p: f64| (1.5 / p).sqrt();
    // LEDBAT++ below its target, at 40 ms: 1/3 packet per round trip, and 10 % of the time for slowdowns.
    let ledbat = |p: f64| 0.9 * (0.5 / p).sqrt();
    // RFC 3649, section 5, and RFC 5348, section 3.1, with a timeout of four round trips.
    let highspeed = |p: f64| 0.12 / p.powf(0.835);
    let tfrc =
        |p: f64| 1.0 / ((2.0 * p / 3.0).sqrt() + 12.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p));
    for (law, loss, rtt, expected) in [
        ("reno", 0.001, short, reno(0.001)),
        ("reno", 0.0004, long, reno(0.0004)),
        ("reno", 0.0001, long, reno(0.0001)),
        ("cubic", 0.001, short, reno(0.001)),
        ("scalable", 0.001, short, 0.075 / 0.001),
        ("ledbat_plus_plus", 0.001, short, ledbat(0.001)),
        ("highspeed", 0.0005, short, highspeed(0.0005)),
        ("tfrc", 0.001, short, tfrc(0.001)),
    ] {
        let found = packets_in_flight(law, loss, rtt, 120);
        println!("{law}, {loss}, {rtt}: {found:.1} of {expected:.1} packets");
        assert!(
            (0.8..1.25).contains(&(found / expected)),
            "{law}, {loss}, {rtt}: {found:.1} of {expected:.1} packets"
        );
    }
}
