//! The discrete-event world of Haulage: paths as lists of stages, links, nodes that run sans-IO machines, traffic
//! beside them, and the truth about every packet. Nothing here reads a clock, opens a socket or starts a thread:
//! the same [`Path`] serves virtual time and the emulator, `haul-wan`.

mod counters;
pub mod host;
mod line;
mod math;
mod parcel;
mod path;
mod stage;
pub mod tcp;
mod text;
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
    MOST_BATCHES, Node, NodeId, NodeSummary, Outbox, Place, Rates, SessionNode, Summary, TraceEvent,
    UDP_OVERHEAD, World, WorldError,
};
