//! A new recipe for a running stack, without losing a byte (wu-h-ctp section 6 leaves this to the future).
//!
//! *New parameters* of the same micro-protocols are applied at once: first here, then there. *Other micro-protocols*
//! change what packets look like. Then both sides stop cutting new data, wait until all that is on its way has
//! arrived, and change over: the first side with its next packet number, the other one when it sees a packet of the
//! new generation, which a bit of the kind byte tells. Packet numbers and keys go on. Micro-protocols that stand in
//! both recipes stay as they are, with their state.

use std::sync::Arc;

use haul_base::{Span, Time, Transmit};

use crate::batch::{Batch, GENERATION_BIT, Kind};
use crate::blueprint::{Blueprint, Setup};
use crate::event::BatchEvent;
use crate::recipe::{Recipe, RecipeError};
use crate::stack::{Stack, StackEvent};

/// Repeated so often after the round-trip time, at least.
const SHORTEST_REPEAT: Span = Span::from_millis(20);
/// A proposal without an answer is taken back after so long.
const PATIENCE: Span = Span::from_secs(30);
/// These stay or stay away for the life of a session: the other side could not know who is speaking.
const FIXED: [&str; 2] = ["seal", "transport_driver"];

/// What a packet of the negotiation says; behind it the change's number, then text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    Apply = 1,
    Propose = 2,
    Ready = 3,
    Refused = 4,
    Commit = 5,
    Done = 6,
}

impl Word {
    const ALL: [Self; 6] = [Self::Apply, Self::Propose, Self::Ready, Self::Refused, Self::Commit, Self::Done];
}

/// Something that is said again until it is answered.
#[derive(Debug)]
pub(crate) struct Saying {
    body: Vec<u8>,
    number: u32,
    since: Time,
    next: Time,
}

/// Where a change stands.
#[derive(Debug, Default)]
pub(crate) enum Change {
    #[default]
    None,
    /// New parameters are in force here; the other side has not confirmed.
    Applying(Box<Saying>),
    /// The other side has been asked, and nothing new is sent.
    Proposed(Box<Saying>, Arc<Blueprint>),
    /// The other side has asked; what is on its way has to arrive first.
    Draining(u32, Arc<Blueprint>),
    /// Ready, and waiting for the first packet of the new generation.
    Ready(Box<Saying>, Arc<Blueprint>),
    /// Changed over; the other side has not confirmed.
    Committing(Box<Saying>),
    /// An answer that is given once; it is given again when asked again.
    Answer(Vec<u8>),
}

impl Change {
    fn saying(&mut self) -> Option<&mut Saying> {
        match self {
            Self::Applying(saying)
            | Self::Proposed(saying, _)
            | Self::Ready(saying, _)
            | Self::Committing(saying) => Some(saying),
            Self::None | Self::Draining(..) | Self::Answer(_) => None,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Applying(saying)
            | Self::Proposed(saying, _)
            | Self::Ready(saying, _)
            | Self::Committing(saying) => Some(saying.next),
            Self::None | Self::Draining(..) | Self::Answer(_) => None,
        }
    }
}

fn body(word: Word, number: u32, text: &str) -> Vec<u8> {
    let mut body = vec![word as u8];
    body.extend_from_slice(&number.to_be_bytes());
    body.extend_from_slice(text.as_bytes());
    body
}

fn saying(now: Time, word: Word, number: u32, text: &str) -> Saying {
    Saying { body: body(word, number, text), number, since: now, next: now }
}

fn read(body: &[u8]) -> Option<(Word, u32, &str)> {
    let word = Word::ALL.into_iter().find(|word| Some(&(*word as u8)) == body.first())?;
    let number = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?);
    Some((word, number, std::str::from_utf8(&body[5..]).ok()?))
}

impl Stack {
    /// Changes the recipe of both ends. The events [`StackEvent::Reconfigured`] and [`StackEvent::Refused`] tell how it
    /// ended.
    ///
    /// # Errors
    /// If the recipe does not build, cannot follow on the present one, or another change is under way.
    pub fn reconfigure(&mut self, now: Time, recipe: &Recipe) -> Result<(), RecipeError> {
        if !matches!(self.change, Change::None | Change::Answer(_)) {
            return Err(RecipeError::Busy);
        }
        let blueprint = self.compile(recipe)?;
        let text = recipe.to_toml();
        if text.len() > self.longest_text() {
            return Err(RecipeError::TooLong { len: text.len(), max: self.longest_text() });
        }
        let number = self.core.next_pn as u32;
        if self.is_parameters_only(&blueprint) {
            self.apply(now, blueprint)?;
            self.change = Change::Applying(Box::new(saying(now, Word::Apply, number, &text)));
        } else {
            self.core.draining = true;
            self.change = Change::Proposed(Box::new(saying(now, Word::Propose, number, &text)), blueprint);
        }
        Ok(())
    }

    fn longest_text(&self) -> usize {
        let layout = &self.blueprint.tables.layout;
        usize::from(self.core.path.datagram) - layout.clear_len() - layout.tag_len() - 5
    }

