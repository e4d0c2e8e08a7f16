//! Stages compared with theory; `cargo test -p haul-sim --test theory -- --nocapture` prints the figures of
//! docs/simulator.md.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use haul_base::{Bytes, Ecn, Probability, Rate, Rng, Span, Time};
use haul_sim::{
    AboveMaximum, BottleneckSpec, CodelSpec, Distribution, DropReason, Exit, FlowId, GilbertElliottSpec,
    JitterSpec, Limit, Order, PacketInfo, Parcel, Path, PathSpec, QueueSpec, RedSpec, Signal, StageSpec,
};

/// 1,250 bytes at 100 Mbit/s: 100 us.
const RATE: Rate = Rate::from_mbps(100);
const PACKET: u32 = 1_250;
const SERVICE_US: f64 = 100.0;

fn packet(id: u64) -> PacketInfo {
    PacketInfo { id, flow: FlowId(0), bytes: PACKET, ecn: Ecn::NotEct }
}

fn bottleneck(queue: QueueSpec) -> StageSpec {
    StageSpec::Bottleneck(BottleneckSpec { rate: RATE, queue })
}

fn path(seed: u64, stages: Vec<StageSpec>) -> Path {
    println!("seed {seed}");
    Path::new(&PathSpec { stages }, seed).unwrap()
}

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// Offers Poisson arrivals with load `rho`. Returns the waiting time of each delivered packet, microseconds,
/// and the actual load.
fn poisson(path: &mut Path, rho: f64, packets: u64) -> (Vec<f64>, f64) {
    let gap = Distribution::Exponential(Span::from_secs_f64(SERVICE_US / rho / 1e6));
    let mut rng = Rng::from_seed(99);
    let (mut now, mut arrivals, mut waits) = (Time::ZERO, Vec::new(), Vec::new());
    let load = |end: Time| packets as f64 * SERVICE_US * 1e3 / end.as_nanos() as f64;
    let mut take = |at: Time, parcel: &Parcel, exit: Exit, arrivals: &[Time]| {
        if exit == Exit::Delivered {
            let sojourn = at.since(arrivals[parcel.id() as usize]);
            waits.push(sojourn.as_nanos() as f64 / 1e3 - SERVICE_US);
        }
    };
    for id in 0..packets {
        now += gap.draw(&mut rng);
        arrivals.push(now);
        path.offer(now, packet(id));
        path.advance(now, &mut |at, parcel, exit| take(at, parcel, exit, &arrivals));
    }
    while let Some(next) = path.next_event() {
        path.advance(next, &mut |at, parcel, exit| take(at, parcel, exit, &arrivals));
    }
    (waits, load(now))
}

/// Returns the mean and its standard error, from the means of 50 batches: adjacent values are not
/// independent.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let size = values.len() / 50;
    let means: Vec<f64> = values.chunks_exact(size).map(|c| c.iter().sum::<f64>() / size as f64).collect();
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (means.len() - 1) as f64;
    (mean, (variance / means.len() as f64).sqrt())
}

#[test]
fn md1_waiting_times_match_pollaczek_and_khinchine() {
    for rho in [0.3, 0.5, 0.7, 0.8, 0.9] {
        let mut path = path(1, vec![bottleneck(QueueSpec::TailDrop(Limit::Packets(1_000_000)))]);
        let (waits, _) = poisson(&mut path, rho, 2_000_000);
        let (mean, error) = mean_and_error(&waits[100_000..]);
        let theory = rho * SERVICE_US / (2.0 * (1.0 - rho));
        println!("M/D/1, load {rho}: mean wait {mean:.2} +- {error:.2} us, theory {theory:.2} us");
        // 3.3 standard errors: exceeded with a probability of 0.1 %.
        assert!((mean - theory).abs() < 3.3 * error, "{mean} {theory} {error}");
        assert!(error < 0.02 * theory);
    }
}

