//! Tests of the harness.

use super::super::{Boundary, Fixed, RateState};
use super::*;
use crate::control::FeedbackSample;

/// Reno's law without slow start: RFC 5681, section 3.1; the window grows by one packet per round trip, and
/// is halved at most once in one.
#[derive(Debug)]
struct Reno {
    window: f64,
    rtt: Span,
    cut_at_pn: u64,
    boundaries: Vec<Boundary>,
}

impl RateController for Reno {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::of_window(self.window * 1_472.0, self.rtt, 1.25, Rate::MAX))
    }

    fn on_feedback(&mut self, sample: &FeedbackSample<'_>) {
        self.rtt = sample.rtt.smoothed();
        self.window += sample.acked_packets as f64 / self.window;
        if sample.lost_packets > 0 && sample.largest_acked_pn >= self.cut_at_pn {
            self.cut_at_pn = sample.next_pn;
            self.window = (self.window / 2.0).max(2.0);
        }
    }

    fn on_boundary(&mut self, end: &Boundary) {
        self.boundaries.push(*end);
    }

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn ceiling(&self) -> Option<Rate> {
        None
    }

    fn state(&self) -> RateState {
        RateState { phase: "reno", rate: Rate::from_mbps(1) }
    }
}

fn reno(window: f64) -> Reno {
    Reno { window, rtt: Span::from_millis(100), cut_at_pn: 0, boundaries: Vec::new() }
}

#[test]
fn reno_has_the_window_of_its_saw_tooth() {
    // One loss per 1/p packets: W grows from W/2 to W, 3/8 W^2 packets per tooth, mean 3/4 W.
    for n in [1_000u64, 10_000] {
        let mut run = Harness::new(Box::new(reno(40.0)), PathModel::lossy(n));
        run.run_for(Span::from_secs(120));
        let steady = run.measure(Span::from_secs(600));
        let top = (n as f64 * 8.0 / 3.0).sqrt();
        assert_near(steady.mean_window.unwrap(), 0.75 * top, 0.05);
        assert_near(steady.loss_rate(), 1.0 / n as f64, 0.02);
        assert!(
            run.reductions.iter().all(|cut| (cut.window_factor().unwrap() - 0.5).abs() < 0.02),
            "{:?}",
            run.reductions
        );
    }
}

#[test]
fn a_bottleneck_passes_its_capacity_and_drops_excess_packets() {
    let capacity = Rate::from_mbps(100);
    let fixed = |mbps| Box::new(Fixed::new(Rate::from_mbps(mbps)));
    let path = PathModel::bottleneck(capacity, Span::from_millis(20), 1.0);
    let mut run = Harness::new(fixed(150), path.clone());
    run.run_for(Span::from_secs(2));
    let over = run.measure(Span::from_secs(10));
    assert_near(over.goodput.as_bps() as f64, 100e6, 0.01);
    assert_near(over.loss_rate(), 1.0 / 3.0, 0.02);
    assert_near(over.mean_rtt.as_secs_f64(), 0.040, 0.03);
    let mut run = Harness::new(fixed(80), path);
    run.run_for(Span::from_secs(2));
    let under = run.measure(Span::from_secs(10));
    assert_near(under.goodput.as_bps() as f64, 80e6, 0.01);
    assert_eq!(under.lost, 0);
    assert!(under.mean_rtt < Span::from_micros(21_500), "no queue but that of a burst: {under:?}");
}

/// Alternately sends for 10 ms and holds for 10 ms, by its own deadline.
#[derive(Debug)]
struct Pulses(Option<Time>, Time);

impl RateController for Pulses {
    fn permit(&self) -> Permit {
        self.0.map_or(Permit::Go(Limits::at_rate(Rate::from_mbps(100))), Permit::Pause)
    }

