//! `rate_control`: a control law determines the rate and the bytes in flight; the pacer keeps the rate.

mod advice;
mod bindings;
mod chosen;
mod gaps;
mod law;
mod observer;
mod permit;
mod quota;
mod rules;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use haul_base::{Cause, Ecn, HostSample, Rate, Span, Time};
use haul_diagnosis::{Model, Signature};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, EventId, MicroProtocol, Order, Part, ProtocolStats,
    Registration, Resolution, SEND_PERMIT, Setup, StackEvent,
};

use super::events::{Pause, PeerReport};
use super::fixed_rate::SendingRate;
use super::object::carries_data;
use super::shared::{LawInterval, PeerHost, RateNow};
use super::stats::{PacketCount, RateControlStats};
use crate::control::ledger::{Known, Sent};
use crate::control::{
    Boundary, Limits, LossRuns, Permit, RateController, RateState, SentBatch, Unit, hand_over,
};
use crate::diagnosis::Diagnostician;
use crate::pacer::Pacer;
use advice::ReceivedTotals;
use bindings::Bindings;
pub use chosen::{ChosenLaw, LAW_CHOSEN, LawChange};
use gaps::Gaps;
use law::{ANY_DELAY, Law, law_parameters};
pub use law::{RateControlConfig, register_law};
pub(crate) use observer::{Observer, SenderState};
use quota::QuotaBound;
use rules::{Rules, Totals};

/// Minimum delay of the timer for a law's deadline that has passed.
const SOONEST: Span = Span::from_micros(100);
/// Timer of the law's deadline.
const LAW_TIMER: u8 = 0;

/// State of `rate_control`; see the module documentation.
#[derive(Debug)]
struct RateControl {
    law: Law,
    rules: Rules,
    /// Packets acknowledged and packets lost, for the rules.
    settled: (u64, u64),
    switches: u64,
    ceiling_changes: u64,
    controller: Box<dyn RateController>,
    /// Whether the session provided a controller; otherwise it is built when the stack starts.
    supplied: bool,
    pacer: Pacer,
    max_batch: usize,
    bindings: Option<Bindings>,
    /// Limits of the current batch.
    limits: Limits,
    quota: QuotaBound,
    observer: Observer,
    diagnostician: Diagnostician,
    /// Signature of the last window that has ended. Kept to reuse its memory.
    signature: Signature,
    /// Length in bytes of the transmission windows that laws evaluate.
    unit_window: u64,
    /// Whether an object has chunks; if not, a transmission window counts as one.
    has_chunks: bool,
    chunk: u64,
    ecn: Ecn,
    /// Deadline of the law for which the timer is set.
    deadline: Option<Time>,
    /// Whether the law permitted nothing at its last call.
    is_held: bool,
    /// Kept to reuse its memory.
    losses: LossRuns,
    /// Datagrams that may be sent although the window is full.
    probe_credit: u32,
    /// Packets below this number were sent while there was nothing more to send.
    app_limited_below: u64,
    sent: PacketCount,
    /// When the last report arrived.
    reported_at: Option<Time>,
    gaps: Gaps,
    /// At the receiver: last sampled state of this host.
    last_totals: Option<ReceivedTotals>,
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        further: law_parameters,
        needs: &[&["bitmap_ack", "receiver_report"]],
        conflicts: &[("fixed_rate", "both control the sending rate")],
        compare: |parameters, _| {
            let rules = Rules::of(&parameters.read(), &Law::read(parameters, ANY_DELAY));
            rules.map(drop).map_err(|wrong| ("switch", wrong))
        },
        ..Registration::of::<RateControlConfig>(1, "sends at the rate of a control law", build)
    }
}

fn ecn(is_capable: bool) -> Ecn {
    if is_capable { Ecn::Ect0 } else { Ecn::NotEct }
}

