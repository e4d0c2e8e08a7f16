//! Feedback over UDP and over the control channel (TCP), where a lost packet delays all later reports.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{Probability, Rate, Span, Time};
use haul_proto::presets::preset;
use haul_sim::{ChannelSpec, World};

use crate::common::{Channel, Session};

const RTT: Span = Span::from_millis(50);
/// Recovery time of TCP without packets after the lost one: the minimum timeout of RFC 6298 as in Linux, and
/// a round trip.
const RECOVERY: Span = Span::from_millis(250);

/// Result of a transfer.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    seconds: f64,
    sent: u64,
}

/// Transfers `len` bytes at 180 Mbit/s over 200 Mbit/s, with `changes` to the preset.
fn outcome(seed: u64, (name, changes): (&str, &[(&str, &str)]), len: u64, loss: f64) -> Outcome {
    let mut recipe = preset(name).unwrap().unwrap();
    haul_proto::micro::registry().set(&mut recipe, "rate_control.rate", "180Mbit").unwrap();
    for (key, value) in changes {
        haul_proto::micro::registry().set(&mut recipe, key, value).unwrap();
    }
    let mut world = World::new(seed);
    let session = Session::of_recipe(&mut world, &recipe, len, RTT);
    let path = Channel { loss, ..Channel::clean(RTT / 2, Rate::from_mbps(200)) }.spec();
    let links = ["there", "back"].map(|way| world.add_link(way, &path).unwrap());
    let ends = (session.sender, session.receiver);
    world.connect_pair("data", ends, &links[..1], &links[1..]).unwrap();
    let spec = ChannelSpec { delay: RTT / 2, loss: Probability::new(loss).unwrap(), recovery: RECOVERY };
    world.open_channel(ends.0, ends.1, spec).unwrap();
    world.run_while(Time::ZERO + Span::from_secs(600), |world| !session.is_over(world));
    session.assert_complete(&world);
    let seconds = session.delivered_at(&world).unwrap().since(Time::ZERO).as_secs_f64();
    Outcome { seconds, sent: session.sender(&world).stats().packets }
}

/// Returns the mean of five runs of 30 MB.
fn mean(preset: (&str, &[(&str, &str)]), loss: f64) -> Outcome {
    let runs = (1..=5).map(|seed| outcome(seed, preset, 30_000_000, loss));
    let sum = runs.fold(Outcome::default(), |sum, run| Outcome {
        seconds: sum.seconds + run.seconds,
        sent: sum.sent + run.sent,
    });
    Outcome { seconds: sum.seconds / 5.0, sent: sum.sent / 5 }
}

/// Without losses, the channel is as good as UDP; with losses it depends on the packets lost, but the
/// transfer completes.
#[test]
fn reports_on_the_control_channel_deliver_everything_without_delay() {
    for name in ["fobs", "fobs-state", "rbudp", "rapid+"] {
        for loss in [0.0, 0.001, 0.02] {
            let over = |over| mean((name, &[("bitmap_ack.over", over)]), loss);
            let (udp, control) = (over("udp"), over("control"));
            println!("TABLE {name}, loss {loss}: UDP {udp:?}; control {control:?}");
            let ratio = control.seconds / udp.seconds;
            assert!(loss > 0.0 || (ratio - 1.0).abs() < 0.03, "{name}: {udp:?} {control:?}");
        }
    }
}

/// The rate of a law without a window does not depend on the times of reports; a law with a window waits for
/// each.
#[test]
fn every_report_mode_delivers_everything_and_rate_laws_keep_their_rate() {
    let run = |law: &str, when: &str, len| {
        let probe = if matches!(when, "interval" | "law") { "true" } else { "false" };
        let changes = [
            ("rate_control.controller", law),
            ("bitmap_ack.when", when),
            ("object.chunk", "20MB"),
            ("retransmit.probe", probe),
        ];
        let outcome_of_run = outcome(7, ("bulk", &changes), len, 0.001);
        println!("TABLE {law}, {when}: {outcome_of_run:?}");
        outcome_of_run.seconds
    };
    let whens = ["interval", "law", "segment", "chunk", "round"];
    let rates = whens.map(|when| run("asynch", when, 100_000_000));
    assert!(rates.iter().all(|seconds| (seconds / rates[0] - 1.0).abs() < 0.05), "{rates:?}");
    // As in FOBS: a report for each unit that the law evaluates.
    for (law, unit) in [("state_based", "segment"), ("non_aggressive", "chunk")] {
        let [often, rare] = ["interval", unit].map(|when| run(law, when, 100_000_000));
        assert!(rare < often * 1.05, "{law}: {often} s and {rare} s");
    }
    for when in whens {
        run("cubic", when, 10_000_000);
    }
}

#[test]
fn a_channel_is_ordered_and_equal_seeds_give_equal_runs() {
    let run = || outcome(3, ("rbudp", &[("bitmap_ack.over", "control")]), 30_000_000, 0.01);
    let (one, other) = (run(), run());
    assert_eq!((one.seconds.to_bits(), one.sent), (other.seconds.to_bits(), other.sent));
}
