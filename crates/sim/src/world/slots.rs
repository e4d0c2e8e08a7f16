//! What a world consists of.

use haul_base::{PathId, Time};

use super::channel::ChannelId;
use super::host::HostModel;
use super::ids::{HostId, LinkId, NodeId};
use super::node::Node;
use super::truth::{FlowTruth, RecentLosses};
use crate::parcel::FlowId;
use crate::path::Path;

/// A link: one direction.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) path: Path,
    pub(super) actor: u32,
}

/// A node with its place in the world.
#[derive(Debug)]
pub(super) struct NodeSlot {
    pub(super) name: String,
    pub(super) node: Box<dyn Node>,
    pub(super) host: Option<HostId>,
    /// The flow that leaves by each port.
    pub(super) ports: Vec<(PathId, FlowId)>,
    pub(super) actor: u32,
    /// Its timer is due and its process has not the CPU.
    pub(super) waits_for_cpu: bool,
    /// When its process looks at the host's load again.
    pub(super) looks_at: Time,
    pub(super) channel: Option<ChannelId>,
}

/// A host.
#[derive(Debug)]
pub(super) struct HostSlot {
    pub(super) model: Box<dyn HostModel>,
    pub(super) actor: u32,
}

/// A flow, from the port of a node over links to another node.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) links: Vec<LinkId>,
    pub(super) to: NodeId,
    pub(super) port: PathId,
    pub(super) truth: FlowTruth,
    pub(super) losses: RecentLosses,
}
