//! The report interval that the sender requests from the receiver: short enough for the control law, long
//! enough for the reverse path.
//!
//! As with QUIC's `ACK_FREQUENCY` (draft-ietf-quic-ack-frequency) the sender decides: it knows the round-trip
//! time, and sees whether reports queue on the reverse path.

use haul_base::{Rate, Span, Time};
use haul_wire::packet::FeedbackHeader;

use super::reverse_path::{LONGEST, QUEUED, ReportArrival, ReversePath, Sustainable};
use crate::micro::shared::LawInterval;
use crate::rtt::WindowedMin;

/// Number of initial reports that use the recipe's interval, whatever they cost: a law finds its rate with
/// them. A choice.
const START_REPORTS: u64 = 80;
/// Reports also use the recipe's interval while each measurement finds this factor more data than any other
/// of [`GROWTH_MEMORY`]: the sender doubles its rate each round trip, the measurement is one round trip old,
/// and fewer reports would slow the growth. BBR's threshold for a path that is not full yet.
const GROWTH: f64 = 1.25;
/// Longer than the time for which a law lowers its rate to measure a long round trip. A choice.
const GROWTH_MEMORY: Span = Span::from_secs(10);
/// Data packets per report packet. With the early reports that losses cause, reports are at most 1 % of the
/// packets at or above 100 Mbit/s and at most 2 % below. A law whose reports are more than a round trip apart
/// needs more of them.
const PACKETS_FAST: u64 = 168;
const PACKETS_SLOW: u64 = 96;
const PACKETS_RARE: u64 = 72;
const FAST: Rate = Rate::from_mbps(80);
/// Maximum interval derived from the packet count; it is also at most a round trip. A law with a window would
/// have sent all that it may by then. Laws that allow [`RARE`] are exempt.
const LONGEST_BY_COUNT: Span = Span::from_millis(50);
/// Maximum for laws that allow it, or a round trip if that is longer: twelve reports in the 3 s in which a
/// law has to follow a change of the path. A choice.
const RARE: Span = Span::from_millis(250);
/// Divisor: the interval is also limited to this fraction of the time since the start, because a new law has
/// not found its rate yet. A choice.
const RARE_PART: u64 = 64;
/// The minimum spacing of data packets within this time counts: a sender that stopped because of a lost
/// report must not get a longer interval, which would stop it again.
const SPACING_MEMORY: Span = Span::from_secs(1);
/// Weight of the newest value in the mean number of packets of a report.
const SIZE_GAIN: f64 = 1.0 / 8.0;
/// The sender repeats its request when the interval has changed by this fraction, and periodically, because
/// it can be lost.
const CHANGE: f64 = 0.25;
const REPEAT: Span = Span::from_secs(1);

/// The spacing and rate of data packets at the receiver, measured over at least a round trip.
#[derive(Debug)]
struct DataArrivals {
    /// Receiver's clock, packets and bytes at the start of the measurement.
    start: Option<(u32, u64, u64)>,
    /// Nanoseconds between two packets.
    spacings: WindowedMin,
    /// Mean time between two packets, and UDP payload rate, of the last measurement.
    measured: Option<(Span, Rate)>,
    /// Minimum of this time over [`SPACING_MEMORY`].
    least_spacing: Span,
    /// Nanoseconds between two packets, over [`GROWTH_MEMORY`].
    long_spacings: WindowedMin,
    /// Whether the last measurement found more by [`GROWTH`] than those before.
    is_growing: bool,
}

impl DataArrivals {
    fn new() -> Self {
        Self {
            start: None,
            spacings: WindowedMin::new(SPACING_MEMORY),
            measured: None,
            least_spacing: Span::ZERO,
            long_spacings: WindowedMin::new(GROWTH_MEMORY),
            is_growing: false,
        }
    }

