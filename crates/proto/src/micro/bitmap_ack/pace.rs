//! How often the receiver is asked to report: often enough for the law, rarely enough for the way back.
//!
//! The sender decides, as with QUIC's `ACK_FREQUENCY` (draft-ietf-quic-ack-frequency): it knows the round trip, and sees whether
//! reports queue up on their way.

use haul_base::{Rate, Span, Time};
use haul_wire::packet::FeedbackHeader;

use crate::one_way::OneWay;

/// So many reports come at the recipe's interval whatever they cost: with these a law finds its rate. Our choice.
const FREE_REPORTS: u64 = 100;
/// Data packets for each report: of what moves at 100 Mbit/s and more, below 1 % are reports, and 2 % of less, with room for the early ones.
const PACKETS_FAST: u64 = 160;
const PACKETS_SLOW: u64 = 80;
const FAST: Rate = Rate::from_mbps(80);
/// Few packets are no reason for an interval longer than this, or than a round trip where that is less: what the rate does has
/// to be seen.
const LONGEST_FOR_SHARE: Span = Span::from_millis(50);
/// No reason is good enough for a longer one.
pub(super) const LONGEST: Span = Span::from_secs(1);
/// Reports that take so much longer than the quickest, or a quarter of the round trip, wait for each other on the way back.
const LATE: Span = Span::from_millis(10);
/// Then they are asked for so many times as rarely as the way back lets them through, so that what waits there drains.
const DRAIN: u64 = 2;
/// It lets fewer through than are sent if their distance grows by this factor on the way. Other traffic makes them late and
/// leaves their mean distance as it is.
const SPREAD: f64 = 1.1;
/// After so long without late reports they are asked for more often, by this factor.
const CALM: Span = Span::from_secs(2);
const RELAX: f64 = 0.8;
/// The receiver is told again when the interval differs from what it was told by this part, and now and then in any case:
/// the word may have been lost.
const DIFFERENCE: f64 = 0.25;
const REPEAT: Span = Span::from_secs(1);

/// A report that came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub(super) at: Time,
    pub(super) pn: u64,
    /// How many had come then.
    pub(super) number: u64,
}

/// How fast data packets arrive, over stretches of at least a round trip.
#[derive(Debug, Default)]
struct Arriving {
    /// Receiver's clock, packets and bytes at the start of the present stretch.
    since: Option<(u32, u64, u64)>,
    /// Time between two packets and UDP payload bytes a second in the stretch before.
    known: Option<(Span, Rate)>,
}

impl Arriving {
    fn on_report(&mut self, header: &FeedbackHeader, stretch: Span) {
        let (at, packets, bytes) =
            *self.since.get_or_insert((header.received_at, header.packets, header.bytes));
        let elapsed = u64::from(header.received_at.wrapping_sub(at));
        let came = header.packets.saturating_sub(packets);
        if elapsed < stretch.as_micros() || came == 0 {
            return;
        }
        let elapsed = Span::from_micros(elapsed);
        let rate = Rate::from_transfer(header.bytes.saturating_sub(bytes), elapsed);
        self.known = Some((elapsed / came, rate));
        self.since = Some((header.received_at, header.packets, header.bytes));
    }
}

/// What reports show of the way back.
#[derive(Debug, Default)]
struct WayBack {
    one_way: OneWay,
    /// When the newest came, when it had left (receiver's clock), and its packet number.
    newest: Option<(Time, u32, u64)>,
    /// Mean distances of reports as they leave and as they come.
    left: Span,
    came: Span,
}

impl WayBack {
    /// Weight of a distance in the mean: one part in so many.
    const WEIGHT: u64 = 8;

    /// Takes a report and its packet number; gives how late it is.
    fn on_report(&mut self, at: Time, sent_at: u32, pn: u64) -> Span {
        if let Some((before, left, number)) = self.newest.replace((at, sent_at, pn)) {
            let mean = |mean: Span, new: Span| {
                if mean == Span::ZERO { new } else { (mean * (Self::WEIGHT - 1) + new) / Self::WEIGHT }
            };
            let between = Span::from_micros(u64::from(sent_at.wrapping_sub(left)));
            self.left = mean(self.left, between / (pn - number).max(1));
            self.came = mean(self.came, at.since(before));
        }
        self.one_way.on_arrival(at, sent_at, at.as_wrapped_micros())
    }