#[test]
fn an_overflowing_queue_loses_the_excess() {
    for rho in [1.1, 1.5, 2.0, 4.0] {
        let mut path = path(2, vec![bottleneck(QueueSpec::TailDrop(Limit::Packets(100)))]);
        let (_, load) = poisson(&mut path, rho, 500_000);
        let counters = path.counters();
        let lost = counters.drops.of(DropReason::QueueFull) as f64 / counters.offered as f64;
        let theory = 1.0 - 1.0 / load;
        println!("tail drop, load {load:.4}: loss {lost:.5}, theory {theory:.5}");
        // The final queue was not sent within the time, and the link was briefly idle at the start and near
        // load 1.
        assert!((lost - theory).abs() < 0.001, "{lost} {theory}");
        assert!(counters.adds_up() && counters.inside == 0);
    }
}

#[test]
fn gilbert_elliott_runs_are_geometric() {
    for (to_bad, to_good) in [(0.001, 0.2), (0.01, 0.5), (0.02, 0.1)] {
        let spec = GilbertElliottSpec {
            to_bad: share(to_bad),
            to_good: share(to_good),
            loss_good: Probability::ZERO,
            loss_bad: share(1.0),
        };
        let mut path = path(3, vec![StageSpec::GilbertElliott(spec)]);
        let packets = 4_000_000u64;
        let (mut run, mut runs, mut lost) = (0usize, Vec::new(), 0u64);
        for id in 0..packets {
            path.offer(Time::from_nanos(id), packet(id));
            path.advance(Time::from_nanos(id), &mut |_, _, exit| match exit {
                Exit::Dropped(_) => (run, lost) = (run + 1, lost + 1),
                _ if run > 0 => runs.push(std::mem::take(&mut run)),
                _ => {}
            });
        }
        let mean = runs.iter().sum::<usize>() as f64 / runs.len() as f64;
        let loss = lost as f64 / packets as f64;
        let expected = to_bad / (to_bad + to_good);
        let run_error = (1.0 - to_good).sqrt() / to_good / (runs.len() as f64).sqrt();
        println!(
            "Gilbert-Elliott {to_bad}/{to_good}: loss {loss:.5}, theory {expected:.5}; mean run {mean:.3}, theory {:.3}",
            1.0 / to_good
        );
        assert!((mean - 1.0 / to_good).abs() < 4.0 * run_error, "{mean}");
        // Losses come in runs: the share varies with the number and lengths of runs.
        let share_error = expected * ((2.0 - to_good) / runs.len() as f64).sqrt();
        assert!((loss - expected).abs() < 4.0 * share_error, "{loss} {expected}");
        assert!(chi_square(&runs, to_good) < 32.9, "not geometric: {}", chi_square(&runs, to_good));
    }
}

/// Returns the chi-square of run lengths 1..=11 and longer against the geometric distribution: 11 degrees of
/// freedom; 32.9 is exceeded with a probability of 0.05 %.
fn chi_square(runs: &[usize], p: f64) -> f64 {
    let total = runs.len() as f64;
    let mut rest = total;
    let mut sum = 0.0;
    let mut longer = total;
    for length in 1..=12usize {
        let expected = if length == 12 { rest } else { longer * p };
        longer *= 1.0 - p;
        rest -= expected;
        let hits = |run: &&usize| if length == 12 { **run >= 12 } else { **run == length };
        let seen = runs.iter().filter(hits).count() as f64;
        if expected > 5.0 {
            sum += (seen - expected).powi(2) / expected;
        }
    }
    sum
}

