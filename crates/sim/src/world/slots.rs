//! The parts of a world.

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

/// A node and its state in the world.
#[derive(Debug)]
pub(super) struct NodeSlot {
    pub(super) name: String,
    pub(super) node: Box<dyn Node>,
    pub(super) host: Option<HostId>,
    /// Flow sent on each port.
    pub(super) ports: Vec<(PathId, FlowId)>,
    pub(super) actor: u32,
    /// Whether its timer is due while its process has no CPU.
    pub(super) waits_for_cpu: bool,
    /// When its process next samples the host's load.
    pub(super) next_sample: Time,
    pub(super) channel: Option<ChannelId>,
}

#[derive(Debug)]
pub(super) struct HostSlot {
    pub(super) model: Box<dyn HostModel>,
    pub(super) actor: u32,
}

/// A flow from a node's port over links to another node.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) links: Vec<LinkId>,
    pub(super) to: NodeId,
    pub(super) port: PathId,
    pub(super) truth: FlowTruth,
    pub(super) losses: RecentLosses,
}
