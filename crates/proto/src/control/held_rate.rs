//! `rate_control.mode`: how long a rate is held, with any law. FOBS has two modes (dickens-system-aware-fobs,
//! section on rate control). In the window-based mode a transmission window is sent at one rate and judged at
//! its end. In the rate-based mode a rate is held until a congestion event.
//!
//! The paper does not say what a law does in between. Our choices:
//! - A window is judged when the outcome of its last packet is known, a round trip after that packet was
//!   sent; the new rate applies from then on. The law gets the window as one feedback and one boundary of
//!   each unit. With one feedback per report, a law would lower its rate several times for the losses of one
//!   rate.
//! - A congestion event is a loss or a congestion mark of a packet sent at the current rate, or silence. The
//!   law gets every feedback; its rate at the event is held until the next event. Without an event, the first
//!   rate is held for ever.
//! - A law with a congestion window sends one window per round trip; nothing else limits the bytes in flight.

use haul_base::{HostSample, Rate, Span, Time, Verdict};
use haul_stack::choice;

use super::{Boundary, FeedbackSample, Limits, LossRuns, Permit, RateController, RateState, Unit};
use crate::rtt::RttEstimator;

choice! {
    /// How long a rate is held.
    pub enum Mode {
        /// Until the law changes it.
        Law = "law",
        /// For a transmission window.
        Window = "window",
        /// Until a congestion event.
        Rate = "rate",
    }
}

impl Mode {
    /// Wraps `law` so that its rate is held according to this mode.
    pub(crate) fn hold(self, law: Box<dyn RateController>, initial_rtt: Span) -> Box<dyn RateController> {
        match self {
            Self::Law => law,
            Self::Window => Box::new(HeldRate::new(law, Some(Window::default()), initial_rtt)),
            Self::Rate => Box::new(HeldRate::new(law, None, initial_rtt)),
        }
    }
}

/// A mean of rates.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    bps: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, rate: Option<Rate>) {
        if let Some(rate) = rate {
            self.bps += rate.as_bps() as f64;
            self.count += 1;
        }
    }

    fn get(&self) -> Option<Rate> {
        (self.count > 0).then(|| Rate::from_bps((self.bps / f64::from(self.count)) as u64))
    }
}

/// Accumulated feedback on a transmission window: sums of counts, means of rates, last values of the rest.
#[derive(Debug, Default)]
struct Window {
    loss: LossRuns,
    acked_packets: u64,
    lost_packets: u64,
    host_lost_packets: u64,
    duplicates: u64,
    socket_drops: u64,
    ecn_ce: u64,
    /// Packets acknowledged by app-limited feedback.
    app_limited_packets: u64,
    arrival_rate: Mean,
    drain_rate: Mean,
    host: Option<HostSample>,
    verdict: Option<Verdict>,
    last: Last,
}

/// Values of the last feedback.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    now: Time,
    in_flight: u64,
    datagram: u64,
    sent_bytes: u64,
    sent_packets: u64,
    next_pn: u64,
    largest_acked_pn: u64,
    read_delay: Option<Span>,
    queue_delay: Option<Span>,
    delay_trend: f64,
    gro_run: Option<f64>,
    report_interval: Span,
}

impl Window {
    fn add(&mut self, sample: &FeedbackSample<'_>) {
        self.loss.append(sample.loss);
        self.acked_packets = self.acked_packets.saturating_add(sample.acked_packets);
        self.lost_packets = self.lost_packets.saturating_add(sample.lost_packets);
        self.host_lost_packets = self.host_lost_packets.saturating_add(sample.host_lost_packets);
        self.duplicates = self.duplicates.saturating_add(sample.duplicates);
        self.socket_drops = self.socket_drops.saturating_add(sample.socket_drops);
        self.ecn_ce = self.ecn_ce.saturating_add(sample.ecn_ce);
        if sample.app_limited {
            self.app_limited_packets = self.app_limited_packets.saturating_add(sample.acked_packets);
        }
        self.arrival_rate.add(sample.arrival_rate);
        self.drain_rate.add(sample.drain_rate);
        if let Some(host) = sample.host {
            self.host = Some(self.host.map_or(host, |before| host.with(&before)));
        }
        self.verdict = sample.verdict.or(self.verdict);
        self.last = Last {
            now: sample.now,
            in_flight: sample.in_flight,
            datagram: sample.datagram,
            sent_bytes: sample.sent_bytes,
            sent_packets: sample.sent_packets,
            next_pn: sample.next_pn,
            largest_acked_pn: sample.largest_acked_pn,
            read_delay: sample.read_delay,
            queue_delay: sample.queue_delay,
            delay_trend: sample.delay_trend,
            gro_run: sample.gro_run,
            report_interval: sample.report_interval,
        };
    }