fn build(parameters: &Part, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    let law = Law::read(parameters, setup.initial_rtt);
    let config: RateControlConfig = parameters.read();
    let rules = Rules::of(&config, &law).map_err(|wrong| format!("switch: {wrong}"))?;
    let supplied = setup.take::<Box<dyn RateController>>().map(|supplied| law.wrapped(supplied));
    let is_supplied = supplied.is_some();
    let controller = supplied.map_or_else(|| law.build(ANY_DELAY), Ok)?;
    let diagnostician = Diagnostician::new(config.diagnosis).with_model(setup.get::<Arc<Model>>());
    Ok(Box::new(RateControl {
        law,
        rules,
        settled: (0, 0),
        switches: 0,
        ceiling_changes: 0,
        controller,
        supplied: is_supplied,
        pacer: Pacer::new(config.debt),
        max_batch: config.max_batch,
        bindings: None,
        limits: Limits { rate: Rate::MAX, window: None, unreported: 0, burst: u64::MAX },
        quota: QuotaBound::ANYTHING,
        observer: Observer::default(),
        signature: Signature::new(),
        diagnostician,
        unit_window: config.unit_window.0,
        has_chunks: true,
        chunk: 0,
        ecn: ecn(config.ecn),
        deadline: None,
        is_held: false,
        losses: LossRuns::default(),
        probe_credit: 0,
        app_limited_below: 0,
        sent: PacketCount::default(),
        reported_at: None,
        gaps: Gaps::default(),
        last_totals: None,
    }))
}

impl RateControl {
    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    /// Switches to the law and the parameters of a recipe. `keeps_law`: keep a law that a rule has chosen.
    fn switch(
        &mut self,
        parameters: &Part,
        keeps_law: bool,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let law = Law::read(parameters, context.path().rtt);
        let config: RateControlConfig = parameters.read();
        let mut rules = Rules::of(&config, &law)?;
        rules.take_over(&self.rules, context.now(), self.sent.bytes);
        self.exchange(if keeps_law { law.keeping(&self.law) } else { law }, context)?;
        self.rules = rules;
        self.max_batch = config.max_batch;
        self.unit_window = config.unit_window.0;
        self.ecn = ecn(config.ecn);
        self.diagnostician.set_evidence(config.diagnosis);
        let bindings = self.bindings();
        context.shared(bindings.ledger).record_signatures(self.diagnostician.needs_signatures());
        context.set_ecn(self.ecn);
        Ok(())
    }

    /// Replaces the law. Packets in flight and queued data are not affected.
    fn exchange(&mut self, law: Law, context: &mut Context<'_>) -> Result<(), String> {
        let bindings = self.bindings();
        let mut controller = law.build(context.shared(bindings.delay).0)?;
        if let Permit::Go(limits) = self.controller.permit() {
            let rtt = context.shared(bindings.rtt);
            hand_over(&mut *controller, limits.effective_rate(rtt.smoothed()), rtt);
        }
        let before = self.limits.rate;
        self.ceiling_changes += u64::from(law.ceiling != self.law.ceiling);
        (self.controller, self.law) = (controller, law);
        if let Permit::Go(limits) = self.controller.permit()
            && limits.within(self.controller.ceiling()).rate > before
        {
            self.pacer.on_higher_rate(context.now());
        }
        *context.shared(bindings.law_now) = self.law.now();
        self.publish(context);
        self.schedule(context);
        Ok(())
    }

    /// Switches the law if a rule applies.
    fn evaluate_rules(&mut self, acked: u64, lost: u64, context: &mut Context<'_>) {
        if self.rules.are_none() {
            return;
        }
        self.settled = (self.settled.0 + acked, self.settled.1 + lost);
        let causes = self.diagnostician.counts();
        let totals = Totals {
            acked: self.settled.0,
            lost: self.settled.1,
            explained: causes.total(),
            receiver_lost: causes.of(Cause::ReceiverHost),
            sent_bytes: self.sent.bytes,
        };
        let rtt = context.shared(self.bindings().rtt).smoothed();
        // It was built when it was checked; if it cannot be built here, the present law stays.
        if let Some(law) = self.rules.on_feedback(context.now(), totals, rtt, &self.law)
            && self.exchange(law, context).is_ok()
        {
            self.switches += 1;
        }
    }

