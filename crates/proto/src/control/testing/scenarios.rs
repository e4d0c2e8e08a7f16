//! Paths that change while a law runs, with the share of the offered capacity used in each phase.

use std::fmt::{self, Display};

use haul_base::{Rate, Span};

use super::{Harness, Loss, Measured, PathModel};
use crate::control::{ControllerConfig, law};

/// Share of the path that a law must use after 3 s or 10 round trips.
pub(crate) const GOOD: f64 = 0.85;

/// A phase of a scenario.
pub(crate) struct Phase {
    name: &'static str,
    /// Change of the path at the start.
    begin: fn(&mut Harness),
    /// Time that a law has to adapt before it is measured.
    settle: Span,
    measure: Span,
    /// Rate that the path can deliver, UDP payload.
    offered: Rate,
}

/// A path and its changes.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) path: PathModel,
    phases: Vec<Phase>,
}

/// Result of a phase.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) phase: &'static str,
    pub(crate) measured: Measured,
    /// Share of the offered rate that was delivered.
    pub(crate) share: f64,
    /// Mean round-trip time above the path's own.
    pub(crate) queueing: Span,
    /// Time until [`GOOD`] of the offered rate was delivered.
    pub(crate) recovery: Option<Span>,
}

/// Results of all phases of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Outcomes(pub(crate) Vec<Outcome>);

impl Outcomes {
    /// Returns the lowest share of any phase.
    pub(crate) fn least_share(&self) -> f64 {
        self.0.iter().map(|outcome| outcome.share).fold(f64::INFINITY, f64::min)
    }
}

impl Display for Outcomes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.0 {
            write!(
                out,
                " | {:<7} {:>5.1} % in {:<5} loss {:>4.1} % queue {:>5.1} ms",
                outcome.phase,
                outcome.share * 100.0,
                outcome.recovery.map_or("never".to_owned(), |span| format!("{:.1} s", span.as_secs_f64())),
                outcome.measured.loss_rate() * 100.0,
                outcome.queueing.as_millis_f64(),
            )?;
        }
        Ok(())
    }
}

/// Runs the law `name` through a scenario.
pub(crate) fn run_scenario(name: &str, settings: &[(&str, &str)], scenario: &Scenario) -> Outcomes {
    let config = ControllerConfig {
        ceiling: None,
        // As the handshake measures it.
        initial_rtt: scenario.path.rtt,
        feedback_interval: Span::from_millis(2),
    };
    let mut run = Harness::new(law(name).unwrap().build(settings, &config).unwrap(), scenario.path.clone());
    let outcomes = scenario.phases.iter().map(|phase| {
        (phase.begin)(&mut run);
        let of_offered = |goodput: Rate| goodput.as_bps() as f64 / phase.offered.as_bps() as f64;
        let (begun, slice) = (run.now, ms(200).max(run.path.rtt));
        let mut recovery = None;
        while run.now.since(begun) < phase.settle {
            let good = of_offered(run.measure(slice).goodput) >= GOOD;
            recovery = recovery.or(good.then(|| run.now.since(begun)));
        }
        let measured = run.measure(phase.measure);
        let share = of_offered(measured.goodput);
        let queueing = measured.mean_rtt.saturating_sub(run.path.rtt);
        Outcome { phase: phase.name, measured, share, queueing, recovery }
    });
    Outcomes(outcomes.collect())
}

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// A phase that offers `mbps`, measured after 3 s or 10 round trips of at most `rtt`.
fn phase(name: &'static str, rtt: Span, mbps: f64, begin: fn(&mut Harness)) -> Phase {
    let settle = ms(3_000).max(rtt * 10);
    Phase { name, begin, settle, measure: Span::from_secs(20), offered: Rate::from_bps((mbps * 1e6) as u64) }
}

fn steady(name: &'static str, rtt_ms: u64, offered_mbps: f64, mut path: PathModel) -> Scenario {
    let rtt = ms(rtt_ms);
    path.rtt = rtt;
    Scenario { name, path, phases: vec![phase("steady", rtt, offered_mbps, |_| {})] }
}

/// A bottleneck with a queue of one bandwidth-delay product, at least of 20 ms.
fn bottleneck(mbps: f64, rtt_ms: u64) -> PathModel {
    let capacity = Rate::from_bps((mbps * 1e6) as u64);
    let path = PathModel::bottleneck(capacity, ms(rtt_ms), 1.0);
    PathModel { queue: path.queue.max(capacity.bytes_in(ms(20))), ..path }
}

fn round_trips() -> Vec<Scenario> {
    let up_to_60 = |run: &mut Harness| run.path.rtt = ms(60);
    let to_80 = |run: &mut Harness| run.path.rtt = ms(80);
    let to_20 = |run: &mut Harness| run.path.rtt = ms(20);
    let path = |mbps, longest, rtt| PathModel { rtt: ms(rtt), ..bottleneck(mbps, longest) };
    vec![
        Scenario {
            name: "RTT 10 -> 60 ms, 500 Mbit/s",
            path: path(500.0, 60, 10),
            phases: vec![phase("10 ms", ms(10), 500.0, |_| {}), phase("60 ms", ms(60), 500.0, up_to_60)],
        },
        Scenario {
            name: "RTT 20 -> 80 ms, 100 Mbit/s",
            path: path(100.0, 80, 20),
            phases: vec![phase("20 ms", ms(20), 100.0, |_| {}), phase("80 ms", ms(80), 100.0, to_80)],
        },
        Scenario {
            name: "RTT 80 -> 20 -> 80 ms, 100 Mbit/s",
            path: path(100.0, 80, 80),
            phases: vec![
                phase("80 ms", ms(80), 100.0, |_| {}),
                phase("20 ms", ms(20), 100.0, to_20),
                phase("80 ms", ms(80), 100.0, to_80),
            ],
        },
    ]
}

