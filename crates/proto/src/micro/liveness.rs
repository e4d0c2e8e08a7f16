//! `liveness`: reports that nothing was received from the peer for a while. For a sending end, reports
//! without new arrivals count as silence too.

use std::any::Any;

use haul_base::{Span, Time};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Event, EventId, MicroProtocol, Order, Part, ProtocolStats,
    Registration, Resolution, Setup, SharedValue, StackEvent, configuration,
};

use super::events::{DELIVERED, PEER_REPORT, PeerReport};
use super::shared::SendWindow;
use super::stats::LivenessStats;

/// Timer of the silence.
const TIMER: u8 = 0;
/// Minimum length of a silence that is counted. Reports arrive at least once per second. Our choice.
const MIN_COUNTED_SILENCE: Span = Span::from_secs(2);

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    send_window: SharedValue<SendWindow>,
    peer_report: Event<PeerReport>,
    delivered: Event<()>,
}

/// Packets that show this end that the peer is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Reports of new arrivals.
    Sends,
    /// Packets.
    Receives,
    /// Nothing more: the object was delivered.
    Done,
}

/// State of `liveness`; see the module documentation.
#[derive(Debug)]
struct Liveness {
    silence: Span,
    role: Role,
    bindings: Option<Bindings>,
    /// When the path was last known to work.
    received_at: Time,
    /// Packets that had arrived at the peer by then.
    reported_packets: u64,
    /// Whether the silence has been reported.
    is_reported: bool,
    /// Total length of silences of `MIN_COUNTED_SILENCE` or longer.
    silent: Span,
}

configuration! {
    /// Parameters of `liveness`.
    pub struct LivenessConfig: "liveness" {
        silence: Span = "15s", "silence of the peer that is reported";
    }
}

/// Returns the registry entry.
pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["object"]],
        ..Registration::of::<LivenessConfig>(1, "reports when the peer is silent", build)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the registry's signature: others need parameters")]
fn build(parameters: &Part, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    Ok(Box::new(Liveness {
        silence: parameters.read::<LivenessConfig>().silence,
        role: Role::Receives,
        bindings: None,
        received_at: setup.now,
        reported_packets: 0,
        is_reported: false,
        silent: Span::ZERO,
    }))
}

impl Liveness {
    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    fn on_received(&mut self, context: &mut Context<'_>) {
        let silence = context.now().since(self.received_at);
        if silence >= MIN_COUNTED_SILENCE {
            self.silent = self.silent + silence;
        }
        self.received_at = context.now();
        if self.is_reported {
            self.is_reported = false;
            context.set_timer(TIMER, self.received_at + self.silence);
        }
    }

    /// A report is a sign of life only if it confirms new arrivals, or if nothing is in flight.
    fn on_report(&mut self, report: &PeerReport, context: &mut Context<'_>) {
        let nothing_sent = !context.shared(self.bindings().send_window).outstanding;
        if self.role == Role::Sends && (report.packets > self.reported_packets || nothing_sent) {
            self.reported_packets = self.reported_packets.max(report.packets);
            self.on_received(context);
        }
    }
}

