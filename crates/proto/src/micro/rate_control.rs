//! `rate_control`: a control law decides how fast to send and how much may be on its way; the pacer keeps the rate.

use std::any::Any;

use haul_base::{Rate, Span};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Event, EventId, Grant, MicroProtocol, Order, ParameterKind,
    ParameterSpec, Parameters, Registration, Resolution, SEND_PERMIT, Setup, SharedValue,
};

use super::events::{ALLOTTED, Allotment, PEER_REPORT, PROBE_TIMEOUT, PeerReport, ProbeTimeout};
use super::object::carries_data;
use super::shared::{Clock, Flight, RateNow, ReportDelay, WaitingFor};
use crate::control::{
    ControllerConfig, FeedbackSample, Limits, Permit, RateController, RateState, SentBatch, build_controller,
    burst_for,
};
use crate::delivery_rate::DeliveryMeter;
use crate::pacer::Pacer;
use crate::rtt::RttEstimator;

/// Bounds nothing: for checking that a law can be built.
const ANY_DELAY: Span = Span::from_millis(2);

/// The least that counts as allotted: a packet about every second, by which a sender stays in touch.
const LEAST_ALLOTTED: Rate = Rate::from_bps(10_000);
/// A path that delivers less than this share of what was allotted is itself the limit. Above it, what is missing may be
/// random loss: with more, the `delivery` law calls a loss heavy.
const DELIVERED_SHARE: f64 = 0.9;
/// From this share of the ceiling on, a law is held by it: what it measures of a path is a little less than it sends.
const REACHED_SHARE: f64 = 0.9;

/// What the receiver allots, whatever the law would do.
#[derive(Clone, Copy, Debug)]
struct Allotted {
    rate: Rate,
    /// What held before it, for packets below this number.
    before: (Rate, u64),
    /// Whether the law would have permitted the present batch more.
    binds: bool,
    /// Packets below this number left when it did.
    bound_below: u64,
}

impl Allotted {
    const ANYTHING: Self = Self { rate: Rate::MAX, before: (Rate::MAX, 0), binds: false, bound_below: 0 };

    /// Another rate, for packets from `next_pn` on.
    fn set(&mut self, rate: Rate, next_pn: u64) {
        self.before = (self.rate, next_pn);
        self.rate = rate.max(LEAST_ALLOTTED);
    }

    /// What is left of the law's limits.
    fn bound(&mut self, law: Limits) -> Limits {
        self.binds = self.rate < law.rate;
        if self.binds {
            Limits { rate: self.rate, burst: law.burst.min(burst_for(self.rate)), ..law }
        } else {
            law
        }
    }

    /// Whether it was this that kept the delivery rate so low, of packets up to `largest_pn`, and not the path.
    fn explains(&self, delivered: Option<Rate>, largest_pn: u64) -> bool {
        let (before, below) = self.before;
        let rate = if largest_pn < below { self.rate.min(before) } else { self.rate };
        largest_pn < self.bound_below
            && delivered.is_none_or(|delivered| delivered >= rate.mul_f64(DELIVERED_SHARE))
    }
}

/// What the parts of the stack call each other by.
#[derive(Clone, Copy, Debug)]
struct Handles {
    flight: SharedValue<Flight>,
    rtt: SharedValue<RttEstimator>,
    delay: SharedValue<ReportDelay>,
    clock: SharedValue<Clock>,
    rate: SharedValue<RateNow>,
    peer_report: Event<PeerReport>,
    timeout: Event<ProbeTimeout>,
    allotted: Event<Allotment>,
}

/// What the law is built from.
#[derive(Clone, Debug)]
struct Law {
    name: String,
    ceiling: Option<Rate>,
    initial_rtt: Span,
}

impl Law {
    fn build(&self, feedback_interval: Span) -> Result<Box<dyn RateController>, String> {
        let config =
            ControllerConfig { ceiling: self.ceiling, initial_rtt: self.initial_rtt, feedback_interval };
        build_controller(&self.name, &config).map_err(|error| error.to_string())
    }
}

