//! The numbers by which the parts of a world are called.

use serde::Serialize;

/// A node of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub u32);

/// A link of a world: one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LinkId(pub u32);

/// A host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HostId(pub u32);

/// Where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// At the node that has sent the packets: they are on their way to the first link.
    Source(NodeId),
    /// On a link.
    Link(LinkId),
    /// In a host.
    Host(HostId),
    /// At a node, which has the packets now.
    Node(NodeId),
}
