//! Changing the recipe of a running stack without losing a byte (wu-h-ctp section 6 leaves this to future
//! work).
//!
//! *New parameters* of the same micro-protocols are applied at once: first at the end that requests the
//! change, then at its peer. *Other micro-protocols* change the packet format. Both ends then stop segmenting
//! new data, wait until everything in flight has arrived, and switch: the requesting end with its next packet
//! number, its peer when it receives a packet of the new generation, marked by a bit of the kind byte. Packet
//! numbers and keys continue. Micro-protocols that both recipes have keep their state.
//!
//! *Conflicts.* Either end may request a change, one at a time; each end numbers its own requests. Every
//! negotiation packet carries the number of the peer's last request that was handled, so that both ends know
//! which of two requests was made with knowledge of the other:
//! - If neither was, the request of the end that opened the session wins. That end ignores the other request;
//!   its peer drops its own as soon as it has checked the winner, and late packets of the dropped request are
//!   too old to match.
//! - A request made with knowledge of this end's own, which still waits for its answer, waits for that
//!   answer.
//!
//! *No end is stranded.* A change is undone by another change, back to the previous recipe, which is repeated
//! until it is answered. After READY and COMMIT neither end gives up: the other may already have switched.

mod message;
mod negotiation;
mod rebuild;

use std::sync::Arc;

use haul_base::{Time, Transmit};

use crate::batch::{Batch, GENERATION_BIT, Kind};
use crate::compiled_stack::CompiledStack;
use crate::event::{BatchEvent, StackEvent};
use crate::recipe::{Recipe, RecipeError};
use crate::stack::Stack;
use message::{ChangeMessage, MessageType, RepeatedMessage};
use negotiation::Change;
pub(crate) use negotiation::Changes;
use rebuild::CARRIERS;

/// Micro-protocols that cannot change during a session: the peer could not tell who sent a packet, or what a
/// message is.
const FIXED: [&str; 3] = ["seal", "transport_driver", "streams"];

/// Truncates a text to at most `max` bytes, at a character boundary.
fn shortened(mut text: String, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(end.unwrap_or_default());
    text
}

impl Stack {
    /// Changes the recipe of both ends. [`StackEvent::Reconfigured`] or [`StackEvent::Refused`] reports the
    /// result. If both ends request a change at once, that of the end that opened the session wins.
    ///
    /// # Errors
    /// If the recipe does not build, cannot follow the present one, or another change is in progress.
    pub fn reconfigure(&mut self, now: Time, recipe: &Recipe) -> Result<(), RecipeError> {
        let begun = self.guarded(now, |stack, now| stack.begin_change(now, recipe));
        if self.has_failed() { Err(RecipeError::Ended) } else { begun.unwrap_or(Err(RecipeError::Ended)) }
    }

    fn begin_change(&mut self, now: Time, recipe: &Recipe) -> Result<(), RecipeError> {
        if !matches!(self.changes.change, Change::None) {
            return Err(RecipeError::Busy);
        }
        let compiled = self.compile(recipe)?;
        let (text, max) = (recipe.to_toml(), self.longest_text());
        // The present recipe must fit too, because it is sent to undo the change.
        let len = text.len().max(self.recipe().to_toml().len());
        if len > max {
            return Err(RecipeError::TooLong { len, max });
        }
        if self.is_parameters_only(&compiled) {
            let before = self.compiled.clone();
            self.apply(now, compiled)?;
            let repeated = RepeatedMessage::new(now, MessageType::Apply, self.changes.number(), text);
            self.changes.change = Change::Applying(Box::new(repeated), Some(before));
        } else {
            self.core.draining = true;
            let repeated = RepeatedMessage::new(now, MessageType::Propose, self.changes.number(), text);
            self.changes.change = Change::Proposed(Box::new(repeated), compiled);
        }
        Ok(())
    }

    fn longest_text(&self) -> usize {
        let layout = &self.compiled.tables.layout;
        let headers = layout.clear_len() + layout.tag_len() + message::HEADER;
        usize::from(self.core.path.datagram).saturating_sub(headers)
    }