/// See the module's text.
#[derive(Debug)]
struct RateControl {
    law: Law,
    controller: Box<dyn RateController>,
    /// The session has brought a controller that is ready; others are built when the stack starts.
    brought: bool,
    pacer: Pacer,
    max_batch: usize,
    handles: Option<Handles>,
    /// What was allowed to the present batch.
    limits: Limits,
    allotted: Allotted,
    meter: DeliveryMeter,
    /// Datagrams that may leave although the window is full.
    probe_credit: u32,
    /// Packets below this number left while there was nothing more to send.
    app_limited_below: u64,
    packets: u64,
    bytes: u64,
    peak_delivery: Rate,
}

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration {
        parameters: &[
            ParameterSpec {
                name: "controller",
                kind: ParameterKind::Text,
                default: "delivery",
                help: "the control law: `delivery` or `fixed`",
            },
            ParameterSpec {
                name: "rate",
                kind: ParameterKind::Rate,
                default: "unlimited",
                help: "ceiling of the law; the rate of `fixed`",
            },
            ParameterSpec {
                name: "debt",
                kind: ParameterKind::Span,
                default: "100ms",
                help: "lateness that the pacer makes good",
            },
            ParameterSpec {
                name: "max_batch",
                kind: ParameterKind::Integer(1, 64),
                default: "64",
                help: "most packets that leave back to back",
            },
        ],
        needs: &[&["object"], &["bitmap_ack"], &["retransmit"]],
        conflicts: &[("fixed_rate", "both decide how fast to send")],
        ..Registration::new("rate_control", 1, "sends as fast as a control law says", build)
    }
}

fn law(parameters: &Parameters, initial_rtt: Span) -> Law {
    let rate = parameters.rate("rate");
    let ceiling = (rate < Rate::MAX).then_some(rate);
    Law { name: parameters.text("controller").to_owned(), ceiling, initial_rtt }
}

fn build(parameters: &Parameters, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    let law = law(parameters, setup.initial_rtt);
    let brought = setup.take::<Box<dyn RateController>>();
    let is_brought = brought.is_some();
    let controller = brought.map_or_else(|| law.build(ANY_DELAY), Ok)?;
    Ok(Box::new(RateControl {
        law,
        controller,
        brought: is_brought,
        pacer: Pacer::new(parameters.span("debt")),
        max_batch: parameters.integer("max_batch") as usize,
        handles: None,
        limits: Limits { rate: Rate::MAX, window: None, burst: u64::MAX },
        allotted: Allotted::ANYTHING,
        meter: DeliveryMeter::default(),
        probe_credit: 0,
        app_limited_below: 0,
        packets: 0,
        bytes: 0,
        peak_delivery: Rate::ZERO,
    }))
}

impl RateControl {
    fn handles(&self) -> Handles {
        self.handles.expect("declared before it is used")
    }

    fn on_permit(&mut self, grant: &mut Grant, context: &mut Context<'_>) {
        if grant.packets == 0 {
            return;
        }
        match self.allowance(grant.datagram as u64, context) {
            Ok(packets) => {
                grant.burst = grant.burst.min(self.limits.burst);
                grant.at_most(packets.min(self.max_batch));
            }
            Err(reason) => {
                grant.at_most(0);
                self.wait(reason, context);
            }
        }
    }

    /// How many datagrams of `size` may leave now, and why not if none may.
    fn allowance(&mut self, size: u64, context: &mut Context<'_>) -> Result<usize, WaitingFor> {
        let Permit::Go(limits) = self.controller.permit() else {
            return Err(WaitingFor::Window);
        };
        self.limits = self.allotted.bound(limits);
        if self.probe_credit > 0 {
            return Ok(self.probe_credit as usize);
        }
        if self.pacer.release_at() > context.now() {
            context.resume_at(self.pacer.release_at());
            return Err(self.paced_by());
        }
        let in_flight = context.shared(self.handles().flight).bytes;
        let room = limits.window.map_or(u64::MAX, |window| window.saturating_sub(in_flight));
        match room / size {
            0 => Err(WaitingFor::Window),
            packets => Ok(usize::try_from(packets).unwrap_or(usize::MAX)),
        }
    }

    /// Whose rate the pacer keeps.
    fn paced_by(&self) -> WaitingFor {
        if self.allotted.binds {
            WaitingFor::Allotment
        } else if self
            .controller
            .ceiling()
            .is_some_and(|ceiling| self.limits.rate >= ceiling.mul_f64(REACHED_SHARE))
        {
            WaitingFor::Ceiling
        } else {
            WaitingFor::Pacer
        }
    }

