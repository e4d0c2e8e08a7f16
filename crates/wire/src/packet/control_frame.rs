//! The packets of a connection besides those of its stack: the initial header, and control frames. Both have
//! a message authentication code instead of an encrypted body; the caller computes it.

use super::PacketError;
use super::field::{Reader, Writer, split};

/// Kind of an initial header; stacks use other kinds.
pub const INITIAL_HEADER_KIND: u8 = 14;
/// Kind of a control frame.
pub const CONTROL_FRAME_KIND: u8 = 15;
/// Length of the message authentication code: 96 bits, as in RFC 2404.
pub const FRAME_MAC_LEN: usize = 12;
/// Length of the initial header; a packet of the stack follows.
pub const INITIAL_HEADER_LEN: usize = ID_LEN + FRAME_MAC_LEN;
/// Length of a control frame without padding; only challenges and responses may be padded.
pub const CONTROL_FRAME_LEN: usize = ID_LEN + 5 + FRAME_MAC_LEN;
/// Offset of the connection's identity in each of its packets, including those of stacks.
pub const IDENTITY_OFFSET: usize = 7;

const ID_LEN: usize = 19;
const MAC_OFFSET: usize = CONTROL_FRAME_LEN - FRAME_MAC_LEN;
const AUTHENTICATED_LEN: usize = MAC_OFFSET + 2;

/// Identifies a connection: one run of a stack under one set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// ID of the resumption state, or of the session.
    pub identity: u32,
    /// Increases with every connection: microseconds since 1970 by the client's clock, or one more than the
    /// last. 0 with a control channel.
    pub epoch: u64,
    /// 48 random bits: two connections with the same epoch by mistake still have different keys. 0 with a
    /// control channel.
    pub salt: u64,
}

impl ConnectionId {
    /// Returns the ID of the connection that has this control channel.
    pub const fn of_session(session: u32) -> Self {
        Self { identity: session, epoch: 0, salt: 0 }
    }

    /// Whether the connection has a control channel.
    pub const fn has_control_channel(&self) -> bool {
        self.epoch == 0
    }

    fn read(kind: u8, packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (fields, rest) = split::<ID_LEN>(packet)?;
        let mut fields = Reader(fields);
        let found = fields.u8();
        if found != kind {
            return Err(PacketError::Kind(found));
        }
        let (salt, identity, epoch) = (fields.u48(), fields.u32(), fields.u64());
        Ok((Self { identity, epoch, salt }, rest))
    }

    fn write(&self, kind: u8, packet: &mut [u8]) {
        Writer(&mut packet[..ID_LEN]).u8(kind).u48(self.salt).u32(self.identity).u64(self.epoch);
    }
}

/// Precedes the client's packets until the server has confirmed that it knows the connection. A packet of the
/// stack follows, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialHeader {
    /// Connection of the client's packets.
    pub id: ConnectionId,
    /// Authenticates the bytes before it.
    pub mac: [u8; FRAME_MAC_LEN],
}

impl InitialHeader {
    /// Parses the header and returns the bytes after it.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Kind`] if it is not an initial header.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (id, rest) = ConnectionId::read(INITIAL_HEADER_KIND, packet)?;
        let (mac, rest) = split::<FRAME_MAC_LEN>(rest)?;
        Ok((Self { id, mac: *mac }, rest))
    }

    /// Returns the bytes that the code authenticates.
    pub fn authenticated(id: &ConnectionId) -> [u8; ID_LEN] {
        let mut bytes = [0; ID_LEN];
        id.write(INITIAL_HEADER_KIND, &mut bytes);
        bytes
    }

    /// Returns the header as bytes.
    pub fn to_bytes(&self) -> [u8; INITIAL_HEADER_LEN] {
        let mut bytes = [0; INITIAL_HEADER_LEN];
        self.id.write(INITIAL_HEADER_KIND, &mut bytes);
        bytes[ID_LEN..].copy_from_slice(&self.mac);
        bytes
    }
}

