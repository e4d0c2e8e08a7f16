//! Outages, beside a queue that is full before and after.

use haul_base::{Cause, Span};
use haul_sim::Outage;

use super::packets::RecordedWindows;
use super::{channel, host, recipe};
use crate::common::Channel;
use crate::senses::{FAIR, Run};

/// F1 scores by packets of the outage and of the queue, for a transfer over 30 Mbit/s and a queue of 20 ms,
/// with an outage of `millis` at 4 s.
fn diagnosed(law: &str, rtt: Span, millis: u64) -> [f64; 2] {
    let down = Outage { at: Span::from_secs(4), length: Span::from_millis(millis), every: None };
    let channel = Channel { delay: rtt / 2, outages: vec![down], ..channel(30) };
    let rate = if law == "fixed" { "31Mbit" } else { "1Gbit" };
    let recipe = recipe("bulk", &[("controller", law), ("rate", rate), ("unit_window", "10MB")]);
    let mut run = Run::over(&recipe, 1 << 40, rtt, &channel, host(FAIR, 4 << 20, vec![]));
    let recorded = RecordedWindows::new(&mut run);
    run.run(Span::from_secs(20));
    println!("{law}, {rtt}, {millis} ms");
    [Cause::Outage, Cause::Congestion].map(|cause| recorded.f1(cause))
}

/// A packet too large for the path is sent in parts, of which the sender knows one number: after some
/// timeouts it assumes a path with a small MTU. Laws that keep sending during silence lose far more in the
/// outage than in the queue, so that some of these losses are misattributed.
#[test]
fn outages_are_recognised_with_any_law_and_full_queues_are_not_outages() {
    let windows = ["reno", "cubic", "highspeed", "scalable", "bbr", "tfrc", "delivery"];
    let sending_on = ["fixed", "sabul"];
    let mut wrong = Vec::new();
    for law in windows.into_iter().chain(sending_on) {
        for (rtt, millis) in [(10, 200), (40, 500), (40, 2_000), (100, 8_000)] {
            let [outage, queue] = diagnosed(law, Span::from_millis(rtt), millis);
            let least = if millis <= 500 { 0.99 } else { 0.97 };
            let least_of_queue = if sending_on.contains(&law) { 0.85 } else { 0.98 };
            if outage < least || queue < least_of_queue {
                wrong.push(format!("{law}, {rtt} ms, {millis} ms down: {outage:.4}, queue {queue:.4}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
