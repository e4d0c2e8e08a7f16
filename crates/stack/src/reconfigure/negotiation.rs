//! State of the negotiation: the change in progress and the previous ones.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use haul_base::{Span, Time};

use super::message::{self, MessageType, RepeatedMessage};
use crate::attribute::{AttributeType, U48};
use crate::batch::{Batch, PACKET_HEADER_LEN};
use crate::compiled_stack::CompiledStack;

/// A change that is not answered is undone after this time.
const TIMEOUT: Span = Span::from_secs(30);
/// State of the change in progress.
#[derive(Debug, Default)]
pub(super) enum Change {
    #[default]
    None,
    /// New parameters are in force here, not confirmed by the peer. With the previous parameters, unless this
    /// undoes an earlier change, of which the user was already told that it failed.
    Applying(Box<RepeatedMessage>, Option<Arc<CompiledStack>>),
    /// Proposed to the peer; no new data is sent.
    Proposed(Box<RepeatedMessage>, Arc<CompiledStack>),
    /// The peer has proposed it; packets in flight must arrive first.
    Draining(Arc<CompiledStack>),
    /// Ready, and waiting for the first packet of the new generation.
    Ready(Box<RepeatedMessage>, Arc<CompiledStack>),
    /// Switched; not confirmed by the peer.
    Committing(Box<RepeatedMessage>),
}

impl Change {
    fn repeated(&self) -> Option<&RepeatedMessage> {
        match self {
            Self::Applying(repeated, _)
            | Self::Proposed(repeated, _)
            | Self::Ready(repeated, _)
            | Self::Committing(repeated) => Some(repeated),
            Self::None | Self::Draining(_) => None,
        }
    }

    fn repeated_mut(&mut self) -> Option<&mut RepeatedMessage> {
        match self {
            Self::Applying(repeated, _)
            | Self::Proposed(repeated, _)
            | Self::Ready(repeated, _)
            | Self::Committing(repeated) => Some(repeated),
            Self::None | Self::Draining(_) => None,
        }
    }
}

/// Answer to the peer's last change, repeated if the peer repeats its request.
#[derive(Debug)]
pub(super) struct Answer {
    refused: Option<String>,
    due: bool,
}

/// State of a stack's changes; allocated on first use, because thousands of stacks never change.
#[derive(Debug, Default)]
pub(crate) struct Changes(Option<Box<Negotiation>>);

static NO_CHANGES: Negotiation = Negotiation {
    change: Change::None,
    own: 0,
    answered: 0,
    seen: 0,
    answer: None,
    latest: 0,
    oldest: 0,
    first: 0,
};

impl Deref for Changes {
    type Target = Negotiation;

    fn deref(&self) -> &Negotiation {
        self.0.as_deref().unwrap_or(&NO_CHANGES)
    }
}

impl DerefMut for Changes {
    fn deref_mut(&mut self) -> &mut Negotiation {
        self.0.get_or_insert_default()
    }
}

impl Changes {
    /// See [`Negotiation::leave_out_old`].
    pub(crate) fn leave_out_old(&mut self, batch: &mut Batch<'_>) {
        if let Some(changes) = &mut self.0 {
            changes.leave_out_old(batch);
        }
    }

    /// See [`Negotiation::next_message`].
    pub(super) fn next_message(&mut self, now: Time, rtt: Span) -> Option<Vec<u8>> {
        self.0.as_mut()?.next_message(now, rtt)
    }
}

/// The change in progress, and the numbers of previous ones.
#[derive(Debug, Default)]
pub(crate) struct Negotiation {
    pub(super) change: Change,
    /// Number of this end's last change.
    pub(super) own: u32,
    /// Number of this end's last change that the peer has answered.
    pub(super) answered: u32,
    /// Number of the peer's last change that was handled here.
    pub(super) seen: u32,
    pub(super) answer: Option<Box<Answer>>,
    /// Largest packet number of the negotiation.
    pub(super) latest: u64,
    /// Packets with smaller numbers belong to generations before the present one.
    oldest: u64,
    /// Smallest packet number received of the present generation; 0 for the first generation.
    first: u64,
}

impl Negotiation {
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.change.repeated().map(|repeated| repeated.next)
    }

    /// Whether this end has switched and the peer may not have.
    pub(crate) fn is_committing(&self) -> bool {
        matches!(self.change, Change::Committing(_))
    }

    /// Whether this end has undone a change, and the peer may not have.
    pub(super) fn is_undoing(&self) -> bool {
        matches!(self.change, Change::Applying(_, None))
    }

    pub(super) fn is_over_age(&self, now: Time) -> bool {
        match &self.change {
            Change::Applying(repeated, Some(_)) | Change::Proposed(repeated, _) => {
                repeated.age(now) > TIMEOUT
            }
            _ => false,
        }
    }

    /// Returns a number for a change of this end.
    pub(super) fn number(&mut self) -> u32 {
        self.own += 1;
        self.own
    }

    pub(super) fn answer(&mut self, refused: Option<String>) {
        self.answer = Some(Box::new(Answer { refused, due: true }));
    }

    pub(super) fn answer_again(&mut self, number: u32) {
        if let Some(answer) = self.answer.as_mut().filter(|_| number == self.seen) {
            answer.due = true;
        }
    }

    /// Returns the next message, if one is due.
    pub(super) fn next_message(&mut self, now: Time, rtt: Span) -> Option<Vec<u8>> {
        if let Some(answer) = self.answer.as_mut().filter(|answer| answer.due) {
            answer.due = false;
            let message_type =
                if answer.refused.is_some() { MessageType::Refused } else { MessageType::Done };
            let reason = answer.refused.as_deref().unwrap_or_default();
            return Some(message::write(message_type, self.seen, self.seen, reason));
        }
        let repeated = self.change.repeated_mut().filter(|repeated| repeated.next <= now)?;
        repeated.on_sent(now, rtt);
        Some(message::write(repeated.message_type, repeated.number, self.seen, &repeated.text))
    }

    /// Whether to ignore a request whose sender has seen this end's changes up to `seen`: it must wait, or
    /// its sender has dropped it.
    pub(super) fn passes_over(&self, seen: u32, initiator: bool) -> bool {
        match &self.change {
            Change::Applying(own, _) | Change::Proposed(own, _) => initiator || seen >= own.number,
            _ => seen < self.answered,
        }
    }

    /// Whether this packet can be the first of the generation that this end waits for. An older one could
    /// have the same bit.
    pub(crate) fn awaits(&self, packet: &[u8]) -> bool {
        let newer = || packet.get(1..PACKET_HEADER_LEN).is_some_and(|pn| U48::read(pn) > self.latest);
        matches!(self.change, Change::Ready(..)) && newer()
    }

    pub(super) fn begin_generation(&mut self) {
        (self.oldest, self.first) = (self.latest + 1, u64::MAX);
    }

    /// Packets from this number on have the present recipe's format, including recovered ones.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Rejects late packets of earlier recipes whose generation has the same bit.
    fn leave_out_old(&mut self, batch: &mut Batch<'_>) {
        if self.oldest == 0 {
            return;
        }
        for i in batch.live() {
            let pn = batch.pn(i);
            if pn < self.oldest {
                batch.reject_unauthentic(i);
            } else {
                self.first = self.first.min(pn);
            }
        }
    }
}