    fn compile(&self, recipe: &Recipe) -> Result<Arc<CompiledStack>, RecipeError> {
        let fixed = FIXED.into_iter().find(|name| recipe.part(name) != self.recipe().part(name));
        if let Some(part) = fixed {
            return Err(RecipeError::Fixed(part));
        }
        if let Some(carrier) = CARRIERS.into_iter().find(|name| recipe.has(name) != self.recipe().has(name)) {
            return Err(RecipeError::Carrier(carrier));
        }
        let compiled = self.compiled.registry.compile(recipe, self.compiled.tag_len)?;
        for (registration, old) in &self.compiled.parts {
            let new = compiled.parts.iter().map(|(_, new)| new).find(|new| new.name == old.name);
            new.map_or(Ok(()), |new| registration.check_fixed(old, new))?;
        }
        let clear = |stack: &CompiledStack| {
            stack.layout().attributes().iter().filter(|known| known.clear).cloned().collect::<Vec<_>>()
        };
        if clear(&compiled) != clear(&self.compiled) {
            return Err(RecipeError::Fixed("clear attributes"));
        }
        Ok(compiled)
    }

    fn is_parameters_only(&self, new: &CompiledStack) -> bool {
        new.names().eq(self.compiled.names()) && new.tables == self.compiled.tables
    }

    /// Takes the next step once nothing is in flight, and undoes a change that the peer does not answer.
    pub(crate) fn advance_change(&mut self, now: Time) {
        if matches!(self.changes.change, Change::Draining(_))
            && self.is_drained()
            && let Change::Draining(compiled) = std::mem::take(&mut self.changes.change)
        {
            let ready = RepeatedMessage::new(now, MessageType::Ready, self.changes.seen, String::new());
            self.changes.change = Change::Ready(Box::new(ready), compiled);
        }
        if self.changes.is_over_age(now) {
            self.drop_own(now, "the peer does not respond");
            let back =
                RepeatedMessage::new(now, MessageType::Apply, self.changes.number(), self.recipe().to_toml());
            self.changes.change = Change::Applying(Box::new(back), None);
        }
    }

    fn is_drained(&self) -> bool {
        let begun = self.core.queue.front().is_some_and(|message| message.sent > 0);
        !begun && self.held() == 0
    }

    /// Writes a negotiation packet if one is due.
    pub(crate) fn write_change(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        let body = self.changes.next_message(now, self.core.path.rtt)?;
        let datagram = usize::from(self.core.path.datagram);
        self.write(now, slot, 1, datagram, |_, batch| {
            if let Some(i) = batch.push(Kind::RECONFIGURE, body.len()) {
                batch.payload_mut(i).copy_from_slice(&body);
            }
        })
    }

    /// Drops this end's change, if there is one, and restores what it changed locally.
    fn drop_own(&mut self, now: Time, reason: &str) {
        self.core.draining = false;
        let tell = match std::mem::take(&mut self.changes.change) {
            Change::Applying(_, Some(before)) => {
                self.restore(now, before);
                true
            }
            Change::Proposed(..) => true,
            _ => false,
        };
        if tell {
            self.core.events.push_back(StackEvent::Refused(reason.to_owned()));
        }
    }

    /// Handles a negotiation message from packet `pn`.
    pub(crate) fn on_reconfigure(&mut self, now: Time, pn: u64, packet: &[u8]) {
        let Some(message) = message::read(packet) else {
            self.core.stats.violations += 1;
            return;
        };
        self.changes.latest = self.changes.latest.max(pn);
        match (message.message_type, &self.changes.change) {
            (MessageType::Apply | MessageType::Propose, _) => self.on_request(now, &message),
            (MessageType::Ready, Change::Proposed(own, _)) if own.number == message.number => {
                self.on_ready(now);
            }
            (MessageType::Refused, Change::Proposed(own, _) | Change::Applying(own, _))
                if own.number == message.number =>
            {
                self.on_refused(now, &message);
            }
            (MessageType::Commit, _) => self.changes.answer_again(message.number),
            (MessageType::Done, Change::Applying(own, _) | Change::Committing(own))
                if own.number == message.number =>
            {
                self.on_done();
            }
            _ => {}
        }
    }

    fn on_refused(&mut self, now: Time, message: &ChangeMessage<'_>) {
        self.changes.answered = message.number;
        if self.changes.is_undoing() {
            self.fail(
                "recipe".to_owned(),
                format!("a reconfiguration could not be rolled back: {}", message.text),
            );
        }
        self.drop_own(now, message.text);
    }

    fn on_done(&mut self) {
        self.changes.answered = self.changes.own;
        if !matches!(std::mem::take(&mut self.changes.change), Change::Applying(_, None)) {
            self.core.events.push_back(StackEvent::Reconfigured);
        }
    }