fn capacities() -> Vec<Scenario> {
    let up = |run: &mut Harness| run.set_capacity(Rate::from_mbps(200));
    let down = |run: &mut Harness| run.set_capacity(Rate::from_mbps(20));
    vec![
        Scenario {
            name: "capacity 20 -> 200 Mbit/s, 40 ms",
            path: PathModel { capacity: Rate::from_mbps(20), ..bottleneck(200.0, 40) },
            phases: vec![phase("20", ms(40), 20.0, |_| {}), phase("200", ms(40), 200.0, up)],
        },
        Scenario {
            name: "capacity 200 -> 20 Mbit/s, 40 ms",
            path: bottleneck(200.0, 40),
            phases: vec![phase("200", ms(40), 200.0, |_| {}), phase("20", ms(40), 20.0, down)],
        },
    ]
}

fn outages() -> Vec<Scenario> {
    let scenario = |name, begin| Scenario {
        name,
        path: bottleneck(100.0, 40),
        phases: vec![phase("before", ms(40), 100.0, |_| {}), phase("after", ms(40), 100.0, begin)],
    };
    vec![
        scenario("outage of 2 s, 100 Mbit/s, 40 ms", |run| {
            run.outage(Span::from_secs(2));
            run.run_for(Span::from_secs(2));
        }),
        scenario("outage of 8 s, 100 Mbit/s, 40 ms", |run| {
            run.outage(Span::from_secs(8));
            run.run_for(Span::from_secs(8));
        }),
    ]
}

fn lossy() -> Vec<Scenario> {
    let random = |share, path| PathModel { loss: Loss::Random(share), ..path };
    vec![
        steady("1 % loss, 100 Mbit/s, 40 ms", 40, 99.0, random(0.01, bottleneck(100.0, 40))),
        steady("8 % loss, 100 Mbit/s, 40 ms", 40, 92.0, random(0.08, bottleneck(100.0, 40))),
        steady("15 % loss, 100 Mbit/s, 40 ms", 40, 85.0, random(0.15, bottleneck(100.0, 40))),
        Scenario {
            name: "0 -> 15 -> 0 % loss, 100 Mbit/s, 40 ms",
            path: bottleneck(100.0, 40),
            phases: vec![
                phase("0 %", ms(40), 100.0, |_| {}),
                phase("15 %", ms(40), 85.0, |run| run.path.loss = Loss::Random(0.15)),
                phase("0 %", ms(40), 100.0, |run| run.path.loss = Loss::None),
            ],
        },
    ]
}

fn long_and_narrow() -> Vec<Scenario> {
    let random = |share, path| PathModel { loss: Loss::Random(share), ..path };
    vec![
        steady("satellite 20 Mbit/s, 600 ms", 600, 20.0, bottleneck(20.0, 600)),
        steady("satellite 20 Mbit/s, 0.1 % loss", 600, 19.98, random(0.001, bottleneck(20.0, 600))),
        steady("satellite 200 Mbit/s, 600 ms", 600, 200.0, bottleneck(200.0, 600)),
        steady("satellite 200 Mbit/s, 0.1 % loss", 600, 199.8, random(0.001, bottleneck(200.0, 600))),
        Scenario {
            name: "56 kbit/s, 100 ms, queue of 8 packets",
            path: PathModel { queue: 8 * 1_472, ..bottleneck(0.056, 100) },
            // A burst of two packets takes 420 ms.
            phases: vec![phase("steady", ms(520), 0.056, |_| {})],
        },
    ]
}

fn queues_and_feedback() -> Vec<Scenario> {
    let with_queue = |queue, path| PathModel { queue, ..path };
    let packets = |n: u64| n * 1_472;
    vec![
        steady(
            "jitter of 20 ms, 100 Mbit/s, 40 ms",
            40,
            100.0,
            PathModel { jitter: ms(20), ..bottleneck(100.0, 40) },
        ),
        Scenario {
            name: "ten minutes of idleness, RTT 20 -> 200 ms",
            path: PathModel { rtt: ms(20), ..bottleneck(100.0, 200) },
            phases: vec![
                phase("20 ms", ms(20), 100.0, |_| {}),
                phase("200 ms", ms(200), 100.0, |run| {
                    run.has_data = false;
                    run.run_for(Span::from_secs(600));
                    run.path.rtt = ms(200);
                    run.has_data = true;
                }),
            ],
        },
        steady("1 Gbit/s, 20 ms", 20, 1_000.0, bottleneck(1_000.0, 20)),
        Scenario {
            name: "1 Gbit/s, 10 us",
            path: PathModel { rtt: Span::from_micros(10), ..bottleneck(1_000.0, 20) },
            phases: vec![phase("steady", ms(1), 1_000.0, |_| {})],
        },
        steady(
            "feedback each 50 ms, 100 Mbit/s, 10 ms",
            10,
            100.0,
            PathModel { feedback: ms(50), ..bottleneck(100.0, 40) },
        ),
        steady(
            "queue of 20 packets, 100 Mbit/s, 40 ms",
            40,
            100.0,
            with_queue(packets(20), bottleneck(100.0, 40)),
        ),
        steady("queue of 10 BDP, 100 Mbit/s, 40 ms", 40, 100.0, with_queue(5_000_000, bottleneck(100.0, 40))),
    ]
}

/// Returns the scenarios by which default laws are compared.
pub(crate) fn scenarios() -> Vec<Scenario> {
    [round_trips(), capacities(), outages(), lossy(), long_and_narrow(), queues_and_feedback()]
        .into_iter()
        .flatten()
        .collect()
}
