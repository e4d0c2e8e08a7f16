use super::control_frame::{CONTROL_FRAME_KIND, IDENTITY_OFFSET, INITIAL_HEADER_KIND};
use super::pair::PAIR_KIND;

/// Kind of a datagram received on a shared socket, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// An initial header, possibly followed by a packet.
    Initial,
    /// A control frame.
    ControlFrame,
    /// A packet of a stack, for the connection with this identity.
    Stack(u32),
    /// Two packets.
    Pair,
    /// Too short for any kind.
    Stray,
}

impl DatagramKind {
    /// Returns the kind of this datagram.
    #[inline]
    pub fn of(datagram: &[u8]) -> Self {
        let identity =
            datagram.get(IDENTITY_OFFSET..IDENTITY_OFFSET + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
        match (datagram.first(), identity) {
            (Some(&INITIAL_HEADER_KIND), Some(_)) => Self::Initial,
            (Some(&CONTROL_FRAME_KIND), Some(_)) => Self::ControlFrame,
            (Some(&PAIR_KIND), Some(_)) => Self::Pair,
            (_, Some(identity)) => Self::Stack(u32::from_be_bytes(identity)),
            _ => Self::Stray,
        }
    }
}
