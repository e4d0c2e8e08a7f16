//! One side's end of a protected UDP path: packet numbers, sealing and opening. Sender and receiver both
//! stand on it.

use haul_base::{Ecn, PathId, Time, Transmit};
use haul_wire::packet::{COMMON_HEADER_LEN, CommonHeader, PacketKind};

use crate::{Open, Seal};

/// Seals, opens and numbers the packets of one session at one side.
#[derive(Debug)]
pub struct Link {
    pub(crate) seal: Box<dyn Seal>,
    pub(crate) open: Box<dyn Open>,
    pub(crate) next_pn: u64,
    rejected: u64,
}

/// An opened packet.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    pub(crate) kind: PacketKind,
    pub(crate) pn: u64,
    pub(crate) body: &'a mut [u8],
}

impl Link {
    /// A link whose next packet gets the number `next_pn`; lower ones may have been used during set-up.
    pub fn new(seal: Box<dyn Seal>, open: Box<dyn Open>, next_pn: u64) -> Self {
        Self { seal, open, next_pn, rejected: 0 }
    }

    /// Bytes of a datagram beside the body.
    pub(crate) fn overhead(&self) -> usize {
        COMMON_HEADER_LEN + self.seal.tag_len()
    }

    /// The number of the next packet.
    pub(crate) fn next_pn(&self) -> u64 {
        self.next_pn
    }

    /// Packets that did not authenticate or made no sense.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Counts an authentic packet whose content is impossible.
    pub(crate) fn reject(&mut self) {
        self.rejected += 1;
    }

    /// Opens one packet in place; `None` (and a count) if it is not authentic. Packets of the HELLO exchange
    /// have other keys and other readers: they are passed over.
    pub(crate) fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<Opened<'a>> {
        let header = CommonHeader::parse(packet);
        if matches!(header, Ok(CommonHeader { kind: PacketKind::Hello | PacketKind::HelloAck, .. })) {
            return None;
        }
        let opened = header.ok().and_then(|header| self.open_body(header, packet));
        self.rejected += u64::from(opened.is_none());
        opened
    }

    fn open_body<'a>(&mut self, header: CommonHeader, packet: &'a mut [u8]) -> Option<Opened<'a>> {
        let CommonHeader { kind, pn } = header;
        let len = self.open.open(packet, COMMON_HEADER_LEN, pn).ok()?;
        let body = packet.get_mut(COMMON_HEADER_LEN..COMMON_HEADER_LEN + len)?;
        Some(Opened { kind, pn, body })
    }

    /// Seals `batch`, whose packets carry the numbers `first_pn`, …, `next_pn - 1`.
    pub(crate) fn seal(&mut self, batch: &mut [u8], stride: usize, first_pn: u64) {
        self.seal.seal_batch(batch, stride, COMMON_HEADER_LEN, first_pn);
    }

    /// Writes the common header of the next packet and returns its number.
    pub(crate) fn begin(&mut self, kind: PacketKind, packet: &mut [u8]) -> u64 {
        let pn = self.next_pn;
        CommonHeader { kind, pn }.write(packet);
        self.next_pn += 1;
        pn
    }

    /// Seals one packet of `len` bytes at the start of `slot`.
    pub(crate) fn finish_single(&mut self, now: Time, slot: &mut [u8], len: usize, pn: u64) -> Transmit {
        self.seal(&mut slot[..len], len, pn);
        single(now, len)
    }
}

/// A transmit of one datagram.
pub(crate) fn single(now: Time, len: usize) -> Transmit {
    Transmit { len, segment_size: len, ecn: Ecn::NotEct, path: PathId::default(), release: now }
}
