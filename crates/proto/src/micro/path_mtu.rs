//! `path_mtu`: finds the largest datagram that crosses the path by probing (DPLPMTUD, RFC 8899). The end that sends an
//! object probes; the other one says in its reports which probe has come.

use std::any::Any;

use haul_base::Span;
use haul_stack::{
    Batch, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, Registration, Resolution, Setup,
    SharedValue, StackEvent,
};
use haul_wire::packet::ProbeBody;

use super::events::{
    DELIVERED, OwnReport, PEER_REPORT, PROBE_TIMEOUT, PeerReport, ProbeTimeout, REPORT, REPORT_SOON,
    SIZE_PASSED, SIZE_REFUSED,
};
use super::shared::ReportDelay;
use crate::mtu::{BASE_DATAGRAM, MtuSearch};
use crate::rtt::RttEstimator;

/// A datagram that carries nothing but its size.
pub(crate) const PROBE: Kind = Kind(6);

/// Probe timeouts in a row after which full-size packets are suspected to vanish (RFC 8899 section 4.3).
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Time between two probes is at least this.
const SHORTEST_TIMEOUT: Span = Span::from_millis(200);
/// The timer of the next probe.
const TIMER: u8 = 0;

/// What the parts of the stack call each other by.
#[derive(Clone, Copy, Debug)]
struct Handles {
    rtt: SharedValue<RttEstimator>,
    delay: SharedValue<ReportDelay>,
    peer_report: Event<PeerReport>,
    report: Event<OwnReport>,
    soon: Event<()>,
    timeout: Event<ProbeTimeout>,
    delivered: Event<()>,
    refused: Event<u16>,
    passed: Event<u16>,
}

/// Whether this end looks for a larger size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    Idle,
    Running,
    Done,
}

/// See the module's text.
#[derive(Debug)]
struct PathMtu {
    initial_rtt: Span,
    mtu: MtuSearch,
    handles: Option<Handles>,
    search: Search,
    /// Packets known to have arrived, and how many of them when the last probe left.
    acked: u64,
    acked_at_probe: u64,
    /// The probe that came last.
    last_probe: u16,
    probes: u64,
}

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["object"], &["bitmap_ack"]],
        ..Registration::new(
            "path_mtu",
            1,
            "finds the largest datagram that passes",
            |_, setup: &mut Setup| {
                Ok(Box::new(PathMtu {
                    initial_rtt: setup.initial_rtt,
                    mtu: MtuSearch::new(setup.datagram, setup.likely_datagram, setup.max_datagram),
                    handles: None,
                    search: Search::Idle,
                    acked: 0,
                    acked_at_probe: 0,
                    last_probe: 0,
                    probes: 0,
                }))
            },
        )
    }
}

impl PathMtu {
    fn handles(&self) -> Handles {
        self.handles.expect("declared before it is used")
    }

    /// Puts the size that is known to pass in force, and the next probe on the timer.
    fn settle(&self, context: &mut Context<'_>) {
        if self.search != Search::Running {
            return;
        }
        let size = self.mtu.current();
        if context.path().datagram != size {
            context.path_mut().datagram = size;
            context.emit(StackEvent::PathMtu(size));
        }
        let at = self.mtu.deadline().max(context.now());
        context.set_timer(TIMER, at);
    }

    fn on_report(&mut self, report: &PeerReport, context: &mut Context<'_>) {
        self.acked += report.outcome.acked_packets;
        let Some(newest) = report.newest else { return };
        if self.mtu.on_received(context.now(), newest.last_probe) {
            self.settle(context);
        }
    }
}

impl MicroProtocol for PathMtu {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let initial_rtt = self.initial_rtt;
        declaration.kind(PROBE);
        self.handles = Some(Handles {
            rtt: declaration.shared(|| RttEstimator::new(initial_rtt)),
            delay: declaration.shared(ReportDelay::default),
            peer_report: declaration.event(PEER_REPORT),
            report: declaration.event(REPORT),
            soon: declaration.event(REPORT_SOON),
            timeout: declaration.event(PROBE_TIMEOUT),
            delivered: declaration.event(DELIVERED),
            refused: declaration.event(SIZE_REFUSED),
            passed: declaration.event(SIZE_PASSED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        let handles = self.handles();
        resolution.on_event(handles.peer_report, Order::NORMAL);
        resolution.on_event(handles.report, Order::NORMAL);
        resolution.on_event(handles.timeout, Order::NORMAL);
        resolution.on_event(handles.delivered, Order::NORMAL);
        resolution.on_event(handles.refused, Order::NORMAL);
        resolution.on_event(handles.passed, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        if context.ends().object_source.is_some() {
            self.search = Search::Running;
            self.settle(context);
            context.want_control();
        }
    }

    fn on_event(&mut self, event: EventId, notice: &mut dyn Any, context: &mut Context<'_>) {
        let handles = self.handles();
        if let Some(report) = handles.peer_report.of(event, notice) {
            self.on_report(report, context);
        } else if let Some(report) = handles.report.of(event, notice) {
            report.last_probe = self.last_probe;
        } else if let Some(timeout) = handles.timeout.of(event, notice) {
            if timeout.in_row == BLACK_HOLE_TIMEOUTS && self.mtu.current() > BASE_DATAGRAM {
                self.mtu.on_black_hole(context.now());
                self.settle(context);
            }
        } else if let Some(size) = handles.refused.of(event, notice) {
            self.mtu.on_refused(context.now(), *size);
            self.settle(context);
        } else if let Some(size) = handles.passed.of(event, notice) {
            self.mtu.on_passed(context.now(), *size);
            self.settle(context);
        } else if handles.delivered.is(event) {
            self.search = Search::Done;
            context.cancel_timer(TIMER);
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        match ProbeBody::parse(batch.payload(i)) {
            Ok(probe) if usize::from(probe.size) == batch.size(i) => {
                self.last_probe = probe.size;
                context.raise(self.handles().soon, &mut ());
            }
            _ => batch.reject(i),
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        context.want_control();
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if self.search != Search::Running {
            return;
        }
        let (now, handles) = (context.now(), self.handles());
        let delay = context.shared(handles.delay).0;
        let timeout = context.shared(handles.rtt).probe_timeout(delay).max(SHORTEST_TIMEOUT);
        if let Some(size) = self.mtu.poll_probe(now, timeout, self.acked > self.acked_at_probe) {
            self.acked_at_probe = self.acked;
            self.probes += 1;
            let overhead = batch.layout().clear_len() + batch.layout().tag_len();
            if let Some(i) = batch.push_probe(PROBE, usize::from(size) - overhead) {
                ProbeBody { size }.write(batch.payload_mut(i));
            }
        }
        self.settle(context);
    }

    fn statistics(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("datagram", u64::from(self.mtu.current()));
        each("probes", self.probes);
    }
}
