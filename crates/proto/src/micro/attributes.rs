//! Attributes of data packets that micro-protocols know of each other. Declare one, or find another's, by its name.

use haul_stack::{Attribute, Name, U48};

/// Which session or connection the packet belongs to; clear, of `transport_driver`.
pub const IDENTITY: Name<Attribute<u32>> = Name::new("identity");

/// The segment's number; of `sequenced_segment`.
pub const SEQUENCE: Name<Attribute<U48>> = Name::new("sequence");

/// Lower half of the number of the message that the segment is part of; of `fixed_size`.
pub const MESSAGE: Name<Attribute<u32>> = Name::new("message");

/// Where the segment belongs in its message; of `fixed_size`.
pub const PLACE: Name<Attribute<u32>> = Name::new("place");

/// Lower half of the message's number among those that are delivered in order; of `in_order`.
pub const ORDER: Name<Attribute<u32>> = Name::new("order");

/// Where the payload belongs in the object, bytes; of `object`.
pub const OFFSET: Name<Attribute<U48>> = Name::new("offset");

/// When the packet left, wrapped microseconds of the sender's clock; of the acknowledgements.
pub const SENT_AT: Name<Attribute<u32>> = Name::new("sent_at");

/// How far the segment is ahead of the oldest that its sender has not done with; of `positive_ack` and
/// `cumulative_ack`.
pub const AHEAD: Name<Attribute<u16>> = Name::new("ahead");

/// When the packet left, for the time that its message has still to live; of `deadline`.
pub const DEPARTED: Name<Attribute<u32>> = Name::new("departed");

/// How long the message may still take, microseconds; of `deadline`.
pub const REST_OF_LIFE: Name<Attribute<u32>> = Name::new("rest_of_life");

/// Which block of packets protects the packet, and as which of its packets; of `fec`.
pub const FEC_BLOCK: Name<Attribute<u32>> = Name::new("fec_block");