    fn wait(&mut self, reason: WaitingFor, context: &mut Context<'_>) {
        let now = context.now();
        if !matches!(reason, WaitingFor::Pacer | WaitingFor::Ceiling | WaitingFor::Allotment) {
            self.pacer.on_idle(now);
        }
        context.shared(self.handles().clock).wait(now, reason);
    }

    /// There was nothing to send, and whoever had nothing has said why.
    fn on_nothing(&mut self, context: &mut Context<'_>) {
        self.pacer.on_idle(context.now());
        let reason = context.shared(self.handles().clock).reason();
        if matches!(reason, Some(WaitingFor::Source | WaitingFor::Work | WaitingFor::Receiver)) {
            self.app_limited_below = context.next_pn();
        }
    }

    fn on_sent(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let (now, bytes, handles) = (context.now(), batch.bytes() as u64, self.handles());
        self.probe_credit = self.probe_credit.saturating_sub(batch.len() as u32);
        self.pacer.on_sent(now, bytes, self.limits.rate);
        if self.allotted.binds {
            self.allotted.bound_below = context.next_pn();
        }
        self.packets += batch.len() as u64;
        self.bytes += bytes;
        let in_flight = context.shared(handles.flight).bytes;
        self.controller.on_sent(&SentBatch { now, bytes, in_flight });
        context.shared(handles.clock).busy(now);
    }

    fn on_report(&mut self, report: &PeerReport, context: &mut Context<'_>) {
        let rtt = context.shared(self.handles().rtt).clone();
        let arrived = report.newest.and_then(|newest| newest.arrived);
        let delivery_rate = arrived.and_then(|(at, bytes)| self.meter.on_feedback(at, bytes, rtt.smoothed()));
        self.peak_delivery = self.peak_delivery.max(delivery_rate.unwrap_or(Rate::ZERO));
        self.controller.on_feedback(&FeedbackSample {
            now: context.now(),
            acked_packets: report.outcome.acked_packets,
            lost_packets: report.outcome.lost_packets,
            in_flight: report.outcome.in_flight,
            rtt: &rtt,
            delivery_rate,
            app_limited: report.largest_pn < self.app_limited_below
                || self.allotted.explains(delivery_rate, report.largest_pn),
        });
        self.tell(context);
    }

    fn on_allotted(&mut self, rate: Rate, context: &mut Context<'_>) {
        if rate > self.allotted.rate {
            self.pacer.on_higher_rate(context.now());
        }
        self.allotted.set(rate, context.next_pn());
        self.tell(context);
    }

    fn tell(&self, context: &mut Context<'_>) {
        let law = self.controller.state();
        let rate = law.rate.min(self.allotted.rate);
        *context.shared(self.handles().rate) = RateNow(RateState { rate, ..law });
    }
}

