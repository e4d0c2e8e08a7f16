//! Converts reports into samples for a control law: totals to increments, counters and clocks to rates.

use std::collections::VecDeque;

use haul_base::{HostSample, Rate, Span, Time, Verdict};

use crate::control::{FeedbackSample, LossRuns};
use crate::delivery_rate::DeliveryMeter;
use crate::micro::events::{Newest, PeerReport, ReceiverCounters};
use crate::one_way::OneWayDelay;
use crate::rtt::RttEstimator;

/// State of the sender itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SenderState {
    pub(crate) now: Time,
    /// Size of a full packet, in UDP payload bytes.
    pub(crate) datagram: u64,
    pub(crate) next_pn: u64,
    /// Data packets sent, including repeated ones.
    pub(crate) sent_packets: u64,
    /// UDP payload bytes of data packets sent.
    pub(crate) sent_bytes: u64,
    /// The report interval in force.
    pub(crate) report_interval: Span,
}

/// Maximum number of absences stored until their packets have arrived.
const MAX_ABSENCES: usize = 64;

/// State of the conversion.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    arrival: DeliveryMeter,
    drain: DeliveryMeter,
    one_way: OneWayDelay,
    counters: ReceiverCounters,
    host: Option<HostSample>,
    largest_acked_pn: u64,
    /// First packet after each gap that the sender caused, oldest first, until it has arrived.
    resumed: VecDeque<u64>,
    verdict: Option<Verdict>,
    peak: Rate,
}

/// Returns the increase of a wrapping counter, limited to what is possible.
fn grown(new: u32, old: u32, most: u64) -> u64 {
    let grown = new.wrapping_sub(old);
    // The counter decreased: the peer reports false values, or has restarted it.
    if grown > u32::MAX / 2 { 0 } else { u64::from(grown).min(most) }
}

impl Observer {
    /// Highest arrival rate so far.
    pub(crate) fn peak(&self) -> Rate {
        self.peak
    }

    /// Last reported load of the receiving host.
    pub(crate) fn host(&self) -> Option<HostSample> {
        self.host
    }

    /// External diagnosis of the losses.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Sets an external diagnosis of losses, which replaces the sender's own from now on.
    pub(crate) fn set_verdict(&mut self, verdict: Option<Verdict>) {
        self.verdict = verdict;
    }

    /// The number after the newest packet known to have arrived; 0 if there is none.
    pub(crate) fn known_below(&self) -> u64 {
        if self.largest_acked_pn > 0 { self.largest_acked_pn.saturating_add(1) } else { 0 }
    }

    /// Records that the sender had no processor for a while, or nothing to send, before the packets from
    /// `first_pn` on.
    pub(crate) fn on_absence(&mut self, first_pn: u64) {
        // In a full list, replace the newest.
        if self.resumed.len() == MAX_ABSENCES {
            self.resumed.pop_back();
        }
        self.resumed.push_back(first_pn);
    }