    /// Sets the timer for the law's deadline, if the deadline has changed.
    fn schedule(&mut self, context: &mut Context<'_>) {
        let deadline = self.controller.deadline();
        if deadline == self.deadline {
            return;
        }
        self.deadline = deadline;
        match deadline {
            Some(at) => context.set_timer(LAW_TIMER, at.max(context.now() + SOONEST)),
            None => context.cancel_timer(LAW_TIMER),
        }
    }

    fn on_sent(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let (now, bindings) = (context.now(), self.bindings());
        let (packets, bytes) = (batch.len() as u64, batch.bytes() as u64);
        self.probe_credit = self.probe_credit.saturating_sub(batch.len() as u32);
        self.pacer.on_sent(now, bytes, self.limits.rate);
        if self.quota.binds {
            self.quota.bound_below = context.next_pn();
        }
        self.sent.packets += packets;
        self.sent.bytes += bytes;
        let rtt = context.path().rtt;
        if self.gaps.on_sent(now, rtt, context.shared(bindings.clock)) {
            self.observer.on_absence(batch.pn(0));
        }
        self.note_units(Sent { now, first_pn: batch.pn(0), packets, bytes }, context);
        let in_flight = context.shared(bindings.send_window).bytes;
        self.controller.on_sent(&SentBatch { now, packets, bytes, in_flight });
        self.schedule(context);
        context.shared(bindings.clock).busy(now);
    }

    /// Counts sent packets in the units of transmission that laws evaluate.
    fn note_units(&mut self, sent: Sent, context: &mut Context<'_>) {
        let bindings = self.bindings();
        let chunk = if self.has_chunks {
            context.shared(bindings.chunk).0
        } else {
            self.sent.bytes / self.unit_window
        };
        let ledger = context.shared(bindings.ledger);
        if chunk != self.chunk {
            self.chunk = chunk;
            ledger.end(Unit::Chunk, sent.now, sent.first_pn);
        }
        ledger.on_sent(sent, self.unit_window);
    }

    /// At the receiver: lets the law decide how long the sender should pause.
    fn advise(&mut self, host: Option<HostSample>, context: &mut Context<'_>) {
        let Some(last_totals) = &mut self.last_totals else { return };
        let local_sample = last_totals.sample(host, context);
        if let Some(duration) = self.controller.advise(&local_sample) {
            context.raise(self.bindings().pause_needed, &mut Pause(duration));
        }
        self.schedule(context);
    }

    fn on_report(&mut self, report: &PeerReport, context: &mut Context<'_>) {
        let bindings = self.bindings();
        let rtt = context.shared(bindings.rtt).clone();
        context.shared(bindings.ledger).swap_runs(&mut self.losses);
        let sender = SenderState {
            now: context.now(),
            datagram: u64::from(context.path().datagram),
            next_pn: context.next_pn(),
            sent_packets: self.sent.packets,
            sent_bytes: self.sent.bytes,
            report_interval: context.shared(bindings.delay).0,
        };
        let mut sample = self.observer.observe(report, &sender, &rtt, &self.losses);
        // A report without arrivals names no packet, so it refers to the newest one named before.
        let about = sample.largest_acked_pn;
        sample.app_limited =
            about < self.app_limited_below || self.quota.explains(sample.arrival_rate, about);
        self.diagnostician.list_runs(context.shared(bindings.windows).are_requested());
        let diagnosed = self.diagnostician.on_feedback(&sample);
        sample.verdict = sample.verdict.or(diagnosed);
        let (arrival_rate, drain_rate, read_delay) =
            (sample.arrival_rate, sample.drain_rate, sample.read_delay);
        let (acked, lost) = (sample.acked_packets, sample.lost_packets);
        self.controller.on_feedback(&sample);
        let known = context.shared(bindings.peer_host);
        let is_late = read_delay.is_some_and(|delay| delay >= PeerHost::LATE);
        let since = self.reported_at.replace(sender.now);
        let late = since.filter(|_| is_late).map_or(Span::ZERO, |since| sender.now.since(since));
        *known = PeerHost {
            read_late: known.read_late + late,
            sample: self.observer.host(),
            arrival_rate: arrival_rate.or(known.arrival_rate),
            drain_rate: drain_rate.or(known.drain_rate),
            read_delay: read_delay.or(known.read_delay),
            longest_read_delay: read_delay.max(known.longest_read_delay),
        };
        self.evaluate_units(report, context);
        self.evaluate_rules(acked, lost, context);
        self.publish(context);
        self.schedule(context);
    }