impl MicroProtocol for RateControl {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let initial_rtt = self.law.initial_rtt;
        self.handles = Some(Handles {
            flight: declaration.shared(Flight::default),
            rtt: declaration.shared(|| RttEstimator::new(initial_rtt)),
            delay: declaration.shared(ReportDelay::default),
            clock: declaration.shared(Clock::default),
            rate: declaration.shared(RateNow::default),
            peer_report: declaration.event(PEER_REPORT),
            timeout: declaration.event(PROBE_TIMEOUT),
            allotted: declaration.event(ALLOTTED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(SEND_PERMIT, Order::NORMAL);
        resolution.on_batch(BatchEvent::FILL, Order::LAST);
        // When what is in flight has been counted.
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LATE);
        resolution.on_event(self.handles().peer_report, Order::NORMAL);
        resolution.on_event(self.handles().timeout, Order::NORMAL);
        resolution.on_event(self.handles().allotted, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        // What could have left before is no lateness to make good.
        self.pacer.on_idle(context.now());
        let delay = context.shared(self.handles().delay).0;
        if !self.brought
            && delay > Span::ZERO
            && let Ok(controller) = self.law.build(delay)
        {
            self.controller = controller;
        }
        self.tell(context);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            if batch.is_empty() {
                self.on_nothing(context);
            }
        } else if carries_data(batch) {
            self.on_sent(batch, context);
        }
    }

    fn on_event(&mut self, event: EventId, notice: &mut dyn Any, context: &mut Context<'_>) {
        let handles = self.handles();
        if let Some(grant) = SEND_PERMIT.of(event, notice) {
            self.on_permit(grant, context);
        } else if let Some(report) = handles.peer_report.of(event, notice) {
            self.on_report(report, context);
        } else if let Some(timeout) = handles.timeout.of(event, notice) {
            self.probe_credit = timeout.packets;
            self.controller.on_silence(context.now(), timeout.in_row);
            self.tell(context);
        } else if let Some(allotment) = handles.allotted.of(event, notice) {
            self.on_allotted(allotment.0, context);
        }
    }

    fn on_parameters(&mut self, parameters: &Parameters, context: &mut Context<'_>) -> Result<(), String> {
        let law = law(parameters, context.path().rtt);
        let delay = context.shared(self.handles().delay).0;
        self.controller = law.build(delay)?;
        self.law = law;
        self.max_batch = parameters.integer("max_batch") as usize;
        self.tell(context);
        Ok(())
    }

    fn statistics(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("packets", self.packets);
        each("bytes", self.bytes);
        each("peak_delivery_bps", self.peak_delivery.as_bps());
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Machine, Rate, Span, Time};
    use haul_stack::Recipe;

    use super::{ALLOTTED, Allotment};
    use crate::micro::testing::{Pair, Path, T0, object_recipe};

    fn at(millis: u64) -> Time {
        T0 + Span::from_millis(millis)
    }

    fn begun(recipe: &Recipe) -> Pair {
        let mut pair = Pair::of_object(recipe, 100_000_000).0;
        pair.exchange(T0, &mut Path::default());
        // The first burst is over.
        pair.run_until(at(100), &mut Path::default());
        pair
    }

    /// Bits a second that `a` sends until then.
    fn sent(pair: &mut Pair, from: u64, to: u64) -> u64 {
        let before = pair.a.stats().bytes_sent;
        pair.run_until(at(to), &mut Path::default());
        (pair.a.stats().bytes_sent - before) * 8_000 / (to - from)
    }

    fn is_near(found: u64, wanted: u64) -> bool {
        found.abs_diff(wanted) <= wanted / 25
    }

    #[test]
    fn what_leaves_follows_the_law_and_its_changes() {
        for rate in [1_000_000, 8_000_000, 200_000_000] {
            let mut pair = begun(&object_recipe(&format!("{rate}bit")));
            let found = sent(&mut pair, 100, 1_000);
            assert!(is_near(found, rate), "{found} for {rate}");
            pair.a.reconfigure(at(1_000), &object_recipe(&format!("{}bit", rate / 2))).unwrap();
            let found = sent(&mut pair, 1_000, 2_000);
            assert!(is_near(found, rate / 2), "{found} for half of {rate}");
        }
    }

    #[test]
    fn what_the_receiver_allots_bounds_the_law_and_never_raises_it() {
        let mut pair = begun(&object_recipe("8Mbit"));
        pair.a.raise(at(100), ALLOTTED, &mut Allotment(Rate::from_bps(2_000_000)));
        let found = sent(&mut pair, 100, 1_000);
        assert!(is_near(found, 2_000_000), "{found}");
        pair.a.raise(at(1_000), ALLOTTED, &mut Allotment(Rate::from_bps(90_000_000)));
        let found = sent(&mut pair, 1_000, 2_000);
        assert!(is_near(found, 8_000_000), "{found}");
    }

    #[test]
    fn a_batch_has_no_more_packets_than_it_may() {
        for (most, rate) in [("1", "2Gbit"), ("7", "2Gbit"), ("64", "2Gbit"), ("64", "1Mbit")] {
            let mut recipe = object_recipe(rate);
            recipe.set("rate_control.max_batch", most).unwrap();
            let mut pair = Pair::of_object(&recipe, 10_000_000).0;
            let mut slot = vec![0; 65_536];
            let sent = pair.a.poll_transmit(T0, &mut slot).unwrap();
            // At a low rate, the law's burst is less: 3,000 bytes.
            let packets = if rate == "1Mbit" { 2 } else { most.parse().unwrap() };
            let fits = 65_536 / sent.segment_size;
            assert_eq!(sent.len.div_ceil(sent.segment_size), packets.min(fits));
        }
    }
}
