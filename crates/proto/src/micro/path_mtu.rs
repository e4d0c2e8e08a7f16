//! `path_mtu`: finds the largest datagram that the path carries by probing (DPLPMTUD, RFC 8899). The end that
//! sends an object probes; its peer reports which probe has arrived.

use std::any::Any;

use haul_base::Span;
use haul_stack::{
    Batch, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, ProtocolStats, Registration,
    Resolution, Setup, SharedValue, StackEvent,
};
use haul_wire::packet::ProbeBody;

use super::events::{
    DELIVERED, OutgoingReport, PEER_REPORT, PROBE_TIMEOUT, PeerReport, ProbeTimeout, REPORT, REPORT_SOON,
    SIZE_PASSED, SIZE_REFUSED,
};
use super::shared::ReportDelay;
use super::stats::PathMtuStats;
use crate::mtu::{BASE_DATAGRAM, MtuSearch};
use crate::rtt::RttEstimator;

/// Kind of a datagram that carries only its size.
pub(crate) const PROBE: Kind = Kind(6);

/// Consecutive probe timeouts after which a black hole for full-size packets is suspected (RFC 8899 section
/// 4.3).
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Minimum time between two probes.
const SHORTEST_TIMEOUT: Span = Span::from_millis(200);
/// Timer of the next probe.
const TIMER: u8 = 0;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    rtt: SharedValue<RttEstimator>,
    delay: SharedValue<ReportDelay>,
    peer_report: Event<PeerReport>,
    report: Event<OutgoingReport>,
    report_soon: Event<()>,
    timeout: Event<ProbeTimeout>,
    delivered: Event<()>,
    refused: Event<u16>,
    passed: Event<u16>,
}

/// State of the search for a larger size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    Idle,
    Running,
    Done,
}

/// State of `path_mtu`; see the module documentation.
#[derive(Debug)]
struct PathMtu {
    initial_rtt: Span,
    mtu: MtuSearch,
    bindings: Option<Bindings>,
    search: Search,
    /// Packets known to have arrived; `acked_at_probe` is their number when the last probe was sent.
    acked: u64,
    acked_at_probe: u64,
    /// Size of the last probe received.
    last_probe: u16,
    probes: u64,
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["object"], &["bitmap_ack"]],
        ..Registration::new("path_mtu", 1, "discovers the path MTU", |_, setup: &mut Setup| {
            Ok(Box::new(PathMtu {
                initial_rtt: setup.initial_rtt,
                mtu: MtuSearch::new(setup.datagram, setup.likely_datagram, setup.max_datagram),
                bindings: None,
                search: Search::Idle,
                acked: 0,
                acked_at_probe: 0,
                last_probe: 0,
                probes: 0,
            }))
        })
    }
}

