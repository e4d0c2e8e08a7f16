//! UDT's native control (Gu and Grossman, Computer Networks 51(7), 2007, section 3; draft-gg-udt-03, section
//! 6; the authors' UDT 4): additive increase with decreasing steps, multiplicative decrease. Steps come at a
//! fixed interval, SYN = 10 ms, so that the round-trip time has no influence.
//!
//! ```text
//! each SYN without loss:    rate += inc / SYN,
//!                           inc = max(10^ceil(log10((B - C) MSS 8)) 1.5e-6 / MSS, 1 / MSS) packets
//! first loss of an epoch:   rate /= 1.125, and again after DecRandom, 2 DecRandom ... further reports of
//!                           loss, at most 5 times
//! window:                   arrival speed (RTT + SYN) + 16 packets
//! ```
//!
//! `B` is the capacity of the path, `C` the current rate, both in packets per second. From a ninth below the
//! rate at the last decrease on, `B - C` counts as at most `B / 9`, which is what a decrease leaves free.
//! `DecRandom` is drawn from 1 to the mean number of loss reports per epoch, so that flows which lose packets
//! together do not fall together. An epoch ends with the packets sent before its last decrease.
//!
//! The rate reaches 0.9 of the path's after 7.5 s, whatever its capacity and round-trip time, as each step is
//! 0.12 % of the decade of `B - C`; there are no steps while the window is full. Flows that know the capacity
//! share it equally at any round-trip times. Flows that measure it only know their own rates: at round trips
//! of 20 and 80 ms one had 160 and the other 23 of 200 Mbit/s, where with the parameter both had 93.
//!
//! Choices, where the sources differ or need something that does not exist here:
//! - UDT measures `B` with packet pairs, which nothing here sends. Without the parameter, `B` is the highest
//!   arrival rate of 10 s plus a ninth, but at most the ceiling: the share of `B` that UDT assumes free after
//!   a decrease.
//! - A feedback with losses counts as one NAK. If reports are rarer than SYN, one counts for all SYNs since
//!   the last, and the window covers their interval instead of SYN.
//! - Where the draft and the code differ (which NAKs of an epoch decrease the rate), this follows the draft;
//!   the code rounds intervals to microseconds, which is omitted.
//! - If feedback does not yield a speed of arrival, the arrival rate of a round trip is used.
//! - In slow start UDT sends as fast as it can within the window. Here the window is spread over half of its
//!   duration.
//! - Silence only ends slow start, as in the code.

use haul_base::{Rate, Rng, Span, Time};
use haul_stack::{Configuration as _, configuration};

use super::loss_events::LossEvents;
use super::reaction::clamped;
use super::{
    ControllerConfig, FeedbackSample, LawRegistration, Limits, MIN_WINDOW, Permit, RateController, RateState,
    burst_for,
};
use crate::rtt::{MIN_RTT_WINDOW, RttEstimator, WindowedMin};

configuration! {
    /// Parameters of `udt`.
    pub struct UdtConfig: "udt" {
        capacity: Rate = "unlimited", "path capacity; `unlimited`: the arrival rate and a ninth";
        decrease: f64 in (1.001, 10.0) = "1.125", "factor of the packet interval at a decrease (UDT: 1.125)";
        max_window: u64 in (16, 1_000_000_000) = "25600",
            "packets in flight that end slow start (UDT: 25,600)";
        seed: u64 in (0, 1_000_000_000) = "1", "seed for the random decreases of an epoch";
    }
}

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "udt",
    version: 1,
    summary: "every 10 ms, a step that depends on the unused capacity; a ninth slower after losses",
    source: "UDT (Gu and Grossman, Computer Networks 51(7), 2007; draft-gg-udt-03)",
    parameters: UdtConfig::PARAMETERS,
    build: |parameters, config| Ok(Box::new(Udt::new(&parameters.read(), config))),
};