impl MicroProtocol for Liveness {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.bindings = Some(Bindings {
            send_window: declaration.shared(SendWindow::default),
            peer_report: declaration.event(PEER_REPORT),
            delivered: declaration.event(DELIVERED),
        });
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::RAW_FROM_NET, Order::LATE);
        resolution.on_event(self.bindings().peer_report, Order::NORMAL);
        resolution.on_event(self.bindings().delivered, Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        if context.ends().object_source.is_some() {
            self.role = Role::Sends;
        }
        self.received_at = context.now();
        context.set_timer(TIMER, self.received_at + self.silence);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if self.role == Role::Receives && batch.live().next().is_some() {
            self.on_received(context);
        }
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(report) = self.bindings().peer_report.of(event, argument) {
            self.on_report(report, context);
        } else if self.role == Role::Sends {
            self.role = Role::Done;
            context.cancel_timer(TIMER);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        let (now, due) = (context.now(), self.received_at + self.silence);
        if due > now {
            context.set_timer(TIMER, due);
        } else if now > due + self.silence {
            // This end was suspended, or its clock has jumped: it did not listen meanwhile.
            self.received_at = now;
            context.set_timer(TIMER, now + self.silence);
        } else {
            self.is_reported = true;
            context.emit(StackEvent::Silent(self.silence));
        }
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let current = if self.is_reported { self.silence } else { Span::ZERO };
        report(&LivenessStats { silent: self.silent + current });
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        self.silence = parameters.read::<LivenessConfig>().silence;
        if self.role != Role::Done {
            self.is_reported = false;
            context.set_timer(TIMER, self.received_at + self.silence);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Machine, Span, Time};
    use haul_stack::{Recipe, Stack, StackEvent};

    use crate::config::LivenessConfig;
    use crate::micro::stats::LivenessStats;
    use crate::micro::testing::{Pair, Path, T0, events, object_recipe, stats};

    fn recipe() -> Recipe {
        object_recipe("100kbit").with(LivenessConfig { silence: Span::from_secs(2) })
    }

    fn at(millis: u64) -> Time {
        T0 + Span::from_millis(millis)
    }

    /// Number of silences reported.
    fn reported_silences(stack: &mut Stack) -> usize {
        events(stack).iter().filter(|event| **event == StackEvent::Silent(Span::from_secs(2))).count()
    }

    #[test]
    fn silence_is_reported_once_after_the_timeout() {
        let (mut pair, _) = Pair::of_object(&recipe(), 100_000);
        let mut dead = Path { cut: [true; 2], ..Path::default() };
        pair.exchange(T0, &mut dead);
        pair.run_until(at(1_999), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (0, 0));
        pair.run_until(at(2_000), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (1, 1));
        pair.run_until(at(20_000), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (0, 0));
    }

    #[test]
    fn a_suspended_end_waits_again_before_it_reports_silence() {
        let (mut pair, _) = Pair::of_object(&recipe(), 100_000);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(1_000), &mut Path::default());
        let mut dead = Path { cut: [true; 2], ..Path::default() };
        let woken = at(3_600_000);
        pair.a.on_deadline(woken);
        pair.b.on_deadline(woken);
        pair.run_until(woken + Span::from_millis(1_900), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (0, 0));
        pair.run_until(woken + Span::from_millis(2_000), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (1, 1));
    }

    #[test]
    fn keep_alives_prevent_the_silence_timeout() {
        let (mut pair, received) = Pair::of_object(&recipe(), 100_000);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(5_000), &mut Path::default());
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (0, 0));
        assert!((50_000..70_000).contains(&received.lock().unwrap().bytes), "{received:?}");
        let mut dead = Path { cut: [true; 2], ..Path::default() };
        pair.run_until(at(6_800), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (0, 0));
        pair.run_until(at(7_000), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (1, 1));
        // A path that has recovered can fail again.
        pair.run_until(at(8_000), &mut Path::default());
        pair.run_until(at(11_000), &mut dead);
        assert_eq!((reported_silences(&mut pair.a), reported_silences(&mut pair.b)), (1, 1));
    }

    #[test]
    fn reports_without_progress_count_as_silence_for_the_sender() {
        let (mut pair, _) = Pair::of_object(&recipe(), 100_000);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(1_000), &mut Path::default());
        let before = pair.b.stats().control_sent;
        pair.run_until(at(3_200), &mut Path { cut: [true, false], ..Path::default() });
        assert!(pair.b.stats().control_sent > before + 10, "{:?}", pair.b.stats());
        assert_eq!(reported_silences(&mut pair.a), 1);
    }

    #[test]
    fn the_duration_of_silences_includes_a_current_one() {
        let silent = |stack: &Stack| stats::<LivenessStats>(stack).silent.as_micros() / 1_000;
        let (mut pair, _) = Pair::of_object(&recipe(), 1_000_000);
        let mut dead = Path { cut: [true, false], ..Path::default() };
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(5_000), &mut Path::default());
        assert_eq!(silent(&pair.a), 0);
        pair.run_until(at(10_000), &mut dead);
        assert_eq!(silent(&pair.a), 2_000, "as much as was told");
        pair.run_until(at(12_000), &mut Path::default());
        assert!((5_000..5_700).contains(&silent(&pair.a)), "{}", silent(&pair.a));
    }

    #[test]
    fn an_end_that_has_delivered_everything_waits_for_nothing() {
        let (mut pair, received) = Pair::of_object(&recipe(), 10_000);
        pair.exchange(T0, &mut Path::default());
        pair.run_until(at(1_500), &mut Path::default());
        assert_eq!(received.lock().unwrap().complete_len, Some(10_000));
        pair.run_until(at(20_000), &mut Path { cut: [true; 2], ..Path::default() });
        assert_eq!(reported_silences(&mut pair.a), 0);
    }
}
