//! What a data thread tells the rest of its session, some twenty times a second: nobody has to lock the connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use haul_base::{Rate, Span};
use haul_proto::{ReceiverStats, SenderStats};
use rustix::time::{ClockId, clock_gettime};

use crate::EngineError;
use crate::wake::WakerList;

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
struct Latest {
    counters: Option<Counters>,
    /// Every byte has arrived (and, at the sender, is known to have arrived).
    is_delivered: bool,
    ended: Option<Result<(), EngineError>>,
    cpu: Span,
    /// Who waits for the end.
    wakers: WakerList,
}

#[derive(Debug, Default)]
pub(crate) struct Published(Mutex<Latest>);

impl Published {
    fn lock(&self) -> MutexGuard<'_, Latest> {
        // Every update is whole, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the processor time of the calling thread.
    pub(super) fn set_counters(&self, counters: &Counters) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let mut state = self.lock();
        state.counters = Some(*counters);
        state.cpu =
            Span::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs());
    }

    pub(super) fn set_delivered(&self) {
        self.update(|state| state.is_delivered = true);
    }

    pub(super) fn set_ended(&self, result: Result<(), EngineError>) {
        self.update(|state| state.ended = Some(result));
    }

    fn update(&self, change: impl FnOnce(&mut Latest)) {
        let mut state = self.lock();
        change(&mut state);
        let wakers = state.wakers.take();
        drop(state);
        wakers.wake();
    }

    pub(crate) fn counters(&self) -> Option<Counters> {
        self.lock().counters
    }

    pub(crate) fn cpu(&self) -> Span {
        self.lock().cpu
    }

    pub(crate) fn failure(&self) -> Option<EngineError> {
        self.lock().ended.clone().and_then(Result::err)
    }

    /// Ready when everything is delivered.
    pub(crate) fn poll_delivered(&self, context: &Context<'_>) -> Poll<Result<(), EngineError>> {
        let mut state = self.lock();
        match &state.ended {
            Some(Err(error)) => Poll::Ready(Err(error.clone())),
            _ if state.is_delivered => Poll::Ready(Ok(())),
            _ => {
                state.wakers.add(context.waker());
                Poll::Pending
            }
        }
    }
}