    fn on_report(&mut self, now: Time, header: &FeedbackHeader, least: Span) {
        let counts = (header.received_at, header.packets, header.bytes);
        let (at, packets, bytes) = *self.start.get_or_insert(counts);
        let elapsed = Span::from_micros(u64::from(header.received_at.wrapping_sub(at)));
        let count = header.packets.saturating_sub(packets);
        if elapsed < least || count == 0 {
            return;
        }
        let rate = Rate::from_transfer(header.bytes.saturating_sub(bytes), elapsed);
        let spacing = elapsed / count;
        self.measured = Some((spacing, rate));
        let grown = spacing.mul_f64(GROWTH);
        // True if no other spacing is less than this one would be with that much less data.
        self.is_growing = grown <= self.long_spacings.on_span(now, grown);
        self.long_spacings.on_span(now, spacing);
        self.least_spacing = self.spacings.on_span(now, spacing);
        self.start = Some(counts);
    }
}

/// Mean number of packets per report: more than one where many segments have gaps.
#[derive(Debug)]
struct ReportSize {
    mean: f64,
    /// When the present report was sent (receiver's clock), and its packets so far.
    present: (u32, u32),
}

impl ReportSize {
    fn on_packet(&mut self, sent_at: u32) {
        let (at, packets) = self.present;
        if at == sent_at {
            self.present.1 = packets.saturating_add(1);
            return;
        }
        self.mean += (f64::from(packets) - self.mean) * SIZE_GAIN;
        self.present = (sent_at, 1);
    }
}

/// State of the report interval.
#[derive(Debug)]
pub(super) struct ReportInterval {
    /// The recipe's interval.
    shortest: Span,
    present: Span,
    /// The interval last requested, and when.
    requested: Option<(Span, Time)>,
    data: DataArrivals,
    size: ReportSize,
    reverse: ReversePath,
    sustainable: Sustainable,
    began: Time,
}

impl ReportInterval {
    pub(super) fn new(now: Time, shortest: Span) -> Self {
        Self {
            shortest,
            present: shortest,
            requested: None,
            data: DataArrivals::new(),
            size: ReportSize { mean: 1.0, present: (0, 1) },
            reverse: ReversePath::default(),
            sustainable: Sustainable::new(now),
            began: now,
        }
    }

    /// The interval in force.
    pub(super) fn get(&self) -> Span {
        self.present
    }

    /// Sets the recipe's interval.
    pub(super) fn set_shortest(&mut self, shortest: Span) {
        self.shortest = shortest;
        self.present = shortest;
    }

    /// Processes the newest report. `law` has the control law's requirements; the reverse path limits what
    /// they can ask. Returns whether to request another interval from the receiver.
    pub(super) fn on_report(
        &mut self,
        report: ReportArrival,
        header: &FeedbackHeader,
        min_rtt: Span,
        law: LawInterval,
    ) -> bool {
        if header.packets == 0 {
            return false;
        }
        self.data.on_report(report.at, header, min_rtt.max(QUEUED));
        self.size.on_packet(header.sent_at);
        let seen = self.reverse.on_report(report, header.sent_at, QUEUED.max(min_rtt / 4));
        self.sustainable.on_report(report.at, seen, min_rtt, self.shortest);
        let target =
            law.required.unwrap_or_else(|| self.by_count(report, min_rtt, law.may_be_rare)).min(LONGEST);
        self.present = target.max(self.sustainable.interval).max(self.shortest);
        self.is_due(report.at)
    }

    fn by_count(&self, report: ReportArrival, min_rtt: Span, may_be_rare: bool) -> Span {
        let is_early = report.number < START_REPORTS || self.data.is_growing;
        let Some((spacing, rate)) = self.data.measured.filter(|_| !is_early) else { return Span::ZERO };
        let is_fast = rate >= FAST;
        let spanned = |spacing: Span, packets: u64| spacing.mul_f64(packets as f64 * self.size.mean);
        let by_count = spanned(spacing, if is_fast { PACKETS_FAST } else { PACKETS_SLOW });
        let often = LONGEST_BY_COUNT.min(min_rtt);
        if by_count <= often || !may_be_rare {
            return by_count.min(often);
        }
        let longest = RARE.max(min_rtt).min(report.at.since(self.began) / RARE_PART);
        let rare = spanned(self.data.least_spacing, if is_fast { PACKETS_FAST } else { PACKETS_RARE });
        rare.min(longest).max(often)
    }