    fn is_empty(&self) -> bool {
        self.last.datagram == 0
    }

    fn sample<'a>(&'a self, rtt: &'a RttEstimator) -> FeedbackSample<'a> {
        let last = self.last;
        FeedbackSample {
            now: last.now,
            acked_packets: self.acked_packets,
            lost_packets: self.lost_packets,
            host_lost_packets: self.host_lost_packets,
            loss: &self.loss,
            in_flight: last.in_flight,
            datagram: last.datagram,
            sent_bytes: last.sent_bytes,
            sent_packets: last.sent_packets,
            next_pn: last.next_pn,
            largest_acked_pn: last.largest_acked_pn,
            rtt,
            arrival_rate: self.arrival_rate.get(),
            drain_rate: self.drain_rate.get(),
            read_delay: last.read_delay,
            queue_delay: last.queue_delay,
            delay_trend: last.delay_trend,
            gro_run: last.gro_run,
            duplicates: self.duplicates,
            socket_drops: self.socket_drops,
            ecn_ce: self.ecn_ce,
            host: self.host,
            verdict: self.verdict,
            app_limited: self.app_limited_packets > self.acked_packets / 2,
            sender_absent: false,
            report_interval: last.report_interval,
        }
    }
}

/// A law with a held rate: see the module documentation.
#[derive(Debug)]
struct HeldRate {
    law: Box<dyn RateController>,
    rate: Rate,
    rtt: RttEstimator,
    /// Feedback on the current window; `None` in mode `rate`.
    window: Option<Window>,
    /// First packet number sent at the current rate.
    since_pn: u64,
    next_pn: u64,
    /// In mode `rate`: the rate before silence lowered it. The rate follows the law until it is back there or
    /// a packet is lost.
    recovers_to: Option<Rate>,
    /// Whether no feedback has arrived since the last silence.
    was_silent: bool,
}

impl HeldRate {
    fn new(law: Box<dyn RateController>, window: Option<Window>, initial_rtt: Span) -> Self {
        let rtt = RttEstimator::new(initial_rtt);
        let rate = law.state().rate;
        let mut held =
            Self { law, rate, rtt, window, since_pn: 0, next_pn: 0, recovers_to: None, was_silent: false };
        held.take_rate();
        held
    }

    /// Holds the law's current rate from now on.
    fn take_rate(&mut self) {
        if let Permit::Go(limits) = self.law.permit() {
            self.rate = limits.effective_rate(self.rtt.smoothed()).max(super::MIN_RATE);
        }
        self.since_pn = self.next_pn;
    }

    /// Whether a packet sent at the current rate was lost or marked.
    fn is_congested(&self, sample: &FeedbackSample<'_>) -> bool {
        let is_marked = sample.ecn_ce > 0 && sample.largest_acked_pn >= self.since_pn;
        is_marked || (sample.lost_packets > 0 && sample.loss.end_pn() > self.since_pn)
    }

    fn evaluate(&mut self, end: &Boundary) {
        let Some(window) = &mut self.window else { return };
        let ended = std::mem::take(window);
        if !ended.is_empty() {
            self.law.on_feedback(&ended.sample(&self.rtt));
        }
        for unit in Unit::ALL {
            self.law.on_boundary(&Boundary { unit, ..*end });
        }
        self.take_rate();
    }
}

#[deny(clippy::missing_trait_methods)]
impl RateController for HeldRate {
    super::forward_to_law!();

