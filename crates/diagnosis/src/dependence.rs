//! Tests whether losses depend on the path's delay. A queue drops packets while it is long; a medium damages
//! packets independently of their waiting time. Only ranks of delays are used: neither the delay of the empty
//! path nor the drift of a clock matters.

use haul_base::Span;

/// An interval of consecutive packets and their mean delay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayInterval {
    /// Mean delay, with any origin.
    pub delay: Span,
    /// Number of packets, lost ones included.
    pub packets: u64,
    /// Number of lost packets.
    pub lost: u64,
}

impl DelayInterval {
    fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }

    /// Returns the excess of losses over those expected at the loss rate `rate`, in standard deviations of a
    /// Poisson process: 0 on average, whatever the number of packets.
    fn excess(&self, rate: f64) -> f64 {
        let expected = rate * self.packets as f64;
        let deviations = (self.lost as f64 - expected) / expected.sqrt();
        if expected > 0.0 { deviations.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS) } else { 0.0 }
    }

    /// Returns the sums of packets and losses.
    fn sum<'a>(of: impl Iterator<Item = &'a Self>) -> Self {
        of.fold(Self::default(), |sum, one| Self {
            packets: sum.packets + one.packets,
            lost: sum.lost + one.lost,
            ..sum
        })
    }
}

/// Dependence of losses on the delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependence {
    /// Too few losses, or too similar delays.
    #[default]
    Unknown,
    /// More losses at longer delays: a queue drops.
    Dependent,
    /// Equal loss rates at short and long delays.
    Independent,
}

/// Result of a test of the losses in intervals of a transmission.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayFinding {
    /// Dependence of the losses on the delay.
    pub dependence: Dependence,
    /// Loss rate at short delays: that of the medium. 0 if there is hardly any loss.
    pub medium_rate: f64,
    /// Delay from which on losses exceed `medium_rate`: the queue drops packets from there on. `None` if they
    /// hardly exceed it at any delay, or if no medium is known to lose packets.
    pub onset: Option<Span>,
}

/// Correlation in standard deviations above which losses depend on the delay: 1 in 30,000 by chance. Our
/// choice.
const SIGNIFICANT: f64 = 4.0;
/// Limit of an interval's weight, in standard deviations of its losses. Our choice.
pub(crate) const MAX_DEVIATIONS: f64 = 3.0;
/// Minimum range of delays for a dependence: the sender's own bursts cause as much. Our choice.
const MIN_RANGE: Span = Span::from_micros(500);
/// Delays in this lowest part of the range between the 5th and the 95th percentile are short. Our choice.
const SHORT: f64 = 0.25;
/// Minimum number of intervals with losses at short delays for an estimate of the medium's loss rate. Our
/// choice.
const MIN_LOSING: f64 = 8.0;
/// Minimum number of intervals with losses at short delays, as predicted by independence, for losses to be
/// called independent. Our choice.
const MIN_EXPECTED: f64 = 5.0;
/// Minimum share of these predicted intervals that must have losses. Our choice.
const INDEPENDENT_SHARE: f64 = 0.6;
/// Minimum ratio of the loss rate at short delays to the overall one for losses to be called independent. Our
/// choice.
const INDEPENDENT_RATE: f64 = 0.5;
/// Below this share of the predicted intervals, the losses at short delays may be those of a queue whose
/// delay was averaged with its neighbours': the medium's rate is 0. Our choice.
const MEDIUM_SHARE: f64 = 0.25;
/// Minimum range of delays, as a share of the median queueing delay. With less, a queue that stays full looks
/// like one that never drops. Our choice.
const MIN_CONTRAST: f64 = 0.25;
/// Losses are attributed to a medium only if some packets waited no longer than this. While `CoDel` drops,
/// each packet waits for 5 ms or more (RFC 8289, section 4.4), and the excess is unrelated to losses. Our
/// choice: less than that.
const NO_QUEUE: Span = Span::from_millis(4);
/// Minimum ratio of the loss rate of a queue that drops to the medium's. Our choice.
const ONSET_FACTOR: f64 = 3.0;
/// Minimum evidence for that, as the logarithm of a likelihood ratio: 1 in 1,000 by chance. Our choice.
const MIN_EVIDENCE: f64 = 7.0;
/// Limit of an interval's contribution to the evidence: an interval in which the queue fills loses many
/// packets at a mean delay far below that of a full queue. Our choice.
pub(crate) const MAX_EVIDENCE: f64 = 1.0;

