//! The context of a handler: its access to the stack.

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

/// State of the path, written by the micro-protocols that measure it and read by all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathState {
    /// Largest datagram that the path carries, in UDP payload bytes.
    pub datagram: u16,
    /// Smoothed round-trip time, or the initial estimate.
    pub rtt: Span,
    /// Mean deviation of the round-trip time.
    pub rtt_variation: Span,
    /// Minimum round-trip time.
    pub min_rtt: Span,
}

/// What the socket reports about the packets received last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Time at which the kernel received them, or the time of the input if the kernel does not report it.
    /// Monotonic.
    pub at: Time,
    /// ECN bits of all of these packets.
    pub ecn: Ecn,
    /// The socket's wrapping count of dropped buffers, as last reported.
    pub socket_drops: u32,
}

/// The user's ends of a stack.
#[derive(Default)]
pub struct Ends {
    /// Object to send.
    pub object_source: Option<Box<dyn ObjectSource>>,
    /// Destination of a received object.
    pub object_sink: Option<Box<dyn ObjectSink>>,
    /// Source of messages that are created when packets can be sent.
    pub message_source: Option<Box<dyn MessageSource>>,
    /// Destination of received messages; without it they wait for [`Stack::recv`](crate::Stack::recv).
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

/// An event to raise at a time, or when the current handlers have returned.
pub(crate) struct Delayed {
    at: Option<Time>,
    event: u16,
    argument: Box<dyn Any + Send>,
}

/// Counters of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Data packets sent, including repeated ones.
    pub data_sent: u64,
    /// Repeated data packets sent.
    pub data_resent: u64,
    /// Control packets and control-channel messages sent.
    pub control_sent: u64,
    /// UDP payload bytes sent.
    pub bytes_sent: u64,
    /// Authentic data packets received.
    pub data_received: u64,
    /// Authentic control packets and control-channel messages received.
    pub control_received: u64,
    /// UDP payload bytes received in authentic packets.
    pub bytes_received: u64,
    /// Received packets that are not authentic or too short.
    pub unauthentic: u64,
    /// Authentic packets that violate the recipe.
    pub violations: u64,
    /// Messages submitted by the user.
    pub messages_submitted: u64,
    /// Submitted messages that were suppressed.
    pub messages_suppressed: u64,
    /// Messages delivered to the user.
    pub messages_delivered: u64,
}

/// State of a stack besides its micro-protocols.
pub(crate) struct Core {
    pub(crate) next_pn: u64,
    pub(crate) timers: Vec<Timer>,
    pub(crate) delayed: LazyDeque<Delayed>,
    pub(crate) shared: SharedValues,
    pub(crate) queue: SendQueue,
    pub(crate) pool: Pool,
    /// `None` until a handler uses them, if the user gave none.
    pub(crate) ends: Option<Box<Ends>>,
    pub(crate) inbox: Inbox,
    pub(crate) events: LazyDeque<StackEvent>,
    pub(crate) path: PathState,
    pub(crate) control_wanted: u64,
    /// Bit set of the micro-protocols that have messages for the control channel.
    pub(crate) channel_wanted: u64,
    pub(crate) resume_at: Option<Time>,
    pub(crate) max_message: usize,
    pub(crate) next_message: u64,
    pub(crate) draining: bool,
    pub(crate) initiator: bool,
    /// The micro-protocol that is being called; after a panic, the one that panicked.
    pub(crate) running: u8,
    pub(crate) stats: StackStats,
    pub(crate) queue_limit: usize,
    /// Recovered packets (FEC), in their opened form.
    pub(crate) recovered: LazyDeque<Buffer>,
    pub(crate) arrival: Arrival,
    /// ECN bits of outgoing data packets, and the micro-protocol that set them.
    pub(crate) ecn: (Ecn, u8),
    /// Values for the micro-protocols of later recipes.
    pub(crate) provided: Vec<Box<dyn Any + Send>>,
    /// The first failure, until the driver is told.
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

    /// After a change of recipe: drops what belongs to removed micro-protocols, and renumbers the rest.
    pub(crate) fn move_owners(&mut self, moved: &[Option<u8>], event: &dyn Fn(u16) -> Option<u16>) {
        let place = |owner: u8| moved.get(usize::from(owner)).copied().flatten();
        self.timers =
            self.timers.drain(..).filter_map(|t| Some(Timer { owner: place(t.owner)?, ..t })).collect();
        self.ecn = place(self.ecn.1).map_or((Ecn::NotEct, 0), |owner| (self.ecn.0, owner));
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

/// The micro-protocols of a stack. A running one is taken out of its slot.
pub(crate) type Slots = [Option<Box<dyn MicroProtocol>>];

/// A handler's access to its stack.
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
    /// Time of the input that is being handled.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// State of the path.
    #[inline]
    pub fn path(&self) -> &PathState {
        &self.core.path
    }

    /// State of the path, for micro-protocols that measure it.
    #[inline]
    pub fn path_mut(&mut self) -> &mut PathState {
        &mut self.core.path
    }

    /// What the socket reports about the packets received last.
    #[inline]
    pub fn arrival(&self) -> Arrival {
        self.core.arrival
    }

    /// The stack's counters.
    #[inline]
    pub fn stats(&self) -> &StackStats {
        &self.core.stats
    }

    /// Queue of messages to be sent.
    #[inline]
    pub fn queue(&mut self) -> &mut SendQueue {
        &mut self.core.queue
    }

    /// Pool of buffers.
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
    /// If the handle belongs to another stack.
    #[inline]
    pub fn shared<T: Any + Send>(&mut self, value: SharedValue<T>) -> &mut T {
        let found = self.core.shared.values[usize::from(value.index)].downcast_mut();
        found.expect("a handle names a value of its own type")
    }

    /// Sets the maximum message length of this stack. Called once, by the micro-protocol that segments
    /// messages.
    pub fn set_max_message(&mut self, bytes: usize) {
        self.core.max_message = bytes;
    }

    /// Assigns IDs to `count` messages that come from a [`MessageSource`] and were never submitted; returns
    /// the first.
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

    /// Whether no new data may be segmented, because the stack is about to change.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.core.draining
    }