/// Interval of all steps (draft-gg-udt-03, section 4).
const SYN: Span = Span::from_millis(10);
/// Packets in flight at the start, and in addition to those that arrive in a round trip (section 6.1).
const FIRST_WINDOW: f64 = 16.0;
/// Bytes of a step per 10^n bit/s that are free (section 6.1).
const STEP: f64 = 1.5e-6;
/// Share left free by a decrease by 1.125.
const FREED: f64 = 1.0 / 9.0;
/// Decreases after the first one of an epoch: together they halve the rate (section 6.1).
const MAX_DECREASES: u64 = 5;
/// Weight of the newest epoch in the mean number of NAKs.
const NEWEST: f64 = 0.125;
const START_PACING: f64 = 2.0;
/// Number of arrival speeds over which the median is taken (section 6.2: of 16 packets).
const SPEEDS: usize = 16;

/// Speed at which packets arrive while they arrive: pauses between bursts are excluded, so a full window does
/// not affect it. The draft takes the median of the intervals of 16 packets; this takes that of 16 reports.
#[derive(Debug, Default)]
struct Arriving {
    speeds: [Rate; SPEEDS],
    known: usize,
    from: Option<Time>,
    bytes: u64,
}

impl Arriving {
    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        let Some(from) = self.from else {
            self.from = Some(sample.now);
            return;
        };
        self.bytes += sample.acked_packets * sample.datagram;
        let passed = sample.now.since(from);
        if passed < SYN {
            return;
        }
        if self.bytes > 0 && passed < sample.report_interval.max(SYN) * 2 {
            self.speeds[self.known % SPEEDS] = Rate::from_transfer(self.bytes, passed);
            self.known += 1;
        }
        (self.from, self.bytes) = (Some(sample.now), 0);
    }

    fn speed(&self) -> Option<Rate> {
        let mut sorted = self.speeds;
        let known = &mut sorted[..self.known.min(SPEEDS)];
        known.sort_unstable();
        known.get(known.len() / 2).copied()
    }
}

/// Decreases within a congestion epoch.
#[derive(Debug)]
struct Epoch {
    seed: u64,
    /// Mean number of NAKs per epoch.
    mean_naks: f64,
    naks: u64,
    /// NAKs between two decreases.
    spacing: u64,
    decreases: u64,
}

impl Epoch {
    /// Begins an epoch with packet number `next_pn`.
    fn begin(&mut self, next_pn: u64) {
        self.mean_naks = (self.mean_naks * (1.0 - NEWEST) + self.naks as f64 * NEWEST).ceil();
        (self.naks, self.decreases) = (1, 1);
        // As in UDT 4: flows that start alike have other packet numbers in flight at this time.
        let mut rng = Rng::from_seed(self.seed ^ next_pn);
        self.spacing = 1 + rng.below(self.mean_naks as u64);
    }

    /// Counts another NAK of the same epoch; returns whether it lowers the rate.
    fn on_nak(&mut self) -> bool {
        let further = self.naks;
        self.naks += 1;
        let lowers =
            self.decreases <= MAX_DECREASES && further == self.decreases.saturating_mul(self.spacing);
        self.decreases += u64::from(lowers);
        lowers
    }
}

/// The law: see the module documentation.
#[derive(Debug)]
struct Udt {
    ceiling: Option<Rate>,
    /// Capacity set by the user.
    capacity: Option<Rate>,
    decrease: f64,
    max_window: f64,
    /// Window in packets while in slow start.
    start: Option<f64>,
    rate: Rate,
    window: u64,
    rtt: Span,
    datagram: f64,
    /// Highest arrival rate of 10 s, as the minimum of negated values.
    arrivals: WindowedMin,
    arrived: Option<Rate>,
    arriving: Arriving,
    highest: Rate,
    /// Above this rate the path may have more than a ninth free.
    decreased_at: Rate,
    events: LossEvents,
    epoch: Epoch,
    has_lost: bool,
    step_at: Time,
}

