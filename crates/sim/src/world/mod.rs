//! The simulated world: links, nodes and hosts in virtual time.

mod channel;
mod deliver;
mod event_queue;
mod host;
mod ids;
mod node;
mod record;
mod session;
mod slots;
mod summary;
mod transit_buffers;
mod truth;

use std::any::Any;
use std::fmt;

use haul_base::{PathId, Span, Time};
use serde::Serialize;

use crate::parcel::{DropReason, Exit, FlowId, Parcel};
use crate::path::Path;
use crate::stage::{PathSpec, SpecError, StageChange, StageRef};
use crate::time_queue::TimeQueue;
use channel::{Channel, ChannelId};
use event_queue::EventQueue;
use record::{Parts, Recorder};
use slots::{Flow, HostSlot, Link, NodeSlot};
use transit_buffers::{Launch, TransitBuffers};
use truth::RecentLosses;

pub use channel::ChannelSpec;
pub use host::{HostExit, HostModel};
pub use ids::{HostId, LinkId, NodeId, Place};
pub use node::{Arrival, MAX_BATCHES, Node, Outbox};
pub use record::Rates;
pub use session::{SessionNode, UDP_OVERHEAD};
pub use summary::{FlowSummary, LinkSummary, NodeSummary, Summary};
pub use truth::FlowTruth;

/// One trace event.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// Virtual time of the event.
    pub at: Time,
    /// When the packets reached the kernel of the node's host; at other places the same as `at`.
    pub arrived: Time,
    /// Node, link or host of the event.
    pub place: Place,
    /// Packets of the event, all of one flow.
    pub parcel: &'a Parcel,
    /// What happened to the packets.
    pub exit: Exit,
    /// Concatenated UDP payloads as sent, including those of packets no longer in the parcel.
    pub payload: &'a [u8],
    /// Bytes per payload; the last may be shorter.
    pub stride: usize,
}

impl<'a> TraceEvent<'a> {
    /// Returns the UDP payload of each packet.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> {
        let (payload, stride) = (self.payload, self.stride);
        let starts = self.parcel.indices().filter_map(move |index| payload.get(index * stride..));
        starts.map(move |start| &start[..stride.min(start.len())])
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The condition was met.
    Done,
    /// The time limit was reached.
    Cap,
    /// No events are left.
    Idle,
}

