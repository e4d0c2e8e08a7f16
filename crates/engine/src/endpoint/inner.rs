//! One end of a flight: its stack, its keys, and where the other end is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_proto::micro::FEC_KIND;
use haul_stack::{Blueprint, Ends, GENERATION_BIT, Kind, Recipe, RecipeError, Setup, Stack, StackEvent};
use haul_wire::packet::{Flight, FlightWord, OPEN_LEN};

use super::ChannelOptions;
use super::address::Standing;
use super::anticipation::Anticipation;
use super::guard::caught;
use super::phase::{KeepAlive, Manner, Opening, Phase};
use super::shared::{Shared, count, lock};
use super::table::Bond;
use crate::crypto::FlightKeys;
use crate::{EngineError, Role};

/// Batches sent before others have their turn.
pub(super) const ROUNDS: usize = 16;
/// Notices that wait to be looked at; the oldest is dropped for one more.
const MOST_NOTICES: usize = 64;
/// Messages that may always wait to be taken, whatever their size.
const FEW_MESSAGES: usize = 16;
/// Messages that may wait at most: small ones cost more than their bytes.
const MOST_MESSAGES: usize = 16_384;
/// The first bare opening header waits this long for data to go with.
const OPENING_DELAY: Span = Span::from_millis(10);
/// Shortest time between two opening headers.
const OPENING_REPEAT: Span = Span::from_millis(100);

/// What is taken for a round trip where nothing is known (RFC 9002 section 6.2.2). The first estimate of an association comes from
/// exchanges over TCP: where that had to repeat something, it is seconds, and so would be the first repetition here.
const UNKNOWN_ROUND_TRIP: Span = Span::from_millis(333);

/// One end of a flight.
pub(crate) struct Inner {
    keys: Arc<FlightKeys>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What changes of it.
#[expect(clippy::box_collection, reason = "there are many thousand, and these are empty nearly always")]
pub(super) struct State {
    pub(super) stack: Stack,
    pub(super) peer: SocketAddr,
    /// Whether that is its address.
    pub(super) standing: Standing,
    /// How often it has moved.
    pub(super) moves: u32,
    pub(super) phase: Phase,
    /// Largest datagram, UDP payload bytes.
    datagram: u16,
    /// Highest packet number that came and opened: only newer packets say where the other end is.
    highest_pn: u64,
    pub(super) heard: Time,
    /// The earliest entry of the schedule.
    scheduled: Option<Time>,
    inbox: usize,
    /// Made by the first.
    notices: Option<Box<VecDeque<StackEvent>>>,
    pub(super) keep_alive: Option<Box<KeepAlive>>,
    /// Tasks that wait for a change; made by the first.
    wakers: Option<Box<Vec<task::Waker>>>,
    /// Threads that sleep until something changes.
    pub(super) waiting: u32,
    pub(super) guest: Attendance,
    /// How long a guest may look for a message at a time.
    busy_poll: Span,
    /// When the next message may come; made with the first that a thread waits for.
    pub(super) anticipation: Option<Box<Anticipation>>,
}

/// A thread that waits for a change and drives the endpoint meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attendance {
    /// There is none.
    Absent,
    /// It drives.
    Driving,
    /// It has brought a message. What there is to send waits for what the application does with that.
    Served,
}

/// Whether packets have come behind an opening header: their sender does not know yet that it was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Present,
    Absent,
}

