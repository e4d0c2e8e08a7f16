//! The packets of an association beside those of its stack: the one that opens a flight, and short words about it.
//!
//! Both carry a message authentication code in place of a sealed body; computing it is for whoever has the key.

use super::PacketError;
use super::field::{Reader, Writer, split};

/// Kind of a packet that opens a flight; kinds of stacks are other numbers.
pub const OPEN_KIND: u8 = 14;
/// Kind of a word about a flight.
pub const WORD_KIND: u8 = 15;
/// Bytes of the authentication code: 96 bits, as in RFC 2404.
pub const FLIGHT_MAC_LEN: usize = 12;
/// Bytes in front of the packet of the stack that an opening packet carries.
pub const OPEN_LEN: usize = FLIGHT_LEN + FLIGHT_MAC_LEN;
/// Bytes of a word.
pub const WORD_LEN: usize = FLIGHT_LEN + 5 + FLIGHT_MAC_LEN;
/// Where the identity of an association stands in each of its packets, in those of stacks too.
pub const IDENTITY_AT: usize = 7;

const FLIGHT_LEN: usize = 19;

/// Names a flight: one run of a stack under one set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    /// The association.
    pub identity: u32,
    /// Rises from flight to flight: microseconds since 1970 by the client's clock, or one more than the last.
    pub epoch: u64,
    /// 48 random bits: two flights that were given one epoch by mistake still have different keys.
    pub salt: u64,
}

impl Flight {
    fn read(kind: u8, packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (fields, rest) = split::<FLIGHT_LEN>(packet)?;
        let mut fields = Reader(fields);
        let found = fields.u8();
        if found != kind {
            return Err(PacketError::Kind(found));
        }
        let (salt, identity, epoch) = (fields.u48(), fields.u32(), fields.u64());
        Ok((Self { identity, epoch, salt }, rest))
    }

    fn write(&self, kind: u8, packet: &mut [u8]) {
        Writer(&mut packet[..FLIGHT_LEN]).u8(kind).u48(self.salt).u32(self.identity).u64(self.epoch);
    }
}

/// What stands in front of the client's packets until the server has shown that it knows the flight. A packet of the
/// stack follows, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHeader {
    /// Which flight.
    pub flight: Flight,
    /// Authenticates the bytes before it.
    pub mac: [u8; FLIGHT_MAC_LEN],
}

impl OpenHeader {
    /// Reads the header and gives what follows it.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (flight, rest) = Flight::read(OPEN_KIND, packet)?;
        let (mac, rest) = split::<FLIGHT_MAC_LEN>(rest)?;
        Ok((Self { flight, mac: *mac }, rest))
    }

    /// The bytes that the code authenticates.
    pub fn authenticated(flight: &Flight) -> [u8; FLIGHT_LEN] {
        let mut bytes = [0; FLIGHT_LEN];
        flight.write(OPEN_KIND, &mut bytes);
        bytes
    }

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; OPEN_LEN] {
        let mut bytes = [0; OPEN_LEN];
        self.flight.write(OPEN_KIND, &mut bytes);
        bytes[FLIGHT_LEN..].copy_from_slice(&self.mac);
        bytes
    }
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlightWord {
    /// Server: the flight is known; packets need no opening header any more.
    Opened = 1,
    /// The flight ends: nothing more will be sent in it.
    Close = 2,
    /// Answer to [`FlightWord::Close`] and [`FlightWord::Forget`].
    Closed = 3,
    /// Client: the flight ends, and the association will not be used again.
    Forget = 4,
    /// Is anybody there?
    Ping = 5,
    /// Answer to [`FlightWord::Ping`], with its number.
    Pong = 6,
    /// Whoever is at the address that this goes to shows it by sending the number back.
    Challenge = 7,
    /// Answer to [`FlightWord::Challenge`], with its number.
    Response = 8,
}

impl FlightWord {
    const ALL: [Self; 8] = [
        Self::Opened,
        Self::Close,
        Self::Closed,
        Self::Forget,
        Self::Ping,
        Self::Pong,
        Self::Challenge,
        Self::Response,
    ];
}

/// A word about a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordPacket {
    /// Which flight.
    pub flight: Flight,
    /// What it says.
    pub word: FlightWord,
    /// Counts pings; what a challenge wants back; in a goodbye 0 if all was said and 1 if the flight was broken off; 0
    /// in other words.
    pub number: u32,
    /// Authenticates the bytes before it.
    pub mac: [u8; FLIGHT_MAC_LEN],
}

impl WordPacket {
    /// Reads a packet, which has exactly this length.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let (flight, rest) = Flight::read(WORD_KIND, packet)?;
        let (fields, rest) = split::<5>(rest)?;
        let mut fields = Reader(fields);
        let (byte, number) = (fields.u8(), fields.u32());
        let word = FlightWord::ALL.into_iter().find(|word| *word as u8 == byte);
        let word = word.ok_or(PacketError::Kind(byte))?;
        let (mac, rest) = split::<FLIGHT_MAC_LEN>(rest)?;
        if !rest.is_empty() {
            return Err(PacketError::Padding);
        }
        Ok(Self { flight, word, number, mac: *mac })
    }

    /// The bytes that the code authenticates.
    pub fn authenticated(&self) -> [u8; WORD_LEN - FLIGHT_MAC_LEN] {
        let mut bytes = [0; WORD_LEN - FLIGHT_MAC_LEN];
        self.flight.write(WORD_KIND, &mut bytes);
        Writer(&mut bytes[FLIGHT_LEN..]).u8(self.word as u8).u32(self.number);
        bytes
    }

    /// The packet as bytes.
    pub fn to_bytes(&self) -> [u8; WORD_LEN] {
        let mut bytes = [0; WORD_LEN];
        bytes[..WORD_LEN - FLIGHT_MAC_LEN].copy_from_slice(&self.authenticated());
        bytes[WORD_LEN - FLIGHT_MAC_LEN..].copy_from_slice(&self.mac);
        bytes
    }
}
