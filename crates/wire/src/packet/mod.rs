//! Contents of UDP datagrams.
//!
//! A packet of a stack is `kind u8 | pn u48 | body | tag`. The header is authenticated, the body is encrypted
//! and authenticated. Initial headers and control frames are authenticated and in plaintext. This module
//! reads and writes headers and plaintext bodies; it implements no ciphers. All integers are big-endian.
//! Nothing here allocates.
//!
//! Writers check ranges in debug builds only: the values are the program's own.

mod control_frame;
mod data;
mod datagram;
mod feedback;
mod field;
mod header;
mod pair;
mod part;
mod probe;

pub use control_frame::{
    CONTROL_FRAME_KIND, CONTROL_FRAME_LEN, CloseReason, ConnectionId, ControlFrame, ControlFrameKind,
    FRAME_MAC_LEN, IDENTITY_OFFSET, INITIAL_HEADER_KIND, INITIAL_HEADER_LEN, InitialHeader,
};
pub use data::{DATA_BODY_LEN, DataBody};
pub use datagram::DatagramKind;
pub use feedback::{
    BLOCK_HEADER_LEN, Block, Blocks, BufferFull, Encoding, FEEDBACK_HEADER_LEN, FeedbackHeader, FeedbackView,
    FeedbackWriter, HOST_SAMPLE_LEN,
};
pub use header::{COMMON_HEADER_LEN, CommonHeader, PacketKind};
pub use pair::{PAIR_KIND, PAIR_LEN, PairHeader};
pub use part::{PART_BODY_LEN, PartBody};
pub use probe::{PROBE_BODY_MIN, ProbeBody};

/// Packets per segment of the object.
pub const SEGMENT_PACKETS: u64 = 10_000;
/// 64-bit words of a segment's bitmap; the last word uses only [`LAST_WORD_BITS`] bits.
pub const SEGMENT_WORDS: usize = SEGMENT_PACKETS.div_ceil(64) as usize;
/// Used bits of the last word of a segment's bitmap.
pub const LAST_WORD_BITS: u32 = (SEGMENT_PACKETS % 64) as u32;
/// Maximum packet number: 48 bits on the wire.
pub const MAX_PN: u64 = (1 << 48) - 1;
/// Maximum length of an object in bytes: offsets have 48 bits on the wire.
pub const MAX_OFFSET: u64 = (1 << 48) - 1;
/// Maximum sequence number that feedback can express: segment numbers have 32 bits.
pub const MAX_SEQ: u64 = (1 << 32) * SEGMENT_PACKETS - 1;

/// Why bytes are not a packet of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It ends before its fields do.
    #[error("the packet is too short: {len} bytes where at least {needed} are needed")]
    Truncated {
        /// Actual length.
        len: usize,
        /// Length of the fields.
        needed: usize,
    },
    /// The first byte is not a kind, or not the expected kind.
    #[error("the packet is of an unknown or unexpected kind ({0})")]
    Kind(u8),
    /// A sequence number is above [`MAX_SEQ`].
    #[error("a sequence number is out of range ({0})")]
    Sequence(u64),
    /// The payload ends above [`MAX_OFFSET`].
    #[error("the payload ends past the longest object (offset {0})")]
    Offset(u64),
    /// A data packet that does not end the object has no payload.
    #[error("a data packet has no payload")]
    NoPayload,
    /// The fields of feedback are inconsistent.
    #[error("feedback contradicts itself")]
    Contradiction,
    /// A block of the feedback is invalid.
    #[error("a block of the feedback is out of range")]
    Block,
    /// A part exceeds its whole.
    #[error("a part of a packet does not lie within it")]
    Part,
    /// Padding is not zero, or the size does not match.
    #[error("the padding is not zero or not as long as announced")]
    Padding,
}

#[cfg(test)]
mod vectors;