impl Inner {
    pub(super) fn new(
        now: Time,
        role: Role,
        bond: &Bond,
        flight: Flight,
        (peer, standing): (SocketAddr, Standing),
        options: &ChannelOptions,
        ends: Ends,
    ) -> Result<Self, RecipeError> {
        let round_trip = bond.round_trip.min(UNKNOWN_ROUND_TRIP);
        let keys = FlightKeys::new(&bond.secret, &flight, role, bond.cipher);
        let phase = match role {
            Role::Client => {
                let wait = (round_trip * 2).max(OPENING_REPEAT);
                Phase::Opening(Box::new(Opening::new(now, OPENING_DELAY, wait, options.patience.into())))
            }
            Role::Server => Phase::Running,
        };
        // The header in front of the first packets takes its room from them.
        let header = if role == Role::Client { OPEN_LEN as u16 } else { 0 };
        let datagram = options.datagram.saturating_sub(header);
        let setup = Setup {
            initiator: role == Role::Client,
            identity: bond.identity,
            keys: Some(keys.pair()),
            datagram,
            likely_datagram: datagram,
            max_datagram: options.datagram,
            initial_rtt: round_trip,
            queue_bytes: options.queue.0 as usize,
            ends,
            ..Setup::new(now)
        };
        let every = options.keep_alive.map(|every| Box::new(KeepAlive::new(now, every.into())));
        let state = State {
            stack: build(&bond.blueprint, setup)?,
            peer,
            standing,
            moves: 0,
            phase,
            datagram: options.datagram,
            highest_pn: 0,
            heard: now,
            scheduled: None,
            inbox: options.inbox.0 as usize,
            notices: None,
            keep_alive: every,
            wakers: None,
            waiting: 0,
            guest: Attendance::Absent,
            busy_poll: options.busy_poll.into(),
            anticipation: None,
        };
        Ok(Self { keys, state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(super) fn identity(&self) -> u32 {
        self.flight().identity
    }

    pub(super) fn flight(&self) -> Flight {
        self.keys.flight()
    }

    pub(super) fn keys(&self) -> &FlightKeys {
        &self.keys
    }

    pub(super) fn role(&self) -> Role {
        self.keys.role()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn changed(&self) -> &Condvar {
        &self.changed
    }

    /// Sends what there is to send, takes the stack's events, and sees to it that somebody looks again in time. Whether it
    /// has changed anything that somebody may wait for.
    pub(super) fn settle(&self, shared: &Shared, state: &mut State, now: Time) -> bool {
        let sent = self.transmit(shared, state, now);
        if sent > 0 {
            state.on_transmitted(now);
        }
        let changed = self.settle_unsent(shared, state);
        if sent == ROUNDS {
            self.schedule(shared, state, now);
        }
        changed || sent > 0
    }

    /// As [`settle`](Self::settle), but what there is to send waits.
    fn settle_unsent(&self, shared: &Shared, state: &mut State) -> bool {
        let mut changed = false;
        while let Some(event) = state.stack.poll_event() {
            changed = true;
            self.take_event(shared, state, event);
        }
        if let Some(at) = state.deadline() {
            self.schedule(shared, state, at);
        }
        changed
    }

    /// Sends what was left unsent.
    pub(super) fn make_good(&self, shared: &Shared, now: Time) {
        let mut state = self.lock();
        self.settle(shared, &mut state, now);
        self.release(state);
    }

    pub(super) fn schedule(&self, shared: &Shared, state: &mut State, at: Time) {
        if state.scheduled.is_none_or(|known| at < known) {
            state.scheduled = Some(at);
            shared.helm.wake_at(at, self.identity());
        }
    }

    /// What was scheduled for a time at which nothing is to be done any more is put off: who drives would wake for nothing.
    pub(super) fn put_off(&self, shared: &Shared, state: &mut State) {
        let (Some(known), deadline) = (state.scheduled, state.deadline()) else { return };
        if deadline.is_none_or(|at| at > known) && shared.helm.take_back(known, self.identity()) {
            state.scheduled = None;
            if let Some(at) = deadline {
                self.schedule(shared, state, at);
            }
        }
    }

    /// As [`release`](Self::release), where it is not for certain whoever drives that calls: a guest looks by itself at
    /// what it has changed, and only at that.
    pub(super) fn release_from_outside(&self, shared: &Shared, state: MutexGuard<'_, State>) {
        let has_guest = state.guest != Attendance::Absent;
        self.release(state);
        if has_guest {
            shared.helm.wake_guest();
        }
    }

    /// Unlocks, and wakes whoever waits for a change.
    pub(super) fn release(&self, mut state: MutexGuard<'_, State>) {
        let wakers = state.wakers.take();
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
        wakers.into_iter().flat_map(|wakers| *wakers).for_each(task::Waker::wake);
    }

    fn take_event(&self, shared: &Shared, state: &mut State, event: StackEvent) {
        match event {
            StackEvent::Message | StackEvent::Settled { arrived: true, .. } => return,
            StackEvent::Failed { protocol, message } => {
                self.say(shared, state.peer, FlightWord::Close, Manner::Cut as u32);
                state.end(EngineError::MicroProtocol { protocol, message });
                return;
            }
            _ => {}
        }
        let notices = state.notices.get_or_insert_default();
        if notices.len() == MOST_NOTICES {
            notices.pop_front();
        }
        notices.push_back(event);
    }

    /// Packets of the stack have come, side by side.
    pub(super) fn on_packets(
        &self,
        shared: &Shared,
        now: Time,
        mut received: Received<'_>,
        from: SocketAddr,
        header: Header,
    ) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return;
        }
        if state.is_inbox_full() && brings_data(received.data, received.stride) {
            return count(&shared.counters.inbox_full);
        }
        let newest =
            received.data.chunks(received.stride.max(1)).filter_map(packet_number).max().unwrap_or(0);
        let packets = received.count() as u64;
        let before = state.authentic();
        let is_answer = before == 0 && self.role() == Role::Server && header == Header::Absent;
        let began = is_answer.then(|| state.unheard_since()).flatten();
        state.stack.on_receive(now, &mut received);
        let opened = state.authentic() - before;
        if opened == 0 {
            count(&shared.counters.unauthentic);
        } else {
            if let Some(began) = began {
                state.on_answered(now, now.since(began));
            }
            state.on_heard(now);
            // Which of them did not open is not known, and the number of a forged one says nothing.
            let all_opened = opened >= packets;
            if newest >= state.highest_pn || !all_opened {
                self.on_newest_from(shared, &state, from, header);
            }
            if all_opened {
                state.highest_pn = state.highest_pn.max(newest);
            }
        }
        if state.guest != Attendance::Absent && state.stack.waiting_messages() > 0 {
            state.guest = Attendance::Served;
            self.settle_unsent(shared, &mut state);
        } else {
            self.settle(shared, &mut state, now);
        }
        self.release(state);
    }

    /// It is the time for which this flight was scheduled.
    pub(super) fn on_schedule(&self, shared: &Shared, now: Time, at: Time) {
        let mut state = self.lock();
        if state.scheduled != Some(at) {
            return;
        }
        state.scheduled = None;
        if matches!(state.phase, Phase::Ended(_)) {
            return;
        }
        if state.stack.deadline().is_some_and(|deadline| deadline.at <= now) {
            state.stack.on_deadline(now);
        }
        if state.guest == Attendance::Served {
            self.settle_unsent(shared, &mut state);
        } else {
            self.settle(shared, &mut state, now);
        }
        self.speak(shared, &mut state, now);
        if let Some(at) = state.deadline() {
            self.schedule(shared, &mut state, at);
        }
        self.release(state);
    }

    /// Gives back what is made again when it is needed, if nothing has come since `before`.
    pub(super) fn rest(&self, now: Time, before: Time) {
        let mut state = self.lock();
        if state.heard < before {
            self.keys.rest();
            state.stack.rest(now);
            state.notices.take_if(|notices| notices.is_empty());
            state.anticipation.take_if(|anticipation| anticipation.is_blank());
        }
    }
}

impl State {
    /// Authentic packets so far.
    pub(super) fn authentic(&self) -> u64 {
        let stats = self.stack.stats();
        stats.data_received + stats.control_received
    }

    /// When the flight began, if nothing authentic has come since, no answer to a question for a sign of life either.
    fn unheard_since(&self) -> Option<Time> {
        let has_asked = self.keep_alive.as_ref().is_some_and(|alive| alive.number > 0);
        (self.authentic() == 0 && !has_asked).then_some(self.heard)
    }

    /// Wakes the task at the next change.
    pub(super) fn wake_later(&mut self, waker: &task::Waker) {
        let wakers = self.wakers.get_or_insert_default();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// The oldest notice that nobody has taken.
    pub(super) fn notice(&mut self) -> Option<StackEvent> {
        self.notices.as_mut()?.pop_front()
    }

    /// A guest has a message for which it has waited.
    pub(super) fn on_awaited(&mut self, now: Time) {
        if let Some(anticipation) = &mut self.anticipation {
            anticipation.on_message(now);
        }
    }

    /// A thread of `role` waits for a message. Whoever waits for the first one has just sent what it answers, or is a server that
    /// has told the client so far that its flight is known.
    pub(super) fn expect_answer(&mut self, now: Time, role: Role) {
        if self.anticipation.is_some() {
            return;
        }
        if self.stack.stats().messages_submitted > 0 {
            self.anticipation(now).on_sent(now);
        } else if let Some(began) = self.unheard_since().filter(|_| role == Role::Server) {
            self.anticipation(now).on_greeted(began);
        }
    }

    fn anticipation(&mut self, now: Time) -> &mut Anticipation {
        self.anticipation.get_or_insert_with(|| {
            let mut anticipation = Anticipation::new(now, self.busy_poll, self.stack.path().rtt);
            anticipation.on_transmitted(now, self.stack.stats().data_resent);
            Box::new(anticipation)
        })
    }

    fn on_transmitted(&mut self, now: Time) {
        if let Some(anticipation) = &mut self.anticipation {
            anticipation.on_transmitted(now, self.stack.stats().data_resent);
        }
    }

    /// The other end has answered the latest word of the flight's beginning after so long: the server an opening header, the
    /// client, by a packet without one, that it was taken. It may have waited for threads or for the application, so the guess
    /// of the round trip becomes shorter by it, never longer: too short a guess costs repetitions, too long a one a wait. (An answer
    /// to an earlier word comes before the next, unless the round trip is more than twice the guess.)
    pub(super) fn on_answered(&mut self, now: Time, took: Span) {
        if took < self.stack.path().rtt {
            self.stack.path_answered(now, took);
        }
    }

    pub(super) fn on_heard(&mut self, now: Time) {
        self.heard = now;
        match &mut self.phase {
            Phase::Opening(_) => {
                self.phase = Phase::Running;
                self.stack.set_datagram(self.datagram);
            }
            Phase::Closing(goodbye) => goodbye.on_known(),
            Phase::Running | Phase::Ended(_) => {}
        }
        if let Some(alive) = &mut self.keep_alive {
            alive.heard(now);
        }
    }

    fn is_inbox_full(&self) -> bool {
        let waiting = self.stack.waiting_messages();
        waiting > MOST_MESSAGES || (waiting > FEW_MESSAGES && self.stack.waiting_bytes() > self.inbox)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let own = match &self.phase {
            Phase::Ended(_) => return None,
            Phase::Opening(opening) => Some(opening.next.min(opening.until)),
            Phase::Closing(goodbye) => Some(goodbye.next),
            Phase::Running => None,
        };
        let alive = self.keep_alive.as_ref().map(|alive| alive.next);
        // Nothing is sent to where the other end may not be.
        let stack = self.proven_peer().and_then(|_| self.stack.deadline()).map(|deadline| deadline.at);
        [own, alive, stack].into_iter().flatten().min()
    }
}

/// Makes a stack. A micro-protocol that panics meanwhile is an error like any other.
fn build(blueprint: &Arc<Blueprint>, setup: Setup) -> Result<Stack, RecipeError> {
    caught(|| Stack::new(blueprint.clone(), setup))
        .unwrap_or_else(|message| Err(panicked(blueprint.recipe(), &message)))
}

/// The error for a panic of a micro-protocol of which nobody knows which it was.
pub(super) fn panicked(recipe: &Recipe, message: &str) -> RecipeError {
    let parts: Vec<_> = recipe.parts.iter().map(|part| part.name.as_str()).collect();
    let protocol = format!("one of {}", parts.join(", "));
    RecipeError::Unbuildable { protocol, message: format!("it has panicked: {message}") }
}

/// Whether any of the packets may bring messages, which may be lost; others are answers that the other side waits for.
fn brings_data(packets: &[u8], stride: usize) -> bool {
    packets.chunks(stride.max(1)).any(|packet| {
        let kind = Kind(packet[0] & !GENERATION_BIT);
        kind.is_data() || kind == FEC_KIND
    })
}

fn packet_number(packet: &[u8]) -> Option<u64> {
    let mut pn = [0; 8];
    pn[2..].copy_from_slice(packet.get(1..7)?);
    Some(u64::from_be_bytes(pn))
}

/// One received run of packets for a stack.
pub(super) fn received(data: &mut [u8], stride: usize, ecn: Ecn, arrival: Option<Time>) -> Received<'_> {
    Received { data, stride, arrival, path: PathId::default(), ecn, socket_drops: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_wherever_it_stands_in_a_run() {
        let run = |kinds: &[Kind]| kinds.iter().flat_map(|kind| [kind.0, 0, 0, 0]).collect::<Vec<u8>>();
        let answer = Kind::RECONFIGURE;
        for (kinds, expected) in [
            (vec![answer; 3], false),
            (vec![Kind::DATA, answer], true),
            (vec![answer, answer, Kind::DATA_FIN], true),
            (vec![answer, FEC_KIND], true),
            (vec![answer, Kind(Kind::DATA.0 | GENERATION_BIT)], true),
        ] {
            assert_eq!(brings_data(&run(&kinds), 4), expected, "{kinds:?}");
        }
        // The last packet of a run may be shorter.
        assert!(brings_data(&[answer.0, 0, 0, 0, Kind::DATA.0], 4) && !brings_data(&[], 4));
    }
}
