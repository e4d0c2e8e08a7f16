//! One side's end of a protected UDP path: packet numbers, sealing, opening, and the answers to HELLOs. Sender
//! and receiver both stand on it.

use haul_base::{Ecn, PathId, Time, Transmit};
use haul_wire::packet::{COMMON_HEADER_LEN, CommonHeader, HELLO_HEADER_LEN, HelloBody, PacketKind};

use crate::{Open, Seal};

/// Seals, opens and numbers the packets of one session at one side.
#[derive(Debug)]
pub struct Link {
    seal: Box<dyn Seal>,
    open: Box<dyn Open>,
    next_pn: u64,
    rejected: u64,
    hello: Option<HelloBody>,
}

/// An opened packet.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    pub(crate) kind: PacketKind,
    pub(crate) pn: u64,
    pub(crate) body: &'a mut [u8],
    /// Where the body starts in the packet.
    pub(crate) body_at: usize,
}

impl Link {
    /// A link whose next packet gets the number `next_pn`; lower ones may have been used during set-up.
    pub fn new(seal: Box<dyn Seal>, open: Box<dyn Open>, next_pn: u64) -> Self {
        Self {
            seal,
            open,
            next_pn,
            rejected: 0,
            hello: None,
        }
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

    /// Opens one packet in place; `None` (and a count) if it is not authentic.
    pub(crate) fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<Opened<'a>> {
        let opened = self.try_open(packet);
        self.rejected += u64::from(opened.is_none());
        opened
    }

    fn try_open<'a>(&mut self, packet: &'a mut [u8]) -> Option<Opened<'a>> {
        let CommonHeader { kind, pn } = CommonHeader::parse(packet).ok()?;
        let body_at = if kind == PacketKind::Hello {
            HELLO_HEADER_LEN
        } else {
            COMMON_HEADER_LEN
        };
        let len = self.open.open(packet, body_at, pn).ok()?;
        let body = packet.get_mut(body_at..body_at + len)?;
        Some(Opened {
            kind,
            pn,
            body,
            body_at,
        })
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

    /// A HELLO is to be answered (the client repeats it until it is). `size` is that of the datagram, which
    /// the answer takes too, and which it must name.
    pub(crate) fn on_hello(&mut self, body: &[u8], size: usize) {
        match HelloBody::parse(body) {
            Ok(hello) if usize::from(hello.size) == size => self.hello = Some(hello),
            _ => self.reject(),
        }
    }

    /// The answer to the last HELLO, of the same size.
    pub(crate) fn poll_hello_ack(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        let hello = self.hello.take()?;
        let len = usize::from(hello.size);
        if len > slot.len() {
            return None;
        }
        let body_end = len - self.seal.tag_len();
        let pn = self.begin(PacketKind::HelloAck, slot);
        hello.write(&mut slot[COMMON_HEADER_LEN..body_end]);
        Some(self.finish_single(now, slot, len, pn))
    }
}

/// A transmit of one datagram.
pub(crate) fn single(now: Time, len: usize) -> Transmit {
    Transmit {
        len,
        segment_size: len,
        ecn: Ecn::NotEct,
        path: PathId::default(),
        release: now,
    }
}
