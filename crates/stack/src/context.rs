//! What a handler can do besides looking at what it was given.

use std::any::Any;
use std::cell::Cell;
use std::fmt;

use haul_base::{Deadline, DeadlineReason, Ecn, Span, Time};

use crate::batch::{Batch, Kind};
use crate::declaration::{SharedValue, SharedValues, Tables};
use crate::event::{BatchEvent, Event, EventId, StackEvent};
use crate::lazy_deque::LazyDeque;
use crate::message::{Buffer, Delivery, Inbox, MessageSink, MessageSource, Pool, SendQueue, Verdict};
use crate::object::{ObjectSink, ObjectSource};
use crate::protocol::MicroProtocol;

/// What is known of the path: written by the micro-protocols that measure it, read by all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathState {
    /// Largest datagram that passes, UDP payload bytes.
    pub datagram: u16,
    /// Smoothed round-trip time, or the first guess.
    pub rtt: Span,
    /// Its mean deviation.
    pub rtt_variation: Span,
    /// Smallest round-trip time.
    pub min_rtt: Span,
}

/// What the socket says of the packets that came last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When the kernel got them: the time of the input where it does not say. It never goes back.
    pub at: Time,
    /// The ECN bits that all of them carry.
    pub ecn: Ecn,
    /// The socket's wrapping count of dropped buffers, as last heard.
    pub socket_drops: u32,
}

/// The user's ends of a stack.
#[derive(Default)]
pub struct Ends {
    /// An object to send.
    pub object_source: Option<Box<dyn ObjectSource>>,
    /// Where a received object goes.
    pub object_sink: Option<Box<dyn ObjectSink>>,
    /// Messages that are made when the net can take them.
    pub message_source: Option<Box<dyn MessageSource>>,
    /// Where received messages go; without it they wait for [`Stack::recv`](crate::Stack::recv).
    pub message_sink: Option<Box<dyn MessageSink>>,
}

impl Ends {
    pub(crate) fn are_none(&self) -> bool {
        let object = self.object_source.is_none() && self.object_sink.is_none();
        object && self.message_source.is_none() && self.message_sink.is_none()
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ends { .. }")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    at: Time,
    owner: u8,
    name: u8,
}

/// Raised at a time, or when the present handlers are done.
pub(crate) struct Delayed {
    at: Option<Time>,
    event: u16,
    argument: Box<dyn Any + Send>,
}

/// Counters of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Data packets sent, repeated ones included.
    pub data_sent: u64,
    /// Of these, repeated ones.
    pub data_resent: u64,
    /// Control packets sent, and messages on the control channel.
    pub control_sent: u64,
    /// UDP payload bytes sent.
    pub bytes_sent: u64,
    /// Authentic data packets received.
    pub data_received: u64,
    /// Authentic control packets received, and messages on the control channel.
    pub control_received: u64,
    /// UDP payload bytes received in authentic packets.
    pub bytes_received: u64,
    /// Packets that are not from the other side, or too short.
    pub unauthentic: u64,
    /// Authentic packets that break the recipe.
    pub violations: u64,
    /// Messages that the user handed over.
    pub messages_submitted: u64,
    /// Of these, those that were suppressed.
    pub messages_suppressed: u64,
    /// Messages handed to the user.
    pub messages_delivered: u64,
}

