//! Senders' diagnosis of their losses, compared with the truth.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod outages;
mod packets;
mod queues;

use haul_base::{Bytes, Cause, Probability, Rate, Span};
use haul_proto::presets::preset;
use haul_sim::host::scheduler::SleepKind;
use haul_sim::host::{Gro, HostConfig, Load, NicConfig, ReceiverConfig, SimulatedHost, SocketConfig};
use haul_sim::{DropReason, Outage, StageChange};
use haul_stack::Recipe;

use crate::common::Channel;
use crate::senses::{FAIR, O1, Run, host};

const RTT: Span = Span::from_millis(40);
const REASONS: [(DropReason, Cause); 4] = [
    (DropReason::SocketBuffer, Cause::ReceiverHost),
    (DropReason::QueueFull, Cause::Congestion),
    (DropReason::Random, Cause::Random),
    (DropReason::Outage, Cause::Outage),
];

fn recipe(name: &str, set: &[(&str, &str)]) -> Recipe {
    let mut recipe = preset(name).unwrap().unwrap();
    for (key, value) in set {
        haul_proto::micro::registry().set(&mut recipe, &format!("rate_control.{key}"), value).unwrap();
    }
    recipe
}

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

fn channel(mbps: u64) -> Channel {
    Channel { queue: Span::from_millis(20), ..Channel::clean(RTT / 2, Rate::from_mbps(mbps)) }
}

/// A process that runs for 30 ms on average and sleeps for 200 ms on average, repeatedly.
fn bursts() -> Load {
    let (run, wait) = (Span::from_millis(30), Span::from_millis(200));
    Load::SystemCalls { processes: 1, run, wait, sleep: SleepKind::Interruptible }
}

/// Returns the F1 score of losses with `reason` attributed to `cause`.
fn f1(run: &Run, reason: DropReason, cause: Cause) -> f64 {
    let truth = run.lost(reason);
    let diagnosed = run.session.sender(&run.world).stats().lost_by_cause.of(cause);
    2.0 * truth.min(diagnosed) as f64 / (truth + diagnosed).max(1) as f64
}

fn describe(run: &Run) -> String {
    let diagnosed = run.session.sender(&run.world).stats().lost_by_cause;
    let each = |(reason, cause): (DropReason, Cause)| {
        format!("{cause:?} {} of {}", diagnosed.of(cause), run.lost(reason))
    };
    format!(
        "{} (told of true); inconclusive {}",
        REASONS.map(each).join(", "),
        diagnosed.of(Cause::Inconclusive)
    )
}

#[test]
fn losses_are_attributed_to_their_cause() {
    let down = |at: u64, length: u64| Outage {
        at: Span::from_millis(at),
        length: Span::from_millis(length),
        every: None,
    };
    let outages = vec![down(1_000, 400), down(4_000, 1_000)];
    let fixed = [("controller", "fixed"), ("rate", "300Mbit")];
    let over = [("controller", "fixed"), ("rate", "330Mbit")];
    let gentle = [("controller", "reno")];
    let busy = vec![bursts(), bursts()];
    for (name, set, channel, loads, reason, cause) in [
        ("a busy host", &fixed[..], channel(1_000), busy, DropReason::SocketBuffer, Cause::ReceiverHost),
        ("too fast for the path", &over, channel(300), vec![], DropReason::QueueFull, Cause::Congestion),
        (
            "a law that fills the queue",
            &gentle,
            channel(300),
            vec![],
            DropReason::QueueFull,
            Cause::Congestion,
        ),
        (
            "a medium that damages packets",
            &fixed,
            Channel { loss: 0.002, ..channel(1_000) },
            vec![],
            DropReason::Random,
            Cause::Random,
        ),
        (
            "an outage",
            &fixed,
            Channel { outages, ..channel(1_000) },
            vec![],
            DropReason::Outage,
            Cause::Outage,
        ),
    ] {
        let recipe = recipe("bulk", set);
        let buffer = if loads.is_empty() { 4 << 20 } else { 128 << 10 };
        let run =
            Run::over(&recipe, 1 << 40, RTT, &channel, host(FAIR, buffer, loads)).run(Span::from_secs(12));
        println!("{name}: {}", describe(&run));
        assert!(run.lost(reason) > 200, "{name}: {}", describe(&run));
        assert!(f1(&run, reason, cause) >= 0.99, "{name}: {}", describe(&run));
    }
}

