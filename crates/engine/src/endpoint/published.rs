//! What a data thread tells the rest of its session, some twenty times a second: nobody has to lock the connection.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_proto::{ReceiverStats, SenderStats};
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
struct Latest {
    counters: Option<Counters>,
    /// Every byte has arrived (and, at the sender, is known to have arrived).
    is_delivered: bool,
    ended: Option<Result<(), EngineError>>,
    cpu: Span,
}

#[derive(Debug, Default)]
pub(crate) struct Published {
    state: Mutex<Latest>,
    changed: Condvar,
}

impl Published {
    fn lock(&self) -> MutexGuard<'_, Latest> {
        // Every update is whole, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.lock().is_delivered = true;
        self.changed.notify_all();
    }

    pub(super) fn set_ended(&self, result: Result<(), EngineError>) {
        self.lock().ended = Some(result);
        self.changed.notify_all();
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

    /// Waits until everything is delivered; `Ok(false)` after `timeout`.
    pub(crate) fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(Err(error)) = &state.ended {
                return Err(error.clone());
            }
            if state.is_delivered {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
