//! Test harness that runs laws in virtual time: one sender with its pacer, a bottleneck with a queue, losses,
//! and a receiver that reports. It moves whole batches, not packets, so that minutes at gigabits take about a
//! second of a test.
//!
//! ```ignore
//! let law = law("scalable").unwrap().build(&[("gain", "0.01")], &config()).unwrap();
//! let mut run = Harness::new(law, PathModel::lossy(10_000)); // one loss each 10,000 packets
//! run.run_for(Span::from_secs(60)); // the start
//! let steady = run.measure(Span::from_secs(300));
//! assert_near(steady.mean_window.unwrap(), 750.0, 0.05);
//! ```

mod literal;
mod model;
mod packets;
mod receiver;
mod scenarios;
mod shared;
mod tests;

use std::collections::VecDeque;

use haul_base::{Rate, Rng, Span, Time};
use haul_diagnosis::Signature;

use super::ledger::{Known, LossLedger, Sent};
use super::{Limits, LossRuns, Permit, RateController, SentBatch, Unit};
use crate::micro::events::{LossBoundary, Newest, Outcome, PeerReport};
use crate::micro::rate_control::{Observer, SenderState};
use crate::pacer::Pacer;
use crate::rtt::RttEstimator;
pub(crate) use literal::{boundary, built, feedback, literal_sample, lost_packet};
pub(crate) use model::{Loss, Measured, PathModel, Reduction, config};
use packets::{Receiving, Report, SentRun};
pub(crate) use scenarios::{GOOD, run_scenario, scenarios};
pub(crate) use shared::measure_together;

/// Sums since the start of a measurement.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuredSums {
    bytes: u64,
    sent: u64,
    lost: u64,
    /// Bit/s, packets and packets, each multiplied by seconds; seconds.
    rate: f64,
    window: f64,
    windowless: f64,
    in_flight: f64,
    held: f64,
    rtt: f64,
    rtts: f64,
}

/// Next event of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Report,
    MakeReport,
    Deadline,
    Silence,
    Send,
}

/// A law on a modelled path: see the module documentation.
#[derive(Debug)]
pub(crate) struct Harness {
    pub(crate) law: Box<dyn RateController>,
    pub(crate) path: PathModel,
    pub(crate) now: Time,
    pub(crate) rtt: RttEstimator,
    /// The last 10,000 times that feedback lowered the limits.
    pub(crate) reductions: VecDeque<Reduction>,
    /// Whether there is data to send.
    pub(crate) has_data: bool,
    rng: Rng,
    pacer: Pacer,
    ledger: LossLedger,
    observer: Observer,
    losses: LossRuns,
    in_flight_runs: VecDeque<SentRun>,
    reports: VecDeque<Report>,
    receiving: Receiving,
    next_pn: u64,
    sent_bytes: u64,
    in_flight: u64,
    bottleneck_free: Time,
    last_arrival: Time,
    reader_free: Time,
    next_report: Time,
    progress_at: Time,
    silences: u32,
    probes: u64,
    /// Whether the law was on hold before.
    held: bool,
    outage_until: Time,
    since_loss: u64,
    chunk_remaining: u64,
    round_remaining: u64,
    app_limited_below: u64,
    sums: MeasuredSums,
}

impl Harness {
    /// Starts a law on an idle path.
    pub(crate) fn new(law: Box<dyn RateController>, path: PathModel) -> Self {
        let round_remaining = path.round.unwrap_or(u64::MAX);
        let mut pacer = Pacer::new(Span::from_millis(100));
        // Not zero, which is too often a special value by accident.
        let now = Time::ZERO + Span::from_secs(5);
        pacer.on_idle(now);
        let mut observer = Observer::default();
        observer.set_verdict(path.verdict);
        Self {
            law,
            now,
            rtt: RttEstimator::new(path.rtt),
            reductions: VecDeque::new(),
            has_data: true,
            rng: Rng::from_seed(path.seed),
            pacer,
            ledger: LossLedger::default(),
            observer,
            losses: LossRuns::default(),
            in_flight_runs: VecDeque::new(),
            reports: VecDeque::new(),
            receiving: Receiving::default(),
            next_pn: 0,
            sent_bytes: 0,
            in_flight: 0,
            bottleneck_free: now,
            last_arrival: now,
            reader_free: now,
            next_report: now + path.feedback,
            progress_at: now,
            silences: 0,
            probes: 0,
            held: false,
            outage_until: Time::ZERO,
            since_loss: 0,
            chunk_remaining: path.chunk,
            round_remaining,
            app_limited_below: 0,
            sums: MeasuredSums::default(),
            path,
        }
    }