    /// Returns the sample of a report. The caller sets whether the application was the limit.
    pub(crate) fn observe<'a>(
        &mut self,
        report: &PeerReport,
        sender: &SenderState,
        rtt: &'a RttEstimator,
        loss: &'a LossRuns,
    ) -> FeedbackSample<'a> {
        self.largest_acked_pn = self.largest_acked_pn.max(report.largest_pn);
        let mut sample = FeedbackSample {
            now: sender.now,
            acked_packets: report.outcome.acked_packets,
            lost_packets: report.outcome.lost_packets,
            host_lost_packets: 0,
            loss,
            in_flight: report.outcome.in_flight,
            datagram: sender.datagram,
            sent_bytes: sender.sent_bytes,
            sent_packets: sender.sent_packets,
            next_pn: sender.next_pn,
            largest_acked_pn: self.largest_acked_pn,
            rtt,
            arrival_rate: None,
            drain_rate: None,
            read_delay: None,
            queue_delay: None,
            delay_trend: self.one_way.trend(),
            gro_run: None,
            duplicates: 0,
            socket_drops: 0,
            ecn_ce: 0,
            host: None,
            verdict: self.verdict,
            app_limited: false,
            sender_absent: false,
            report_interval: sender.report_interval,
        };
        if let Some(newest) = &report.newest {
            self.add_newest(&mut sample, newest, report);
        }
        sample
    }

    /// Adds the values of the newest report.
    fn add_newest(&mut self, sample: &mut FeedbackSample<'_>, newest: &Newest, report: &PeerReport) {
        if let Some((at, bytes)) = newest.arrived {
            let span = sample.rtt.smoothed();
            let known = self.resumed.len();
            self.resumed.retain(|&pn| pn > report.largest_pn);
            if self.resumed.len() < known {
                self.arrival.resume();
                self.drain.resume();
            }
            let read_at = at.wrapping_add(newest.receiver.read_delay_us);
            sample.arrival_rate = self.arrival.on_feedback(at, bytes, span);
            sample.drain_rate = self.drain.on_feedback(read_at, bytes, span);
            sample.sender_absent = sample.arrival_rate.is_none() && self.arrival.is_resumed();
            sample.read_delay = Some(Span::from_micros(u64::from(newest.receiver.read_delay_us)));
            self.peak = self.peak.max(sample.arrival_rate.unwrap_or(Rate::ZERO));
            if let Some(loss) = report.loss {
                sample.queue_delay = Some(self.one_way.on_arrival(sample.now, loss.sent_at, at));
                sample.delay_trend = self.one_way.trend();
            }
        }
        let (new, old, most) = (newest.receiver, self.counters, sample.sent_packets);
        let packets = grown(new.packets as u32, old.packets as u32, most);
        let buffers = grown(new.buffers, old.buffers, packets);
        sample.gro_run = (buffers > 0).then(|| packets as f64 / buffers as f64);
        sample.duplicates = grown(new.duplicates, old.duplicates, most);
        sample.socket_drops = grown(new.socket_drops, old.socket_drops, most);
        sample.ecn_ce = grown(new.ecn_ce, old.ecn_ce, most);
        self.counters = new;
        if let Some(host) = newest.host {
            sample.host = Some(host.since(&self.host.unwrap_or_default()));
            self.host = Some(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::events::{LossBoundary, Outcome};

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn sender(now: Time) -> SenderState {
        SenderState {
            now,
            datagram: 1_000,
            next_pn: 10_000,
            sent_packets: 10_000,
            sent_bytes: 10_000_000,
            report_interval: Span::from_millis(1),
        }
    }

    /// Report number `n`: one per millisecond, for 100 packets of 1,000 bytes each, read `read_delay_us`
    /// after their arrival.
    fn report(n: u64, read_delay_us: u32, host: Option<HostSample>) -> PeerReport {
        let receiver = ReceiverCounters {
            packets: n * 100,
            duplicates: n as u32,
            ecn_ce: 2 * n as u32,
            socket_drops: u32::MAX.wrapping_add(n as u32),
            buffers: 10 * n as u32,
            read_delay_us,
        };
        let arrived = Some((u32::MAX.wrapping_add(n as u32 * 1_000), n * 100_000));
        PeerReport {
            outcome: Outcome::default(),
            packets: n * 100,
            largest_pn: n * 100,
            loss: Some(LossBoundary {
                largest_pn: n * 100,
                sent_at: n as u32 * 1_000,
                reordering: Span::ZERO,
            }),
            newest: Some(Newest { limit: 0, last_probe: 0, arrived, receiver, host }),
        }
    }

    #[test]
    fn totals_become_differences_despite_lost_reports() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(5)));
        observer.observe(&report(1, 0, None), &sender(at(1)), &rtt, LossRuns::none());
        let sample = observer.observe(&report(4, 0, None), &sender(at(4)), &rtt, LossRuns::none());
        assert_eq!((sample.duplicates, sample.ecn_ce, sample.socket_drops), (3, 6, 3));
        assert_eq!((sample.gro_run, sample.largest_acked_pn), (Some(10.0), 400));
        let overtaken = PeerReport { newest: None, ..report(3, 0, None) };
        let sample = observer.observe(&overtaken, &sender(at(5)), &rtt, LossRuns::none());
        assert_eq!((sample.duplicates, sample.arrival_rate, sample.largest_acked_pn), (0, None, 400));
    }

    #[test]
    fn late_reading_lowers_the_drain_rate_but_not_the_arrival_rate() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(5)));
        let mut last = None;
        for n in 1..=20 {
            // Each millisecond it falls behind by half a millisecond.
            let sample =
                observer.observe(&report(n, n as u32 * 500, None), &sender(at(n)), &rtt, LossRuns::none());
            last = Some((sample.arrival_rate, sample.drain_rate, sample.read_delay, sample.queue_delay));
        }
        let (arrival, drain, read_delay, queue) = last.unwrap();
        assert_eq!(arrival, Some(Rate::from_mbps(800)));
        let drain = drain.unwrap().as_bps() as f64;
        assert!((drain / 533.3e6 - 1.0).abs() < 0.02, "{drain}");
        assert_eq!((read_delay, queue), (Some(Span::from_millis(10)), Some(Span::ZERO)));
    }

    #[test]
    fn rates_are_not_measured_across_sender_absences() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(20)));
        let mut rates = Vec::new();
        // 800 Mbit/s for 10 of each 20 ms, reported a round trip or more later.
        for n in 0..200u64 {
            let (burst, part) = (n / 10, n % 10);
            if part == 0 {
                observer.on_absence((n + 30) * 100);
            }
            let reported = report(n, 0, None);
            let mut newest = reported.newest.unwrap();
            newest.arrived = Some(((burst * 20 + part) as u32 * 1_000, n * 100_000));
            let sender = SenderState { next_pn: 100_000, ..sender(at(burst * 20 + part)) };
            let reported = PeerReport { newest: Some(newest), ..reported };
            let sample = observer.observe(&reported, &sender, &rtt, LossRuns::none());
            rates.push((sample.arrival_rate, sample.sender_absent));
        }
        let settled = &rates[40..];
        let measured = settled.iter().filter_map(|(rate, _)| *rate);
        assert!(measured.clone().all(|rate| rate == Rate::from_mbps(800)), "{settled:?}");
        assert_eq!(measured.count(), 16 * 5);
        assert!(settled.iter().all(|(rate, absent)| *absent == rate.is_none()));
    }

    #[test]
    fn a_forward_queue_appears_as_delay_and_trend_and_not_as_clock_drift() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(5)));
        let mut seen = Vec::new();
        for n in 1..=100u64 {
            let mut report = report(n, 0, None);
            let queue = n.saturating_sub(50) as u32 * 100;
            let newest = report.newest.as_mut().unwrap();
            newest.arrived = newest.arrived.map(|(at, bytes)| (at.wrapping_add(queue), bytes));
            let sample = observer.observe(&report, &sender(at(n)), &rtt, LossRuns::none());
            seen.push((sample.queue_delay.unwrap(), sample.delay_trend));
        }
        assert_eq!(seen[49], (Span::ZERO, 0.0));
        assert_eq!(seen[99].0, Span::from_millis(5));
        assert!((seen[99].1 - 0.1).abs() < 0.01, "{:?}", seen[99]);
    }

    #[test]
    fn host_reports_cover_the_time_since_the_previous_one() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(5)));
        let host = |ms| Some(HostSample { run_delay: Some(Span::from_millis(ms)), ..HostSample::default() });
        for (n, reported, seen) in
            [(1, host(5), None), (2, None, None), (3, host(12), Some(Span::from_millis(7)))]
        {
            let sample = observer.observe(&report(n, 0, reported), &sender(at(n)), &rtt, LossRuns::none());
            assert_eq!(sample.host.and_then(|host| host.run_delay), seen);
        }
    }

    #[test]
    fn counters_wrap_and_decreasing_ones_have_not_grown() {
        for (new, old, expected) in [(5, 2, 3), (2, u32::MAX, 3), (2, 1_000, 0), (0, 1, 0), (500, 0, 100)] {
            assert_eq!(grown(new, old, 100), expected, "{old} to {new}");
        }
    }

    #[test]
    fn false_counters_are_bounded_by_the_packets_sent() {
        let (mut observer, rtt) = (Observer::default(), RttEstimator::new(Span::from_millis(5)));
        observer.observe(&report(9, 0, None), &sender(at(1)), &rtt, LossRuns::none());
        let sample = observer.observe(&report(2, u32::MAX, None), &sender(at(2)), &rtt, LossRuns::none());
        assert!(sample.duplicates <= 10_000 && sample.ecn_ce <= 10_000 && sample.socket_drops <= 10_000);
        assert!(sample.gro_run.is_none_or(|run| (1.0..=10_000.0).contains(&run)), "{:?}", sample.gro_run);
    }
}
