//! Framework for transports composed from micro-protocols (wu-h-ctp). It contains no micro-protocol itself.
//!
//! A [`Stack`] is created from a [`CompiledStack`], which [`Registry::compile`] creates from a [`Recipe`].
//! Its micro-protocols bind handlers to events; events carry batches of packets, so that one virtual call
//! handles up to 64 of them. Attributes have offsets that are fixed when the stack is built. A stack is a
//! [`haul_base::Machine`]: it reads no clock, opens no socket and starts no thread.

mod attribute;
mod batch;
mod channel;
mod coalesced;
mod compiled_stack;
mod context;
#[cfg(test)]
mod counted_deque;
mod declaration;
mod event;
mod fields;
mod guard;
mod lazy_deque;
mod message;
mod name;
mod object;
mod protect;
mod protocol;
mod recipe;
mod reconfigure;
mod registry;
mod stack;
mod text;
mod walk;

pub use attribute::{Attribute, AttributeInfo, AttributeType, Layout, U48};
pub use batch::{Batch, GENERATION_BIT, Kind, MAX_BATCH, PACKET_HEADER_LEN};
pub use coalesced::Coalesced;
pub use compiled_stack::CompiledStack;
pub use context::{Arrival, Context, Ends, PathState, StackStats};
pub use declaration::{Clash, Declaration, Resolution, SharedValue};
pub use event::{
    BatchEvent, Event, EventId, MESSAGE_SETTLED, Missing, NACK_TIMEOUT, Order, PATH_ANSWERED, RATE_REQUESTED,
    RENUMBERED, RETRANSMIT_TIMEOUT, SEND_PERMIT, SendPermit, Settled, StackEvent,
};
pub use fields::Fields;
pub use message::{
    Buffer, Delivery, MessageSink, MessageSource, Outgoing, Pool, SendOptions, SendQueue, Submission, Verdict,
};
pub use name::Name;
pub use object::{Available, ObjectSink, ObjectSource, SourceWait};
pub use protect::{Open, Seal, Unauthentic};
pub use protocol::{MicroProtocol, ProtocolStats, caught};
pub use recipe::{
    Configuration, ParameterKind, ParameterSpec, ParameterType, ParameterValue, Part, Recipe, RecipeError,
};
#[doc(hidden)]
pub use recipe::{default_of, joined};
pub use registry::{Build, Compare, Further, Registration, Registry, Setup};
pub use stack::{SendError, Stack};
pub use walk::{Live, Values};