impl Udt {
    fn new(parameters: &UdtConfig, config: &ControllerConfig) -> Self {
        let capacity = parameters.capacity;
        let mut law = Self {
            ceiling: config.ceiling,
            capacity: (capacity < Rate::MAX).then_some(capacity),
            decrease: parameters.decrease,
            max_window: parameters.max_window as f64,
            start: Some(FIRST_WINDOW),
            rate: super::MIN_RATE,
            window: MIN_WINDOW,
            rtt: config.initial_rtt,
            datagram: 1_472.0,
            arrivals: WindowedMin::new(MIN_RTT_WINDOW),
            arrived: None,
            arriving: Arriving::default(),
            highest: Rate::ZERO,
            decreased_at: Rate::ZERO,
            events: LossEvents::default(),
            epoch: Epoch { seed: parameters.seed, mean_naks: 0.0, naks: 0, spacing: 1, decreases: 0 },
            has_lost: false,
            step_at: Time::ZERO,
        };
        law.set_start(FIRST_WINDOW);
        law
    }

    /// Sets the window of slow start, and the rate derived from it.
    fn set_start(&mut self, packets: f64) {
        self.start = Some(packets);
        self.window = ((packets * self.datagram) as u64).max(MIN_WINDOW);
        let paced = Rate::from_transfer(self.window, self.rtt + SYN).mul_f64(START_PACING);
        self.rate = clamped(paced, self.ceiling);
    }

    /// Ends slow start at the arrival rate.
    fn end_start(&mut self) {
        if self.start.take().is_some() {
            let sustained = Rate::from_transfer(self.window, self.rtt + SYN);
            self.rate = clamped(self.arrived.unwrap_or(sustained), self.ceiling);
        }
    }

    fn on_arrival(&mut self, sample: &FeedbackSample<'_>) {
        let Some(rate) = sample.arrival_rate.filter(|rate| *rate > Rate::ZERO) else { return };
        let rate = rate.min(self.ceiling.unwrap_or(Rate::MAX));
        self.arrived = Some(rate);
        let bps = i64::try_from(rate.as_bps()).unwrap_or(i64::MAX);
        self.highest = Rate::from_bps(self.arrivals.on_value(sample.now, -bps).unsigned_abs());
    }

    /// Returns the capacity of the path in bit/s.
    fn path(&self) -> f64 {
        let measured = self.highest.as_bps() as f64 * (1.0 + FREED);
        let known = self.capacity.map_or(measured, |rate| rate.as_bps() as f64);
        self.ceiling.map_or(known, |ceiling| known.min(ceiling.as_bps() as f64))
    }

    /// Raises the rate by one step.
    fn raise(&mut self) {
        let (path, rate) = (self.path(), self.rate.as_bps() as f64);
        let mut free = path - rate;
        if self.rate < self.decreased_at {
            free = free.min(path * FREED);
        }
        let bits_per_syn = increase(free, self.datagram) * self.datagram * 8.0;
        self.rate = clamped(Rate::from_bps((rate + bits_per_syn / SYN.as_secs_f64()) as u64), self.ceiling);
    }

    fn lower(&mut self, next_pn: u64) {
        self.rate = clamped(self.rate.mul_f64(1.0 / self.decrease), self.ceiling);
        self.events.close(next_pn);
    }

    fn on_loss(&mut self, sample: &FeedbackSample<'_>) {
        self.end_start();
        self.has_lost = true;
        if self.events.is_new_or_marked(sample) {
            self.decreased_at = self.rate;
            self.epoch.begin(sample.next_pn);
            self.lower(sample.next_pn);
        } else if self.epoch.on_nak() {
            self.lower(sample.next_pn);
        }
    }

