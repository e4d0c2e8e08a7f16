//! What the modes of acknowledgement share with other micro-protocols.

use haul_stack::{Declaration, Event, SharedValue};

use crate::micro::events::{
    ABANDONED, ACKNOWLEDGED, Acknowledgement, DISCARDED, Discarded, RTT_SAMPLE, RttSample,
};
use crate::micro::received_set::ReceivedSet;
use crate::micro::scoreboard::Scoreboard;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bindings {
    pub(super) received: SharedValue<ReceivedSet>,
    pub(super) scoreboard: SharedValue<Scoreboard>,
    pub(super) acknowledged: Event<Acknowledgement>,
    pub(super) abandoned: Event<()>,
    pub(super) discarded: Event<Discarded>,
    pub(super) sampled: Event<RttSample>,
}

impl Bindings {
    pub(super) fn declare(declaration: &mut Declaration<'_>) -> Self {
        Self {
            received: declaration.shared(ReceivedSet::default),
            scoreboard: declaration.shared(Scoreboard::default),
            acknowledged: declaration.event(ACKNOWLEDGED),
            abandoned: declaration.event(ABANDONED),
            discarded: declaration.event(DISCARDED),
            sampled: declaration.event(RTT_SAMPLE),
        }
    }
}
