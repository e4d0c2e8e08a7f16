//! The compared cases: paths, traffic, and theoretical expectations.

use haul_base::{Bytes, Probability, Rate, Rng, Span};
use haul_sim::{
    AboveMaximum, BottleneckSpec, CodelSpec, Distribution, GilbertElliottSpec, Limit, PathSpec, QueueSpec,
    RedSpec, Signal, StageSpec,
};
use serde::{Deserialize, Serialize};

/// Bytes per IP packet in the UDP cases.
pub(super) const PACKET: u32 = 1_250;
/// Bytes per full IP packet in the TCP cases.
const TCP_PACKET: u64 = 1_500;

/// Congestion control law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Law {
    /// `tcp_reno`.
    Reno,
    /// `tcp_cubic`.
    Cubic,
    /// `tcp_bbr`, version 1.
    Bbr,
}

impl Law {
    const ALL: [Self; 3] = [Self::Reno, Self::Cubic, Self::Bbr];

    /// Returns the kernel's name of the law.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// TCP flows that start simultaneously and share a bottleneck.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TcpCase {
    /// Law of each flow.
    pub laws: Vec<Law>,
    /// Rate of the bottleneck, counting whole IP packets.
    pub rate: Rate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Random loss in the data direction.
    pub loss: Probability,
    /// Capacity of the queue in percent of the bandwidth-delay product.
    pub queue: u64,
    /// Duration of the run.
    pub time: Span,
    /// Initial time that is not evaluated.
    pub warm_up: Span,
}

impl TcpCase {
    fn single(law: Law, mbps: u64, rtt_ms: u64, loss: f64, queue: u64, time: Span) -> Self {
        Self {
            laws: vec![law],
            rate: Rate::from_mbps(mbps),
            rtt: Span::from_millis(rtt_ms),
            loss: share(loss),
            queue,
            time,
            warm_up: Span::ZERO,
        }
    }

    /// Returns the name in tables.
    pub(super) fn name(&self) -> String {
        let laws = self.laws.iter().map(|law| law.name()).collect::<Vec<_>>().join("+");
        let loss = match self.loss.get() {
            0.0 => String::new(),
            p => format!(" loss {}%", p * 100.0),
        };
        let percent = self.queue / 100;
        let queue = if self.queue.is_multiple_of(100) {
            format!("{percent}")
        } else {
            format!("{percent}.{:02}", self.queue % 100)
        };
        format!("{laws} {} {}{loss} queue {queue}", self.rate, self.rtt)
    }

    /// Returns the forward path (bottleneck, loss, half of the round-trip time) and the return path (other
    /// half).
    pub(super) fn paths(&self) -> (PathSpec, PathSpec) {
        let product = self.rate.bytes_in(self.rtt) * self.queue / 100;
        let limit = Limit::Bytes(Bytes(product.max(10 * TCP_PACKET)));
        let delay = StageSpec::Delay(self.rtt / 2);
        let mut stages = vec![StageSpec::Bottleneck(BottleneckSpec {
            rate: self.rate,
            queue: QueueSpec::TailDrop(limit),
        })];
        if self.loss > Probability::ZERO {
            stages.push(StageSpec::Loss(self.loss));
        }
        stages.push(delay.clone());
        (PathSpec { stages }, PathSpec { stages: vec![delay] })
    }
}

/// Returns one flow of each law over clean and lossy paths for `time`, then pairs for three times as long.
pub(super) fn tcp(time: Span) -> Vec<TcpCase> {
    let paths = [
        // rate in Mbit/s, round-trip time in ms, loss, queue in percent of the bandwidth-delay product
        (100, 10, 0.0, 100),
        (100, 50, 0.0, 100),
        (100, 100, 0.0, 100),
        (200, 50, 0.0, 100),
        (50, 50, 0.0, 25),
        (100, 50, 0.0, 25),
        (100, 100, 0.0, 25),
        (100, 50, 0.0001, 100),
        (100, 10, 0.001, 100),
        (100, 50, 0.001, 100),
        (100, 100, 0.001, 100),
        (50, 10, 0.01, 100),
        (50, 50, 0.01, 100),
    ];
    let singles = Law::ALL.into_iter().flat_map(|law| {
        paths.map(|(mbps, rtt, loss, queue)| TcpCase::single(law, mbps, rtt, loss, queue, time))
    });
    let pairs = [[Law::Cubic, Law::Cubic], [Law::Cubic, Law::Bbr], [Law::Bbr, Law::Bbr]];
    let pairs = pairs.into_iter().flat_map(|laws| {
        [20, 100].map(|rtt| TcpCase {
            laws: laws.to_vec(),
            warm_up: time,
            ..TcpCase::single(laws[0], 50, rtt, 0.0, 100, time * 3)
        })
    });
    singles.chain(pairs).collect()
}

/// Sending pattern.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Offer {
    /// At constant intervals.
    Constant {
        /// Interval, nanoseconds.
        gap_ns: u64,
    },
    /// At exponentially distributed intervals.
    Poisson {
        /// Mean interval, nanoseconds.
        gap_ns: u64,
    },
}