    fn compile(&self, recipe: &Recipe) -> Result<Arc<Blueprint>, RecipeError> {
        let fixed = FIXED.into_iter().find(|&part| recipe.has(part) != self.recipe().has(part));
        if let Some(part) = fixed {
            return Err(RecipeError::Fixed(part));
        }
        self.blueprint.registry.compile(recipe, self.blueprint.tag_len)
    }

    fn is_parameters_only(&self, new: &Blueprint) -> bool {
        new.names().eq(self.blueprint.names()) && new.tables == self.blueprint.tables
    }

    /// Puts new parameters in force, or none of them.
    fn apply(&mut self, now: Time, new: Arc<Blueprint>) -> Result<(), RecipeError> {
        let old = std::mem::replace(&mut self.blueprint, new);
        let result = self.tell_parameters(now, &old);
        if result.is_err() {
            let new = std::mem::replace(&mut self.blueprint, old);
            // What has taken new parameters gets its old ones back; it has just shown that it can change.
            let _ = self.tell_parameters(now, &new);
        }
        result
    }

    fn tell_parameters(&mut self, now: Time, old: &Arc<Blueprint>) -> Result<(), RecipeError> {
        for owner in 0..self.slots.len() {
            let blueprint = self.blueprint.clone();
            let parameters = &blueprint.parts[owner].1;
            if *parameters == old.parts[owner].1 {
                continue;
            }
            let mut result = Ok(());
            self.context(now).run(owner as u8, |protocol, context| {
                result = protocol.on_parameters(parameters, context);
            });
            let protocol = blueprint.parts[owner].0.name.to_owned();
            result.map_err(|message| RecipeError::Unbuildable { protocol, message })?;
        }
        Ok(())
    }

    /// Moves on once nothing is on its way any more.
    pub(crate) fn advance_change(&mut self, now: Time) {
        if let Change::Draining(..) = self.change
            && self.is_drained()
            && let Change::Draining(number, blueprint) = std::mem::take(&mut self.change)
        {
            self.change = Change::Ready(Box::new(saying(now, Word::Ready, number, "")), blueprint);
        }
    }

    fn is_drained(&self) -> bool {
        let begun = self.core.queue.front().is_some_and(|message| message.sent > 0);
        !begun && self.slots.iter().flatten().all(|protocol| protocol.unfinished() == 0)
    }

    /// Writes a packet of the negotiation if one is due.
    pub(crate) fn write_change(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        let repeat = (self.core.path.rtt * 3 / 2).max(SHORTEST_REPEAT);
        let body = if let Change::Answer(body) = &mut self.change {
            let body = std::mem::take(body);
            self.change = Change::None;
            body
        } else {
            let saying = self.change.saying().filter(|saying| saying.next <= now)?;
            saying.next = now + repeat;
            saying.body.clone()
        };
        let datagram = usize::from(self.core.path.datagram);
        self.write(now, slot, 1, datagram, |_, batch| {
            if let Some(i) = batch.push(Kind::RECONFIGURE, body.len()) {
                batch.payload_mut(i).copy_from_slice(&body);
            }
        })
    }

    /// Gives a change up that the other side does not answer.
    pub(crate) fn on_change_deadline(&mut self, now: Time) {
        let old = self.change.saying().is_some_and(|saying| now.since(saying.since) > PATIENCE);
        if old {
            self.refuse_own("the other side does not answer");
        }
    }

    fn refuse_own(&mut self, reason: &str) {
        self.core.draining = false;
        self.change = Change::None;
        self.core.events.push_back(StackEvent::Refused(reason.to_owned()));
    }

    /// A packet of the negotiation has come.
    pub(crate) fn on_reconfigure(&mut self, now: Time, packet: &[u8]) {
        let Some((word, number, text)) = read(packet) else {
            self.core.stats.violations += 1;
            return;
        };
        match (word, &mut self.change) {
            (Word::Apply, _) => self.on_apply(now, number, text),
            (Word::Propose, _) => self.on_propose(number, text),
            (Word::Ready, Change::Proposed(asked, _)) if asked.number == number => self.on_ready(now, number),
            (Word::Refused, Change::Proposed(asked, _) | Change::Applying(asked))
                if asked.number == number =>
            {
                self.refuse_own(text);
            }
            (Word::Commit, Change::None | Change::Answer(_)) => {
                self.change = Change::Answer(body(Word::Done, number, ""));
            }
            (Word::Done, Change::Applying(said) | Change::Committing(said)) if said.number == number => {
                self.change = Change::None;
                self.core.events.push_back(StackEvent::Reconfigured);
            }
            _ => {}
        }
    }

