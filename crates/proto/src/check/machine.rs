//! Driver of a machine for the checks.

use std::fmt::Debug;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_stack::{Open, PACKET_HEADER_LEN, Seal, Unauthentic};

/// Maximum number of packets that a machine may send at one time, and of events that it may have.
const MAX_PACKETS: usize = 20_000;

/// Keys that accept every packet: the peer in these checks has the real ones.
#[derive(Debug)]
pub(super) struct Plain;

impl Seal for Plain {
    fn tag_len(&self) -> usize {
        0
    }

    fn seal_batch(&mut self, _: &mut [u8], _: usize, _: usize, _: u64) {}
}

impl Open for Plain {
    fn open(&mut self, packet: &mut [u8], header_len: usize, _: u64) -> Result<usize, Unauthentic> {
        packet.len().checked_sub(header_len).ok_or(Unauthentic)
    }
}

/// A machine and its time.
pub(super) struct Driven<M> {
    pub(super) machine: M,
    pub(super) now: Time,
    next_pn: u64,
}

impl<M: Machine<Event: Debug>> Driven<M> {
    pub(super) fn new(machine: M) -> Self {
        Self { machine, now: Time::ZERO, next_pn: 0 }
    }

    /// Delivers a packet, with the next number. Its kind is the first byte of `packet`.
    pub(super) fn receive(&mut self, packet: &[u8]) {
        let Some((&kind, body)) = packet.split_first() else { return };
        let mut data = vec![kind];
        data.extend(&self.next_pn.to_be_bytes()[2..]);
        assert_eq!(data.len(), PACKET_HEADER_LEN);
        data.extend(body);
        self.next_pn += 1;
        let (stride, path, ecn) = (data.len(), PathId::default(), Ecn::NotEct);
        let mut received = Received { data: &mut data, stride, arrival: None, path, ecn, socket_drops: None };
        self.machine.on_receive(self.now, &mut received);
    }

    /// Lets this many milliseconds (big-endian) pass, with the deadlines in them.
    pub(super) fn pass(&mut self, millis: &[u8]) {
        let millis = millis.iter().take(2).fold(0, |millis, &byte| millis << 8 | u64::from(byte));
        let end = self.now + Span::from_millis(millis);
        // A limited number of deadlines: a machine that always has another one ends here.
        for _ in 0..16 {
            let Some(deadline) = self.machine.deadline().filter(|deadline| deadline.at <= end) else { break };
            self.now = self.now.max(deadline.at);
            self.machine.on_deadline(self.now);
        }
        self.now = end;
        self.machine.on_deadline(end);
    }

    /// Takes all packets that the machine has to send now.
    pub(super) fn transmit(&mut self) {
        let mut slot = vec![0; 65_536];
        let mut sent = 0;
        while self.machine.poll_transmit(self.now, &mut slot).is_some() {
            sent += 1;
            assert!(sent < MAX_PACKETS, "it does not stop to send");
        }
    }

    pub(super) fn events(&mut self) -> Vec<M::Event> {
        let events: Vec<_> = std::iter::from_fn(|| self.machine.poll_event()).take(MAX_PACKETS).collect();
        assert!(events.len() < MAX_PACKETS, "there is no end of events");
        events
    }
}