    fn on_feedback(&mut self, _: &FeedbackSample<'_>) {}

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn on_deadline(&mut self, now: Time) {
        if now >= self.1 {
            self.1 = now + Span::from_millis(10);
            self.0 = if self.0.is_some() { None } else { Some(self.1) };
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.1)
    }

    fn ceiling(&self) -> Option<Rate> {
        None
    }

    fn state(&self) -> RateState {
        RateState { phase: "pulses", rate: Rate::from_mbps(100) }
    }
}

#[test]
fn a_holding_law_sends_nothing_and_does_not_catch_up() {
    let mut run = Harness::new(Box::new(Pulses(None, Time::ZERO)), PathModel::default());
    let measured = run.measure(Span::from_secs(10));
    assert_near(measured.held, 0.5, 0.01);
    assert_near(measured.mean_rate.as_bps() as f64, 50e6, 0.02);
    // Each pulse ends with a burst that is compensated by the pause.
    assert_near(measured.goodput.as_bps() as f64, 50e6, 0.1);
}

#[test]
fn a_suspended_reader_fills_its_socket_and_reports_it_afterwards() {
    let path = PathModel {
        drain: Some(Rate::from_mbps(1_000)),
        suspended: Some((Span::from_millis(200), Span::from_millis(50))),
        socket_buffer: 1_000_000,
        ..PathModel::default()
    };
    // 150 ms pass completely; of 50 ms at 400 Mbit/s, 2.5 MB, 1 MB is buffered and 1.5 MB is lost.
    let mut run = Harness::new(Box::new(Fixed::new(Rate::from_mbps(400))), path.clone());
    run.run_for(Span::from_secs(1));
    let over = run.measure(Span::from_secs(10));
    assert_near(over.loss_rate(), 0.15, 0.05);
    // 0.9 MB in 50 ms at 144 Mbit/s.
    let mut run = Harness::new(Box::new(Fixed::new(Rate::from_mbps(144))), path.clone());
    assert_eq!(run.measure(Span::from_secs(10)).lost, 0);
    let at = Time::ZERO + Span::from_millis(1_130);
    assert_eq!(path.processor(at), (Span::from_millis(830), 6, Span::from_millis(300)));
    assert_eq!(path.time_at_processor(Span::from_millis(830)), at);
}

#[test]
fn random_losses_outages_and_packets_in_flight_are_as_configured() {
    let path = PathModel {
        loss: Loss::Random(0.02),
        ..PathModel::bottleneck(Rate::from_mbps(200), Span::from_millis(40), 1.0)
    };
    let full = path.bdp_packets();
    let fixed = Box::new(Fixed::new(config(Some(Rate::from_mbps(100))).ceiling.unwrap()));
    let mut run = Harness::new(fixed, path);
    run.run_for(Span::from_secs(2));
    let measured = run.measure(Span::from_secs(20));
    assert_near(measured.loss_rate(), 0.02, 0.1);
    assert_near(measured.mean_in_flight, full / 2.0, 0.1);
    run.outage(Span::from_secs(3));
    let silent = run.measure(Span::from_secs(2));
    assert!(silent.goodput < Rate::from_mbps(5), "{silent:?}");
    let again = run.run_until(Span::from_secs(10), |run| run.silences == 0).unwrap();
    assert!(again < Span::from_millis(3_200), "{again}");
    assert!(run.reductions.iter().all(|cut| cut.rate_factor() <= 1.0 && cut.at <= run.now));
}

#[test]
fn all_units_end_with_their_losses() {
    let path = PathModel {
        loss: Loss::EachNth(100),
        unit_window: 20_000_000,
        chunk: 30_000_000,
        round: Some(10_000_000),
        ..PathModel::default()
    };
    let mut run = Harness::new(Box::new(reno(2_000.0)), path);
    let debug_text = |run: &Harness| format!("{:?}", run.law);
    run.run_for(Span::from_secs(120));
    for unit in Unit::ALL {
        assert!(debug_text(&run).contains(&format!("unit: {unit:?}, number: 1")), "no second {unit:?}");
    }
    assert!(
        debug_text(&run)
            .contains("unit: Segment, number: 0, first_pn: 0, packets: 10000, bytes: 14720000, lost: 100,")
    );
}

/// A law with a constant rate, at time zero on this path.
fn at_rate(mbps: u64, path: PathModel) -> Harness {
    Harness::new(Box::new(Fixed::new(Rate::from_mbps(mbps))), path)
}

#[test]
fn flows_share_one_queue_and_each_has_its_own_round_trip() {
    let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0);
    let far = PathModel { rtt: Span::from_millis(60), ..path.clone() };
    let mut flows = [at_rate(40, path), at_rate(120, far)];
    measure_together(&mut flows, Span::from_secs(2));
    let both = measure_together(&mut flows, Span::from_secs(10));
    assert_near((both[0].goodput.as_bps() + both[1].goodput.as_bps()) as f64, 100e6, 0.01);
    assert_near(both[0].mean_rtt.as_secs_f64(), 0.040, 0.05);
    assert_near(both[1].mean_rtt.as_secs_f64(), 0.080, 0.05);
    assert!(both[1].loss_rate() > 0.3, "{both:?}");
    assert_eq!(flows[0].now, flows[1].now);
}

#[test]
fn a_capacity_change_applies_to_queued_packets() {
    let path = PathModel::bottleneck(Rate::from_mbps(100), Span::from_millis(20), 1.0);
    let mut run = at_rate(150, path);
    run.run_for(Span::from_secs(1));
    run.set_capacity(Rate::from_mbps(200));
    assert!(run.bottleneck_free.since(run.now) <= Span::from_millis(10));
    run.run_for(Span::from_secs(1));
    let wide = run.measure(Span::from_secs(5));
    assert_near(wide.goodput.as_bps() as f64, 150e6, 0.01);
    run.set_capacity(Rate::from_mbps(50));
    run.run_for(Span::from_secs(1));
    assert_near(run.measure(Span::from_secs(5)).goodput.as_bps() as f64, 50e6, 0.01);
}
