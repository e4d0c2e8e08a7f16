//! What UDP datagrams carry.
//!
//! A packet of a stack is `kind u8 | pn u48 | body | tag`. What stands before the body is authenticated, the body is
//! encrypted and authenticated. Initial headers and control frames are authenticated and in clear. This module reads
//! and writes headers and plain bodies; it does not know ciphers. All integers are big-endian. Nothing here allocates.
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
    FRAME_MAC_LEN, IDENTITY_AT, INITIAL_HEADER_KIND, INITIAL_HEADER_LEN, InitialHeader,
};
pub use data::{DATA_BODY_LEN, DataBody};
pub use datagram::DatagramKind;
pub use feedback::{
    BLOCK_HEADER_LEN, Block, Blocks, Encoding, FEEDBACK_HEADER_LEN, FeedbackHeader, FeedbackView,
    FeedbackWriter, HOST_SAMPLE_LEN, NoRoom,
};
pub use header::{COMMON_HEADER_LEN, CommonHeader, PacketKind};
pub use pair::{PAIR_KIND, PAIR_LEN, PairHeader};
pub use part::{PART_BODY_LEN, PartBody};
pub use probe::{PROBE_BODY_MIN, ProbeBody};

/// Packets of one segment of the object.
pub const SEGMENT_PACKETS: u64 = 10_000;
/// 64-bit words of one segment's bitmap; of the last word only [`LAST_WORD_BITS`] bits are used.
pub const SEGMENT_WORDS: usize = SEGMENT_PACKETS.div_ceil(64) as usize;
/// Used bits of the last word of a segment's bitmap.
pub const LAST_WORD_BITS: u32 = (SEGMENT_PACKETS % 64) as u32;
/// The last packet number: they travel in 48 bits.
pub const MAX_PN: u64 = (1 << 48) - 1;
/// The end of the longest object in bytes: offsets travel in 48 bits.
pub const MAX_OFFSET: u64 = (1 << 48) - 1;
/// The last sequence number that feedback can name: segments are numbered in 32 bits.
pub const MAX_SEQ: u64 = (1 << 32) * SEGMENT_PACKETS - 1;

/// Why bytes are not a packet of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It ends before its fields do.
    #[error("the packet is too short: {len} bytes where at least {needed} are needed")]
    Truncated {
        /// What is there.
        len: usize,
        /// What the fields take.
        needed: usize,
    },
    /// The first byte names no kind, or not the kind that is being read.
    #[error("the packet is of an unknown or unexpected kind ({0})")]
    Kind(u8),
    /// A sequence number is above [`MAX_SEQ`].
    #[error("a sequence number is out of range ({0})")]
    Sequence(u64),
    /// The payload ends above [`MAX_OFFSET`].
    #[error("the payload ends past the longest object (offset {0})")]
    Offset(u64),
    /// A data packet that does not end the object carries nothing.
    #[error("a data packet has no payload")]
    NoPayload,
    /// Feedback contradicts itself.
    #[error("feedback contradicts itself")]
    Contradiction,
    /// A block of the feedback is impossible.
    #[error("a block of the feedback is out of range")]
    Block,
    /// A part does not lie within its whole.
    #[error("a part of a packet does not lie within it")]
    Part,
    /// Padding is not zero, or the size does not match.
    #[error("the padding is not zero or not as long as announced")]
    Padding,
}

#[cfg(test)]
mod vectors;
