//! What stands between the wire and a machine on a receiving host.

use std::any::Any;
use std::fmt::Debug;

use haul_base::{HostSample, Span, Time};

use super::{MOST_BATCHES, NodeId};
use crate::parcel::{DropReason, FlowId, Parcel};

/// How packets leave a host model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostExit {
    /// The process reads them from its socket.
    Read {
        /// The packets that were read.
        parcel: Parcel,
        /// When the kernel took them from the wire.
        arrived: Time,
        /// The socket's wrapping count of dropped buffers up to here, once there is one.
        socket_drops: Option<u32>,
    },
    /// They died in the host.
    Dropped {
        /// The packets that were dropped.
        parcel: Parcel,
        /// The queue or limit that dropped them.
        reason: DropReason,
    },
}

/// A host: NIC ring, socket buffers and a CPU that several processes share. The world hands it what comes off the
/// wire, and the machine gets what its process reads, when it reads it. Times never go back.
pub trait HostModel: Any + Debug + Send {
    /// Packets of `flow` will come, for the socket of the process that runs `node`.
    fn open(&mut self, flow: FlowId, node: NodeId);

    /// Packets come off the wire.
    fn on_arrival(&mut self, now: Time, parcel: Parcel);

    /// The timer of `node`'s machine is due: has its process the CPU? If not, the host must have a
    /// [`HostModel::next_event`] no later than when it has, and is asked again after it.
    fn may_run(&mut self, now: Time, node: NodeId) -> bool;

    /// The process that runs `node` has sent packets, where [`HostModel::batches_at_once`] is bounded. As long as they
    /// keep it at work, it has no CPU for its timer.
    fn on_sent(&mut self, _now: Time, _node: NodeId, _packets: u64) {}

    /// How many batches a process sends in one go. What it has beyond that it sends a moment later.
    fn batches_at_once(&self) -> usize {
        MOST_BATCHES
    }

    /// When something happens in the host next.
    fn next_event(&self) -> Option<Time>;

    /// Lets time pass and hands over what has left the host up to `now`, in order. Nothing may be handed over
    /// with a time below that of an earlier call's `now`.
    fn advance(&mut self, now: Time, sink: &mut dyn FnMut(Time, HostExit));

    /// What the process that runs `node` would find if it looked at the host's load now, when it has the CPU. `None` if
    /// there is nothing to see.
    fn sample(&self, _node: NodeId) -> Option<HostSample> {
        None
    }

    /// The longest time for which the process that runs `node` was ready to run and had no core.
    fn longest_wait(&self, _node: NodeId) -> Span {
        Span::ZERO
    }

    /// The number of tasks that run or wait for a core, summed over time.
    fn runnable_time(&self) -> Span {
        Span::ZERO
    }

    /// Packets that are in the host now.
    fn inside(&self) -> u64;
}