    /// Handles a change requested by the peer.
    fn on_request(&mut self, now: Time, request: &ChangeMessage<'_>) {
        if matches!(self.changes.change, Change::Committing(_)) {
            // The peer sends in the new generation, so it has switched too.
            self.on_done();
        }
        if request.number <= self.changes.seen {
            self.changes.answer_again(request.number);
            return;
        }
        if self.changes.passes_over(request.seen, self.core.initiator) {
            return;
        }
        if matches!(self.changes.change, Change::Draining(_) | Change::Ready(..)) {
            // The peer has one request at a time: this one undoes the previous one.
            self.drop_own(now, "");
        }
        self.changes.answer = None;
        let taken = self.take_up(now, request);
        self.changes.seen = request.number;
        if let Err(error) = taken {
            let reason = shortened(error.to_string(), self.longest_text());
            self.changes.answer(Some(reason));
        }
    }

    fn take_up(&mut self, now: Time, request: &ChangeMessage<'_>) -> Result<(), RecipeError> {
        let compiled = self.compile(&self.compiled.registry.parse(request.text)?)?;
        match request.message_type {
            MessageType::Apply => self.on_apply(now, compiled)?,
            // The peer may still have the recipe that is being undone here.
            _ if self.changes.is_undoing() => return Err(RecipeError::Busy),
            _ => self.on_propose(now, compiled),
        }
        Ok(())
    }

    fn on_apply(&mut self, now: Time, compiled: Arc<CompiledStack>) -> Result<(), RecipeError> {
        if !self.is_parameters_only(&compiled) {
            return Err(RecipeError::Busy);
        }
        let fresh = !compiled.recipe().same_stack(self.recipe());
        self.apply(now, compiled.clone())?;
        // The peer's recipe replaces what this end applied itself, so that is not to be restored.
        if let Change::Applying(_, Some(before)) = &mut self.changes.change {
            *before = compiled;
        }
        self.yield_own(now);
        self.changes.answer(None);
        if fresh {
            self.core.events.push_back(StackEvent::Reconfigured);
        }
        Ok(())
    }

    fn on_propose(&mut self, now: Time, compiled: Arc<CompiledStack>) {
        // Both ends must start from the same recipe, because parts that the old and the new one share keep
        // their state.
        self.yield_own(now);
        self.core.draining = true;
        self.changes.change = Change::Draining(compiled);
    }

    /// Drops this end's change: both ends requested one at once, and the peer opened the session.
    fn yield_own(&mut self, now: Time) {
        self.drop_own(now, "the peer requested another reconfiguration at the same time");
    }

    /// Handles the peer's READY: switches if this end is drained too. Otherwise the peer repeats READY.
    fn on_ready(&mut self, now: Time) {
        if !self.is_drained() {
            return;
        }
        if let Change::Proposed(own, compiled) = std::mem::take(&mut self.changes.change)
            && self.change_over(now, &compiled)
        {
            let commit = RepeatedMessage::new(now, MessageType::Commit, own.number, String::new());
            self.changes.change = Change::Committing(Box::new(commit));
        }
    }

    /// Handles a packet of the next generation: if it authenticates, this end switches too and processes it.
    /// The packet is opened once, in place, because keys may accept a packet number only once, and before
    /// anything changes, because an attacker must not be able to trigger the switch.
    pub(crate) fn on_other_generation(&mut self, now: Time, packet: &mut [u8]) {
        let Change::Ready(_, compiled) = &self.changes.change else { return };
        let compiled = compiled.clone();
        let len = packet.len();
        let generation = self.generation ^ GENERATION_BIT;
        let mut batch = Batch::incoming(packet, len, &compiled.tables.layout, generation);
        self.context(now).raise_batch(BatchEvent::RAW_FROM_NET, &mut batch);
        if batch.has_live() {
            self.changes.change = Change::None;
            if !self.change_over(now, &compiled) {
                return;
            }
            self.changes.answer(None);
            self.core.events.push_back(StackEvent::Reconfigured);
            self.changes.leave_out_old(&mut batch);
        }
        self.take_opened(now, &mut batch);
    }

    /// Opens packets of the previous generation, which the peer repeats until it has switched. Their contents
    /// are not needed any more, but authentic ones show that the peer is alive, and its present address.
    pub(crate) fn open_previous_generation(&mut self, now: Time, buffer: &mut [u8], stride: usize) {
        let compiled = self.compiled.clone();
        let previous = self.generation ^ GENERATION_BIT;
        let mut batch = Batch::incoming(buffer, stride, &compiled.tables.layout, previous);
        self.context(now).raise_batch(BatchEvent::RAW_FROM_NET, &mut batch);
        self.core.stats.control_received += batch.live().count() as u64;
    }
}