/// `bbr` itself builds a queue while it probes, and packets are damaged independently of it. Results of
/// single runs vary by more than 1 % with the times of the probes.
#[test]
fn random_losses_beside_a_standing_queue_are_recognised() {
    const SEEDS: u64 = 8;
    let recipe = recipe("bulk", &[("controller", "bbr")]);
    for loss in [0.001, 0.004] {
        let lossy = Channel { loss, ..channel(200) };
        let one = |seed| {
            let host = host(FAIR, 4 << 20, vec![]);
            let run = Run::seeded(seed, &recipe, 1 << 40, RTT, &lossy, host).run(Span::from_secs(20));
            println!("bbr, {loss}, seed {seed}: {}", describe(&run));
            assert!(run.lost(DropReason::Random) > 200, "{}", describe(&run));
            f1(&run, DropReason::Random, Cause::Random)
        };
        let mean = (1..=SEEDS).map(one).sum::<f64>() / SEEDS as f64;
        assert!(mean >= 0.99, "{loss}: {mean}");
    }
}

/// A transfer of 3 s: during slow start it sends first a few packets without a queue, and then many, with a
/// queue that is briefly full in some runs.
#[test]
fn random_losses_of_a_short_transfer_are_recognised() {
    let recipe = recipe("bulk", &[("controller", "bbr")]);
    let rtt = Span::from_millis(50);
    let lossy = Channel { loss: 0.001, ..Channel::clean(rtt / 2, Rate::from_mbps(1_000)) };
    let mut overflows = 0;
    for seed in 1..=6 {
        let host = host(FAIR, 4 << 20, vec![]);
        let run = Run::seeded(seed, &recipe, 256_000_000, rtt, &lossy, host).run(Span::from_secs(10));
        println!("seed {seed}: {}", describe(&run));
        assert!(run.lost(DropReason::Random) > 100, "{}", describe(&run));
        assert!(f1(&run, DropReason::Random, Cause::Random) >= 0.97, "seed {seed}: {}", describe(&run));
        if run.lost(DropReason::QueueFull) > 0 {
            overflows += 1;
            let diagnosed = f1(&run, DropReason::QueueFull, Cause::Congestion);
            assert!(diagnosed >= 0.95, "seed {seed}: {}", describe(&run));
        }
    }
    assert!(overflows > 0, "no queue was full");
}

/// A network card with few slots, and a kernel that takes 30 us per packet: batches overflow the ring, which
/// no socket counts.
#[test]
fn drops_of_a_full_ring_are_the_hosts() {
    let recipe = recipe("bulk", &[("controller", "fixed"), ("rate", "250Mbit")]);
    let nic = NicConfig { slots: 6, per_packet: Span::from_micros(30), ..NicConfig::default() };
    let template = ReceiverConfig::default();
    let config = HostConfig { scheduler: FAIR, nic, receivers: Vec::new(), loads: Vec::new(), seed: 5 };
    let host = SimulatedHost::new(&config, template);
    let run = Run::over(&recipe, 1 << 40, RTT, &channel(1_000), host).run(Span::from_secs(12));
    let (dropped, diagnosed) =
        (run.lost(DropReason::NicRing), f1(&run, DropReason::NicRing, Cause::ReceiverHost));
    println!("{dropped} of the ring, F1 {diagnosed}: {}", describe(&run));
    assert!(dropped > 200 && run.lost(DropReason::SocketBuffer) == 0, "{}", describe(&run));
    assert!(diagnosed >= 0.99, "{diagnosed}: {}", describe(&run));
}

/// Bursts lost as a whole, as on a radio link, look like a receiver that did not read. Its host counts its
/// drops: none.
#[test]
fn dense_bursts_of_a_medium_are_not_attributed_to_a_host_with_drop_counters() {
    let set = [("controller", "fixed"), ("rate", "700Mbit"), ("max_batch", "4"), ("unit_window", "53MB")];
    for (name, lost, mean_run) in [("fobs", 0.0003, 6.0), ("fobs", 0.002, 6.0), ("bulk", 0.001, 12.0)] {
        let bursty = Channel { burst_loss: Some((lost, mean_run)), ..channel(1_000) };
        let run = Run::over(&recipe(name, &set), 1 << 40, RTT, &bursty, host(FAIR, 4 << 20, vec![]));
        let run = run.run(Span::from_secs(20));
        let (died, diagnosed) =
            (run.lost(DropReason::GilbertElliott), f1(&run, DropReason::GilbertElliott, Cause::Random));
        println!("{name}, {lost}: {died}, F1 {diagnosed}: {}", describe(&run));
        let by_host = run.session.sender(&run.world).stats().lost_by_cause.of(Cause::ReceiverHost);
        assert!(died > 200 && by_host == 0, "{}", describe(&run));
        // Some are not yet detected as lost.
        assert!(diagnosed >= 0.98, "{name}, {lost}: {diagnosed}: {}", describe(&run));
    }
}