    fn permit(&self) -> Permit {
        match self.law.permit() {
            Permit::Go(_) => Permit::Go(Limits::at_rate(self.rate)),
            hold @ Permit::Pause(_) => hold,
        }
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.rtt = sample.rtt.clone();
        self.next_pn = sample.next_pn;
        if let Some(window) = &mut self.window {
            return window.add(sample);
        }
        self.law.on_feedback(sample);
        if std::mem::take(&mut self.was_silent) {
            // Earlier packets were in flight during the silence.
            self.since_pn = sample.next_pn;
        }
        if self.is_congested(sample) {
            self.recovers_to = None;
            self.take_rate();
        } else if let Some(before) = self.recovers_to {
            let since = self.since_pn;
            self.take_rate();
            self.since_pn = since;
            self.recovers_to = (self.rate < before).then_some(before);
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        if self.window.is_none() {
            self.law.on_boundary(end);
        } else if end.unit == Unit::Window {
            self.evaluate(end);
        }
    }

    fn on_silence(&mut self, now: Time, count: u32) {
        self.law.on_silence(now, count);
        if self.window.is_none() {
            let before = self.recovers_to.unwrap_or(self.rate);
            self.take_rate();
            self.recovers_to = (self.rate < before).then_some(before);
            self.was_silent = true;
        }
    }

    fn take_over(&mut self, rate: Rate, rtt: &RttEstimator) {
        self.law.take_over(rate, rtt);
        self.rtt = rtt.clone();
        (self.recovers_to, self.was_silent) = (None, false);
        self.take_rate();
    }

    fn state(&self) -> RateState {
        RateState { rate: self.rate, ..self.law.state() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Harness, Loss, PathModel, boundary, built, feedback, lost_packet};
    use super::*;

    const CEILING: Rate = Rate::from_mbps(150);

    /// Bytes sent at each rate change of `asynch` (interval 100 ms, first rate 60 Mbit/s), in 20 s over a
    /// path of 100 Mbit/s with windows of 5 MB.
    fn changes(mode: Mode, ceiling: Rate, rise: &str, loss: Loss) -> Vec<u64> {
        let path = PathModel {
            loss,
            unit_window: 5_000_000,
            ..PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0)
        };
        let law = built("asynch", &[("first_rate", "60Mbit"), ("rise", rise)], ceiling);
        let mut run = Harness::new(mode.hold(law, Span::from_millis(20)), path);
        let (mut rate, mut found) = (run.law.state().rate, Vec::new());
        for _ in 0..20_000 {
            run.run_for(Span::from_millis(1));
            if std::mem::replace(&mut rate, run.law.state().rate) != rate {
                found.push(run.sent_bytes());
            }
        }
        found
    }

    #[test]
    fn a_window_is_sent_at_one_rate_and_evaluated_at_its_end() {
        let found = changes(Mode::Window, CEILING, "0.05", Loss::None);
        let by_itself = changes(Mode::Law, CEILING, "0.05", Loss::None);
        assert!(found.len() > 3 && by_itself.len() > 2 * found.len(), "{found:?} {by_itself:?}");
        // Each comes a round trip after the end of a window, at most 20 ms plus a full queue: below 0.6 MB.
        assert!(found.iter().all(|sent| sent % 5_000_000 < 600_000), "{found:?}");
    }

    #[test]
    fn a_rate_holds_until_a_congestion_event() {
        // At no more than 95 Mbit/s nothing is lost, and `asynch` keeps rising.
        let ceiling = Rate::from_mbps(95);
        assert_eq!(changes(Mode::Rate, ceiling, "0.002", Loss::None), []);
        assert!(changes(Mode::Law, ceiling, "0.002", Loss::None).len() > 20);
        // 60 Mbit/s are 102,000 packets in 20 s: one loss per 20,000 of them.
        let found = changes(Mode::Rate, ceiling, "0.002", Loss::EachNth(20_000));
        assert!((4..=6).contains(&found.len()), "{found:?}");
        let packets = |sent: u64| sent / 1_472 % 20_000;
        assert!(found.iter().all(|&sent| packets(sent) < 1_000), "{found:?}");
    }

    #[test]
    fn losses_at_the_previous_rate_are_no_event() {
        let mut law = Mode::Rate.hold(built("asynch", &[], CEILING), Span::from_millis(20));
        let rtt = RttEstimator::new(Span::from_millis(20));
        let report = |law: &mut Box<dyn RateController>, millis: u64, lost_pn: Option<u64>, drain: u64| {
            let mut loss = LossRuns::default();
            if let Some(pn) = lost_pn {
                loss.push(lost_packet(pn));
            }
            let now = Time::ZERO + Span::from_millis(millis);
            let (acked, lost) = (1_000, u64::from(lost_pn.is_some()) * 100);
            let drain = Some(Rate::from_mbps(drain));
            let sample = feedback(now, &rtt, acked, lost, drain);
            law.on_feedback(&FeedbackSample { next_pn: millis * 100, loss: &loss, ..sample });
            law.state().rate.as_bps() / 1_000_000
        };
        report(&mut law, 0, None, 140);
        assert_eq!(
            report(&mut law, 100, Some(50), 100),
            150,
            "an event; a single raised interval is no reason"
        );
        assert_eq!(report(&mut law, 200, Some(9_999), 100), 150, "the law has fallen to 100: not shown");
        assert_eq!(report(&mut law, 300, Some(10_000), 90), 100);
    }

    /// Falls to 1 Mbit/s in silence, and rises by 1 Mbit/s with each feedback.
    #[derive(Debug)]
    struct Climber(u64);

    impl RateController for Climber {
        fn permit(&self) -> Permit {
            Permit::Go(Limits::at_rate(Rate::from_mbps(self.0)))
        }

        fn on_feedback(&mut self, _: &FeedbackSample<'_>) {
            self.0 += 1;
        }

        fn on_silence(&mut self, _: Time, _: u32) {
            self.0 = 1;
        }

        fn ceiling(&self) -> Option<Rate> {
            None
        }

        fn state(&self) -> RateState {
            RateState { phase: "climbs", rate: Rate::from_mbps(self.0) }
        }
    }

    #[test]
    fn after_silence_the_rate_recovers_and_holds_again() {
        let mut law = Mode::Rate.hold(Box::new(Climber(50)), Span::from_millis(20));
        let rtt = RttEstimator::new(Span::from_millis(20));
        let report = |law: &mut Box<dyn RateController>, round: u64| {
            let sample = feedback(Time::ZERO + Span::from_millis(20 * round), &rtt, 200, 0, None);
            law.on_feedback(&FeedbackSample { next_pn: 200 * round, ..sample });
            law.state().rate
        };
        assert_eq!(report(&mut law, 1), Rate::from_mbps(50));
        law.on_silence(Time::ZERO + Span::from_millis(400), 1);
        law.on_silence(Time::ZERO + Span::from_millis(800), 2);
        assert_eq!(law.state().rate, Rate::from_mbps(1));
        let back: Vec<Rate> = (60..130).map(|round| report(&mut law, round)).collect();
        assert_eq!((back[0], back[48]), (Rate::from_mbps(2), Rate::from_mbps(50)));
        assert!(back[49..].iter().all(|&rate| rate == Rate::from_mbps(50)), "{back:?}");
    }

    #[test]
    fn a_law_that_evaluates_any_unit_evaluates_the_window() {
        for (name, settings) in [
            ("non_aggressive", &[][..]),
            ("state_based", &[]),
            ("rapid_plus", &[("per", "round"), ("k", "1")]),
        ] {
            let mut law = Mode::Window.hold(built(name, settings, CEILING), Span::from_millis(20));
            let rtt = RttEstimator::new(Span::from_millis(20));
            let before = law.state().rate;
            for n in 1..4u64 {
                let now = Time::ZERO + Span::from_secs(n);
                let lost = n * 500;
                law.on_feedback(&feedback(now, &rtt, 10_000 - lost, lost, Some(Rate::from_mbps(80))));
                assert!(n > 1 || law.state().rate == before, "{name}: before the window's end");
                law.on_boundary(&Boundary { now, ..boundary(Unit::Window, n * 10_000, lost) });
            }
            assert!(law.state().rate < before, "{name}: {:?}", law.state());
        }
    }
}