/// Keeps a RED queue at `level` bytes for `packets` packets. Returns the share of dropped offers.
fn red_loss(level: u64, above_max: AboveMaximum, packets: u64) -> f64 {
    let red = RedSpec {
        min: Bytes(25_000),
        max: Bytes(75_000),
        probability: share(0.1),
        weight: 0.002,
        limit: Limit::Bytes(Bytes(1_000_000)),
        above_max,
        signal: Signal::Drop,
    };
    let mut path = path(4, vec![bottleneck(QueueSpec::Red(red))]);
    let (mut offered, mut dropped, mut id) = (0u64, 0u64, 0);
    for step in 0..packets {
        let now = Time::ZERO + Span::from_micros(100) * step;
        path.advance(now, &mut |_, _, _| {});
        // Drops before the average has settled are not counted.
        let counts = step > packets / 10;
        for _ in 0..1_000 {
            let queued = path.standing_queue(now).unwrap().bytes;
            if queued + u64::from(PACKET) > level {
                break;
            }
            path.offer(now, packet(id));
            id += 1;
            let has_grown = path.standing_queue(now).unwrap().bytes > queued;
            offered += u64::from(counts);
            dropped += u64::from(counts && !has_grown);
        }
    }
    dropped as f64 / offered as f64
}

#[test]
fn red_drops_nothing_below_its_thresholds_and_the_correct_share_between() {
    assert!(red_loss(22_500, AboveMaximum::Gentle, 100_000) == 0.0);
    for level in [37_500, 50_000, 62_500] {
        let measured = red_loss(level, AboveMaximum::Gentle, 400_000);
        // The average settles at the queue length at arrivals, which is one packet less.
        let average = (level - u64::from(PACKET)) as f64;
        let raw = 0.1 * (average - 25_000.0) / 50_000.0;
        // Intervals between drops are uniform on 1..1/raw (Floyd and Jacobson, section 7).
        let theory = 2.0 * raw / (1.0 + raw);
        println!("RED at {level} bytes: drops {measured:.4}, theory {theory:.4}");
        assert!((measured / theory - 1.0).abs() < 0.05, "{measured} {theory}");
    }
    assert!(red_loss(100_000, AboveMaximum::Drop, 100_000) > 0.1, "all while the average is above");
}

/// A window of packets that grows by one per round trip and halves on a loss.
struct Window {
    size: f64,
    in_flight: u64,
    halved: Time,
}

/// Runs `flows` such windows over `queue` and 20 ms. Returns the waiting times in the second half,
/// milliseconds, and the utilisation of the link.
fn additive_increase(queue: QueueSpec, flows: usize, seconds: u64) -> (Vec<f64>, f64) {
    let mut path = path(5, vec![bottleneck(queue), StageSpec::Delay(Span::from_millis(20))]);
    let start = || Window { size: 10.0, in_flight: 0, halved: Time::ZERO };
    let mut windows: Vec<Window> = std::iter::repeat_with(start).take(flows).collect();
    let (mut now, mut sent, mut waits, mut out) = (Time::ZERO, Vec::new(), Vec::new(), Vec::new());
    while now < Time::ZERO + Span::from_secs(seconds) {
        for (flow, window) in windows.iter_mut().enumerate() {
            while (window.in_flight as f64) < window.size {
                path.offer(now, packet(sent.len() as u64));
                sent.push((now, flow));
                window.in_flight += 1;
            }
        }
        let Some(next) = path.next_event() else { break };
        now = next;
        path.advance(now, &mut |at, parcel, exit| out.push((at, parcel.id(), exit)));
        for (at, id, exit) in out.drain(..) {
            let (sent_at, flow) = sent[id as usize];
            let window = &mut windows[flow];
            window.in_flight -= 1;
            if exit == Exit::Delivered {
                window.size += 1.0 / window.size;
                let wait = at.since(sent_at).as_millis_f64() - 20.0 - SERVICE_US / 1e3;
                if at > Time::ZERO + Span::from_secs(seconds / 2) {
                    waits.push(wait);
                }
            } else if at.since(window.halved) > Span::from_millis(25) {
                window.size = (window.size / 2.0).max(2.0);
                window.halved = at;
            }
        }
    }
    let used = path.counters().delivered as f64 * SERVICE_US / 1e6 / seconds as f64;
    (waits, used)
}