/// The kernel counts dropped buffers, but not the number of packets in each.
#[test]
fn losses_of_a_host_with_gro_are_all_attributed_to_it() {
    let recipe = recipe(
        "fobs",
        &[("controller", "fixed"), ("rate", "900Mbit"), ("max_batch", "4"), ("unit_window", "53MB")],
    );
    let nic = NicConfig { gro: Some(Gro::default()), ..NicConfig::default() };
    let socket =
        SocketConfig { requested: Bytes(256 << 10), permitted: Bytes(256 << 10), ..SocketConfig::default() };
    let load = Load::SystemCalls {
        processes: 1,
        run: Span::from_millis(6),
        wait: Span::from_millis(800),
        sleep: SleepKind::Interruptible,
    };
    let template =
        ReceiverConfig { per_packet: Span::from_micros(5), ..ReceiverConfig::packet_by_packet(socket) };
    let config = HostConfig { scheduler: O1, nic, receivers: Vec::new(), loads: vec![load], seed: 5 };
    let host = SimulatedHost::new(&config, template);
    let run = Run::over(&recipe, 1 << 40, RTT, &channel(1_000), host).run(Span::from_secs(20));
    println!("{}", describe(&run));
    assert!(run.lost(DropReason::SocketBuffer) > 200, "{}", describe(&run));
    assert!(f1(&run, DropReason::SocketBuffer, Cause::ReceiverHost) >= 0.998, "{}", describe(&run));
}

/// A socket that is permanently full drops all the time.
#[test]
fn losses_of_a_slow_host_are_all_attributed_to_it() {
    let recipe = recipe("fobs", &[("controller", "fixed"), ("rate", "700Mbit"), ("diagnosis", "kernel")]);
    let socket =
        SocketConfig { requested: Bytes(256 << 10), permitted: Bytes(256 << 10), ..SocketConfig::default() };
    let template =
        ReceiverConfig { per_packet: Span::from_micros(20), ..ReceiverConfig::packet_by_packet(socket) };
    let config = HostConfig {
        scheduler: FAIR,
        nic: NicConfig::default(),
        receivers: Vec::new(),
        loads: Vec::new(),
        seed: 5,
    };
    let host = SimulatedHost::new(&config, template);
    let run = Run::over(&recipe, 1 << 40, RTT, &channel(1_000), host).run(Span::from_secs(12));
    println!("{}", describe(&run));
    assert!(run.lost(DropReason::SocketBuffer) > 10_000, "{}", describe(&run));
    assert!(f1(&run, DropReason::SocketBuffer, Cause::ReceiverHost) >= 0.99, "{}", describe(&run));
}

/// A longer path is not a queue, and a law that keeps a queue still has one on it.
#[test]
fn random_losses_on_a_lengthened_path_are_recognised() {
    let fixed = [("controller", "fixed"), ("rate", "150Mbit")];
    let bbr = [("controller", "bbr")];
    for (set, loss) in [(fixed.as_slice(), 0.001), (bbr.as_slice(), 0.001)] {
        let lossy = Channel { loss, ..channel(200) };
        let mut run = Run::over(&recipe("bulk", set), 1 << 40, RTT, &lossy, host(FAIR, 4 << 20, vec![]));
        run.change(Span::from_secs(4), "delay", StageChange::Delay(RTT));
        let run = run.run(Span::from_secs(40));
        println!("{set:?}: {}", describe(&run));
        assert!(run.lost(DropReason::Random) > 400, "{}", describe(&run));
        assert!(f1(&run, DropReason::Random, Cause::Random) >= 0.99, "{set:?}: {}", describe(&run));
    }
}

/// Cross traffic floods a short queue for 2 ms of every 100 ms.
#[test]
fn dense_bursts_dropped_by_a_short_queue_are_congestion() {
    let recipe = recipe("bulk", &[("controller", "fixed"), ("rate", "300Mbit")]);
    let short = Channel { queue: Span::from_millis(4), ..channel(400) };
    let mut run = Run::over(&recipe, 1 << 40, RTT, &short, host(FAIR, 4 << 20, vec![]));
    run.cross_traffic(Rate::from_mbps(2_000), Span::from_millis(2), Span::from_millis(98));
    let run = run.run(Span::from_secs(20));
    println!("bursts: {}", describe(&run));
    assert!(run.lost(DropReason::QueueFull) > 200, "{}", describe(&run));
    assert!(f1(&run, DropReason::QueueFull, Cause::Congestion) >= 0.99, "{}", describe(&run));
}
