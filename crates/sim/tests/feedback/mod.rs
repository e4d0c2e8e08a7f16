//! Feedback over UDP and over the control channel, which is TCP: a lost packet holds up all reports behind it.

use haul_base::{Probability, Rate, Span, Time};
use haul_proto::presets::preset;
use haul_sim::{ChannelSpec, World};

use crate::common::{Channel, Session};

const RTT: Span = Span::from_millis(50);
/// As TCP has it without other packets behind the lost one: the least timeout of RFC 6298 as Linux has it, and a round trip.
const RECOVERY: Span = Span::from_millis(250);

/// What a transfer came to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    seconds: f64,
    sent: u64,
}

/// 100 MB at 180 of 200 Mbit/s. `changes` are made to the preset.
fn outcome(name: &str, changes: &[(&str, &str)], loss: f64) -> Outcome {
    let mut recipe = preset(name).unwrap().unwrap();
    recipe.set("rate_control.rate", "180Mbit").unwrap();
    changes.iter().for_each(|(key, value)| recipe.set(key, value).unwrap());
    let mut world = World::new(7);
    let session = Session::of_recipe(&mut world, &recipe, 100_000_000, RTT);
    let path = Channel { loss, ..Channel::clean(RTT / 2, Rate::from_mbps(200)) }.spec();
    let links = ["there", "back"].map(|way| world.add_link(way, &path).unwrap());
    let ends = (session.sender, session.receiver);
    world.connect_pair("data", ends, &links[..1], &links[1..]).unwrap();
    let spec = ChannelSpec { delay: RTT / 2, loss: Probability::new(loss).unwrap(), recovery: RECOVERY };
    world.open_channel(ends.0, ends.1, spec).unwrap();
    world.run_while(Time::ZERO + Span::from_secs(300), |world| !session.is_over(world));
    session.assert_whole(&world);
    let seconds = session.delivered_at(&world).unwrap().since(Time::ZERO).as_secs_f64();
    Outcome { seconds, sent: session.sender(&world).stats().packets }
}

/// A loss on the way back costs nothing over UDP; on the control channel the sender learns later of what is missing, and sends no
/// more because of that.
#[test]
fn reports_on_the_control_channel_come_late_where_packets_are_lost_and_everything_comes_either_way() {
    for name in ["fobs", "fobs-state", "rbudp", "rapid+", "asynch"] {
        for loss in [0.0, 0.001, 0.02] {
            let over = |over| outcome(name, &[("bitmap_ack.over", over)], loss);
            let (udp, control) = (over("udp"), over("control"));
            println!(
                "TABLE {name}, loss {loss}: UDP {:.2} s, {} packets; control {:.2} s, {} packets",
                udp.seconds, udp.sent, control.seconds, control.sent
            );
            assert!(control.seconds > udp.seconds * 0.97, "{name} at {loss}: {udp:?} {control:?}");
            if loss == 0.0 {
                assert!(control.seconds < udp.seconds * 1.03, "{name}: {udp:?} {control:?}");
            }
        }
    }
}

#[test]
fn each_feedback_of_a_law_is_measured_by_itself() {
    for law in ["asynch", "cubic"] {
        for when in ["interval", "law", "segment", "chunk", "round"] {
            let probe = if matches!(when, "interval" | "law") { "true" } else { "false" };
            let changes = [
                ("rate_control.controller", law),
                ("bitmap_ack.when", when),
                ("object.chunk", "20MB"),
                ("retransmit.probe", probe),
            ];
            let told = outcome("bulk", &changes, 0.001);
            println!("TABLE {law}, {when}: {:.2} s, {} packets", told.seconds, told.sent);
        }
    }
}

#[test]
fn the_order_of_a_channel_holds_and_equal_seeds_give_equal_runs() {
    let run = || outcome("rbudp", &[("bitmap_ack.over", "control")], 0.01);
    let (one, other) = (run(), run());
    assert_eq!((one.seconds.to_bits(), one.sent), (other.seconds.to_bits(), other.sent));
}
