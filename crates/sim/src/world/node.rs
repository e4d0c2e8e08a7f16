//! Endpoints of links.

use std::any::Any;
use std::fmt::{self, Debug};

use haul_base::{Ecn, HostSample, PathId, Rate, Received, Span, Time, Transmit, Verdict};

use super::transit_buffers::{Launch, TransitBuffers};

/// Packets of one flow that arrive together at a node: adjacent, and all of one size but the last.
pub struct Arrival<'a> {
    /// Payload bytes and socket metadata. Empty if the flow carries no bytes.
    pub batch: Received<'a>,
    /// Number of packets.
    pub packets: u32,
    /// Bytes on the wire of all packets.
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

/// Endpoint of links: a machine, a traffic source or a TCP flow.
pub trait Node: Any + Debug + Send {
    /// Handles arriving packets.
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>);

    /// Handles the expired deadline. Also called once at the time at which the node was added.
    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>);

    /// Returns when to call [`Node::on_deadline`].
    fn deadline(&self) -> Option<Time>;

    /// Handles a message from the node's control channel.
    fn on_channel(&mut self, _now: Time, _message: &[u8], _out: &mut Outbox<'_>) {}

    /// Appends the next message for the control channel to `out`. Returns false if there is none.
    fn poll_channel(&mut self, _now: Time, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Receives the load of the host on which the node's process runs. Called before one of the methods
    /// above, at most once per [`HostSample::INTERVAL`].
    fn on_host_sample(&mut self, _now: Time, _host: HostSample) {}

    /// Receives the causes of the node's recent losses, before [`Node::on_arrival`], after new losses.
    fn on_verdict(&mut self, _now: Time, _verdict: Verdict) {}

    /// Returns the useful bytes delivered so far, if the node counts them.
    fn goodput_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the current rate of the node's control law, if it has one.
    fn law_rate(&self) -> Option<Rate> {
        None
    }

    /// Returns a counter that changes on events for which a run may wait.
    fn event_count(&self) -> u64 {
        0
    }
}

/// Collects what a node sends.
#[derive(Debug)]
pub struct Outbox<'a> {
    pub(super) now: Time,
    /// How far the clock of the sending node is ahead of `now`.
    pub(super) ahead: Span,
    pub(super) transit_buffers: &'a mut TransitBuffers,
    pub(super) launches: &'a mut Vec<Launch>,
    /// Number of batches that may still be sent now.
    pub(super) max_batches: usize,
}

/// Number of batches sent at once where the host sets no limit.
pub const MAX_BATCHES: usize = 1_024;

impl Outbox<'_> {
    /// Declares that release times of further packets come from a clock that is `by` ahead of the world's.
    pub fn set_ahead(&mut self, by: Span) {
        self.ahead = by;
    }

    /// Whether no more batches may be sent now. A node with more to send is called again a moment later.
    pub fn is_full(&self) -> bool {
        self.max_batches == 0
    }

    /// Lets `write` fill a buffer, as [`haul_base::Machine::poll_transmit`] does, and sends it. Each
    /// datagram has `overhead` bytes on the wire in addition to its own. Returns whether something was
    /// sent; false if the outbox is full.
    pub fn send_with(&mut self, overhead: u32, write: impl FnOnce(&mut [u8]) -> Option<Transmit>) -> bool {
        if self.is_full() {
            return false;
        }
        let buffer = self.transit_buffers.slot();
        let Some(transmit) = write(buffer) else {
            return false;
        };
        self.max_batches -= 1;
        let at = (transmit.release - self.ahead).max(self.now);
        self.transit_buffers.launch_slot(&transmit, overhead, |buffer, parcel| {
            self.launches.push(Launch { at, buffer, parcel, port: transmit.path });
        });
        true
    }

    /// Sends `count` packets of `wire_bytes` each, with `note`: headers of a modelled protocol, or empty.
    pub fn send(&mut self, port: PathId, wire_bytes: u32, count: usize, ecn: Ecn, note: &[u8]) {
        let at = self.now;
        self.transit_buffers.launch_filled(wire_bytes, count, ecn, note, |buffer, parcel| {
            self.launches.push(Launch { at, buffer, parcel, port });
        });
    }
}