/// What a stack has besides its micro-protocols.
pub(crate) struct Core {
    pub(crate) next_pn: u64,
    pub(crate) timers: Vec<Timer>,
    pub(crate) delayed: LazyDeque<Delayed>,
    pub(crate) shared: SharedValues,
    pub(crate) queue: SendQueue,
    pub(crate) pool: Pool,
    /// None for a stack that has none and was not asked for them.
    pub(crate) ends: Option<Box<Ends>>,
    pub(crate) inbox: Inbox,
    pub(crate) events: LazyDeque<StackEvent>,
    pub(crate) path: PathState,
    pub(crate) control_wanted: u64,
    /// Bit set of the micro-protocols that have something for the control channel.
    pub(crate) channel_wanted: u64,
    pub(crate) resume_at: Option<Time>,
    pub(crate) max_message: usize,
    pub(crate) next_message: u64,
    pub(crate) draining: bool,
    pub(crate) initiator: bool,
    /// The micro-protocol that is called at present; behind a panic, the one that has panicked.
    pub(crate) running: u8,
    pub(crate) stats: StackStats,
    pub(crate) queue_limit: usize,
    /// Packets that were worked out from others, as they would have come, opened.
    pub(crate) recovered: LazyDeque<Buffer>,
    pub(crate) arrival: Arrival,
    /// The ECN bits of outgoing data packets.
    pub(crate) ecn: Ecn,
    /// The first failure, until the runner is told.
    pub(crate) failure: Cell<Option<Box<StackEvent>>>,
}

impl Core {
    pub(crate) fn next_timer(&self) -> Option<Deadline> {
        let timers = self.timers.iter().map(|timer| timer.at);
        let delayed = self.delayed.iter().filter_map(|delayed| delayed.at);
        let at = timers.chain(delayed).min()?;
        Some(Deadline { at, reason: DeadlineReason::Timer })
    }

    pub(crate) fn take_timer(&mut self, now: Time) -> Option<(u8, u8)> {
        let due = self.timers.iter().enumerate().filter(|(_, timer)| timer.at <= now);
        let (index, _) = due.min_by_key(|(_, timer)| timer.at)?;
        let timer = self.timers.swap_remove(index);
        Some((timer.owner, timer.name))
    }

    /// After a change of recipe: what belongs to micro-protocols that are gone is forgotten, the rest is renumbered.
    pub(crate) fn move_owners(&mut self, moved: &[Option<u8>], event: &dyn Fn(u16) -> Option<u16>) {
        let place = |owner: u8| moved.get(usize::from(owner)).copied().flatten();
        self.timers =
            self.timers.drain(..).filter_map(|t| Some(Timer { owner: place(t.owner)?, ..t })).collect();
        for mut delayed in self.delayed.take() {
            if let Some(event) = event(delayed.event) {
                delayed.event = event;
                self.delayed.push_back(delayed);
            }
        }
        for wanted in [&mut self.control_wanted, &mut self.channel_wanted] {
            let before = std::mem::take(wanted);
            for owner in (0..64).filter(|owner| before >> owner & 1 == 1).filter_map(place) {
                *wanted |= 1 << owner;
            }
        }
    }

    /// Keeps a message for [`Stack::recv`](crate::Stack::recv).
    fn hold(&mut self, id: u64, data: &[u8]) {
        let copy = self.pool.copy(data);
        self.inbox.push(id, copy);
    }

    pub(crate) fn take_delayed(&mut self, now: Time) -> Option<(u16, Box<dyn Any + Send>)> {
        let due = |delayed: &Delayed| delayed.at.is_none_or(|at| at <= now);
        let index = self.delayed.iter().position(due)?;
        let delayed = self.delayed.get_mut().remove(index)?;
        Some((delayed.event, delayed.argument))
    }
}

/// The micro-protocols of a stack; a running one is taken out of its place.
pub(crate) type Slots = [Option<Box<dyn MicroProtocol>>];

