//! Attributes of data packets that other micro-protocols use. Declare one, or look it up, by its name.

use haul_stack::{Attribute, Name, U48};

/// Session or connection that the packet belongs to, in the clear; declared by `transport_driver`.
pub const IDENTITY: Name<Attribute<u32>> = Name::new("identity");

/// Sequence number of the segment; declared by `sequenced_segment`.
pub const SEQUENCE: Name<Attribute<U48>> = Name::new("sequence");

/// Lower half of the ID of the segment's message; declared by `fixed_size`.
pub const MESSAGE: Name<Attribute<u32>> = Name::new("message");

/// Position of the segment in its message; declared by `fixed_size`.
pub const PLACE: Name<Attribute<u32>> = Name::new("place");

/// Lower half of the message's number among those delivered in order; declared by `in_order`.
pub const ORDER: Name<Attribute<u32>> = Name::new("order");

/// Offset of the payload in the object, in bytes; declared by `object`.
pub const OFFSET: Name<Attribute<U48>> = Name::new("offset");

/// Send time of the packet in wrapped microseconds of the sender's clock; declared by the acknowledgements.
pub const SENT_AT: Name<Attribute<u32>> = Name::new("sent_at");

/// Distance of the segment from its sender's oldest outstanding one; declared by `positive_ack` and
/// `cumulative_ack`.
pub const AHEAD: Name<Attribute<u16>> = Name::new("ahead");

/// Send time of the packet, to which the remaining lifetime of its message refers; declared by `deadline`.
pub const DEPARTED: Name<Attribute<u32>> = Name::new("departed");

/// Remaining lifetime of the message in microseconds; declared by `deadline`.
pub const REST_OF_LIFE: Name<Attribute<u32>> = Name::new("rest_of_life");

/// Block of packets that protects the packet, and the packet's index in it; declared by `fec`.
pub const FEC_BLOCK: Name<Attribute<u32>> = Name::new("fec_block");
