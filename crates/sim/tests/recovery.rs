//! Time for the default law to fill a path whose round-trip time has grown tenfold.
//! `cargo test -p haul-sim --test recovery -- --nocapture` prints the table.

#[expect(dead_code, reason = "other tests use more of it")]
mod common;
mod late_feedback;

use common::{Channel, Run};
use haul_base::{Rate, Span, Time};
use haul_sim::{StageChange, StageRef};

/// Minimum share of the path's capacity after ten round trips.
const GOOD: f64 = 0.8;
/// Object bytes in a packet of 1,500 bytes.
const OBJECT_BYTES: f64 = 1_433.0;

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// Returns the share of `mbps` in round trips 10 to 15 after the round-trip time of `rtt` ms has grown
/// tenfold, `at` ms after the start.
fn share_of_longer_path(mbps: u64, rtt: u64, at: u64) -> f64 {
    let path = Channel { queue: ms(rtt), ..Channel::clean(ms(rtt) / 2, Rate::from_mbps(mbps)) };
    let mut run = Run::new(1, 8 << 30, "bbr", None, &path, &path);
    let links = [run.forward, run.back];
    run.world.at(Time::ZERO + ms(at), move |world| {
        let longer = StageChange::Delay(ms(rtt) * 5);
        for link in links {
            world.change_link(link, &StageRef::Name("delay".into()), &longer).expect("a path has a delay");
        }
    });
    let mut received = |until: u64| {
        run.run(ms(until));
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(at + 100 * rtt);
    let arrived = (received(at + 150 * rtt) - before) as f64;
    arrived / OBJECT_BYTES * 1_500.0 * 8.0 / (mbps as f64 * 1e3 * (50 * rtt) as f64)
}

#[test]
fn a_tenfold_path_is_filled_within_ten_round_trips_in_any_phase() {
    let mut missed = Vec::new();
    for (mbps, rtt, moments) in [
        (100, 50, &[10_000, 10_400, 11_600, 14_000][..]),
        (500, 50, &[10_000]),
        (100, 100, &[10_000]),
        // At 13,600 ms, just after a bandwidth probe with too many losses: its queue drains while the path
        // grows.
        (20, 100, &[10_000, 10_400, 11_600, 12_000, 13_600, 13_800]),
    ] {
        for &at in moments {
            let share = share_of_longer_path(mbps, rtt, at);
            println!("TABLE {mbps} Mbit/s, {rtt} to {} ms at {at} ms: {share:.2}", 10 * rtt);
            if share < GOOD {
                missed.push((mbps, rtt, at, share));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