impl PathMtu {
    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    /// Puts the size known to pass in force, and schedules the next probe.
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
        self.bindings = Some(Bindings {
            rtt: declaration.shared(|| RttEstimator::new(initial_rtt)),
            delay: declaration.shared(ReportDelay::default),
            peer_report: declaration.event(PEER_REPORT),
            report: declaration.event(REPORT),
            report_soon: declaration.event(REPORT_SOON),
            timeout: declaration.event(PROBE_TIMEOUT),
            delivered: declaration.event(DELIVERED),
            refused: declaration.event(SIZE_REFUSED),
            passed: declaration.event(SIZE_PASSED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        let bindings = self.bindings();
        resolution.on_event(bindings.peer_report, Order::NORMAL);
        resolution.on_event(bindings.report, Order::NORMAL);
        resolution.on_event(bindings.timeout, Order::NORMAL);
        resolution.on_event(bindings.delivered, Order::NORMAL);
        resolution.on_event(bindings.refused, Order::NORMAL);
        resolution.on_event(bindings.passed, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        if context.ends().object_source.is_some() {
            self.search = Search::Running;
            self.settle(context);
            context.request_control();
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let bindings = self.bindings();
        if let Some(report) = bindings.peer_report.of(event, argument) {
            self.on_report(report, context);
        } else if let Some(report) = bindings.report.of(event, argument) {
            report.last_probe = self.last_probe;
        } else if let Some(timeout) = bindings.timeout.of(event, argument) {
            if timeout.in_row == BLACK_HOLE_TIMEOUTS && self.mtu.current() > BASE_DATAGRAM {
                self.mtu.on_black_hole(context.now());
                self.settle(context);
            }
        } else if let Some(size) = bindings.refused.of(event, argument) {
            self.mtu.on_refused(context.now(), *size);
            self.settle(context);
        } else if let Some(size) = bindings.passed.of(event, argument) {
            self.mtu.on_passed(context.now(), *size);
            self.settle(context);
        } else if bindings.delivered.is(event) {
            self.search = Search::Done;
            context.cancel_timer(TIMER);
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        match ProbeBody::parse(batch.payload(i)) {
            Ok(probe) if usize::from(probe.size) == batch.size(i) => {
                self.last_probe = probe.size;
                context.raise(self.bindings().report_soon, &mut ());
            }
            _ => batch.reject(i),
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        context.request_control();
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if self.search != Search::Running {
            return;
        }
        let (now, bindings) = (context.now(), self.bindings());
        let delay = context.shared(bindings.delay).0;
        let timeout = context.shared(bindings.rtt).probe_timeout(delay).max(SHORTEST_TIMEOUT);
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

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&PathMtuStats { datagram: self.mtu.current(), probes: self.probes });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Span, Time};
    use haul_stack::StackEvent;

    use super::{SIZE_PASSED, SIZE_REFUSED};
    use crate::micro::stats::PathMtuStats;
    use crate::micro::testing::{Pair, Path, T0, events, object_recipe, stats};

    const LEN: u64 = 20_000_000;

    fn at(millis: u64) -> Time {
        T0 + Span::from_millis(millis)
    }

    fn pair() -> Pair {
        Pair::of_object(&object_recipe("8Mbit").with("path_mtu"), LEN).0
    }

    fn size(pair: &Pair) -> u64 {
        stats::<PathMtuStats>(&pair.a).datagram.into()
    }

    #[test]
    fn the_largest_passing_size_is_found_within_a_few_bytes() {
        for mtu in [1_200, 1_280, 1_472, 4_000, 9_000] {
            let mut pair = pair();
            let mut path = Path { mtu, ..Path::default() };
            pair.exchange(T0, &mut path);
            pair.run_until(at(15_000), &mut path);
            let most = mtu.min(8_972) as u64;
            assert!((most - 16..=most).contains(&size(&pair)), "{} of {mtu}", size(&pair));
            // Once found, the size is not probed again, and the peer does not search.
            let probes = stats::<PathMtuStats>(&pair.a).probes;
            pair.run_until(at(18_000), &mut path);
            assert_eq!(stats::<PathMtuStats>(&pair.a).probes, probes);
            assert_eq!(stats::<PathMtuStats>(&pair.b).probes, 0);
        }
    }

    #[test]
    fn packets_are_sent_in_the_size_found() {
        let mut pair = pair();
        let mut path = Path { mtu: 1_472, ..Path::default() };
        pair.exchange(T0, &mut path);
        pair.run_until(at(15_000), &mut path);
        assert!(events(&mut pair.a).contains(&StackEvent::PathMtu(1_472)));
        let before = pair.a.stats();
        pair.run_until(at(17_000), &mut path);
        let after = pair.a.stats();
        let mean = (after.bytes_sent - before.bytes_sent) / (after.data_sent - before.data_sent);
        assert!((1_455..=1_480).contains(&mean), "{mean}");
    }

    #[test]
    fn when_large_packets_vanish_the_size_falls_back_and_the_object_continues() {
        let (mut pair, received) = Pair::of_object(&object_recipe("8Mbit").with("path_mtu"), LEN);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(3_000), &mut Path::default());
        assert_eq!(size(&pair), 8_972);
        let mut narrow = Path { mtu: 1_400, ..Path::default() };
        pair.run_until(at(13_000), &mut narrow);
        assert!((1_200..=1_400).contains(&size(&pair)), "{}", size(&pair));
        pair.run_until(at(60_000), &mut narrow);
        assert_eq!(received.lock().unwrap().complete_len, Some(LEN));
    }

    #[test]
    fn the_kernels_path_mtu_takes_precedence() {
        let mut pair = pair();
        pair.a.raise(T0, SIZE_PASSED, &mut 1_472u16);
        assert_eq!(size(&pair), 1_472);
        // A size that the kernel refuses is not tried three times.
        let mut path = Path { mtu: 1_472, ..Path::default() };
        pair.exchange(T0, &mut path);
        pair.a.raise(T0, SIZE_REFUSED, &mut 8_952u16);
        pair.a.raise(T0, SIZE_REFUSED, &mut 8_972u16);
        assert_eq!(size(&pair), 1_472);
        // The interface's MTU has shrunk.
        pair.a.raise(T0, SIZE_REFUSED, &mut 1_472u16);
        assert_eq!(size(&pair), 1_200);
    }
}
