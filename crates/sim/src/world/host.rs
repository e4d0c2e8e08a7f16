//! Model of a receiving host: everything between the wire and a machine.

use std::any::Any;
use std::fmt::Debug;

use haul_base::{HostSample, Span, Time};

use super::{MAX_BATCHES, NodeId};
use crate::parcel::{DropReason, FlowId, Parcel};

/// How packets leave a host model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostExit {
    /// The process reads them from its socket.
    Read {
        /// Packets read.
        parcel: Parcel,
        /// When the kernel received them.
        arrived: Time,
        /// The socket's wrapping count of dropped buffers up to this point; `None` before the first drop.
        socket_drops: Option<u32>,
    },
    /// The host dropped them.
    Dropped {
        /// Packets dropped.
        parcel: Parcel,
        /// Queue or limit that dropped them.
        reason: DropReason,
    },
}

/// A host: NIC ring, socket buffers and a CPU shared by several processes. The world passes it packets
/// from the wire; the machine receives them when its process reads them. Times never go back.
pub trait HostModel: Any + Debug + Send {
    /// Announces a flow for the socket of the process that runs `node`.
    fn open(&mut self, flow: FlowId, node: NodeId);

    /// Handles packets from the wire.
    fn on_arrival(&mut self, now: Time, parcel: Parcel);

    /// Whether the process that runs `node`, whose timer is due, has the CPU. If not,
    /// [`HostModel::next_event`] must be no later than the time at which it gets the CPU; the world calls
    /// again after that event.
    fn may_run(&mut self, now: Time, node: NodeId) -> bool;

    /// Reports packets sent by the process that runs `node`; called only if
    /// [`HostModel::max_batches`] is bounded. While the process handles these packets, its timer has
    /// to wait.
    fn on_sent(&mut self, _now: Time, _node: NodeId, _packets: u64) {}

    /// Returns the number of batches that a process sends at once. It sends further ones a moment later.
    fn max_batches(&self) -> usize {
        MAX_BATCHES
    }

    /// Returns the time of the host's next event.
    fn next_event(&self) -> Option<Time>;

    /// Advances to `now` and passes everything that has left the host by then to `sink`, in order. Times
    /// passed to `sink` must not be earlier than `now` of previous calls.
    fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, HostExit));

    /// Returns the load that the process running `node` would measure now, while it has the CPU. `None`
    /// if the model has no such measurement.
    fn sample(&self, _node: NodeId) -> Option<HostSample> {
        None
    }

    /// Returns the longest time for which the process running `node` was ready without a core.
    fn longest_wait(&self, _node: NodeId) -> Span {
        Span::ZERO
    }

    /// Returns the number of running and waiting tasks, integrated over time.
    fn runnable_time(&self) -> Span {
        Span::ZERO
    }

    /// Returns the number of packets currently in the host.
    fn inside(&self) -> u64;
}