    fn on_apply(&mut self, now: Time, number: u32, text: &str) {
        let recipe = Recipe::parse(text);
        let fresh = recipe.as_ref().is_ok_and(|recipe| !recipe.same_stack(self.recipe()));
        let result = recipe.and_then(|recipe| {
            let blueprint = self.compile(&recipe)?;
            if self.is_parameters_only(&blueprint) {
                self.apply(now, blueprint)
            } else {
                Err(RecipeError::Busy)
            }
        });
        self.change = Change::Answer(match result {
            Ok(()) => body(Word::Done, number, ""),
            Err(error) => body(Word::Refused, number, &error.to_string()),
        });
        if fresh && matches!(&self.change, Change::Answer(said) if said[0] == Word::Done as u8) {
            self.core.events.push_back(StackEvent::Reconfigured);
        }
    }

    fn on_propose(&mut self, number: u32, text: &str) {
        match &self.change {
            // Both have proposed at once: the end that opened the session has its way.
            Change::Proposed(..) | Change::Applying(_) if self.core.initiator => return,
            Change::Proposed(..) | Change::Applying(_) => {
                self.refuse_own("the other side wants a change at the same time");
            }
            Change::Draining(known, _) if *known == number => return,
            Change::Ready(said, _) if said.number == number => return,
            Change::Committing(_) => return,
            _ => {}
        }
        match Recipe::parse(text).and_then(|recipe| self.compile(&recipe)) {
            Ok(blueprint) => {
                self.core.draining = true;
                self.change = Change::Draining(number, blueprint);
            }
            Err(error) => self.change = Change::Answer(body(Word::Refused, number, &error.to_string())),
        }
    }

    /// The other side is ready; this one goes first when it is drained too. Until then READY comes again.
    fn on_ready(&mut self, now: Time, number: u32) {
        if !self.is_drained() {
            return;
        }
        if let Change::Proposed(_, blueprint) = std::mem::take(&mut self.change)
            && self.change_over(now, &blueprint)
        {
            self.change = Change::Committing(Box::new(saying(now, Word::Commit, number, "")));
        }
    }

    /// Whether this end waits for the first packet of the coming generation.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.change, Change::Ready(..))
    }

    /// A packet of the coming generation has come: if it opens, this end follows and takes it. It is opened once, in
    /// place, because keys may let a packet number pass only once; and before anything changes, because a stranger must
    /// not make this side change over.
    pub(crate) fn on_other_generation(&mut self, now: Time, packet: &mut [u8]) {
        let Change::Ready(_, blueprint) = &self.change else { return };
        let blueprint = blueprint.clone();
        let len = packet.len();
        let generation = self.generation ^ GENERATION_BIT;
        let mut batch = Batch::incoming(packet, len, &blueprint.tables.layout, generation);
        self.context(now).raise_batch(BatchEvent::RAW_FROM_NET, &mut batch);
        if batch.has_live() {
            self.change = Change::None;
            if !self.change_over(now, &blueprint) {
                return;
            }
            self.core.events.push_back(StackEvent::Reconfigured);
        }
        self.take_opened(now, &mut batch);
    }

    /// Takes the stack apart and puts it together by the new blueprint.
    fn change_over(&mut self, now: Time, blueprint: &Arc<Blueprint>) -> bool {
        self.core.draining = false;
        match self.rebuild(now, blueprint) {
            Ok(()) => true,
            Err(error) => {
                self.fail("recipe".to_owned(), error.to_string());
                false
            }
        }
    }

    fn rebuild(&mut self, now: Time, new: &Arc<Blueprint>) -> Result<(), RecipeError> {
        let old = std::mem::replace(&mut self.blueprint, new.clone());
        let mut old_slots = std::mem::take(&mut self.slots);
        let place = |name: &str| new.names().position(|known| known == name).map(|at| at as u8);
        let moved: Vec<Option<u8>> = old.names().map(place).collect();
        self.core.move_owners(&moved, &|event| event_in(&old, new, event));
        let mut setup = self.running_setup(now);
        let mut fresh = Vec::with_capacity(new.parts.len());
        for (index, (registration, parameters)) in new.parts.iter().enumerate() {
            let before = old.names().position(|known| known == registration.name);
            let kept = before.filter(|&at| old.parts[at].1 == *parameters);
            fresh.push(kept.is_none());
            self.slots.push(match kept {
                Some(at) => old_slots[at].take(),
                None => Some(new.build_one(index, &mut setup)?),
            });
        }
        new.place_as_checked(&mut self.slots, &mut self.core.shared)?;
        self.generation ^= GENERATION_BIT;
        self.start(now, |owner| fresh[usize::from(owner)]);
        Ok(())
    }

    fn running_setup(&self, now: Time) -> Setup {
        let mut setup = Setup::new(now);
        setup.initiator = self.core.initiator;
        setup.datagram = self.core.path.datagram;
        setup.likely_datagram = self.core.path.datagram;
        setup.initial_rtt = self.core.path.rtt;
        setup
    }
}

/// The event of the new stack that has the name of an old one.
fn event_in(old: &Blueprint, new: &Blueprint, event: u16) -> Option<u16> {
    let name = &old.tables.notice_events.get(usize::from(event))?.0;
    new.tables.notice_events.iter().position(|known| known.0 == *name).map(|at| at as u16)
}
