//! Identifiers of the parts of a world.

use serde::Serialize;

/// Index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub u32);

/// Index of a link (unidirectional).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LinkId(pub u32);

/// Index of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HostId(pub u32);

/// Place of a trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The sending node: the packets are on their way to the first link.
    Source(NodeId),
    /// A link.
    Link(LinkId),
    /// A host.
    Host(HostId),
    /// The receiving node.
    Node(NodeId),
}