    fn is_due(&self, now: Time) -> bool {
        let (requested, at) = self.requested.unwrap_or((self.shortest, now));
        let (present, requested) = (self.present.as_secs_f64(), requested.as_secs_f64());
        (present - requested).abs() > requested * CHANGE || now.since(at) >= REPEAT
    }

    /// Returns the interval to request from the receiver now, if any.
    pub(super) fn take_request(&mut self, now: Time) -> Option<Span> {
        self.is_due(now).then(|| {
            self.requested = Some((self.present, now));
            self.present
        })
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;

    use super::*;

    const SHORTEST: Span = Span::from_millis(2);

    fn ms(n: u64) -> Span {
        Span::from_millis(n)
    }

    /// A sender that receives reports from a receiver at which this many packets of 1,472 bytes arrive per
    /// millisecond.
    struct Sim {
        interval: ReportInterval,
        now: Time,
        reports: u64,
        packets_per_ms: f64,
        rtt: Span,
        /// Queueing delay of the reverse path.
        queue: Span,
        law: LawInterval,
        requests: Vec<Span>,
    }

    impl Sim {
        fn new(packets_per_ms: f64, rtt: Span) -> Self {
            let now = Time::ZERO + ms(1_000);
            let interval = ReportInterval::new(now, SHORTEST);
            let (queue, law) = (Span::ZERO, LawInterval::default());
            Self { interval, now, reports: 0, packets_per_ms, rtt, queue, law, requests: Vec::new() }
        }

        /// Sends reports at the requested interval. `queue` maps the queueing delay of the previous report,
        /// and the time since it, to the delay of the next.
        fn run(&mut self, span: Span, mut queue: impl FnMut(Span, Span) -> Span) {
            let end = self.now + span;
            while self.now < end {
                let interval = self.interval.get();
                self.now += interval;
                self.queue = queue(self.queue, interval);
                self.reports += 1;
                let packets = (self.now.as_nanos() as f64 / 1e6 * self.packets_per_ms) as u64;
                let sent_at = self.now.as_wrapped_micros().wrapping_add(77_000);
                let header = FeedbackHeader {
                    packets,
                    bytes: packets * 1_472,
                    received_at: sent_at,
                    sent_at,
                    ..FeedbackHeader::default()
                };
                let at = self.now + self.rtt / 2 + self.queue;
                let report = ReportArrival { at, pn: self.reports, number: self.reports };
                if self.interval.on_report(report, &header, self.rtt, self.law) {
                    self.requests.extend(self.interval.take_request(at));
                }
            }
        }

        fn run_without_queue(&mut self, span: Span) {
            self.run(span, |_, _| Span::ZERO);
        }
    }

    #[test]
    fn the_first_reports_keep_the_recipes_interval_and_nothing_is_requested() {
        let mut sim = Sim::new(17.0, ms(40));
        sim.run_without_queue(ms(150));
        assert_eq!((sim.interval.get(), sim.requests.len()), (SHORTEST, 0));
    }

    /// A sender that doubles its rate each round trip: measurements of it are always a round trip old.
    #[test]
    fn while_the_rate_grows_the_recipes_interval_stays() {
        let mut sim = Sim::new(0.0, ms(40));
        let began = sim.now;
        let mut longest = SHORTEST;
        while sim.now.since(began) < ms(440) {
            let packets = 10.0 * (sim.now.since(began).as_secs_f64() / 0.04).exp2();
            sim.packets_per_ms = packets / (sim.now.as_nanos() as f64 / 1e6);
            sim.run_without_queue(SHORTEST);
            longest = longest.max(sim.interval.get());
        }
        assert_eq!(longest, SHORTEST);
        sim.packets_per_ms = 17.0;
        sim.run_without_queue(ms(2_000));
        assert!(sim.interval.get() >= ms(8), "{}", sim.interval.get());
    }

    #[test]
    fn reports_are_below_one_percent_of_the_packets_above_100_mbit_and_two_below() {
        // (packets a millisecond, round trip, largest share): 200, 100, 20 Mbit/s.
        for (packets_per_ms, rtt, share) in [(17.0, 40, 0.01), (8.5, 40, 0.01), (1.7, 100, 0.02)] {
            let mut sim = Sim::new(packets_per_ms, ms(rtt));
            sim.run_without_queue(ms(2_000));
            let before = sim.reports;
            sim.run_without_queue(ms(10_000));
            let reports = (sim.reports - before) as f64;
            assert!(reports / (10_000.0 * packets_per_ms) < share, "{packets_per_ms}: {reports}");
            assert!(sim.interval.get() <= ms(rtt));
        }
    }

    #[test]
    fn a_fast_path_keeps_the_recipes_interval_and_a_short_one_reports_every_round_trip() {
        let mut fast = Sim::new(85.0, ms(40));
        fast.run_without_queue(ms(2_000));
        assert_eq!(fast.interval.get(), SHORTEST);
        let mut short = Sim::new(1.0, ms(6));
        short.run_without_queue(ms(2_000));
        assert_eq!(short.interval.get(), ms(6));
        let mut local = Sim::new(1.0, Span::from_micros(100));
        local.run_without_queue(ms(2_000));
        assert_eq!((local.interval.get(), local.requests.len()), (SHORTEST, 0));
    }

    /// Data packets per report once the interval has settled.
    fn packets_per_report(packets_per_ms: f64, rtt: u64) -> f64 {
        let mut sim = Sim::new(packets_per_ms, ms(rtt));
        sim.law.may_be_rare = true;
        sim.run_without_queue(ms(60_000));
        let before = sim.reports;
        sim.run_without_queue(ms(30_000));
        30_000.0 * packets_per_ms / (sim.reports - before) as f64
    }

    #[test]
    fn a_permitting_law_has_fewer_reports_but_four_per_second_or_one_per_round_trip() {
        assert!((66.0..78.0).contains(&packets_per_report(1.0, 1)));
        assert!((66.0..78.0).contains(&packets_per_report(0.085, 800)));
        assert!((20.0..23.0).contains(&packets_per_report(0.085, 20)));
        let mut young = Sim::new(0.085, ms(20));
        young.law.may_be_rare = true;
        young.run_without_queue(ms(3_000));
        assert!(young.interval.get() <= ms(60), "{}", young.interval.get());
    }

    #[test]
    fn a_time_without_data_does_not_make_reports_rarer() {
        let mut sim = Sim::new(1.7, ms(20));
        sim.law.may_be_rare = true;
        sim.run_without_queue(ms(20_000));
        let before = sim.interval.get();
        sim.packets_per_ms /= 1.01;
        sim.run_without_queue(ms(200));
        assert!(sim.interval.get() <= before * 11 / 10, "{before}, then {}", sim.interval.get());
    }

    #[test]
    fn a_report_of_several_packets_counts_as_several() {
        let mut size = ReportSize { mean: 1.0, present: (0, 1) };
        (0..600).for_each(|n| size.on_packet(n / 3));
        assert!((size.mean - 3.0).abs() < 0.01, "{size:?}");
    }

    #[test]
    fn a_narrow_reverse_path_gets_fewer_reports_until_it_is_wide_again() {
        let mut sim = Sim::new(1.7, ms(40));
        // Carrying a report takes 30 ms.
        let queue = |queue: Span, interval: Span| (queue + ms(30)).saturating_sub(interval);
        sim.run(ms(20_000), queue);
        let interval = sim.interval.get();
        assert!((ms(35)..ms(80)).contains(&interval), "{interval}");
        assert!(sim.queue < ms(60), "{}", sim.queue);
        sim.run_without_queue(ms(30_000));
        assert!((ms(30)..=ms(40)).contains(&sim.interval.get()), "{}", sim.interval.get());
        assert!(sim.requests.len() < 120, "{}: about one a second and one per change", sim.requests.len());
    }

    #[test]
    fn delay_not_caused_by_reports_changes_nothing() {
        let mut steady = Sim::new(17.0, ms(40));
        steady.run_without_queue(ms(5_000));
        let interval = steady.interval.get();
        // Jitter of up to 30 ms; a queue of other traffic that comes and goes; an outage before each of them.
        let mut rng = Rng::from_seed(3);
        let mut phase = 0u64;
        for n in 0..10 {
            steady.now += ms(3_000 * n);
            steady.run(ms(3_000), |_, _| ms(30).mul_f64(rng.next_f64()));
            steady.now += ms(3_000 * n);
            steady.run(ms(3_000), |_, _| {
                phase += 1;
                ms((phase % 400).min(400 - phase % 400) / 4)
            });
        }
        steady.run_without_queue(ms(1_000));
        let after = steady.interval.get();
        assert!((interval / 2..interval * 2).contains(&after), "{interval} and then {after}");
    }

    /// Each report is up to two seconds late, and none overtakes another.
    #[test]
    fn reports_are_rarer_only_until_it_proves_useless() {
        let mut sim = Sim::new(1.7, ms(40));
        sim.run_without_queue(ms(5_000));
        let (usual, began, mut rare) = (sim.interval.get(), sim.now, Span::ZERO);
        let mut rng = Rng::from_seed(7);
        while sim.now.since(began) < Span::from_secs(600) {
            let before = sim.now;
            sim.run(ms(100), |queue, interval| {
                queue.saturating_sub(interval).max(ms(2_000).mul_f64(rng.next_f64()))
            });
            if sim.interval.get() > usual * 2 {
                rare = rare + sim.now.since(before);
            }
        }
        assert!(rare < Span::from_secs(120), "{rare} of 600 s");
        // A reverse path that becomes narrow afterwards is detected nevertheless.
        sim.run_without_queue(ms(300_000));
        sim.run(ms(20_000), |queue, interval| (queue + ms(90)).saturating_sub(interval));
        assert!(sim.interval.get() > ms(100) && sim.queue < ms(180), "{} {}", sim.interval.get(), sim.queue);
    }

    #[test]
    fn reports_that_overtake_each_other_do_not_become_rarer() {
        let began = Time::ZERO + ms(1_000);
        let mut interval = ReportInterval::new(began, SHORTEST);
        let mut rng = Rng::from_seed(5);
        let mut under_way: Vec<(Time, u64)> = (1..1_000)
            .map(|pn| (began + ms(10) * pn + ms(20) + ms(2_000).mul_f64(rng.next_f64()), pn))
            .collect();
        under_way.sort_unstable();
        let mut newest = 0;
        for (number, (at, pn)) in (1..).zip(under_way) {
            // The sender considers only the newest.
            if pn > newest {
                newest = pn;
                let sent_at = (began + ms(10) * pn).as_wrapped_micros();
                let header = FeedbackHeader {
                    packets: 17 * pn,
                    received_at: sent_at,
                    sent_at,
                    ..FeedbackHeader::default()
                };
                interval.on_report(ReportArrival { at, pn, number }, &header, ms(40), LawInterval::default());
            }
        }
        assert_eq!(interval.get(), ms(40), "a round trip, as without jitter");
    }

    #[test]
    fn requests_repeat_every_second_and_intervals_are_at_most_a_second() {
        let mut slow = Sim::new(1.7, ms(40));
        slow.run(ms(60_000), |queue, interval| (queue + ms(2_000)).saturating_sub(interval));
        assert!((ms(900)..=LONGEST).contains(&slow.interval.get()), "{}", slow.interval.get());
        let mut repeated = Sim::new(1.7, ms(40));
        repeated.run_without_queue(ms(10_000));
        assert!((8..14).contains(&repeated.requests.len()), "{:?}", repeated.requests);
    }
}