#[test]
fn codel_keeps_the_waiting_time_near_its_target() {
    let limit = Limit::Packets(1_000);
    let codel = CodelSpec {
        target: Span::from_millis(5),
        interval: Span::from_millis(100),
        limit,
        signal: Signal::Drop,
    };
    let (mut waits, used) = additive_increase(QueueSpec::Codel(codel), 8, 60);
    let (tail, _) = additive_increase(QueueSpec::TailDrop(limit), 8, 60);
    waits.sort_by(f64::total_cmp);
    let median = waits[waits.len() / 2];
    let most = waits[waits.len() * 99 / 100];
    let tail_mean = tail.iter().sum::<f64>() / tail.len() as f64;
    println!(
        "CoDel with target 5 ms: median wait {median:.2} ms, 99 % below {most:.2} ms, link used {used:.3}; tail drop: mean {tail_mean:.2} ms"
    );
    assert!((1.0..7.5).contains(&median) && most < 15.0, "{median} {most}");
    assert!(used > 0.9, "{used}");
    assert!(tail_mean > 30.0, "{tail_mean}");
}

#[test]
fn codel_controls_an_unresponsive_flow() {
    let codel = CodelSpec {
        target: Span::from_millis(5),
        interval: Span::from_millis(100),
        limit: Limit::Packets(100_000),
        signal: Signal::Drop,
    };
    let mut path = path(6, vec![bottleneck(QueueSpec::Codel(codel))]);
    // A load of 1.02 for 60 s: it requires 200 drops per second, which needs count = 400.
    let (waits, _) = poisson(&mut path, 1.02, 612_000);
    let last = &waits[waits.len() * 9 / 10..];
    let mean = last.iter().sum::<f64>() / last.len() as f64 / 1e3;
    let lost = path.counters().drops.of(DropReason::Codel) as f64 / path.counters().offered as f64;
    println!("CoDel, unresponsive load of 1.02: wait {mean:.2} ms at the end, loss {lost:.4}");
    assert!((1.0..20.0).contains(&mean), "{mean}");
    assert!((lost - (1.0 - 1.0 / 1.02)).abs() < 0.003, "{lost}");
}

#[test]
fn random_loss_and_jitter_have_the_right_means() {
    let packets = 1_000_000u64;
    for p in [0.0001, 0.001, 0.01, 0.1] {
        let mut path = path(7, vec![StageSpec::Loss(share(p))]);
        for id in 0..packets / 50 {
            path.offer_batch(Time::from_nanos(id), Parcel::batch(packet(id), 50, PACKET).unwrap());
        }
        let lost = path.counters().drops.of(DropReason::Random) as f64;
        let deviation = (packets as f64 * p * (1.0 - p)).sqrt();
        println!("random loss {p}: {:.6}", lost / packets as f64);
        assert!((lost - packets as f64 * p).abs() < 2.58 * deviation, "outside the 99 % interval: {lost}");
    }
    let delay = Distribution::Normal { mean: Span::from_millis(2), deviation: Span::from_micros(300) };
    let mut path = path(8, vec![StageSpec::Jitter(JitterSpec { delay, order: Order::Free })]);
    for id in 0..100_000 {
        path.offer(Time::from_nanos(id * 10_000), packet(id));
    }
    let (mut sum, mut squares) = (0.0, 0.0);
    while let Some(next) = path.next_event() {
        path.advance(next, &mut |at, parcel, _| {
            let ms = at.since(Time::from_nanos(parcel.id() * 10_000)).as_millis_f64();
            sum += ms;
            squares += ms * ms;
        });
    }
    let (mean, square) = (sum / 1e5, squares / 1e5);
    let deviation = (square - mean * mean).sqrt();
    println!("jitter, normal with 2 ms and 0.3 ms: mean {mean:.4} ms, deviation {deviation:.4} ms");
    assert!((mean - 2.0).abs() < 0.005 && (deviation - 0.3).abs() < 0.005);
}