/// Kind of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlFrameKind {
    /// Server: confirms the connection, so packets need no initial header any more.
    Opened = 1,
    /// Closes the connection: no more data will be sent.
    Close = 2,
    /// Answer to [`ControlFrameKind::Close`] and [`ControlFrameKind::CloseAndDropResumption`].
    Closed = 3,
    /// Client: closes the connection, and the server drops its resumption state.
    CloseAndDropResumption = 4,
    /// Requests a [`ControlFrameKind::Pong`]: a keep-alive, or a check of a silent peer.
    Ping = 5,
    /// Answer to [`ControlFrameKind::Ping`], with its number.
    Pong = 6,
    /// Requests that the receiver prove its address by returning the number. If padded, also probes whether
    /// datagrams of its size get through.
    Challenge = 7,
    /// Answer to [`ControlFrameKind::Challenge`], with its number and size.
    Response = 8,
}

impl ControlFrameKind {
    const ALL: [Self; 8] = [
        Self::Opened,
        Self::Close,
        Self::Closed,
        Self::CloseAndDropResumption,
        Self::Ping,
        Self::Pong,
        Self::Challenge,
        Self::Response,
    ];

    const fn may_be_padded(self) -> bool {
        matches!(self, Self::Challenge | Self::Response)
    }
}

/// A control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlFrame {
    /// Connection of the frame.
    pub id: ConnectionId,
    /// Kind of the frame.
    pub kind: ControlFrameKind,
    /// Number of a ping; the number that a challenge requests back; the [`CloseReason`] of a close; 0 in
    /// other frames.
    pub number: u32,
    /// Size of the datagram in UDP payload bytes: more than [`CONTROL_FRAME_LEN`] only if it is padded with
    /// zeros.
    pub size: u16,
    /// Authenticates the bytes before it, and the size.
    pub mac: [u8; FRAME_MAC_LEN],
}

impl ControlFrame {
    /// Parses a datagram.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Kind`] if it is not a control frame, or of an unknown kind;
    /// [`PacketError::Padding`] if the padding is not zero or not permitted for this kind, or the datagram is
    /// too long.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let (id, rest) = ConnectionId::read(CONTROL_FRAME_KIND, packet)?;
        let (fields, rest) = split::<5>(rest)?;
        let mut fields = Reader(fields);
        let (byte, number) = (fields.u8(), fields.u32());
        let kind = ControlFrameKind::ALL.into_iter().find(|kind| *kind as u8 == byte);
        let kind = kind.ok_or(PacketError::Kind(byte))?;
        let (mac, padding) = split::<FRAME_MAC_LEN>(rest)?;
        let size = u16::try_from(packet.len()).map_err(|_| PacketError::Padding)?;
        if padding.iter().any(|&byte| byte != 0) || !(padding.is_empty() || kind.may_be_padded()) {
            return Err(PacketError::Padding);
        }
        Ok(Self { id, kind, number, size, mac: *mac })
    }

    /// Returns the bytes that the code authenticates: those before it, and the size as u16.
    pub fn authenticated(&self) -> [u8; AUTHENTICATED_LEN] {
        let mut bytes = [0; AUTHENTICATED_LEN];
        self.id.write(CONTROL_FRAME_KIND, &mut bytes);
        Writer(&mut bytes[ID_LEN..]).u8(self.kind as u8).u32(self.number).u16(self.size);
        bytes
    }

    /// Writes the frame to `packet`, which must have the frame's size.
    ///
    /// # Panics
    /// If it is shorter than [`CONTROL_FRAME_LEN`].
    pub fn write(&self, packet: &mut [u8]) {
        let (frame, padding) = packet.split_at_mut(CONTROL_FRAME_LEN);
        let (fields, mac) = frame.split_at_mut(MAC_OFFSET);
        fields.copy_from_slice(&self.authenticated()[..MAC_OFFSET]);
        mac.copy_from_slice(&self.mac);
        padding.fill(0);
    }
}
/// How a peer closes a connection: number of a [`ControlFrameKind::Close`] or
/// [`ControlFrameKind::CloseAndDropResumption`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseReason {
    /// All data was sent; over a control channel the peer closes gracefully too.
    Graceful = 0,
    /// Ends at once; no answer is expected.
    Abort = 1,
}
