//! Reports fit the reverse path: few per data packet, and without a queue on a narrow path.

mod table;

use haul_base::{Rate, Span};

use crate::common::{Channel, Run};

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// Starts an object of about `seconds` on a path of `forth` and `back` with a round-trip time of 40 ms, and
/// tail-drop queues of 100 ms forth and 2 s back.
fn start(seed: u64, law: &str, (forth, back): (Rate, Rate), loss: f64, seconds: f64) -> Run {
    let forward = Channel { loss, queue: ms(100), ..Channel::clean(ms(20), forth) };
    let back = Channel { queue: ms(2_000), ..Channel::clean(ms(20), back) };
    let len = (forth.as_bps() as f64 / 8.0 * seconds) as u64;
    Run::new(seed, len, law, None, &forward, &back)
}

/// Returns the number of reports per data packet.
fn share(run: &Run) -> f64 {
    run.session.receiver(&run.world).stats().feedback_sent as f64 / run.sent().packets as f64
}

/// Returns the object's Mbit/s from the 10th to the 20th second.
fn goodput(law: &str, rates: (Rate, Rate), loss: f64) -> f64 {
    let mut run = start(3, law, rates, loss, 30.0);
    let mut received = |until: u64| {
        run.run(Span::from_secs(until));
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(10);
    (received(20) - before) as f64 * 8.0 / 10.0 / 1e6
}

/// The default law, and the previous default.
const LAWS: [&str; 2] = ["bbr", "delivery"];

#[test]
fn a_reverse_path_of_one_three_hundredth_suffices() {
    for (forth, back, loss) in [
        (Rate::from_mbps(20), Rate::from_bps(64_000), 0.0),
        (Rate::from_mbps(200), Rate::from_mbps(1), 0.005),
        (Rate::from_mbps(200), Rate::from_mbps(1), 0.0),
    ] {
        for law in LAWS {
            let goodput = goodput(law, (forth, back), loss);
            println!("TABLE {law}: {forth} forth, {back} back, loss {loss}: {goodput:.1} Mbit/s");
            let share = goodput * 1e6 / forth.as_bps() as f64;
            assert!(share > 0.9, "{law}: {forth} forth, {back} back, loss {loss}: {goodput} Mbit/s");
        }
    }
}

#[test]
fn reports_are_at_most_one_percent_of_the_packets_above_100_mbit_and_two_below() {
    for (mbps, loss, most) in
        [(20, 0.0, 0.02), (20, 0.01, 0.02), (100, 0.0, 0.01), (200, 0.0, 0.01), (200, 0.01, 0.01)]
    {
        for law in LAWS {
            let rate = Rate::from_mbps(mbps);
            let mut run = start(5, law, (rate, rate), loss, 30.0);
            run.run(Span::from_secs(120));
            run.assert_complete();
            let (share, goodput) = (share(&run), run.session.goodput(&run.world));
            println!("TABLE {law}: {rate}, loss {loss}: {share:.4}, {goodput:.1} Mbit/s");
            assert!(share <= most, "{law}: {rate}, loss {loss}: {share}");
        }
    }
}
