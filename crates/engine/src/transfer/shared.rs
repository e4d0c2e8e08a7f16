//! What a data thread and the rest of a session share. Written by the data thread some twenty times a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_proto::{ChosenLaw, ReceiverStats, SenderStats};

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

/// Where a transfer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Data moves.
    Moving,
    /// Every byte has arrived (and, at the sender, is known to have arrived).
    Delivered,
}

#[derive(Debug)]
struct State {
    counters: Option<Counters>,
    phase: Phase,
    ended: Option<Result<(), EngineError>>,
    cpu: Span,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// Bits per second that the other side assigns.
    pub(super) quota: AtomicU64,
    /// Whether a law was chosen that the data thread has not taken yet.
    pub(super) is_law_chosen: AtomicBool,
    law: Mutex<Option<ChosenLaw>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new() -> Self {
        let state = State { counters: None, phase: Phase::Moving, ended: None, cpu: Span::ZERO };
        Self {
            stop: AtomicBool::new(false),
            quota: AtomicU64::new(Rate::MAX.as_bps()),
            is_law_chosen: AtomicBool::new(false),
            law: Mutex::new(None),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update is whole, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_counters(&self, counters: &Counters, cpu: Span) {
        let mut state = self.lock();
        state.counters = Some(*counters);
        state.cpu = cpu;
    }

    /// Of two that were chosen since the data thread looked, the later counts.
    pub(super) fn choose_law(&self, law: ChosenLaw) {
        *self.law.lock().unwrap_or_else(PoisonError::into_inner) = Some(law);
        self.is_law_chosen.store(true, Ordering::Release);
    }

    pub(super) fn take_law(&self) -> Option<ChosenLaw> {
        // Only this thread clears it. A load costs nothing while there is none.
        if !self.is_law_chosen.load(Ordering::Relaxed) || !self.is_law_chosen.swap(false, Ordering::Acquire) {
            return None;
        }
        self.law.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn set_delivered(&self) {
        self.lock().phase = Phase::Delivered;
        self.changed.notify_all();
    }

    pub(super) fn set_ended(&self, result: Result<(), EngineError>) {
        self.lock().ended = Some(result);
        self.changed.notify_all();
    }

    pub(super) fn counters(&self) -> Option<Counters> {
        self.lock().counters
    }

    pub(super) fn cpu(&self) -> Span {
        self.lock().cpu
    }

    pub(super) fn failure(&self) -> Option<EngineError> {
        self.lock().ended.clone().and_then(Result::err)
    }

    /// Waits until everything is delivered; `Ok(false)` after `timeout`.
    pub(super) fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(Err(error)) = &state.ended {
                return Err(error.clone());
            }
            if state.phase == Phase::Delivered {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended.is_some() {
                return Ok(false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