impl Offer {
    fn at(rate: Rate, load: f64) -> u64 {
        (rate.time_for(u64::from(PACKET)).as_nanos() as f64 / load) as u64
    }

    /// Returns the sending times within `time`, derived from `seed` and thus the same in both worlds.
    pub(super) fn times(self, time: Span, seed: u64) -> Vec<Span> {
        let mut rng = Rng::from_seed(seed);
        let gap = match self {
            Self::Constant { gap_ns } => Distribution::Constant(Span::from_nanos(gap_ns.max(1))),
            Self::Poisson { gap_ns } => Distribution::Exponential(Span::from_nanos(gap_ns.max(1))),
        };
        let next = |at: &Span| Some(*at + gap.draw(&mut rng).max(Span::from_nanos(1)));
        std::iter::successors(Some(Span::ZERO), next).take_while(|at| *at < time).collect()
    }
}

/// Evaluated quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Median delay, ms.
    Median,
    /// 99 % quantile of the delay, ms.
    P99,
    /// Mean time in the queue, ms.
    MeanWait,
    /// Share of lost packets, percent.
    Loss,
    /// Mean number of consecutive packets lost.
    MeanRun,
}

/// Open-loop UDP over one direction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UdpCase {
    /// Name in tables.
    pub name: String,
    /// Stages of the path.
    pub stages: Vec<StageSpec>,
    /// Sending pattern.
    pub offer: Offer,
    /// Delay of a packet without queueing.
    pub unqueued: Span,
    /// Evaluated quantities, with the theoretical expectation.
    pub measures: Vec<(Measure, Option<f64>)>,
}

const RATE: Rate = Rate::from_mbps(20);
const OVERLOADED: Rate = Rate::from_mbps(50);
const DELAY: Span = Span::from_millis(10);

fn share(p: f64) -> Probability {
    Probability::new(p).unwrap_or_default()
}

fn case(
    name: &str,
    rate: Rate,
    queue: QueueSpec,
    offer: Offer,
    measures: &[(Measure, Option<f64>)],
) -> UdpCase {
    let bottleneck = StageSpec::Bottleneck(BottleneckSpec { rate, queue });
    UdpCase {
        name: name.to_owned(),
        stages: vec![bottleneck, StageSpec::Delay(DELAY)],
        offer,
        unqueued: rate.time_for(u64::from(PACKET)) + DELAY,
        measures: measures.to_vec(),
    }
}

fn lossy(name: &str, stage: StageSpec, measures: &[(Measure, Option<f64>)]) -> UdpCase {
    UdpCase {
        name: name.to_owned(),
        stages: vec![stage, StageSpec::Delay(DELAY)],
        offer: Offer::Constant { gap_ns: 250_000 },
        unqueued: DELAY,
        measures: measures.to_vec(),
    }
}

/// RED between 25 and 75 kB, with a probability of up to 10 %.
fn red() -> RedSpec {
    RedSpec {
        min: Bytes(25_000),
        max: Bytes(75_000),
        probability: share(0.1),
        weight: 0.002,
        limit: Limit::Bytes(Bytes(1_000_000)),
        above_max: AboveMaximum::Gentle,
        signal: Signal::Drop,
    }
}

/// Returns the mean queue at which RED drops `loss`, in milliseconds of `rate`. The drop rate is `2p/(1+p)`
/// (Floyd and Jacobson 1993, section 7, uniform intervals), and `p` rises linearly from the lower threshold.
fn red_wait(loss: f64, rate: Rate) -> f64 {
    let RedSpec { min, max, probability, .. } = red();
    let p = loss / (2.0 - loss);
    let queue = min.0 as f64 + p / probability.get() * (max.0 - min.0) as f64;
    rate.time_for(queue as u64).as_millis_f64()
}

/// Returns the UDP cases.
pub(super) fn udp() -> Vec<UdpCase> {
    [delay(), random_loss(), burst_loss(), overload(), waiting(), active_queues()].concat()
}

fn tail_drop(packets: u64) -> QueueSpec {
    QueueSpec::TailDrop(Limit::Packets(packets))
}

fn constant(rate: Rate, load: f64) -> Offer {
    Offer::Constant { gap_ns: Offer::at(rate, load) }
}

/// Packets without queueing.
fn delay() -> Vec<UdpCase> {
    let quiet = (DELAY + RATE.time_for(u64::from(PACKET))).as_millis_f64();
    let measures = [(Measure::Median, Some(quiet)), (Measure::P99, Some(quiet)), (Measure::Loss, Some(0.0))];
    vec![case("delay, constant rate, load 0.5", RATE, tail_drop(100), constant(RATE, 0.5), &measures)]
}

/// Independent loss with equal probability.
fn random_loss() -> Vec<UdpCase> {
    let lines = [0.001, 0.01].map(|p| {
        let name = format!("random loss {} %", p * 100.0);
        lossy(&name, StageSpec::Loss(share(p)), &[(Measure::Loss, Some(p * 100.0))])
    });
    lines.to_vec()
}

