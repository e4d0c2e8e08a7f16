//! What a data thread tells the rest of its session, some twenty times a second: nobody has to lock the connection.

use haul_base::{Rate, Span};
use haul_proto::{DiagnosedWindow, ReceiverStats, SenderStats};
use rustix::time::{ClockId, clock_gettime};

use crate::EngineError;

/// The counters of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The machine's counters.
    pub stats: SenderStats,
    /// The controller's present rate.
    pub rate: Rate,
    /// The controller's phase.
    pub phase: &'static str,
    /// UDP payload bytes in flight.
    pub in_flight: u64,
}

/// The counters of one side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each transfer, and it is copied without allocation"
)]
pub enum Counters {
    /// This side sends.
    Sending(Sending),
    /// This side receives.
    Receiving(ReceiverStats),
}

#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) counters: Option<Counters>,
    /// Every byte has arrived (and, at the sender, is known to have arrived).
    pub(super) is_delivered: bool,
    /// Those that the sender has diagnosed and nobody had taken when the thread ended.
    pub(crate) windows: Vec<DiagnosedWindow>,
    /// Why the thread has ended, if it has failed.
    pub(crate) failure: Option<EngineError>,
    pub(crate) cpu: Span,
}

impl Published {
    /// With the processor time of the calling thread.
    pub(super) fn set_counters(&mut self, counters: &Counters) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        self.counters = Some(*counters);
        self.cpu = Span::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs());
    }

    /// Whether everything is delivered, or why it will not be.
    pub(crate) fn delivered(&mut self) -> Option<Result<(), EngineError>> {
        let failed = self.failure.clone().map(Err);
        failed.or_else(|| self.is_delivered.then_some(Ok(())))
    }
}