/// A handler's view of its stack.
pub struct Context<'c> {
    pub(crate) now: Time,
    pub(crate) core: &'c mut Core,
    pub(crate) slots: &'c mut Slots,
    pub(crate) tables: &'c Tables,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("now", &self.now)
            .field("owner", &self.core.running)
            .finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// The time of the input that is being handled.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// What is known of the path.
    #[inline]
    pub fn path(&self) -> &PathState {
        &self.core.path
    }

    /// The path, for a micro-protocol that measures it.
    #[inline]
    pub fn path_mut(&mut self) -> &mut PathState {
        &mut self.core.path
    }

    /// What the socket says of the packets that came last.
    #[inline]
    pub fn arrival(&self) -> Arrival {
        self.core.arrival
    }

    /// The stack's counters.
    #[inline]
    pub fn stats(&self) -> &StackStats {
        &self.core.stats
    }

    /// Messages that wait for the net.
    #[inline]
    pub fn queue(&mut self) -> &mut SendQueue {
        &mut self.core.queue
    }

    /// Where buffers come from.
    #[inline]
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.core.pool
    }

    /// The user's ends.
    #[inline]
    pub fn ends(&mut self) -> &mut Ends {
        self.core.ends.get_or_insert_default()
    }

    /// A shared value.
    ///
    /// # Panics
    /// If the handle is of another stack.
    #[inline]
    pub fn shared<T: Any + Send>(&mut self, value: SharedValue<T>) -> &mut T {
        let found = self.core.shared.values[usize::from(value.index)].downcast_mut();
        found.expect("a handle names a value of its own type")
    }

    /// Sets the longest message that this stack carries; called once, by the micro-protocol that cuts messages into
    /// segments.
    pub fn set_max_message(&mut self, bytes: usize) {
        self.core.max_message = bytes;
    }

    /// Numbers for messages that come from a [`MessageSource`] and were never submitted: the first of `count`.
    #[inline]
    pub fn number_messages(&mut self, count: u64) -> u64 {
        let first = self.core.next_message;
        self.core.next_message += count;
        self.core.stats.messages_submitted += count;
        first
    }

    /// Number of the next packet.
    #[inline]
    pub fn next_pn(&self) -> u64 {
        self.core.next_pn
    }

    /// Whether this end opened the session.
    pub fn is_initiator(&self) -> bool {
        self.core.initiator
    }

    /// Whether nothing new is to be cut into segments, because the stack is about to change.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.core.draining
    }

    /// Hands in a data packet that was lost and has been worked out from others: its kind, its number, and everything
    /// between clear attributes and tag. It takes the way of authentic ones (SEGMENT FROM NET) as soon as the packets
    /// that are being handled are done. To be called while packets are handled.
    pub fn recovered(&mut self, kind: Kind, pn: u64, body: &[u8]) {
        let layout = &self.tables.layout;
        let (header, tag) = (layout.clear_len(), layout.tag_len());
        let mut packet = self.core.pool.get(header + body.len() + tag);
        packet.extend(&[kind.0]);
        packet.extend(&pn.to_be_bytes()[2..]);
        packet.resize(header);
        packet.extend(body);
        packet.resize(header + body.len() + tag);
        self.core.recovered.push_back(packet);
    }

    /// Calls this micro-protocol's `on_timer(timer)` at `at`, in place of an earlier wish for this timer.
    pub fn set_timer(&mut self, timer: u8, at: Time) {
        let owner = self.core.running;
        let known = self.core.timers.iter_mut().find(|t| t.owner == owner && t.name == timer);
        if let Some(known) = known {
            known.at = at;
            return;
        }
        // One by one: a stack has few timers, and there may be many thousand stacks.
        self.core.timers.reserve_exact(1);
        self.core.timers.push(Timer { at, owner, name: timer });
    }

    /// Takes that wish back.
    pub fn cancel_timer(&mut self, timer: u8) {
        let owner = self.core.running;
        self.core.timers.retain(|t| t.owner != owner || t.name != timer);
    }

    /// Asks that this micro-protocol's `write_control` be called as soon as a packet can leave.
    pub fn want_control(&mut self) {
        self.core.control_wanted |= 1 << self.core.running;
    }

    /// Asks that this micro-protocol's `write_channel` be called as soon as the control channel has room.
    pub fn want_channel(&mut self) {
        self.core.channel_wanted |= 1 << self.core.running;
    }

    /// No data may leave before `at`; asked for while handling [`SEND_PERMIT`](crate::SEND_PERMIT).
    pub fn resume_at(&mut self, at: Time) {
        self.core.resume_at = Some(self.core.resume_at.map_or(at, |known| known.max(at)));
    }

    /// Data packets leave with these ECN bits from now on (RFC 3168); others never have any.
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.core.ecn = ecn;
    }

    /// Ends the session by the name of this micro-protocol, with the reason, when the present input has been handled.
    pub fn fail(&mut self, reason: String) {
        let protocol = self.tables.names[usize::from(self.core.running)].clone();
        let failed = || Box::new(StackEvent::Failed { protocol, message: reason });
        self.core.failure.get_mut().get_or_insert_with(failed);
    }

    /// Tells the stack's runner.
    pub fn emit(&mut self, event: StackEvent) {
        self.core.events.push_back(event);
    }

    /// Raises an event and returns when all handlers bound to it have run ("blocking").
    #[inline]
    pub fn raise<T: Any>(&mut self, event: Event<T>, argument: &mut T) {
        self.dispatch(event.id, argument);
    }

    /// Raises an event when the present input has been handled ("non-blocking"); see `examples/raises.rs`.
    pub fn raise_queued<T: Any + Send>(&mut self, event: Event<T>, argument: T) {
        self.core.delayed.push_back(Delayed { at: None, event: event.id, argument: Box::new(argument) });
    }

    /// Raises an event after `delay`.
    pub fn raise_later<T: Any + Send>(&mut self, event: Event<T>, argument: T, delay: Span) {
        let at = Some(self.now + delay);
        self.core.delayed.push_back(Delayed { at, event: event.id, argument: Box::new(argument) });
    }

    pub(crate) fn dispatch(&mut self, event: u16, argument: &mut dyn Any) {
        let tables = self.tables;
        for &(_, owner) in &tables.argument_events[usize::from(event)].bound {
            self.run(owner, |protocol, context| protocol.on_event(EventId(event), argument, context));
        }
    }

    /// Raises an event with a batch and returns when all handlers bound to it have run.
    #[inline]
    pub fn raise_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>) {
        let tables = self.tables;
        for &(_, owner) in &tables.batch_events[usize::from(event.0)].1 {
            self.run(owner, |protocol, context| protocol.on_batch(event, batch, context));
        }
    }

    /// Hands a message to the user, through every handler bound to it.
    #[inline]
    pub fn deliver(&mut self, id: u64, data: &[u8]) {
        if self.tables.deliver.is_empty() || self.passes(id, data) {
            self.deliver_now(id, data);
        }
    }

    /// Whether all handlers bound to messages let this one pass.
    fn passes(&mut self, id: u64, data: &[u8]) -> bool {
        let tables = self.tables;
        let mut delivery = Delivery { id, data, verdict: Verdict::Pass };
        tables.deliver.iter().all(|&(_, owner)| {
            self.run(owner, |protocol, context| protocol.on_delivery(&mut delivery, context));
            delivery.verdict == Verdict::Pass
        })
    }

    /// Hands a message to the user at once; for handlers that have held it.
    #[inline]
    pub fn deliver_now(&mut self, id: u64, data: &[u8]) {
        self.core.stats.messages_delivered += 1;
        if let Some(sink) = self.core.ends.as_mut().and_then(|ends| ends.message_sink.as_mut()) {
            sink.message(self.now, id, data);
        } else {
            self.core.hold(id, data);
        }
    }

    /// Calls one micro-protocol, unless it is running already.
    #[inline]
    pub(crate) fn run(&mut self, owner: u8, call: impl FnOnce(&mut dyn MicroProtocol, &mut Context<'_>)) {
        let Some(mut protocol) = self.slots[usize::from(owner)].take() else {
            return;
        };
        let before = std::mem::replace(&mut self.core.running, owner);
        call(&mut *protocol, self);
        self.core.running = before;
        self.slots[usize::from(owner)] = Some(protocol);
    }
}