/// Error of building or changing a world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// The flow has no link.
    #[error("flow `{0}` crosses no link; a link without stages carries packets at once")]
    NoLink(String),
    /// The flow crosses a link twice.
    #[error("flow `{0}` crosses a link twice; make two links with the same stages")]
    Loop(String),
    /// The world has no node, link or host with that index.
    #[error("there is no {0} number {1}")]
    Unknown(&'static str, u32),
    /// Another flow already uses this port of the node.
    #[error("port {port} of node `{node}` has a flow already")]
    PortTaken {
        /// Name of the node.
        node: String,
        /// The port in use.
        port: u16,
    },
    /// The path specification or the change is invalid.
    #[error(transparent)]
    Path(#[from] SpecError),
}

/// Target of an event of the agenda.
#[derive(Clone, Copy, Debug)]
enum Actor {
    Link(LinkId),
    Node(NodeId),
    Host(HostId),
    Channel(ChannelId),
    Launches,
    Script,
    Recorder,
}

type Action = Box<dyn FnOnce(&mut World) + Send>;
type Trace = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// A world in virtual time. Equal worlds with equal seeds run identically and have identical summaries.
pub struct World {
    seed: u64,
    now: Time,
    event_queue: EventQueue,
    actors: Vec<Actor>,
    links: Vec<Link>,
    nodes: Vec<NodeSlot>,
    hosts: Vec<HostSlot>,
    flows: Vec<Flow>,
    channels: Vec<Channel>,
    transit_buffers: TransitBuffers,
    launches: Vec<Launch>,
    /// Parcels with a release time after the time at which they were written.
    later: TimeQueue<(NodeId, Launch)>,
    later_packets: u64,
    exits: Vec<(Time, Parcel, Exit)>,
    host_exits: Vec<(Time, HostExit)>,
    script: TimeQueue<Action>,
    recorder: Option<Recorder>,
    trace: Option<Trace>,
    /// Packets sent on ports without a flow.
    strays: u64,
    event_count: u64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed)
            .field("now", &self.now)
            .field("links", &self.links)
            .field("nodes", &self.nodes)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

const LAUNCHES: u32 = 0;
const SCRIPT: u32 = 1;
const RECORDER: u32 = 2;

impl World {
    /// Creates an empty world at time zero. All its random decisions follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut event_queue = EventQueue::default();
        let actors = vec![Actor::Launches, Actor::Script, Actor::Recorder];
        for _ in &actors {
            event_queue.add();
        }
        Self {
            seed,
            now: Time::ZERO,
            event_queue,
            actors,
            links: Vec::new(),
            nodes: Vec::new(),
            hosts: Vec::new(),
            flows: Vec::new(),
            channels: Vec::new(),
            transit_buffers: TransitBuffers::new(),
            launches: Vec::new(),
            later: TimeQueue::default(),
            later_packets: 0,
            exits: Vec::new(),
            host_exits: Vec::new(),
            script: TimeQueue::default(),
            recorder: None,
            trace: None,
            strays: 0,
            event_count: 0,
        }
    }

    fn actor(&mut self, actor: Actor) -> u32 {
        self.actors.push(actor);
        self.event_queue.add()
    }

    /// Returns the seed of the world.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Derives a seed for a user of random numbers; each `index` gives a different one.
    pub fn seed_for(&self, index: u64) -> u64 {
        haul_base::Rng::from_seed(self.seed ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03)).next_u64()
    }

    /// Adds a unidirectional link.
    ///
    /// # Errors
    /// [`WorldError::Path`] if a parameter of a stage is invalid.
    pub fn add_link(&mut self, name: &str, spec: &PathSpec) -> Result<LinkId, WorldError> {
        let seed = self.seed_for(self.links.len() as u64);
        Ok(self.add_path(name, Path::new(spec, seed)?))
    }

    /// Adds a link with an existing path, which may have user-defined stages.
    pub fn add_path(&mut self, name: &str, path: Path) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        let actor = self.actor(Actor::Link(id));
        self.links.push(Link { name: name.to_owned(), path, actor });
        id
    }

    /// Adds a node. It is called for the first time at the current virtual time.
    pub fn add_node(&mut self, name: &str, node: impl Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let actor = self.actor(Actor::Node(id));
        let slot = NodeSlot {
            name: name.to_owned(),
            node: Box::new(node),
            host: None,
            ports: Vec::new(),
            actor,
            waits_for_cpu: false,
            next_sample: Time::ZERO,
            channel: None,
        };
        self.nodes.push(slot);
        self.event_queue.set(actor, Some(self.now));
        id
    }

    /// Adds a host.
    pub fn add_host(&mut self, model: impl HostModel) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        let actor = self.actor(Actor::Host(id));
        self.event_queue.set(actor, model.next_event());
        self.hosts.push(HostSlot { model: Box::new(model), actor });
        id
    }

    /// Runs the node's process on this host: its packets pass the host's NIC, socket and CPU. Must be
    /// called before flows to the node are connected.
    ///
    /// # Errors
    /// [`WorldError::Unknown`] if the world has no such node or host.
    pub fn place(&mut self, node: NodeId, host: HostId) -> Result<(), WorldError> {
        if host.0 as usize >= self.hosts.len() {
            return Err(WorldError::Unknown("host", host.0));
        }
        self.node_slot(node)?.host = Some(host);
        Ok(())
    }

    fn node_slot(&mut self, node: NodeId) -> Result<&mut NodeSlot, WorldError> {
        self.nodes.get_mut(node.0 as usize).ok_or(WorldError::Unknown("node", node.0))
    }

    /// Connects a flow: packets that `from` sends on its port cross `links` in order and arrive at `to`.
    ///
    /// # Errors
    /// [`WorldError::NoLink`] if `links` is empty, [`WorldError::Loop`] if it repeats one,
    /// [`WorldError::Unknown`] if the world has no such node or link, [`WorldError::PortTaken`] if another flow
    /// uses that port of `from`.
    pub fn connect(
        &mut self,
        name: &str,
        from: (NodeId, PathId),
        to: (NodeId, PathId),
        links: &[LinkId],
    ) -> Result<FlowId, WorldError> {
        if links.is_empty() {
            return Err(WorldError::NoLink(name.to_owned()));
        }
        if let Some(unknown) = links.iter().find(|link| link.0 as usize >= self.links.len()) {
            return Err(WorldError::Unknown("link", unknown.0));
        }
        // A parcel's place on its way is found by the link that it has crossed.
        if (1..links.len()).any(|at| links[..at].contains(&links[at])) {
            return Err(WorldError::Loop(name.to_owned()));
        }
        let flow = FlowId(self.flows.len() as u32);
        let host = self.node_slot(to.0)?.host;
        let slot = self.node_slot(from.0)?;
        if slot.ports.iter().any(|(port, _)| *port == from.1) {
            return Err(WorldError::PortTaken { node: slot.name.clone(), port: from.1.0 });
        }
        slot.ports.push((from.1, flow));
        if let Some(host) = host {
            self.hosts[host.0 as usize].model.open(flow, to.0);
        }
        self.flows.push(Flow {
            name: name.to_owned(),
            links: links.to_vec(),
            to: to.0,
            port: to.1,
            truth: FlowTruth::default(),
            losses: RecentLosses::default(),
        });
        Ok(flow)
    }

    /// Connects port 0 of two nodes in both directions.
    ///
    /// # Errors
    /// As for [`World::connect`]. If the second direction fails, the first one stays connected.
    pub fn connect_pair(
        &mut self,
        name: &str,
        (a, b): (NodeId, NodeId),
        there: &[LinkId],
        back: &[LinkId],
    ) -> Result<(FlowId, FlowId), WorldError> {
        let port = PathId::default();
        let forth = self.connect(name, (a, port), (b, port), there)?;
        let back = self.connect(&format!("{name} back"), (b, port), (a, port), back)?;
        Ok((forth, back))
    }

    /// Opens a control channel between two nodes, each of which can have one. Messages need no host CPU.
    ///
    /// # Errors
    /// [`WorldError::Unknown`] if there is no such node.
    pub fn open_channel(&mut self, a: NodeId, b: NodeId, spec: ChannelSpec) -> Result<(), WorldError> {
        let id = ChannelId(self.channels.len() as u32);
        self.node_slot(a)?.channel = Some(id);
        self.node_slot(b)?.channel = Some(id);
        let rng = haul_base::Rng::from_seed(self.seed_for(u64::MAX - u64::from(id.0)));
        let actor = self.actor(Actor::Channel(id));
        self.channels.push(Channel::new(spec, rng, [a, b], actor));
        Ok(())
    }

    /// Schedules `action` at the virtual time `at`.
    pub fn at(&mut self, at: Time, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.script.push(at, Box::new(action));
        self.event_queue.set(SCRIPT, self.script.next());
    }

    /// Changes a stage of a link at the current time.
    ///
    /// # Errors
    /// [`WorldError::Unknown`] if the world has no such link, [`WorldError::Path`] if its path does not
    /// support the change.
    pub fn change_link(
        &mut self,
        link: LinkId,
        which: &StageRef,
        change: &StageChange,
    ) -> Result<(), WorldError> {
        let now = self.now;
        let slot = self.links.get_mut(link.0 as usize).ok_or(WorldError::Unknown("link", link.0))?;
        slot.path.change(now, which, change)?;
        self.event_queue.set(slot.actor, slot.path.next_event());
        Ok(())
    }

    /// Starts recording every flow's rates at this interval.
    pub fn record_every(&mut self, interval: Span) {
        let recorder = Recorder::new(self.now, interval);
        self.event_queue.set(RECORDER, Some(recorder.due()));
        self.recorder = Some(recorder);
    }

    /// Sets a function that is called for every packet event.
    pub fn set_trace(&mut self, trace: impl FnMut(&TraceEvent<'_>) + Send + 'static) {
        self.trace = Some(Box::new(trace));
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the node, if it has type `N`.
    pub fn node<N: Node>(&self, id: NodeId) -> Option<&N> {
        let node: &dyn Any = self.nodes.get(id.0 as usize)?.node.as_ref();
        node.downcast_ref()
    }

    /// Returns the node mutably, if it has type `N`. Its deadline is read again afterwards.
    pub fn node_mut<N: Node>(&mut self, id: NodeId) -> Option<&mut N> {
        let slot = self.nodes.get_mut(id.0 as usize)?;
        self.event_queue.set(slot.actor, Some(self.now));
        let node: &mut dyn Any = slot.node.as_mut();
        node.downcast_mut()
    }

    /// Returns the host, if it has type `H`.
    pub fn host<H: HostModel>(&self, id: HostId) -> Option<&H> {
        let model: &dyn Any = self.hosts.get(id.0 as usize)?.model.as_ref();
        model.downcast_ref()
    }

    /// Returns the host mutably, if it has type `H`, after advancing it to the current time.
    pub fn host_mut<H: HostModel>(&mut self, id: HostId) -> Option<&mut H> {
        if id.0 as usize >= self.hosts.len() {
            return None;
        }
        self.on_host(id);
        let slot = &mut self.hosts[id.0 as usize];
        self.event_queue.set(slot.actor, Some(self.now));
        let model: &mut dyn Any = slot.model.as_mut();
        model.downcast_mut()
    }

    /// Returns a link's path.
    pub fn path(&self, id: LinkId) -> Option<&Path> {
        self.links.get(id.0 as usize).map(|link| &link.path)
    }

    /// Runs all events up to and including `until`.
    pub fn run_until(&mut self, until: Time) {
        self.run_while(until, |_| true);
    }

    /// Runs while `keep` returns true, but not beyond `cap`. `keep` is called whenever a node's
    /// [`Node::event_count`] changes.
    pub fn run_while(&mut self, cap: Time, mut keep: impl FnMut(&Self) -> bool) -> Ended {
        if !keep(self) {
            return Ended::Done;
        }
        let mut seen = self.event_count;
        while let Some((at, actor)) = self.event_queue.first() {
            if at > cap {
                self.now = self.now.max(cap);
                return Ended::Cap;
            }
            self.now = self.now.max(at);
            self.act(self.actors[actor as usize]);
            if seen != self.event_count {
                seen = self.event_count;
                if !keep(self) {
                    return Ended::Done;
                }
            }
        }
        self.now = self.now.max(cap);
        Ended::Idle
    }

    fn act(&mut self, actor: Actor) {
        match actor {
            Actor::Link(id) => self.on_link(id),
            Actor::Node(id) => self.on_node_timer(id),
            Actor::Host(id) => self.on_host(id),
            Actor::Channel(id) => self.on_channel(id),
            Actor::Launches => self.on_scheduled(),
            Actor::Script => self.on_script(),
            Actor::Recorder => self.on_recorder(),
        }
    }

    fn on_script(&mut self) {
        while let Some((_, action)) = self.script.pop_due(self.now) {
            action(self);
        }
        self.event_queue.set(SCRIPT, self.script.next());
    }

    fn on_recorder(&mut self) {
        let Some(mut recorder) = self.recorder.take() else {
            return self.event_queue.set(RECORDER, None);
        };
        recorder.sample(Parts {
            now: self.now,
            flows: &self.flows,
            links: &self.links,
            nodes: &self.nodes,
            hosts: &self.hosts,
        });
        // Its event alone would keep the world running forever.
        self.event_queue.set(RECORDER, None);
        let due = self.event_queue.first().map(|_| recorder.due());
        self.event_queue.set(RECORDER, due);
        self.recorder = Some(recorder);
    }
}