    /// Takes the steps of the SYNs that have ended. UDT has a report in each; rarer ones count for several.
    fn on_syns(&mut self, sample: &FeedbackSample<'_>) {
        let most = 1 + sample.report_interval.as_nanos() / SYN.as_nanos();
        let mut steps = 0;
        while self.step_at <= sample.now && steps < most {
            self.step_at += SYN;
            steps += 1;
        }
        // After a silence the count restarts.
        self.step_at = self.step_at.max(sample.now);
        if steps == 0 || std::mem::take(&mut self.has_lost) || sample.app_limited {
            return;
        }
        (0..steps).for_each(|_| self.raise());
    }

    fn set_window(&mut self, report_interval: Span) {
        let covered = self.rtt + report_interval.max(SYN);
        let speed = self.arriving.speed().or(self.arrived).unwrap_or(self.rate);
        self.window = speed
            .min(self.ceiling.unwrap_or(Rate::MAX))
            .bytes_in(covered)
            .saturating_add((FIRST_WINDOW * self.datagram) as u64)
            .max(MIN_WINDOW);
    }
}

/// Returns the packets per SYN added to the rate if `free_bps` are free (draft-gg-udt-03, section 6.1).
fn increase(free_bps: f64, datagram: f64) -> f64 {
    let decade = if free_bps > 0.0 { 10f64.powf(free_bps.log10().ceil()) } else { 0.0 };
    (decade * STEP / datagram).max(1.0 / datagram)
}

impl RateController for Udt {
    fn permit(&self) -> Permit {
        Permit::Go(Limits {
            rate: self.rate,
            window: Some(self.window),
            unreported: 0,
            burst: burst_for(self.rate),
        })
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.start = None;
        self.rtt = rtt.smoothed();
        self.rate = clamped(rate, self.ceiling);
        self.set_window(SYN);
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        (self.datagram, self.rtt) = (sample.datagram.max(1) as f64, sample.rtt.smoothed());
        self.on_arrival(sample);
        self.arriving.on_feedback(sample);
        if sample.lost_packets > 0 || sample.ecn_ce > 0 {
            self.on_loss(sample);
        }
        if let Some(packets) = self.start {
            self.set_start((packets + sample.acked_packets as f64).min(self.max_window));
            if Some(self.rate) == self.ceiling {
                // UDT has no ceiling; here the window reaches the ceiling within a few round trips.
                self.start = None;
            } else if packets >= self.max_window {
                self.end_start();
            }
        } else {
            self.set_window(sample.report_interval);
        }
        if self.start.is_none() && sample.acked_packets > 0 {
            self.on_syns(sample);
        }
    }

    fn on_silence(&mut self, _: Time, _: u32) {
        self.end_start();
    }

    fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    fn state(&self) -> RateState {
        let phase = match (self.start, self.has_lost) {
            (Some(_), _) => "slow start",
            (None, true) => "decrease",
            (None, false) => "increase",
        };
        RateState { phase, rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LossRuns;
    use super::super::testing::{
        Harness, PathModel, Reduction, assert_near, built, feedback, lost_packet, measure_together,
    };
    use super::*;

    const UNBOUNDED: Rate = Rate::from_mbps(1_000_000);

    #[test]
    fn the_increase_matches_the_papers_table() {
        // Mbit/s that are free, with packets of 1,500 bytes.
        let table =
            [(10_000.0, 10.0), (1_000.0, 1.0), (100.0, 0.1), (10.0, 0.01), (1.0, 0.001), (0.1, 0.000_67)];
        for (mbps, packets) in table {
            assert_near(increase(mbps * 1e6, 1_500.0), packets, 0.01);
            assert_near(increase(mbps * 0.2e6, 1_500.0), packets, 0.01);
        }
        assert_near(increase(0.0, 1_500.0), 1.0 / 1_500.0, 1e-9);
        assert_near(increase(-1e9, 1_500.0), 1.0 / 1_500.0, 1e-9);
    }

    fn law_after_takeover(
        settings: &[(&str, &str)],
        ceiling: Rate,
        rate: Rate,
        rtt: Span,
    ) -> Box<dyn RateController> {
        let mut law = built("udt", settings, ceiling);
        let mut estimator = RttEstimator::new(rtt);
        estimator.on_sample(Time::ZERO, rtt);
        law.take_over(rate, &estimator);
        law
    }

    #[test]
    fn udt_reaches_90_percent_of_any_path_in_7_5_seconds() {
        for (mbps, millis) in [(100, 20), (1_000, 20), (10_000, 20), (1_000, 200)] {
            let (path, rtt) = (Rate::from_mbps(mbps), Span::from_millis(millis));
            let capacity = format!("{mbps}Mbit");
            // At a lower rate, reports are rarer than SYN at first.
            let begin = path.mul_f64(0.1);
            let law = law_after_takeover(&[("capacity", &capacity)], UNBOUNDED, begin, rtt);
            let mut run = Harness::new(law, PathModel::bottleneck(path, rtt, 1.0));
            // The first report starts the first SYN.
            run.run_for(rtt + Span::from_millis(10));
            let elapsed = run.run_until(Span::from_secs(20), |run| run.law.state().rate >= path.mul_f64(0.9));
            // Each SYN adds 0.12 % of the path, of the required 80 %.
            assert_near(elapsed.unwrap().as_secs_f64(), 7.5 * 0.8 / 0.9, 0.03);
        }
    }

    #[test]
    fn the_rate_matches_the_derivation_for_periodic_losses() {
        for n in [20_000, 100_000, 500_000] {
            let rtt = Span::from_millis(20);
            let law = law_after_takeover(&[("capacity", "10Gbit")], UNBOUNDED, Rate::from_mbps(3_000), rtt);
            let mut run = Harness::new(law, PathModel { rtt, ..PathModel::lossy(n) });
            run.run_for(Span::from_secs(10));
            let steady = run.measure(Span::from_secs(60));
            // A saw-tooth from 8/9 to 1 of the highest rate `x`, packets per SYN: n = (x / 9 / inc) (17/18
            // x).
            let highest = (n as f64 * 9.0 * increase(5e9, 1_472.0) * 18.0 / 17.0).sqrt();
            let found = steady.mean_rate.bytes_in(SYN) as f64 / 1_472.0;
            assert_near(found, highest * 17.0 / 18.0, 0.05);
            // In the others only the window fell.
            let falls = run.reductions.iter().map(Reduction::rate_factor).filter(|factor| *factor < 1.0);
            for factor in falls {
                assert_near(factor, 8.0 / 9.0, 1e-6);
            }
        }
    }

    /// Reports `acked` packets and the loss of those before them; returns the rate afterwards.
    fn feed(law: &mut dyn RateController, millis: u64, pn: &mut u64, acked: u64, lost: u64) -> f64 {
        let mut rtt = RttEstimator::new(Span::from_millis(100));
        let now = Time::ZERO + Span::from_millis(millis);
        rtt.on_sample(now, Span::from_millis(100));
        let mut runs = LossRuns::default();
        (0..lost).for_each(|n| runs.push(lost_packet(*pn + n)));
        *pn += acked + lost;
        let sample = feedback(now, &rtt, acked, lost, Some(Rate::from_mbps(80)));
        // The same number is in flight.
        let (next_pn, largest_acked_pn) = (*pn + 1_000, *pn - 1);
        law.on_feedback(&FeedbackSample { loss: &runs, next_pn, largest_acked_pn, ..sample });
        law.state().rate.as_bps() as f64 / 1e6
    }

    #[test]
    fn further_losses_of_an_epoch_lower_the_rate_after_some_naks_and_by_at_most_half() {
        let rtt = Span::from_millis(100);
        let mut law = law_after_takeover(&[("capacity", "100Mbit")], UNBOUNDED, Rate::from_mbps(90), rtt);
        let mut pn = 0;
        // All within one SYN after the first, so that nothing raises the rate.
        let first = feed(law.as_mut(), 0, &mut pn, 10, 1);
        assert_near(first, 80.0, 1e-6);
        let rates: Vec<f64> = (0..40).map(|_| feed(law.as_mut(), 1, &mut pn, 10, 1)).collect();
        let mut falls: Vec<f64> =
            [&[first], &rates[..]].concat().windows(2).map(|two| two[1] / two[0]).collect();
        falls.retain(|fall| *fall < 1.0);
        assert_eq!(falls.len(), 5, "{rates:?}");
        for fall in falls {
            assert_near(fall, 8.0 / 9.0, 1e-6);
        }
    }

    #[test]
    fn slow_start_ends_at_the_ceiling() {
        let ceiling = Rate::from_mbps(100);
        let path = PathModel::bottleneck(Rate::from_mbps(200), Span::from_millis(40), 1.0);
        let mut run = Harness::new(built("udt", &[], ceiling), path);
        run.run_for(Span::from_secs(2));
        let steady = run.measure(Span::from_secs(5));
        assert!(steady.goodput > ceiling.mul_f64(0.99) && steady.lost == 0, "{steady:?}");
    }

    #[test]
    fn decreases_of_an_epoch_are_spread_by_the_mean_number_of_naks_and_the_seed() {
        let spacings = |seed| {
            let mut epoch = Epoch { seed, mean_naks: 0.0, naks: 0, spacing: 1, decreases: 0 };
            let one = |n: u64| {
                epoch.begin(n * 10_000);
                (0..99).filter(|_| epoch.on_nak()).count();
                epoch.spacing
            };
            (0..200).map(one).collect::<Vec<_>>()
        };
        let found = spacings(1);
        assert_eq!(found, spacings(1));
        assert_ne!(found, spacings(2));
        // From 1 to the mean of 100, which is known after a while.
        let late = &found[100..];
        assert!(late.iter().all(|spacing| (1..=100).contains(spacing)), "{late:?}");
        assert_near(late.iter().sum::<u64>() as f64 / 100.0, 50.5, 0.15);
    }

    #[test]
    fn flows_with_known_capacity_share_it_for_any_round_trips() {
        let bottleneck = PathModel::bottleneck(Rate::from_mbps(200), Span::from_millis(40), 1.0);
        let path = |millis| PathModel { rtt: Span::from_millis(millis), ..bottleneck.clone() };
        let flow = |millis| Harness::new(built("udt", &[("capacity", "200Mbit")], UNBOUNDED), path(millis));
        for both in [[20, 80], [40, 40], [10, 100]] {
            let mut flows = both.map(flow);
            measure_together(&mut flows, Span::from_secs(60));
            for measured in measure_together(&mut flows, Span::from_secs(120)) {
                assert_near(measured.goodput.as_bps() as f64 / 1e6, 93.0, 0.15);
            }
        }
    }

    #[test]
    fn a_bottleneck_is_found_and_used_with_little_loss() {
        // Where a queue overflows, an epoch may lower the rate five times: 0.78 is the mean of 0.55 and 1.
        for (mbps, least) in [(20, 0.78), (100, 0.85), (1_000, 0.85)] {
            let capacity = Rate::from_mbps(mbps);
            let path = PathModel::bottleneck(capacity, Span::from_millis(40), 1.0);
            let mut run = Harness::new(built("udt", &[], UNBOUNDED), path);
            let found = run.run_until(Span::from_secs(5), |run| run.law.state().phase != "slow start");
            assert!(found.is_some(), "{:?}", run.law);
            run.run_for(Span::from_secs(20));
            let steady = run.measure(Span::from_secs(60));
            assert!(steady.goodput > capacity.mul_f64(least), "{steady:?}");
            assert!(steady.loss_rate() < 0.002, "{steady:?}");
        }
    }
}
