//! Handles of the shared values and events of `rate_control`.

use haul_base::{HostSample, Rate, Span, Verdict};
use haul_stack::{Declaration, Event, SharedValue};

use super::{ChosenLaw, LAW_CHOSEN};
use crate::control::ledger::LossLedger;
use crate::micro::events::{
    DELIVERED, DroppedGap, ENDED, HOST_SAMPLE, PAUSE_NEEDED, PAUSE_REQUESTED, PEER_REPORT, PROBE_TIMEOUT,
    Pause, PeerReport, ProbeTimeout, QUOTA, Quota, RATE, ROUND_ENDED, VERDICT, WITNESSED,
};
use crate::micro::fixed_rate::SendingRate;
use crate::micro::shared::{
    ChunkNow, Clock, DiagnosedWindows, LawInterval, LawNow, PeerHost, RateNow, ReportDelay, SendWindow,
};
use crate::rtt::RttEstimator;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bindings {
    pub(super) send_window: SharedValue<SendWindow>,
    pub(super) rtt: SharedValue<RttEstimator>,
    pub(super) delay: SharedValue<ReportDelay>,
    pub(super) law_now: SharedValue<LawNow>,
    pub(super) clock: SharedValue<Clock>,
    pub(super) rate: SharedValue<RateNow>,
    pub(super) interval: SharedValue<LawInterval>,
    pub(super) peer_host: SharedValue<PeerHost>,
    pub(super) chunk: SharedValue<ChunkNow>,
    pub(super) ledger: SharedValue<LossLedger>,
    pub(super) windows: SharedValue<DiagnosedWindows>,
    pub(super) sending_rate: SharedValue<SendingRate>,
    pub(super) rate_requested: Event<Rate>,
    pub(super) peer_report: Event<PeerReport>,
    pub(super) timeout: Event<ProbeTimeout>,
    pub(super) quota: Event<Quota>,
    pub(super) verdict: Event<Option<Verdict>>,
    pub(super) round_ended: Event<()>,
    pub(super) delivered: Event<()>,
    pub(super) ended: Event<()>,
    pub(super) law_chosen: Event<ChosenLaw>,
    pub(super) host: Event<HostSample>,
    pub(super) witnessed: Event<DroppedGap>,
    pub(super) pause_needed: Event<Pause>,
    pub(super) pause_requested: Event<Pause>,
}

impl Bindings {
    pub(super) fn declare(declaration: &mut Declaration<'_>, initial_rtt: Span, law_now: LawNow) -> Self {
        Self {
            send_window: declaration.shared(SendWindow::default),
            rtt: declaration.shared(|| RttEstimator::new(initial_rtt)),
            delay: declaration.shared(ReportDelay::default),
            law_now: declaration.shared(|| law_now),
            clock: declaration.shared(Clock::default),
            rate: declaration.shared(RateNow::default),
            interval: declaration.shared(LawInterval::default),
            peer_host: declaration.shared(PeerHost::default),
            chunk: declaration.shared(ChunkNow::default),
            ledger: declaration.shared(LossLedger::default),
            windows: declaration.shared(DiagnosedWindows::default),
            sending_rate: declaration.shared(|| SendingRate(Rate::MAX)),
            rate_requested: declaration.event(RATE),
            law_chosen: declaration.event(LAW_CHOSEN),
            host: declaration.event(HOST_SAMPLE),
            witnessed: declaration.event(WITNESSED),
            pause_needed: declaration.event(PAUSE_NEEDED),
            pause_requested: declaration.event(PAUSE_REQUESTED),
            peer_report: declaration.event(PEER_REPORT),
            timeout: declaration.event(PROBE_TIMEOUT),
            quota: declaration.event(QUOTA),
            verdict: declaration.event(VERDICT),
            round_ended: declaration.event(ROUND_ENDED),
            delivered: declaration.event(DELIVERED),
            ended: declaration.event(ENDED),
        }
    }
}
