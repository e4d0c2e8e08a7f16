//! Events: what micro-protocols bind handlers to and raise (wu-h-ctp section 3.1), and what a stack tells its runner.
//! Events of packets carry a batch, events of messages carry the message, all others carry a typed argument.

use std::any::{Any, TypeId};
use std::marker::PhantomData;

use haul_base::{Rate, Span};

use crate::name::Name;

/// An event that carries a batch of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchEvent(pub(crate) u16);

impl BatchEvent {
    /// The net can take packets: bound micro-protocols add segments to the empty batch, in their order.
    pub const FILL: Self = Self(0);
    /// New or repeated segments are in the batch: attributes are to be written.
    pub const SEGMENT_FROM_USER: Self = Self(1);
    /// Packets of any kind are about to leave: recorded, then sealed.
    pub const SEGMENT_TO_NET: Self = Self(2);
    /// Packets as they came: to be opened. Nothing in them can be relied on before.
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

    /// The argument, if `id` and `argument` are of this event.
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

/// Which event a handler was called for; compare with [`Event::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId(pub(crate) u16);

/// When a handler runs among those bound to the same event: smaller first, equal ones in the order of the recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub i16);

impl Order {
    /// Before everything else.
    pub const FIRST: Self = Self(-1_000);
    /// Before the ordinary ones.
    pub const EARLY: Self = Self(-100);
    /// Where most handlers are.
    pub const NORMAL: Self = Self(0);
    /// Behind the ordinary ones.
    pub const LATE: Self = Self(100);
    /// Behind everything else; sealing an outgoing batch, say.
    pub const LAST: Self = Self(1_000);
}

/// Micro-protocols that handle an event, in their order.
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

    /// Whether this is the event of that name, with the same type of argument.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.argument == other.argument
    }
}

/// The argument of [`SEND_PERMIT`]: how much may be sent now. Handlers only lower it, and say how late it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendPermit {
    /// Packets.
    pub packets: usize,
    /// Largest packet, UDP payload bytes.
    pub datagram: usize,
    /// UDP payload bytes that may leave back to back.
    pub burst: u64,
    /// How much earlier the packets could have left: the driver called the stack late.
    pub late: Span,
}

impl SendPermit {
    /// Allows at most `packets`.
    pub fn at_most(&mut self, packets: usize) {
        self.packets = self.packets.min(packets);
    }
}

/// Raised before a batch is filled. A handler that allows nothing calls
/// [`Context::resume_at`](crate::Context::resume_at), or raises the flag that it waits for something else.
pub const SEND_PERMIT: Event<SendPermit> = Event::with_id(Built::Permit as u16);
/// A message was given up or has arrived for certain.
pub const MESSAGE_SETTLED: Event<Settled> = Event::with_id(Built::Settled as u16);
/// Segments were not acknowledged in time; the micro-protocol that stores them sends them again.
pub const RETRANSMIT_TIMEOUT: Event<Missing> = Event::with_id(Built::RetransmitTimeout as u16);
/// Nothing has come for a while.
pub const NACK_TIMEOUT: Event<()> = Event::with_id(Built::NackTimeout as u16);
/// The other side asks for another rate.
pub const RATE_WANTED: Event<Rate> = Event::with_id(Built::RateWanted as u16);
/// The peer has answered the driver after this time, which is stored in the path's state: it replaces the initial
/// round-trip time.
pub const PATH_ANSWERED: Event<Span> = Event::with_id(Built::PathAnswered as u16);
/// Segments are numbered from 0 again, here and at the other end, and none is outstanding: what was known of numbers is
/// void. Raised by the micro-protocol that numbers them, when it starts; handled by those that have stayed.
pub const RENUMBERED: Event<()> = Event::with_id(Built::Renumbered as u16);

/// The built-in events with an argument.
#[derive(Clone, Copy)]
#[repr(u16)]
enum Built {
    Permit = 0,
    Settled = 1,
    RetransmitTimeout = 2,
    NackTimeout = 3,
    RateWanted = 4,
    PathAnswered = 5,
    Renumbered = 6,
}

/// Those events, by their numbers.
pub(crate) fn built_in_events() -> [ArgumentEvent; 7] {
    [
        named("send permit", SEND_PERMIT),
        named("message settled", MESSAGE_SETTLED),
        named("retransmit timeout", RETRANSMIT_TIMEOUT),
        named("nack timeout", NACK_TIMEOUT),
        named("rate wanted", RATE_WANTED),
        named("path answered", PATH_ANSWERED),
        named("segments renumbered", RENUMBERED),
    ]
}

fn named<T: 'static>(name: &'static str, _: Event<T>) -> ArgumentEvent {
    ArgumentEvent::new(Name::<Event<T>>::new(name))
}

/// The argument of [`MESSAGE_SETTLED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Number of the message, from [`Stack::send`](crate::Stack::send).
    pub message: u64,
    /// Whether all of it has arrived.
    pub arrived: bool,
}

/// The argument of [`RETRANSMIT_TIMEOUT`]: sequence numbers that are to be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Which segments; empty: everything that is outstanding.
    pub sequence_numbers: Vec<u64>,
}

/// What a stack tells its runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackEvent {
    /// All of the object that was to be sent has arrived.
    Delivered,
    /// All of an object has come; it has this length.
    Complete(u64),
    /// Messages can be received.
    Message,
    /// A message has arrived at the other side for certain, or was given up.
    Settled {
        /// Number of the message, from [`Stack::send`](crate::Stack::send).
        message: u64,
        /// Whether it has arrived.
        arrived: bool,
    },
    /// A larger or smaller datagram is in use now.
    PathMtu(u16),
    /// The other side asks for this rate, and it is in force.
    Rate(Rate),
    /// Nothing authentic has come for so long.
    Silent(Span),
    /// The recipe in force has changed.
    Reconfigured,
    /// The other side does not take the recipe, for this reason; the old one goes on.
    Refused(String),
    /// A micro-protocol has failed; the session is over, the process and other sessions go on.
    Failed {
        /// Name of the micro-protocol in the recipe.
        protocol: String,
        /// What it says of its failure.
        message: String,
    },
    /// Something that a user's micro-protocol tells.
    User(&'static str, u64),
}