    /// Informs the law of units of transmission that have ended.
    fn evaluate_units(&mut self, report: &PeerReport, context: &mut Context<'_>) {
        let outcome = &report.outcome;
        let known = match report.loss {
            Some(loss) => Known {
                largest_pn: report.largest_pn,
                sent_at: loss.sent_at,
                reordering: loss.reordering,
                in_flight: outcome.in_flight,
                all: outcome.nothing_outstanding,
            },
            None if outcome.nothing_outstanding => Known::ALL,
            None => return,
        };
        while let Some(end) = self.next_boundary(&known, context) {
            self.controller.on_boundary(&end);
        }
    }

    /// Returns the next unit that has ended. Diagnoses a window.
    fn next_boundary(&mut self, known: &Known, context: &mut Context<'_>) -> Option<Boundary> {
        let (now, bindings) = (context.now(), self.bindings());
        let ledger = context.shared(bindings.ledger);
        let (mut end, has_signature) = ledger.take_boundary(now, known, &mut self.signature)?;
        if end.unit == Unit::Window {
            if !has_signature {
                self.signature.clear();
            }
            let findings = self.diagnostician.on_window(&mut end, &self.signature);
            context.shared(bindings.windows).push(&end, &self.signature, findings);
        }
        end.verdict = self.observer.verdict().or(end.verdict);
        Some(end)
    }

    /// No further reports will arrive: reports what is known of open windows.
    fn end_windows(&mut self, context: &mut Context<'_>) {
        let (now, end_pn) = (context.now(), self.observer.known_below());
        let needs_one = self.diagnostician.has_unreported_losses();
        context.shared(self.bindings().ledger).end_windows(now, end_pn, needs_one);
        while self.next_boundary(&Known::ALL, context).is_some() {}
    }

    fn on_quota(&mut self, rate: Rate, context: &mut Context<'_>) {
        if rate > self.quota.rate {
            self.pacer.on_higher_rate(context.now());
        }
        self.quota.set(rate, context.next_pn());
        self.publish(context);
    }

    fn publish(&self, context: &mut Context<'_>) {
        let law = self.controller.state();
        let (rate, bindings) = (law.rate.min(self.quota.rate), self.bindings());
        *context.shared(bindings.rate) = RateNow(RateState { rate, ..law });
        *context.shared(bindings.sending_rate) = SendingRate(rate);
        *context.shared(bindings.interval) = LawInterval {
            required: self.controller.report_interval(),
            may_be_rare: self.controller.allows_rare_reports(),
        };
    }
}