    /// Starts an outage of both directions.
    pub(crate) fn outage(&mut self, span: Span) {
        self.outage_until = self.now + span;
    }

    /// Changes the bottleneck's capacity, also for the data already queued.
    pub(crate) fn set_capacity(&mut self, capacity: Rate) {
        let waiting = self.path.capacity.bytes_in(self.bottleneck_free.since(self.now));
        self.bottleneck_free = self.now + capacity.time_for(waiting);
        self.path.capacity = capacity;
    }

    /// UDP payload bytes sent so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Runs for `span`.
    pub(crate) fn run_for(&mut self, span: Span) {
        let until = self.now + span;
        while self.step(until) {}
    }

    /// Runs until the condition holds, for at most `limit`; returns how long that took.
    pub(crate) fn run_until(
        &mut self,
        limit: Span,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Option<Span> {
        let begun = self.now;
        while !condition(self) {
            if !self.step(begun + limit) {
                return None;
            }
        }
        Some(self.now.since(begun))
    }

    /// Runs for `span` and returns the measurements.
    pub(crate) fn measure(&mut self, span: Span) -> Measured {
        self.sums = MeasuredSums::default();
        self.run_for(span);
        self.measured(span)
    }

    /// Returns the measurements since the sums were reset `span` ago.
    fn measured(&self, span: Span) -> Measured {
        let (sums, seconds) = (self.sums, span.as_secs_f64());
        Measured {
            goodput: Rate::from_transfer(sums.bytes, span),
            sent: sums.sent,
            lost: sums.lost,
            mean_rate: Rate::from_bps((sums.rate / seconds) as u64),
            mean_window: (sums.windowless == 0.0).then_some(sums.window / (seconds - sums.held).max(1e-9)),
            mean_in_flight: sums.in_flight / seconds,
            mean_rtt: Span::from_secs_f64(sums.rtt / sums.rtts.max(1.0)),
            held: sums.held / seconds,
        }
    }

    /// Returns the cuts that lowered the window; in the others only the rate followed the round-trip time.
    pub(crate) fn window_cuts(&self) -> Vec<Reduction> {
        self.reductions.iter().copied().filter(|cut| cut.after.window < cut.before.window).collect()
    }

    /// Returns the current limits; `None` while the law holds.
    pub(crate) fn limits(&self) -> Option<Limits> {
        match self.law.permit() {
            Permit::Go(limits) => Some(limits),
            Permit::Pause(_) => None,
        }
    }

    /// Returns the next event and its time.
    fn next(&self) -> (Time, Next) {
        let never = Time::from_nanos(u64::MAX);
        let deadline = self.law.deadline().map_or(never, |at| {
            // As in a stack, a deadline in the past is repeated no sooner than this.
            if at <= self.now { self.now + Span::from_micros(100) } else { at }
        });
        let report = self.reports.front().map_or(never, |report| report.due);
        let next = [
            (report, Next::Report),
            (self.next_report, Next::MakeReport),
            (deadline, Next::Deadline),
            (self.silent_at(), Next::Silence),
        ];
        // The first of simultaneous events.
        next.into_iter().fold((self.sends_at(), Next::Send), |soonest, other| {
            let is_sooner = other.0 < soonest.0 || (other.0 == soonest.0 && soonest.1 == Next::Send);
            if is_sooner { other } else { soonest }
        })
    }

    /// Executes the next event before `until`; returns false if there is none.
    fn step(&mut self, until: Time) -> bool {
        let (at, next) = self.next();
        if at > until {
            self.advance(until);
            return false;
        }
        self.advance(at.max(self.now));
        match next {
            Next::Report => self.on_report(),
            Next::MakeReport => self.make_report(),
            Next::Deadline => self.law.on_deadline(self.now),
            Next::Silence => {
                self.silences += 1;
                self.progress_at = self.now;
                self.probes = 2;
                self.law.on_silence(self.now, self.silences);
            }
            Next::Send => self.send(),
        }
        true
    }

    fn advance(&mut self, to: Time) {
        let seconds = to.since(self.now).as_secs_f64();
        match self.law.permit() {
            Permit::Pause(_) => {
                self.held = true;
                self.sums.held += seconds;
            }
            Permit::Go(limits) => {
                self.sums.rate += limits.rate.as_bps() as f64 * seconds;
                if !self.has_data || (self.probes == 0 && self.room(&limits) == 0) {
                    // As in a stack, time in which nothing could be sent is no lateness.
                    self.pacer.on_idle(self.now);
                }
                match limits.window {
                    Some(window) => self.sums.window += window as f64 / self.path.datagram as f64 * seconds,
                    None => self.sums.windowless += seconds,
                }
            }
        }
        self.sums.in_flight += self.in_flight as f64 / self.path.datagram as f64 * seconds;
        self.now = to;
    }

    fn sends_at(&self) -> Time {
        let never = Time::from_nanos(u64::MAX);
        match self.law.permit() {
            Permit::Pause(until) => until.max(self.now),
            _ if !self.has_data => never,
            Permit::Go(limits) if self.probes == 0 && self.room(&limits) == 0 => never,
            Permit::Go(_) => self.pacer.release_at().max(self.now),
        }
    }

    /// Returns the number of packets that fit into the window.
    fn room(&self, limits: &Limits) -> u64 {
        limits.window.map_or(u64::MAX, |window| window.saturating_sub(self.in_flight) / self.path.datagram)
    }

    fn silent_at(&self) -> Time {
        if self.in_flight == 0 {
            return Time::from_nanos(u64::MAX);
        }
        let timeout = self.rtt.probe_timeout(self.path.feedback) * (1 << self.silences.min(10));
        let longest = Span::from_secs(2).max(self.rtt.probe_timeout(self.path.feedback));
        self.progress_at + timeout.min(longest)
    }

    fn send(&mut self) {
        let limits = match self.law.permit() {
            Permit::Go(limits) => limits,
            Permit::Pause(_) => {
                self.law.on_deadline(self.now);
                if let Permit::Pause(until) = self.law.permit() {
                    assert!(until > self.now, "{:?} holds until {until:?} at {:?}", self.law, self.now);
                }
                return;
            }
        };
        if std::mem::take(&mut self.held) {
            self.pacer.on_idle(self.now);
        }
        let most = self.room(&limits).max(self.probes).min(64);
        let packets = (limits.burst / self.path.datagram).max(1).min(most);
        self.probes = self.probes.saturating_sub(packets);
        let (bytes, first_pn) = (packets * self.path.datagram, self.next_pn);
        if self.in_flight == 0 {
            self.progress_at = self.now;
        }
        self.next_pn += packets;
        self.sent_bytes += bytes;
        self.in_flight += bytes;
        self.sums.sent += packets;
        self.pacer.on_sent(self.now, bytes, limits.rate);
        self.end_units(first_pn, bytes);
        let sent = Sent { now: self.now, first_pn, packets, bytes };
        self.ledger.on_sent(sent, self.path.unit_window);
        let in_flight_runs = self.cross(first_pn, packets);
        self.in_flight_runs.push_back(in_flight_runs);
        self.law.on_sent(&SentBatch { now: self.now, packets, bytes, in_flight: self.in_flight });
    }

    /// Ends chunks and rounds before a batch.
    fn end_units(&mut self, first_pn: u64, bytes: u64) {
        if self.chunk_remaining == 0 {
            self.ledger.end(Unit::Chunk, self.now, first_pn);
            self.chunk_remaining = self.path.chunk;
        }
        if self.round_remaining == 0 {
            self.ledger.end(Unit::Round, self.now, first_pn);
            self.round_remaining = self.path.round.unwrap_or(u64::MAX);
        }
        self.chunk_remaining = self.chunk_remaining.saturating_sub(bytes);
        self.round_remaining = self.round_remaining.saturating_sub(bytes);
    }

    /// Computes the fate of a batch.
    fn cross(&mut self, first_pn: u64, packets: u64) -> SentRun {
        let path = self.path.clone();
        let begin = self.bottleneck_free.max(self.now);
        let waiting = path.capacity.bytes_in(begin.since(self.now));
        let fits = path.queue.saturating_sub(waiting).div_ceil(path.datagram).min(packets);
        let accepted = if self.now < self.outage_until { 0 } else { fits };
        let end = begin + path.capacity.time_for(accepted * path.datagram);
        self.bottleneck_free = end;
        let jitter = if path.jitter == Span::ZERO { 0.0 } else { self.rng.next_f64() };
        let arrives = (end + path.rtt / 2 + path.jitter.mul_f64(jitter)).max(self.last_arrival);
        self.last_arrival = arrives;
        let is_marked = path.mark_above.is_some_and(|above| waiting > above);
        let mut lost: Vec<u64> = (first_pn..first_pn + accepted).filter(|_| self.medium_loses()).collect();
        let crossed = accepted - lost.len() as u64;
        let (read, dropped) = self.read(arrives, crossed);
        let arriving = crossed - dropped;
        // If the socket buffer is full, the newest packets are dropped.
        let mut remaining = dropped;
        for pn in (first_pn..first_pn + accepted).rev() {
            if remaining > 0 && !lost.contains(&pn) {
                lost.push(pn);
                remaining -= 1;
            }
        }
        lost.extend(first_pn + accepted..first_pn + packets);
        lost.sort_unstable();
        let last_pn = (first_pn..first_pn + packets).rev().find(|pn| !lost.contains(pn)).unwrap_or(first_pn);
        let marked = if is_marked { arriving } else { 0 };
        let sent_at = self.now;
        SentRun { last_pn, arriving, marked, lost, dropped_by_socket: dropped, sent_at, arrives, read }
    }

    fn medium_loses(&mut self) -> bool {
        self.since_loss += 1;
        let lost = match self.path.loss {
            Loss::None => false,
            Loss::EachNth(n) => self.since_loss >= n,
            Loss::Random(p) => self.rng.chance(p),
        };
        if lost {
            self.since_loss = 0;
        }
        lost
    }

    /// Delivers a report to the sender.
    fn on_report(&mut self) {
        let Some(report) = self.reports.pop_front() else { return };
        let (largest_pn, sent, arrived, _) = report.newest;
        let sample = self.now.since(sent).saturating_sub(report.made.since(arrived));
        self.rtt.on_sample(self.now, sample);
        self.sums.rtt += sample.as_secs_f64();
        self.sums.rtts += 1.0;
        self.sums.lost += report.lost.len() as u64;
        report.lost.iter().for_each(|&pn| self.ledger.on_lost(pn, sent.as_wrapped_micros()));
        let settled = report.acked + report.lost.len() as u64;
        self.in_flight = self.in_flight.saturating_sub(settled * self.path.datagram);
        if report.acked > 0 {
            (self.silences, self.progress_at) = (0, self.now);
        }
        let before = self.limits();
        let all = self.in_flight == 0;
        let loss = LossBoundary { largest_pn, sent_at: sent.as_wrapped_micros(), reordering: Span::ZERO };
        let outcome = Outcome {
            acked_packets: report.acked,
            acked_bytes: report.acked * self.path.datagram,
            lost_packets: report.lost.len() as u64,
            lost_bytes: report.lost.len() as u64 * self.path.datagram,
            in_flight: self.in_flight,
            nothing_outstanding: all,
        };
        let newest = Newest {
            limit: u64::MAX,
            last_probe: 0,
            arrived: Some((arrived.as_wrapped_micros(), report.bytes)),
            receiver: report.total,
            host: report.host,
        };
        let peer = PeerReport {
            outcome,
            packets: report.total.packets,
            largest_pn,
            loss: Some(loss),
            newest: Some(newest),
        };
        self.report_to_law(&peer);
        let known = Known {
            largest_pn,
            sent_at: loss.sent_at,
            reordering: Span::ZERO,
            in_flight: self.in_flight,
            all,
        };
        while let Some((end, _)) = self.ledger.take_boundary(self.now, &known, &mut Signature::new()) {
            self.law.on_boundary(&end);
        }
        self.record_reduction(before);
    }

    fn report_to_law(&mut self, report: &PeerReport) {
        if !self.has_data {
            self.app_limited_below = self.next_pn;
        }
        self.ledger.swap_runs(&mut self.losses);
        self.observer.set_verdict(self.path.verdict);
        let sender = SenderState {
            now: self.now,
            datagram: self.path.datagram,
            next_pn: self.next_pn,
            sent_packets: self.next_pn,
            sent_bytes: self.sent_bytes,
            report_interval: self.path.feedback,
        };
        let mut sample = self.observer.observe(report, &sender, &self.rtt, &self.losses);
        sample.app_limited = report.largest_pn < self.app_limited_below;
        self.law.on_feedback(&sample);
    }

    fn record_reduction(&mut self, before: Option<Limits>) {
        let (Some(before), Some(after)) = (before, self.limits()) else { return };
        if after.rate < before.rate || after.window < before.window {
            if self.reductions.len() == 10_000 {
                self.reductions.pop_front();
            }
            self.reductions.push_back(Reduction { at: self.now, before, after });
        }
    }
}

/// Asserts that the relative error of `found` to `expected` is at most `tolerance`.
#[track_caller]
pub(crate) fn assert_near(found: f64, expected: f64, tolerance: f64) {
    let off = (found - expected).abs() / expected.abs();
    assert!(
        off <= tolerance,
        "{found} is {:.1} % off {expected}, more than {:.1} %",
        off * 100.0,
        tolerance * 100.0
    );
}
