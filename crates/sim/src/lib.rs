//! Discrete-event simulator: network paths as lists of stages, links, nodes that run sans-IO machines,
//! background traffic, and ground truth about every packet. Reads no clock, opens no socket and starts no
//! thread: the same [`Path`] runs in virtual time and in the emulator, `haul-wan`.

mod counters;
pub mod host;
mod math;
mod parcel;
mod path;
mod stage;
pub mod tcp;
mod text;
mod time_queue;
mod traffic;
mod world;

pub use counters::{Drops, PathCounters, StageCounters};
pub use parcel::{Damage, DropReason, Exit, FlowId, MAX_PARCEL, Origin, PacketInfo, Parcel};
pub use path::Path;
pub use stage::{
    AboveMaximum, BottleneckSpec, BurstLossSpec, CodelSpec, CorruptionSpec, Distribution, Effect, Emitter,
    GilbertElliottSpec, JitterSpec, Limit, Order, Outage, PathSpec, PolicerSpec, QueueSpec, RedSpec,
    ReorderingSpec, Signal, SpecError, Stage, StageChange, StageRef, StageSpec, StandingQueue,
};
pub use traffic::{Aggregate, AggregateSpec, Pattern, Sink, UdpSource, UdpSourceSpec};
pub use world::{
    Arrival, ChannelSpec, Ended, FlowSummary, FlowTruth, HostExit, HostId, HostModel, LinkId, LinkSummary,
    MAX_BATCHES, Node, NodeId, NodeSummary, Outbox, Place, Rates, SessionNode, Summary, TraceEvent,
    UDP_OVERHEAD, World, WorldError,
};
