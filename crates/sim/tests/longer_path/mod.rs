//! Laws that estimate the queue from the round-trip time must not mistake a longer path for a queue, nor
//! others' queue for a longer path.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{Rate, Span};
use haul_proto::presets::preset;
use haul_sim::SessionNode;
use haul_sim::tcp::{BbrConfig, ControlKind, CubicConfig, TcpSender};

use crate::common::{Channel, Run};
use crate::moving::add_tcp;

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

fn path(mbps: u64, rtt: u64, queue: u64) -> Channel {
    Channel { queue: ms(queue), ..Channel::clean(ms(rtt) / 2, Rate::from_mbps(mbps)) }
}

/// Returns the share of the path in the last 30 s of a flow that was alone until a TCP flow started at 10 s.
fn beside_tcp(longer_path: &str, control: ControlKind, (mbps, rtt, queue): (u64, u64, u64)) -> f64 {
    let path = path(mbps, rtt, queue);
    let mut recipe = preset("bulk").unwrap().unwrap();
    haul_proto::micro::registry().set(&mut recipe, "rate_control.controller", "ledbat_plus_plus").unwrap();
    haul_proto::micro::registry().set(&mut recipe, "rate_control.longer_path", longer_path).unwrap();
    let mut run = Run::of_recipe(17, &recipe, 4 << 30, &path);
    run.run(ms(10_000));
    let tcp = add_tcp(&mut run.world, control, run.forward, run.back);
    let mut received = |until: u64| {
        run.run(ms(until));
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(30_000);
    let share = (received(60_000) - before) as f64 * 8.0 / 30.0 / (mbps as f64 * 1e6);
    assert!(run.world.node::<SessionNode<TcpSender>>(tcp).unwrap().machine().stats().delivered > 0);
    share
}

#[test]
fn ledbat_yields_to_a_new_tcp_flow_despite_longer_path_detection() {
    for where_ in [(5, 20, 200), (5, 100, 400), (20, 20, 100), (20, 50, 300), (100, 20, 100), (100, 50, 200)]
    {
        for (name, control) in [
            ("CUBIC", ControlKind::Cubic(CubicConfig::default())),
            ("Reno", ControlKind::Reno),
            ("BBR", ControlKind::Bbr(BbrConfig::default())),
        ] {
            let [with, without] =
                ["true", "false"].map(|longer_path| beside_tcp(longer_path, control, where_));
            println!("TABLE {where_:?}, {name}: {with:.3}, {without:.3} without");
            assert!(with <= without + 0.05, "{where_:?}, {name}: {with:.3}, {without:.3} without");
        }
    }
}