/// Buffers reused between tests, so that tests do not allocate.
#[derive(Debug, Default)]
pub struct DelayScratch {
    delays: Vec<Span>,
    order: Vec<(f64, usize)>,
}

impl DelayScratch {
    /// Reserves space for this many intervals in all buffers, also in those needed only later.
    fn reserve(&mut self, intervals: usize) {
        let Self { delays, order } = self;
        delays.clear();
        delays.reserve(intervals);
        order.clear();
        order.reserve(intervals);
    }
}

impl DelayFinding {
    /// Tests intervals. `empty` is the path's delay without a queue, as far as known.
    ///
    /// Losses depend on the delay if intervals of long delay lose more than expected (a rank correlation,
    /// whose variance is `1 / (n - 1)` without a dependence). They do not if intervals of short delay lose
    /// packets as often as others.
    pub fn of(intervals: &[DelayInterval], empty: Span, scratch: &mut DelayScratch) -> Self {
        scratch.reserve(intervals.len().next_power_of_two());
        scratch.delays.extend(intervals.iter().map(|interval| interval.delay));
        scratch.delays.sort_unstable();
        let delays = &scratch.delays;
        let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
        if delays.is_empty() {
            return Self::default();
        }
        let (low, high) = (at(0.05), at(0.95));
        let range = high.saturating_sub(low);
        let lossy = LossyIntervals::of(intervals, low + range.mul_f64(SHORT));
        let has_range = high.saturating_sub(delays[0]) >= MIN_RANGE;
        let was_empty = delays[0] <= empty + NO_QUEUE;
        let has_contrast = range >= at(0.5).saturating_sub(empty).mul_f64(MIN_CONTRAST);
        let may_be_medium = was_empty && has_contrast;
        let dependence = if has_range && correlation(intervals, &mut scratch.order) > SIGNIFICANT {
            Dependence::Dependent
        } else if may_be_medium && lossy.is_frequent_enough() && lossy.is_rate_alike() {
            Dependence::Independent
        } else {
            Dependence::Unknown
        };
        let medium_rate = if may_be_medium { lossy.medium_rate() } else { 0.0 };
        let onset =
            if medium_rate > 0.0 { delay_onset(intervals, medium_rate, &mut scratch.order) } else { None };
        Self { dependence, medium_rate, onset }
    }
}

/// Returns the delay from which on a queue drops, beside a medium with the loss rate `rate`.
fn delay_onset(intervals: &[DelayInterval], rate: f64, order: &mut Vec<(f64, usize)>) -> Option<Span> {
    sort_by_delay(intervals, order);
    let evidence_at = |at: usize| (at, evidence(intervals[at].packets, intervals[at].lost, rate));
    onset(order.iter().rev().map(|(_, at)| evidence_at(*at))).map(|at| intervals[at].delay)
}

/// Returns the evidence of an interval for [`ONSET_FACTOR`] times the medium's loss rate `rate`: the
/// logarithm of the likelihood ratio of two Poisson processes.
pub(crate) fn evidence(packets: u64, lost: u64, rate: f64) -> f64 {
    let expected = rate * packets as f64;
    (lost as f64 * ONSET_FACTOR.ln() - (ONSET_FACTOR - 1.0) * expected).min(MAX_EVIDENCE)
}

/// Finds where intervals begin to lose more than the medium: the likeliest change point (Page's cumulative
/// sum test, Biometrika 41, 1954, over the ordering criterion instead of time). `ordered` contains the index
/// and evidence of each interval, highest first.
pub(crate) fn onset(ordered: impl Iterator<Item = (usize, f64)>) -> Option<usize> {
    let (mut sum, mut most, mut from) = (0.0, 0.0, None);
    for (at, evidence) in ordered {
        sum += evidence;
        if sum >= most {
            (most, from) = (sum, Some(at));
        }
    }
    from.filter(|_| most >= MIN_EVIDENCE)
}

/// Intervals of short delay with losses.
struct LossyIntervals {
    intervals: f64,
    /// Number of intervals of short delay.
    of: f64,
    /// Mean number of packets in these.
    packets: f64,
    /// Number of intervals with losses expected if losses were independent of the delay.
    expected: f64,
    /// Loss rate at short delays.
    rate: f64,
    /// Overall loss rate.
    overall_rate: f64,
}

