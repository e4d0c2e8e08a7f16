use std::fmt;
use std::sync::Arc;

use haul_proto::Seal;
use haul_wire::packet::{COMMON_HEADER_LEN, CommonHeader, HelloBody, PacketKind};

use super::{DatagramSizes, MIN_DATAGRAM, open_hello};
use crate::Role;
use crate::crypto::{DataKeys, Opener, Sealer};

/// Answers that may wait to be sent; more than there are sizes.
const MAX_PENDING: usize = 4;

/// HELLOs of this session that still arrive at the listener's socket.
pub(crate) trait LateHellos: Send + Sync {
    /// Moves them to `into`.
    fn drain(&self, into: &mut Vec<HelloBody>);
}

/// The server's part in the HELLO exchange: answers every HELLO with a `HELLO_ACK` of its size.
pub struct HelloResponder {
    seal: Sealer,
    open: Opener,
    next_pn: u64,
    late: Arc<dyn LateHellos>,
    inbox: Vec<HelloBody>,
    pending: Vec<HelloBody>,
    largest_seen: u16,
}

impl HelloResponder {
    /// `next_pn`: no packet of the server in this exchange has had this number or one above it.
    pub(crate) fn new(keys: &DataKeys, next_pn: u64, late: Arc<dyn LateHellos>) -> Self {
        Self {
            seal: keys.sealer(Role::Server),
            open: keys.opener(Role::Server),
            next_pn,
            late,
            inbox: Vec::with_capacity(MAX_PENDING),
            pending: Vec::with_capacity(MAX_PENDING),
            largest_seen: MIN_DATAGRAM,
        }
    }

    /// Takes a HELLO; whether it was authentic.
    pub fn on_packet(&mut self, packet: &mut [u8]) -> bool {
        let hello = open_hello(&mut self.open, packet);
        hello.inspect(|hello| self.note(*hello)).is_some()
    }

    /// The latest HELLO of each size is answered.
    fn note(&mut self, hello: HelloBody) {
        self.largest_seen = self.largest_seen.max(hello.size);
        if let Some(same) = self.pending.iter_mut().find(|h| h.size == hello.size) {
            *same = hello;
        } else if self.pending.len() < MAX_PENDING {
            self.pending.push(hello);
        }
    }

    /// Writes the next `HELLO_ACK` into `slot` and gives its length. Those that do not fit are left out.
    pub fn poll_transmit(&mut self, slot: &mut [u8]) -> Option<usize> {
        self.collect_late();
        self.pending.retain(|h| usize::from(h.size) <= slot.len());
        let hello = self.pending.pop()?;
        let ack = HelloBody { challenge: 0, ..hello };
        write_ack(&mut self.seal, self.next_pn, &ack, &mut slot[..usize::from(hello.size)]);
        self.next_pn += 1;
        Some(usize::from(hello.size))
    }

    /// Whether an answer waits.
    pub fn wants_transmit(&mut self) -> bool {
        self.collect_late();
        !self.pending.is_empty()
    }

    fn collect_late(&mut self) {
        self.late.drain(&mut self.inbox);
        while let Some(hello) = self.inbox.pop() {
            self.note(hello);
        }
    }

    /// What has arrived is known to pass; the other direction is for the data path to probe.
    pub fn sizes(&self) -> DatagramSizes {
        DatagramSizes { outgoing: MIN_DATAGRAM, incoming: self.largest_seen }
    }
}

/// Writes a `HELLO_ACK` that fills `packet`.
pub(crate) fn write_ack(seal: &mut Sealer, pn: u64, ack: &HelloBody, packet: &mut [u8]) {
    CommonHeader { kind: PacketKind::HelloAck, pn }.write(packet);
    let end = packet.len() - seal.tag_len();
    ack.write(&mut packet[COMMON_HEADER_LEN..end]);
    seal.seal_batch(packet, usize::from(ack.size), COMMON_HEADER_LEN, pn);
}

impl fmt::Debug for HelloResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelloResponder").field("pending", &self.pending).finish_non_exhaustive()
    }
}