/// Gilbert-Elliott channel without loss in one state and with total loss in the other.
fn burst_loss() -> Vec<UdpCase> {
    let lines = [(0.01, 0.5), (0.02, 0.1)].map(|(to_bad, to_good)| {
        let spec = GilbertElliottSpec {
            to_bad: share(to_bad),
            to_good: share(to_good),
            loss_good: Probability::ZERO,
            loss_bad: share(1.0),
        };
        let loss = 100.0 * to_bad / (to_bad + to_good);
        let measures = [(Measure::Loss, Some(loss)), (Measure::MeanRun, Some(1.0 / to_good))];
        let name = format!("Gilbert-Elliott {to_bad} / {to_good}");
        lossy(&name, StageSpec::GilbertElliott(spec), &measures)
    });
    lines.to_vec()
}

/// A permanently full tail-drop queue.
fn overload() -> Vec<UdpCase> {
    let lines = [1.1, 1.5].map(|load| {
        let name = format!("tail drop, 100 packets, load {load}");
        let full = 99.0 * OVERLOADED.time_for(u64::from(PACKET)).as_millis_f64();
        let loss = 100.0 * (1.0 - 1.0 / load);
        let measures = [(Measure::Loss, Some(loss)), (Measure::MeanWait, Some(full))];
        case(&name, OVERLOADED, tail_drop(100), constant(OVERLOADED, load), &measures)
    });
    lines.to_vec()
}

/// M/D/1: mean wait by Pollaczek-Khinchine with a constant service time.
fn waiting() -> Vec<UdpCase> {
    let lines = [0.5, 0.8, 0.9].map(|load| {
        let wait = load * RATE.time_for(u64::from(PACKET)).as_millis_f64() / (2.0 * (1.0 - load));
        let offer = Offer::Poisson { gap_ns: Offer::at(RATE, load) };
        let name = format!("M/D/1, load {load}");
        case(&name, RATE, tail_drop(10_000), offer, &[(Measure::MeanWait, Some(wait))])
    });
    lines.to_vec()
}

/// Active queue management under open-loop UDP.
fn active_queues() -> Vec<UdpCase> {
    let overload = 1.0 - 1.0 / 1.1;
    let wait = red_wait(overload, OVERLOADED);
    let red = case(
        "RED 25-75 kB, 10 %, load 1.1",
        OVERLOADED,
        QueueSpec::Red(red()),
        constant(OVERLOADED, 1.1),
        &[(Measure::Loss, Some(100.0 * overload)), (Measure::MeanWait, Some(wait))],
    );
    let (target, interval, limit) = (Span::from_millis(5), Span::from_millis(100), Limit::Packets(10_000));
    let codel = case(
        "CoDel 5 ms, load 1.05, unresponsive",
        OVERLOADED,
        QueueSpec::Codel(CodelSpec { target, interval, limit, signal: Signal::Drop }),
        constant(OVERLOADED, 1.05),
        &[(Measure::Loss, None), (Measure::MeanWait, None)],
    );
    vec![red, codel]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_unique_and_describe_the_path() {
        let cases = tcp(Span::from_secs(20));
        let mut names: Vec<String> = cases.iter().map(TcpCase::name).collect();
        names.extend(udp().into_iter().map(|case| case.name));
        let count = names.len();
        assert_eq!(cases[4].name(), "reno 50.0 Mbit/s 50.000 ms queue 0.25");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn queues_hold_their_share_of_the_bandwidth_delay_product() {
        let case = TcpCase::single(Law::Reno, 100, 50, 0.01, 25, Span::from_secs(1));
        // 50 ms at 100 Mbit/s are 625,000 bytes.
        let limit = QueueSpec::TailDrop(Limit::Bytes(Bytes(156_250)));
        let (forward, back) = case.paths();
        assert_eq!(
            forward.stages[0],
            StageSpec::Bottleneck(BottleneckSpec { rate: case.rate, queue: limit })
        );
        assert_eq!(forward.stages.len(), 3);
        assert_eq!(back.stages, [StageSpec::Delay(Span::from_millis(25))]);
    }

    #[test]
    fn offered_loads_have_their_rate_and_depend_on_the_seed() {
        let time = Span::from_secs(10);
        let constant = Offer::Constant { gap_ns: Offer::at(RATE, 0.5) };
        // 0.5 ms of service at a load of 0.5: one packet per millisecond.
        assert_eq!(constant.times(time, 1).len(), 10_000);
        let poisson = Offer::Poisson { gap_ns: 1_000_000 };
        let times = poisson.times(time, 7);
        assert!((9_700..10_300).contains(&times.len()), "{}", times.len());
        assert_eq!(times, poisson.times(time, 7));
        assert_ne!(times, poisson.times(time, 8));
    }

    #[test]
    fn the_red_queue_settles_where_it_drops_the_excess() {
        // 2p/(1+p) = 1/11 gives p = 1/21; 25 kB + 50 kB / 2.1 = 48.8 kB: 7.8 ms at 50 Mbit/s.
        let wait = red_wait(1.0 / 11.0, Rate::from_mbps(50));
        assert!((wait - 7.81).abs() < 0.01, "{wait}");
    }
}