    /// How far apart the way back lets reports through, if they are sent closer together.
    fn service(&self) -> Option<Span> {
        (self.came > self.left.mul_f64(SPREAD)).then_some(self.came)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pace {
    /// That of the recipe.
    shortest: Span,
    asked: Span,
    told: Option<(Span, Time)>,
    arriving: Arriving,
    way_back: WayBack,
    /// No shorter interval fits the way back, as far as is known.
    fitting: Span,
    /// When `fitting` was changed, or reports were late.
    changed: Time,
}

impl Pace {
    pub(super) fn new(now: Time, shortest: Span) -> Self {
        Self {
            shortest,
            asked: shortest,
            told: None,
            arriving: Arriving::default(),
            way_back: WayBack::default(),
            fitting: Span::ZERO,
            changed: now,
        }
    }

    /// The interval that the receiver is asked to keep.
    pub(super) fn asked(&self) -> Span {
        self.asked
    }

    /// The recipe has another interval now.
    pub(super) fn set_shortest(&mut self, shortest: Span) {
        self.shortest = shortest;
        self.asked = shortest;
    }

    /// Takes the newest report: its packet number, how many have come with it, and when it came. Returns whether the receiver
    /// is to be told.
    pub(super) fn on_report(&mut self, report: Came, header: &FeedbackHeader, min_rtt: Span) -> bool {
        if header.packets == 0 {
            return false;
        }
        self.arriving.on_report(header, min_rtt.max(LATE));
        let late = self.way_back.on_report(report.at, header.sent_at, report.pn);
        self.fit(report.at, late > LATE.max(min_rtt / 4));
        self.asked = self.wanted(report.number, min_rtt);
        self.is_due(report.at)
    }

    fn fit(&mut self, now: Time, late: bool) {
        if late {
            self.changed = now;
            let fitting = self.way_back.service().unwrap_or(Span::ZERO) * DRAIN;
            self.fitting = self.fitting.max(fitting).min(LONGEST);
        } else if now.since(self.changed) >= CALM && self.fitting > self.shortest {
            self.changed = now;
            self.fitting = self.fitting.mul_f64(RELAX);
        }
    }

    fn wanted(&self, reports: u64, min_rtt: Span) -> Span {
        let share =
            self.arriving.known.filter(|_| reports >= FREE_REPORTS).map_or(Span::ZERO, |(gap, rate)| {
                gap * if rate >= FAST { PACKETS_FAST } else { PACKETS_SLOW }
            });
        share.min(LONGEST_FOR_SHARE).min(min_rtt).max(self.fitting).max(self.shortest)
    }

    fn is_due(&self, now: Time) -> bool {
        let (told, at) = self.told.unwrap_or((self.shortest, now));
        let (asked, told) = (self.asked.as_secs_f64(), told.as_secs_f64());
        (asked - told).abs() > told * DIFFERENCE || now.since(at) >= REPEAT
    }

    /// What to tell the receiver now, if anything.
    pub(super) fn tell(&mut self, now: Time) -> Option<Span> {
        self.is_due(now).then(|| {
            self.told = Some((self.asked, now));
            self.asked
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Span = Span::from_millis(2);

    fn ms(n: u64) -> Span {
        Span::from_millis(n)
    }

    /// A sender's view of a receiver to which `packets_per_ms` packets of 1,472 bytes come each millisecond, over a round trip.
    struct Seen {
        pace: Pace,
        now: Time,
        reports: u64,
        packets_per_ms: f64,
        rtt: Span,
        /// What waits on the way back, as time.
        queued: Span,
        told: Vec<Span>,
    }

    impl Seen {
        fn new(packets_per_ms: f64, rtt: Span) -> Self {
            let now = Time::ZERO + ms(1_000);
            let pace = Pace::new(now, SHORTEST);
            Self { pace, now, reports: 0, packets_per_ms, rtt, queued: Span::ZERO, told: Vec::new() }
        }

        /// Reports come as they are asked for, `late` of one being what it waits on its way.
        fn run(&mut self, span: Span, mut queue: impl FnMut(Span, Span) -> Span) {
            let end = self.now + span;
            while self.now < end {
                let gap = self.pace.asked();
                self.now += gap;
                self.queued = queue(self.queued, gap);
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
                let at = self.now + self.rtt / 2 + self.queued;
                let came = Came { at, pn: self.reports, number: self.reports };
                if self.pace.on_report(came, &header, self.rtt) {
                    self.told.extend(self.pace.tell(at));
                }
            }
        }

        fn run_free(&mut self, span: Span) {
            self.run(span, |_, _| Span::ZERO);
        }
    }

    #[test]
    fn the_first_reports_come_at_the_recipes_interval_and_nothing_is_told() {
        let mut seen = Seen::new(17.0, ms(40));
        seen.run_free(ms(190));
        assert_eq!((seen.pace.asked(), seen.told.len()), (SHORTEST, 0));
    }

    #[test]
    fn reports_are_below_a_hundredth_of_the_packets_above_100_mbit_and_two_below() {
        // (packets a millisecond, round trip, largest share): 200, 100, 20 Mbit/s.
        for (packets_per_ms, rtt, share) in [(17.0, 40, 0.01), (8.5, 40, 0.01), (1.7, 100, 0.02)] {
            let mut seen = Seen::new(packets_per_ms, ms(rtt));
            seen.run_free(ms(2_000));
            let before = seen.reports;
            seen.run_free(ms(10_000));
            let reports = (seen.reports - before) as f64;
            assert!(reports / (10_000.0 * packets_per_ms) < share, "{packets_per_ms}: {reports}");
            assert!(seen.pace.asked() <= ms(rtt));
        }
    }

    #[test]
    fn a_fast_path_keeps_the_recipes_interval_and_a_short_one_reports_every_round_trip() {
        let mut fast = Seen::new(85.0, ms(40));
        fast.run_free(ms(2_000));
        assert_eq!(fast.pace.asked(), SHORTEST);
        let mut short = Seen::new(1.0, ms(6));
        short.run_free(ms(2_000));
        assert_eq!(short.pace.asked(), ms(6));
        let mut local = Seen::new(1.0, Span::from_micros(100));
        local.run_free(ms(2_000));
        assert_eq!((local.pace.asked(), local.told.len()), (SHORTEST, 0));
    }

    #[test]
    fn reports_that_queue_up_are_asked_for_more_rarely_until_they_do_not() {
        let mut seen = Seen::new(1.7, ms(40));
        // A report takes 30 ms on the way back.
        let queue = |queued: Span, gap: Span| (queued + ms(30)).saturating_sub(gap);
        seen.run(ms(20_000), queue);
        let asked = seen.pace.asked();
        assert!((ms(35)..ms(80)).contains(&asked), "{asked}");
        assert!(seen.queued < ms(60), "{}", seen.queued);
        // The way back is wide again.
        seen.run_free(ms(30_000));
        assert!((ms(30)..=ms(40)).contains(&seen.pace.asked()), "{}", seen.pace.asked());
        assert!(seen.told.len() < 120, "{}: about one a second and one for each change", seen.told.len());
    }

    #[test]
    fn the_word_is_said_again_each_second_and_no_interval_is_longer_than_a_second() {
        let mut seen = Seen::new(1.7, ms(40));
        seen.run(ms(60_000), |_, _| ms(500));
        assert!(seen.pace.asked() <= LONGEST);
        let mut lost = Seen::new(1.7, ms(40));
        lost.run_free(ms(10_000));
        assert!((8..14).contains(&lost.told.len()), "{:?}", lost.told);
    }
}
