//! What stands at the ends of links.

use std::any::Any;
use std::fmt::{self, Debug};

use haul_base::{Ecn, HostSample, PathId, Rate, Received, Span, Time, Transmit, Verdict};

use super::transit_buffers::{Launch, TransitBuffers};

/// Packets of one flow as a node gets them: neighbours that arrive together, all of one size but the last.
pub struct Arrival<'a> {
    /// The bytes, and what a socket says of them. Empty if the flow carries none.
    pub batch: Received<'a>,
    /// How many packets.
    pub packets: u32,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
}

impl Debug for Arrival<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival")
            .field("packets", &self.packets)
            .field("wire_bytes", &self.wire_bytes)
            .finish_non_exhaustive()
    }
}

/// Something at the end of links: a machine, a source of traffic, a flow of TCP.
pub trait Node: Any + Debug + Send {
    /// Packets arrive.
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>);

    /// The deadline has come (or the world starts, at its time zero).
    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>);

    /// When to call [`Node::on_deadline`].
    fn deadline(&self) -> Option<Time>;

    /// A message of its control channel arrives.
    fn on_channel(&mut self, _now: Time, _message: &[u8], _out: &mut Outbox<'_>) {}

    /// The next message for its control channel, behind what `out` holds; false if there is none.
    fn poll_channel(&mut self, _now: Time, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The load of the host on which the node's process runs, before one of the calls above, at most once in
    /// [`HostSample::INTERVAL`].
    fn on_host_sample(&mut self, _now: Time, _host: HostSample) {}

    /// Why packets that the node has sent died lately, before [`Node::on_arrival`], whenever more have died.
    fn on_verdict(&mut self, _now: Time, _verdict: Verdict) {}

    /// Bytes that have served their purpose so far, if the node counts them.
    fn goodput_bytes(&self) -> Option<u64> {
        None
    }

    /// The rate at which the node's control law lets it send now, if it has one.
    fn law_rate(&self) -> Option<Rate> {
        None
    }

    /// Changes when something happened that the run may wait for.
    fn happenings(&self) -> u64 {
        0
    }
}

/// Where a node puts what it sends.
#[derive(Debug)]
pub struct Outbox<'a> {
    pub(super) now: Time,
    /// By how much the clock of the node that sends is ahead of `now`.
    pub(super) ahead: Span,
    pub(super) transit_buffers: &'a mut TransitBuffers,
    pub(super) launches: &'a mut Vec<Launch>,
    /// Batches that may still leave now.
    pub(super) room: usize,
}

/// Batches that leave in one go where nothing bounds them.
pub const MOST_BATCHES: usize = 1_024;

impl Outbox<'_> {
    /// From here on the release times of packets come from a clock that is `by` ahead of the world's.
    pub fn set_ahead(&mut self, by: Span) {
        self.ahead = by;
    }

    /// Whether no more batches may leave now. A node with more to send is asked again a moment later.
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Lets `write` fill a buffer, as [`haul_base::Machine::poll_transmit`] does, and sends it. Every datagram has
    /// `overhead` bytes on the wire beside its own. Returns whether something was sent; nothing is if it is full.
    pub fn send_with(&mut self, overhead: u32, write: impl FnOnce(&mut [u8]) -> Option<Transmit>) -> bool {
        if self.is_full() {
            return false;
        }
        let buffer = self.transit_buffers.slot();
        let Some(transmit) = write(buffer) else {
            return false;
        };
        self.room -= 1;
        let at = (transmit.release - self.ahead).max(self.now);
        self.transit_buffers.launch_slot(&transmit, overhead, |buffer, parcel| {
            self.launches.push(Launch { at, buffer, parcel, port: transmit.path });
        });
        true
    }

    /// Sends `count` packets of `wire_bytes` each; `note` is a few bytes that each of them carries (headers of a
    /// modelled protocol), or nothing.
    pub fn send(&mut self, port: PathId, wire_bytes: u32, count: usize, ecn: Ecn, note: &[u8]) {
        let at = self.now;
        self.transit_buffers.launch_note(wire_bytes, count, ecn, note, |buffer, parcel| {
            self.launches.push(Launch { at, buffer, parcel, port });
        });
    }
}
