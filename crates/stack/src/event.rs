//! Events that micro-protocols bind handlers to and raise (wu-h-ctp section 3.1), and events that a stack
//! reports to its driver. Packet events carry a batch, message events the message, all others a typed
//! argument.

use std::any::{Any, TypeId};
use std::marker::PhantomData;

use haul_base::{Rate, Span};

use crate::name::Name;

/// An event that carries a batch of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchEvent(pub(crate) u16);

impl BatchEvent {
    /// Packets can be sent: bound micro-protocols add segments to the empty batch, in their order.
    pub const FILL: Self = Self(0);
    /// The batch contains new or repeated segments whose attributes must be written.
    pub const SEGMENT_FROM_USER: Self = Self(1);
    /// Packets of any kind are about to be sent: they are recorded, then sealed.
    pub const SEGMENT_TO_NET: Self = Self(2);
    /// Received packets, still sealed: their contents cannot be trusted yet.
    pub const RAW_FROM_NET: Self = Self(3);
    /// Authentic data packets, long enough for their attributes.
    pub const SEGMENT_FROM_NET: Self = Self(4);

    pub(crate) const BUILT_IN: [&'static str; 5] =
        ["fill", "segment from user", "segment to net", "raw from net", "segment from net"];
}

/// An event that carries an argument of type `T`.
pub struct Event<T> {
    pub(crate) id: u16,
    of_type: PhantomData<fn(&mut T)>,
}

impl<T> Clone for Event<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Event<T> {}

impl<T> std::fmt::Debug for Event<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({})", self.id)
    }
}

impl<T: 'static> Event<T> {
    pub(crate) const fn with_id(id: u16) -> Self {
        Self { id, of_type: PhantomData }
    }

    /// Returns the argument, if `id` and `argument` belong to this event.
    #[inline]
    pub fn of(self, id: EventId, argument: &mut dyn Any) -> Option<&mut T> {
        if id.0 == self.id { argument.downcast_mut() } else { None }
    }

    /// Whether a handler was called for this event.
    #[inline]
    pub fn is(self, id: EventId) -> bool {
        id.0 == self.id
    }
}

/// Identifies the event that a handler is called for; compare with [`Event::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId(pub(crate) u16);

/// Position of a handler among those of the same event: lower first, equal ones in the order of the recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub i16);

impl Order {
    /// Before all others.
    pub const FIRST: Self = Self(-1_000);
    /// Before most handlers.
    pub const EARLY: Self = Self(-100);
    /// Default for most handlers.
    pub const NORMAL: Self = Self(0);
    /// After most handlers.
    pub const LATE: Self = Self(100);
    /// After all others; for example, sealing an outgoing batch.
    pub const LAST: Self = Self(1_000);
}

/// Micro-protocols that handle an event, in order.
pub(crate) type Bound = Vec<(Order, u8)>;

/// An event with an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArgumentEvent {
    pub(crate) name: &'static str,
    pub(crate) argument: TypeId,
    pub(crate) bound: Bound,
}

impl ArgumentEvent {
    pub(crate) fn new<T: 'static>(name: Name<Event<T>>) -> Self {
        Self { name: name.text(), argument: TypeId::of::<T>(), bound: Vec::new() }
    }

    /// Whether both are the same event: equal names and argument types.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.argument == other.argument
    }
}

/// Argument of [`SEND_PERMIT`]: how much may be sent now. Handlers only lower the limits; they also set
/// `late`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendPermit {
    /// Maximum number of packets.
    pub packets: usize,
    /// Largest packet, UDP payload bytes.
    pub datagram: usize,
    /// UDP payload bytes that may be sent back to back.
    pub burst: u64,
    /// Time by which the packets could have been sent earlier: the driver called the stack late.
    pub late: Span,
}

impl SendPermit {
    /// Limits the number of packets.
    pub fn at_most(&mut self, packets: usize) {
        self.packets = self.packets.min(packets);
    }
}