    /// Hands in a lost data packet that was recovered from others: its kind, its packet number, and
    /// everything between clear attributes and tag. It is processed like an authentic packet (SEGMENT FROM
    /// NET) once the packets being handled are done. Call only while packets are handled.
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

    /// Calls this micro-protocol's `on_timer(timer)` at `at`. Replaces an earlier time of this timer.
    pub fn set_timer(&mut self, timer: u8, at: Time) {
        let owner = self.core.running;
        let known = self.core.timers.iter_mut().find(|t| t.owner == owner && t.name == timer);
        if let Some(known) = known {
            known.at = at;
            return;
        }
        // Grows by one: a stack has few timers, and there may be many thousand stacks.
        self.core.timers.reserve_exact(1);
        self.core.timers.push(Timer { at, owner, name: timer });
    }

    /// Cancels a timer.
    pub fn cancel_timer(&mut self, timer: u8) {
        let owner = self.core.running;
        self.core.timers.retain(|t| t.owner != owner || t.name != timer);
    }

    /// Requests a call of this micro-protocol's `write_control` as soon as a packet can be sent.
    pub fn request_control(&mut self) {
        self.core.control_wanted |= 1 << self.core.running;
    }

    /// Requests a call of this micro-protocol's `write_channel` as soon as the control channel can accept a
    /// message.
    pub fn request_channel(&mut self) {
        self.core.channel_wanted |= 1 << self.core.running;
    }

    /// Forbids sending data before `at`. For handlers of [`SEND_PERMIT`](crate::SEND_PERMIT).
    pub fn resume_at(&mut self, at: Time) {
        self.core.resume_at = Some(self.core.resume_at.map_or(at, |known| known.max(at)));
    }

    /// Sets the ECN bits of data packets while the recipe has this micro-protocol (RFC 3168). Other packets
    /// never have any.
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.core.ecn = (ecn, self.core.running);
    }

    /// Ends the session once the current input has been handled, with this micro-protocol's name and
    /// `reason`.
    pub fn fail(&mut self, reason: String) {
        let protocol = self.tables.names[usize::from(self.core.running)].clone();
        let failed = || Box::new(StackEvent::Failed { protocol, message: reason });
        self.core.failure.get_mut().get_or_insert_with(failed);
    }

    /// Sends an event to the driver.
    pub fn emit(&mut self, event: StackEvent) {
        self.core.events.push_back(event);
    }

    /// Raises an event and returns when all its handlers have run ("blocking").
    #[inline]
    pub fn raise<T: Any>(&mut self, event: Event<T>, argument: &mut T) {
        self.dispatch(event.id, argument);
    }

    /// Raises an event once the current input has been handled ("non-blocking"); see `examples/raises.rs`.
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

    /// Raises an event with a batch and returns when all its handlers have run.
    #[inline]
    pub fn raise_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>) {
        let tables = self.tables;
        for &(_, owner) in &tables.batch_events[usize::from(event.0)].1 {
            self.run(owner, |protocol, context| protocol.on_batch(event, batch, context));
        }
    }

    /// Delivers a message to the user, after all delivery handlers.
    #[inline]
    pub fn deliver(&mut self, id: u64, data: &[u8]) {
        if self.tables.deliver.is_empty() || self.passes(id, data) {
            self.deliver_now(id, data);
        }
    }

    /// Whether all delivery handlers let this message pass.
    fn passes(&mut self, id: u64, data: &[u8]) -> bool {
        let tables = self.tables;
        let mut delivery = Delivery { id, data, verdict: Verdict::Pass };
        tables.deliver.iter().all(|&(_, owner)| {
            self.run(owner, |protocol, context| protocol.on_delivery(&mut delivery, context));
            delivery.verdict == Verdict::Pass
        })
    }

    /// Delivers a message to the user at once; for handlers that have held it.
    #[inline]
    pub fn deliver_now(&mut self, id: u64, data: &[u8]) {
        self.core.stats.messages_delivered += 1;
        if let Some(sink) = self.core.ends.as_mut().and_then(|ends| ends.message_sink.as_mut()) {
            sink.message(self.now, id, data);
        } else {
            self.core.hold(id, data);
        }
    }

    /// Calls one micro-protocol, unless it is already running.
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