impl MicroProtocol for RateControl {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.bindings = Some(Bindings::declare(declaration, self.law.initial_rtt, self.law.now()));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.has_chunks = resolution.has("object");
        resolution.on_event(SEND_PERMIT, Order::NORMAL);
        resolution.on_event(self.bindings().rate_requested, Order::NORMAL);
        resolution.on_batch(BatchEvent::FILL, Order::LAST);
        // After packets in flight have been counted.
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LATE);
        resolution.on_event(self.bindings().peer_report, Order::NORMAL);
        resolution.on_event(self.bindings().timeout, Order::NORMAL);
        resolution.on_event(self.bindings().quota, Order::NORMAL);
        resolution.on_event(self.bindings().verdict, Order::NORMAL);
        resolution.on_event(self.bindings().round_ended, Order::NORMAL);
        resolution.on_event(self.bindings().delivered, Order::NORMAL);
        resolution.on_event(self.bindings().ended, Order::NORMAL);
        resolution.on_event(self.bindings().law_chosen, Order::NORMAL);
        resolution.on_event(self.bindings().host, Order::NORMAL);
        resolution.on_event(self.bindings().witnessed, Order::NORMAL);
        resolution.on_event(self.bindings().pause_requested, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        // Time before the start is not lateness to make up for.
        self.pacer.on_idle(context.now());
        self.rules.start(context.now());
        let delay = context.shared(self.bindings().delay).0;
        if !self.supplied
            && delay > Span::ZERO
            && let Ok(controller) = self.law.build(delay)
        {
            self.controller = controller;
        }
        // In a reconfigured stack, the previous one has left its own.
        *context.shared(self.bindings().law_now) = self.law.now();
        let ledger = context.shared(self.bindings().ledger);
        ledger.record_signatures(self.diagnostician.needs_signatures());
        context.set_ecn(self.ecn);
        if context.ends().object_sink.is_some() {
            self.last_totals = Some(ReceivedTotals::default());
        }
        self.publish(context);
        self.schedule(context);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            if batch.is_empty() {
                self.on_nothing_to_send(context);
            }
        } else if carries_data(batch) {
            self.on_sent(batch, context);
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let bindings = self.bindings();
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            self.on_permit(permit, context);
        } else if let Some(report) = bindings.peer_report.of(event, argument) {
            self.on_report(report, context);
        } else if let Some(timeout) = bindings.timeout.of(event, argument) {
            self.probe_credit = timeout.packets;
            self.controller.on_silence(context.now(), timeout.in_row);
            self.publish(context);
            self.schedule(context);
        } else if let Some(quota) = bindings.quota.of(event, argument) {
            self.on_quota(quota.0, context);
        } else if let Some(&mut quota) = bindings.rate_requested.of(event, argument) {
            self.on_quota(quota, context);
            context.emit(StackEvent::Rate(quota));
        } else if let Some(verdict) = bindings.verdict.of(event, argument) {
            self.observer.set_verdict(*verdict);
        } else if let Some(chosen) = bindings.law_chosen.of(event, argument) {
            // It was built when it was checked; if it cannot be built here, the present law stays.
            let _ = self.switch(&chosen.parameters, chosen.keeps_law, context);
        } else if let Some(&mut host) = bindings.host.of(event, argument) {
            self.advise(Some(host), context);
        } else if let Some(&mut gap) = bindings.witnessed.of(event, argument) {
            self.diagnostician.on_gap(context.now(), gap);
        } else if let Some(&mut Pause(duration)) = bindings.pause_requested.of(event, argument) {
            // An end that receives the object sends nothing that could pause.
            if self.last_totals.is_some() {
                return;
            }
            self.controller.on_pause(context.now(), duration);
            self.publish(context);
            self.schedule(context);
        } else if bindings.delivered.is(event) || bindings.ended.is(event) {
            self.end_windows(context);
        } else if bindings.round_ended.is(event) {
            let (now, next_pn) = (context.now(), context.next_pn());
            context.shared(bindings.ledger).end(Unit::Round, now, next_pn);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        self.deadline = None;
        if self.last_totals.is_some() {
            self.advise(None, context);
        }
        // Also at the receiver: without this call the law's deadline would expire again every 100 us.
        self.controller.on_deadline(context.now());
        self.publish(context);
        self.schedule(context);
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        self.switch(parameters, false, context)
    }

    fn release_idle(&mut self, context: &mut Context<'_>) {
        self.losses.clear();
        self.losses.release_idle();
        self.diagnostician.release_idle();
        context.shared(self.bindings().ledger).release_idle();
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&RateControlStats {
            sent: self.sent,
            switches: self.switches,
            ceiling_changes: self.ceiling_changes,
            peak_delivery: self.observer.peak(),
            lost_by_cause: self.diagnostician.counts(),
            windows: self.diagnostician.windows(),
        });
    }
}