/// Raised before a batch is filled. A handler that permits nothing calls
/// [`Context::resume_at`](crate::Context::resume_at), or records that it waits for something else.
pub const SEND_PERMIT: Event<SendPermit> = Event::with_id(Built::Permit as u16);
/// A message was given up, or its arrival was confirmed.
pub const MESSAGE_SETTLED: Event<Settled> = Event::with_id(Built::Settled as u16);
/// Segments were not acknowledged in time. The micro-protocol that stores them retransmits them.
pub const RETRANSMIT_TIMEOUT: Event<Missing> = Event::with_id(Built::RetransmitTimeout as u16);
/// Nothing was received for a while.
pub const NACK_TIMEOUT: Event<()> = Event::with_id(Built::NackTimeout as u16);
/// This end requests another rate from its peer; raised by
/// [`Stack::request_rate`](crate::Stack::request_rate).
pub const RATE_REQUESTED: Event<Rate> = Event::with_id(Built::RateRequested as u16);
/// The peer has answered the driver after this time. The path's state already holds it in place of the
/// initial round-trip time.
pub const PATH_ANSWERED: Event<Span> = Event::with_id(Built::PathAnswered as u16);
/// Both ends number segments from 0 again, and none is outstanding: sequence numbers seen before are void.
/// Raised by the micro-protocol that numbers segments, when it starts; handled by those that stayed.
pub const RENUMBERED: Event<()> = Event::with_id(Built::Renumbered as u16);

/// Built-in events with an argument.
#[derive(Clone, Copy)]
#[repr(u16)]
enum Built {
    Permit = 0,
    Settled = 1,
    RetransmitTimeout = 2,
    NackTimeout = 3,
    RateRequested = 4,
    PathAnswered = 5,
    Renumbered = 6,
}

/// Returns the built-in events, indexed by their numbers.
pub(crate) fn built_in_events() -> [ArgumentEvent; 7] {
    [
        named("send permit", SEND_PERMIT),
        named("message settled", MESSAGE_SETTLED),
        named("retransmit timeout", RETRANSMIT_TIMEOUT),
        named("nack timeout", NACK_TIMEOUT),
        named("rate wanted", RATE_REQUESTED),
        named("path answered", PATH_ANSWERED),
        named("segments renumbered", RENUMBERED),
    ]
}

fn named<T: 'static>(name: &'static str, _: Event<T>) -> ArgumentEvent {
    ArgumentEvent::new(Name::<Event<T>>::new(name))
}

/// Argument of [`MESSAGE_SETTLED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// ID of the message, from [`Stack::send`](crate::Stack::send).
    pub message: u64,
    /// Whether the whole message has arrived.
    pub arrived: bool,
}

/// Argument of [`RETRANSMIT_TIMEOUT`]: sequence numbers to retransmit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Sequence numbers of the segments; empty: everything outstanding.
    pub sequence_numbers: Vec<u64>,
}

/// Events that a stack reports to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackEvent {
    /// The whole object to be sent has arrived at the peer.
    Delivered,
    /// The whole of an object of this length was received.
    Complete(u64),
    /// Messages can be received.
    Message,
    /// A message's arrival at the peer was confirmed, or the message was given up.
    Settled {
        /// ID of the message, from [`Stack::send`](crate::Stack::send).
        message: u64,
        /// Whether it has arrived.
        arrived: bool,
    },
    /// Another datagram size is in use, in UDP payload bytes.
    PathMtu(u16),
    /// The peer requested this rate, and it is in force.
    Rate(Rate),
    /// Nothing authentic was received for this long.
    Silent(Span),
    /// The recipe in force has changed.
    Reconfigured,
    /// The peer refused the recipe, for this reason; the old one stays in force.
    Refused(String),
    /// A micro-protocol has failed. The session is over; the process and other sessions continue.
    Failed {
        /// Name of the micro-protocol in the recipe.
        protocol: String,
        /// Its error message.
        message: String,
    },
    /// A report of a user's micro-protocol.
    User(&'static str, u64),
}