impl LossyIntervals {
    fn of(intervals: &[DelayInterval], upto: Span) -> Self {
        let is_losing = |interval: &&DelayInterval| interval.lost > 0;
        let all = intervals.iter().filter(is_losing).count() as f64;
        let short = || intervals.iter().filter(|interval| interval.delay <= upto);
        let (of, sum) = (short().count() as f64, DelayInterval::sum(short()));
        let every = DelayInterval::sum(intervals.iter());
        Self {
            intervals: short().filter(is_losing).count() as f64,
            of,
            packets: sum.packets as f64 / of,
            expected: all * of / intervals.len() as f64,
            rate: sum.loss_rate(),
            overall_rate: every.loss_rate(),
        }
    }

    /// Returns the medium's loss rate: the rate at short delays, bounded by the share of intervals without
    /// losses (`exp(-rate * packets)` of them). A queue that is full for a moment loses many packets in few
    /// intervals.
    fn medium_rate(&self) -> f64 {
        if self.intervals < MIN_LOSING.max(self.expected * MEDIUM_SHARE) {
            return 0.0;
        }
        let lossless = 1.0 - self.intervals / self.of;
        self.rate.min(-lossless.ln() / self.packets.max(1.0))
    }

    fn is_frequent_enough(&self) -> bool {
        self.expected >= MIN_EXPECTED && self.intervals >= self.expected * INDEPENDENT_SHARE
    }

    /// Guards against a queue that was full for a moment, which raises the overall rate only.
    fn is_rate_alike(&self) -> bool {
        self.rate >= self.overall_rate * INDEPENDENT_RATE
    }
}

/// Returns the correlation between the ranks of delays and the excess of losses over the mean, in standard
/// deviations; 0 if either is constant. Ranks of loss rates would be unsuitable: intervals of few packets
/// mostly lose none, and in slow start these have short delays.
fn correlation(intervals: &[DelayInterval], order: &mut Vec<(f64, usize)>) -> f64 {
    let rate = DelayInterval::sum(intervals.iter()).loss_rate();
    let count = intervals.len() as f64;
    sort_by_delay(intervals, order);
    let (mut before, mut product, mut ranks, mut sum, mut squares) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ties in order.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
        // Mean of their ranks, minus the overall mean.
        let rank = before + ties.len() as f64 / 2.0 - count / 2.0;
        for excess in ties.iter().map(|(_, at)| intervals[*at].excess(rate)) {
            (product, ranks) = (product + rank * excess, ranks + rank * rank);
            (sum, squares) = (sum + excess, squares + excess * excess);
        }
        before += ties.len() as f64;
    }
    let spread = (ranks * (squares - sum * sum / count)).sqrt();
    if spread > 0.0 { product / spread * (count - 1.0).sqrt() } else { 0.0 }
}

/// Sorts the intervals by delay, shortest first.
fn sort_by_delay(intervals: &[DelayInterval], order: &mut Vec<(f64, usize)>) {
    order.clear();
    order.extend(intervals.iter().map(|interval| interval.delay.as_nanos() as f64).zip(0..));
    order.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rng(n: u64, seed: u64) -> Rng {
        Rng::from_seed(n + seed * 1_000_003)
    }

    /// Random number of losses among 400 packets.
    fn medium(rate: f64, n: u64, seed: u64) -> u64 {
        let mut rng = rng(n, seed);
        (0..400).filter(|_| rng.chance(rate)).count() as u64
    }

    /// Ten saw-teeth of 50 intervals, from `empty` to `most` above it; `lost` returns each one's losses.
    fn saw_tooth(empty: Span, most: Span, lost: impl Fn(u64, f64) -> u64) -> Vec<DelayInterval> {
        let interval = |n: u64| {
            let height = (n % 50) as f64 / 49.0;
            DelayInterval { delay: empty + most.mul_f64(height), packets: 400, lost: lost(n, height) }
        };
        (0..500).map(interval).collect()
    }

    fn delay_each(intervals: &mut [DelayInterval], later: impl Fn(u64) -> Span) {
        for (n, interval) in (0..).zip(intervals) {
            interval.delay = interval.delay + later(n);
        }
    }

    const EMPTY: Span = Span::from_millis(10);

    fn of(intervals: &[DelayInterval]) -> DelayFinding {
        DelayFinding::of(intervals, EMPTY, &mut DelayScratch::default())
    }

    #[test]
    fn the_correlation_uses_ranks_with_ties_and_excess_losses() {
        let intervals: Vec<DelayInterval> = [(1, 10, 0), (5, 20, 0), (2, 20, 3), (9, 30, 1), (9, 20, 2)]
            .map(|(millis, packets, lost)| DelayInterval { delay: Span::from_millis(millis), packets, lost })
            .into();
        // Computed by hand: 6 of 100 packets are lost, so 0.6, 1.2, 1.8, 1.2 and 1.2 are expected.
        let excess = [-0.774_597, -1.095_445, 1.643_168, -0.596_285, 0.730_297];
        // Ranks 0, 2, 1 and 3.5 twice, minus 2; their squares sum to 9.5, those of the excesses to 5.388 889.
        let product = -2.0 * excess[0] - excess[2] + 1.5 * (excess[3] + excess[4]);
        let sum: f64 = excess.iter().sum();
        let expected = product / (9.5f64 * (5.388_889 - sum * sum / 5.0)).sqrt() * 2.0;
        let found = correlation(&intervals, &mut Vec::new());
        assert!((found - expected).abs() < 1e-5, "{found}, {expected}");
        assert_eq!(of(&[]), DelayFinding::default());
        assert_eq!(of(&intervals).dependence, Dependence::Unknown);
    }

    /// In slow start few packets are sent without a queue, and many with one; then it stays short.
    #[test]
    fn losses_in_slow_start_do_not_make_a_medium_delay_dependent() {
        for seed in 0..40 {
            let mut rng = Rng::from_seed(seed);
            let mut interval = |n: u64| {
                let (delay_ms, packets) = match n {
                    0..50 => (10, 4 + n / 2),
                    50..60 => (10 + (n - 50) * 4, 800),
                    _ => (11, 800),
                };
                let delay = Span::from_millis(delay_ms) + Span::from_micros(rng.below(50));
                DelayInterval {
                    delay,
                    packets,
                    lost: (0..packets).filter(|_| rng.chance(0.001)).count() as u64,
                }
            };
            let intervals: Vec<DelayInterval> = (0..130).map(&mut interval).collect();
            let found = of(&intervals);
            assert_ne!(found.dependence, Dependence::Dependent, "seed {seed}: {found:?}");
            assert!((0.0005..0.002).contains(&found.medium_rate), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn a_queue_that_never_empties_and_one_that_drops_early_are_queues() {
        // A standing delay of 13 ms; losses at the top.
        let standing =
            saw_tooth(
                Span::from_millis(23),
                Span::from_millis(7),
                |n, height| {
                    if height > 0.9 { n % 7 } else { 0 }
                },
            );
        // The less likely the shorter the queue, as with RED.
        let early = saw_tooth(EMPTY, Span::from_millis(3), |n, height| medium(0.01 * height * height, n, 1));
        for queue in [&standing, &early] {
            assert_eq!(of(queue).dependence, Dependence::Dependent, "{:?}", of(queue));
            assert!(of(queue).medium_rate <= 0.0, "{:?}", of(queue));
        }
    }

    #[test]
    fn a_permanently_full_queue_is_inconclusive() {
        let mut full = saw_tooth(Span::from_millis(30), Span::from_micros(400), |n, _| medium(0.05, n, 1));
        assert_eq!(of(&full), DelayFinding::default());
        // Nor with slight jitter.
        delay_each(&mut full, |n| Span::from_micros(n * 7 % 900));
        assert_eq!(of(&full), DelayFinding::default());
    }

    /// As an overloaded `CoDel`: its queue is never shorter than its target, and it drops at any delay.
    #[test]
    fn losses_never_seen_without_a_queue_are_not_a_mediums() {
        let floors = [4, 5].map(|floor| {
            of(&saw_tooth(EMPTY + Span::from_millis(floor), Span::from_millis(12), |n, _| {
                medium(0.005, n, 1)
            }))
        });
        assert_eq!(floors.map(|found| found.dependence), [Dependence::Independent, Dependence::Unknown]);
        assert!(floors[0].medium_rate > 0.0 && floors[1].medium_rate <= 0.0, "{floors:?}");
    }

    #[test]
    fn losses_of_a_briefly_full_queue_do_not_raise_the_mediums_rate() {
        let lost = |n: u64, height: f64| medium(0.002, n, 1) + if n < 50 && height > 0.9 { 200 } else { 0 };
        let found = of(&saw_tooth(EMPTY, Span::from_millis(20), lost));
        assert_ne!(found.dependence, Dependence::Independent, "{found:?}");
        assert!((0.001..0.003).contains(&found.medium_rate), "{found:?}");
    }

    #[test]
    fn the_onset_is_the_delay_from_which_a_queue_drops_beside_a_medium() {
        let at = |height: f64| EMPTY + Span::from_millis(20).mul_f64(height);
        let found = |lost: &dyn Fn(u64, f64) -> u64| of(&saw_tooth(EMPTY, Span::from_millis(20), lost));
        let full = found(&|n, height| medium(0.002, n, 1) + if height > 0.95 { 20 } else { 0 });
        assert!(full.onset.is_some_and(|onset| (at(0.93)..=at(1.0)).contains(&onset)), "{full:?}");
        // It fills once, in an interval of a shorter mean delay.
        let fills = found(&|n, height| {
            let is_full = height > 0.95 || n == 25;
            medium(0.002, n, 1) + if is_full { 200 } else { 0 }
        });
        assert!(fills.onset.is_some_and(|onset| onset >= at(0.9)), "{fills:?}");
        assert_eq!(found(&|n, _| medium(0.002, n, 1)).onset, None);
        assert_eq!(found(&|_, height| if height > 0.95 { 20 } else { 0 }).onset, None);
    }

    /// Losses of a medium at this rate, over saw-teeth with this jitter in microseconds.
    fn at_random(seed: u64, rate: f64, jitter_us: u64, standing_us: u64) -> DelayFinding {
        let mut intervals = saw_tooth(EMPTY, Span::from_micros(standing_us), |n, _| medium(rate, n, seed));
        delay_each(&mut intervals, |n| Span::from_micros(jitter_us).mul_f64(rng(n, seed + 1).next_f64()));
        of(&intervals)
    }

    /// [`SIGNIFICANT`] allows one in 30,000; of 200,000 such draws there were three.
    #[test]
    fn random_losses_are_rarely_called_delay_dependent() {
        let mut draws = Rng::from_seed(40);
        let is_wrong = |_: &u32| {
            let (rate, jitter, standing) = (draws.next_f64(), draws.next_f64(), draws.next_f64());
            let found = at_random(
                draws.next_u64() % 10_000,
                0.001 + 0.019 * rate,
                1_000 + (19_000.0 * jitter) as u64,
                (20_000.0 * standing) as u64,
            );
            found.dependence == Dependence::Dependent
        };
        assert!((0..1_000).filter(is_wrong).count() <= 1);
    }

    proptest! {
        #[test]
        fn the_loss_rate_of_a_medium_is_found_for_any_delays(
            seed in 0u64..10_000, rate in 0.001f64..0.02, jitter_us in 1_000u64..20_000, standing_us in 0u64..20_000,
        ) {
            let found = at_random(seed, rate, jitter_us, standing_us);
            prop_assert!((found.medium_rate / rate - 1.0).abs() < 0.7, "{:?}", found);
        }

        #[test]
        fn a_queue_is_found_for_any_floor_and_clock_drift(
            floor_ms in 10u64..200, most_us in 2_000u64..50_000, drift_ppm in 0u64..200, seed in 0u64..1_000,
        ) {
            let mut intervals = saw_tooth(Span::from_millis(floor_ms), Span::from_micros(most_us), |n, height| {
                if height > 0.85 { medium(0.01, n, seed) } else { 0 }
            });
            // 10 ms each.
            delay_each(&mut intervals, |n| Span::from_micros(n * 10_000 * drift_ppm / 1_000_000));
            prop_assert_eq!(of(&intervals).dependence, Dependence::Dependent);
        }

        #[test]
        fn any_intervals_give_a_rate(
            counts in vec((0u64..1 << 40, 0u64..1_000, 0u64..2_000), 0..60), empty_us in 0u64..1 << 40,
        ) {
            let interval = |(us, packets, lost)| DelayInterval { delay: Span::from_micros(us), packets, lost };
            let intervals: Vec<DelayInterval> = counts.into_iter().map(interval).collect();
            let found = DelayFinding::of(&intervals, Span::from_micros(empty_us), &mut DelayScratch::default());
            prop_assert!(found.medium_rate.is_finite() && found.medium_rate >= 0.0, "{:?}", found);
        }
    }
}
