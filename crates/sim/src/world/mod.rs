//! The event world: links, nodes and hosts in virtual time.

mod agenda;
mod channel;
mod deliver;
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

use crate::line::Line;
use crate::parcel::{DropReason, Exit, FlowId, Parcel};
use crate::path::Path;
use crate::stage::{PathSpec, SpecError, StageChange, StageRef};
use agenda::Agenda;
use channel::{Channel, ChannelId};
use record::{Parts, Recorder};
use slots::{Flow, HostSlot, Link, NodeSlot};
use transit_buffers::{Launch, TransitBuffers};
use truth::RecentLosses;

pub use channel::ChannelSpec;
pub use host::{HostExit, HostModel};
pub use ids::{HostId, LinkId, NodeId, Place};
pub use node::{Arrival, MOST_BATCHES, Node, Outbox};
pub use record::Rates;
pub use session::{SessionNode, UDP_OVERHEAD};
pub use summary::{FlowSummary, LinkSummary, NodeSummary, Summary};
pub use truth::FlowTruth;

/// One line of the trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// Virtual time of the event.
    pub at: Time,
    /// When the packets had come to the kernel of the node's host; elsewhere as `at`.
    pub arrived: Time,
    /// The node, link or host.
    pub place: Place,
    /// The packets of one flow that it is about.
    pub parcel: &'a Parcel,
    /// What became of them there.
    pub exit: Exit,
    /// The UDP payloads as they were sent, one behind the other, of packets that are no longer in the parcel too.
    pub payload: &'a [u8],
    /// Bytes of each packet's payload; the last may have fewer.
    pub stride: usize,
}

impl<'a> TraceEvent<'a> {
    /// The UDP payload of each packet.
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
    /// What was waited for has happened.
    Done,
    /// The time given was over first.
    Cap,
    /// Nothing will ever happen again.
    Idle,
}

/// Why a world cannot be built like that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// A flow needs at least one link.
    #[error("flow `{0}` crosses no link; a link without stages carries packets at once")]
    NoLink(String),
    /// Something was named that the world does not have.
    #[error("there is no {0} number {1}")]
    Unknown(&'static str, u32),
    /// Two flows leave a node by the same port.
    #[error("port {port} of node `{node}` has a flow already")]
    PortTaken {
        /// Name of the node.
        node: String,
        /// The port that is taken.
        port: u16,
    },
    /// A path cannot be built, or not be changed like that.
    #[error(transparent)]
    Path(#[from] SpecError),
}

/// Who an event of the agenda is for.
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

/// A world in virtual time. Equal worlds with equal seeds run equally, to the last byte of their summaries.
pub struct World {
    seed: u64,
    now: Time,
    agenda: Agenda,
    actors: Vec<Actor>,
    links: Vec<Link>,
    nodes: Vec<NodeSlot>,
    hosts: Vec<HostSlot>,
    flows: Vec<Flow>,
    channels: Vec<Channel>,
    transit_buffers: TransitBuffers,
    launches: Vec<Launch>,
    /// What leaves its node later than it was written.
    later: Line<(NodeId, Launch)>,
    later_packets: u64,
    exits: Vec<(Time, Parcel, Exit)>,
    host_exits: Vec<(Time, HostExit)>,
    script: Line<Action>,
    recorder: Option<Recorder>,
    trace: Option<Trace>,
    /// Packets that nodes sent by ports without a flow.
    strays: u64,
    happenings: u64,
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
    /// An empty world at time zero; every random decision in it follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut agenda = Agenda::default();
        let actors = vec![Actor::Launches, Actor::Script, Actor::Recorder];
        for _ in &actors {
            agenda.add();
        }
        Self {
            seed,
            now: Time::ZERO,
            agenda,
            actors,
            links: Vec::new(),
            nodes: Vec::new(),
            hosts: Vec::new(),
            flows: Vec::new(),
            channels: Vec::new(),
            transit_buffers: TransitBuffers::new(),
            launches: Vec::new(),
            later: Line::default(),
            later_packets: 0,
            exits: Vec::new(),
            host_exits: Vec::new(),
            script: Line::default(),
            recorder: None,
            trace: None,
            strays: 0,
            happenings: 0,
        }
    }

    fn actor(&mut self, actor: Actor) -> u32 {
        self.actors.push(actor);
        self.agenda.add()
    }

    /// The seed of the world.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A seed for something of the world that draws random numbers: another one for each `index`.
    pub fn seed_for(&self, index: u64) -> u64 {
        haul_base::Rng::from_seed(self.seed ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03)).next_u64()
    }

    /// A new link, in one direction.
    ///
    /// # Errors
    /// [`WorldError::Path`] if a parameter of a stage makes no sense.
    pub fn add_link(&mut self, name: &str, spec: &PathSpec) -> Result<LinkId, WorldError> {
        let seed = self.seed_for(self.links.len() as u64);
        Ok(self.add_path(name, Path::new(spec, seed)?))
    }

    /// A new link from a path that may have stages of your own.
    pub fn add_path(&mut self, name: &str, path: Path) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        let actor = self.actor(Actor::Link(id));
        self.links.push(Link { name: name.to_owned(), path, actor });
        id
    }

    /// A new node, which is called at time zero, or now, for the first time.
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
            looks_at: Time::ZERO,
            channel: None,
        };
        self.nodes.push(slot);
        self.agenda.set(actor, Some(self.now));
        id
    }

    /// A new host.
    pub fn add_host(&mut self, model: impl HostModel) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        let actor = self.actor(Actor::Host(id));
        self.agenda.set(actor, model.next_event());
        self.hosts.push(HostSlot { model: Box::new(model), actor });
        id
    }

    /// The node's process runs on this host: what comes for it passes the host's NIC, socket and CPU. Flows toward
    /// it must be connected afterwards.
    ///
    /// # Errors
    /// [`WorldError::Unknown`] if this world has no such node or host.
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

    /// Whatever `from` sends by its port crosses `links`, one behind the other, and arrives at `to`.
    ///
    /// # Errors
    /// [`WorldError::NoLink`] if `links` is empty, [`WorldError::Unknown`] if this world has no such node or link,
    /// [`WorldError::PortTaken`] if a flow leaves `from` by that port already.
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

    /// Connects two nodes' ports 0 both ways.
    ///
    /// # Errors
    /// As [`World::connect`]. If the way back fails, the way there stays connected.
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

    /// Opens a control channel between two nodes, each of which has one at most. Messages do not wait for the CPU of a
    /// host.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn open_channel(&mut self, a: NodeId, b: NodeId, spec: ChannelSpec) -> Result<(), WorldError> {
        let id = ChannelId(self.channels.len() as u32);
        self.node_slot(a)?.channel = Some(id);
        self.node_slot(b)?.channel = Some(id);
        let rng = haul_base::Rng::from_seed(self.seed_for(u64::MAX - u64::from(id.0)));
        let actor = self.actor(Actor::Channel(id));
        self.channels.push(Channel::new(spec, rng, [a, b], actor));
        Ok(())
    }

    /// At `at`, `action` changes the world.
    pub fn at(&mut self, at: Time, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.script.push(at, Box::new(action));
        self.agenda.set(SCRIPT, self.script.next());
    }

    /// Changes a stage of a link now.
    ///
    /// # Errors
    /// [`WorldError::Unknown`] if this world has no such link, [`WorldError::Path`] if its path cannot be changed like
    /// that.
    pub fn change_link(
        &mut self,
        link: LinkId,
        which: &StageRef,
        change: &StageChange,
    ) -> Result<(), WorldError> {
        let now = self.now;
        let slot = self.links.get_mut(link.0 as usize).ok_or(WorldError::Unknown("link", link.0))?;
        slot.path.change(now, which, change)?;
        self.agenda.set(slot.actor, slot.path.next_event());
        Ok(())
    }

    /// Notes every flow's rates at this interval from now on.
    pub fn record_every(&mut self, interval: Span) {
        let recorder = Recorder::new(self.now, interval);
        self.agenda.set(RECORDER, Some(recorder.due()));
        self.recorder = Some(recorder);
    }

    /// Calls `trace` with whatever happens to packets.
    pub fn set_trace(&mut self, trace: impl FnMut(&TraceEvent<'_>) + Send + 'static) {
        self.trace = Some(Box::new(trace));
    }

    /// The present virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// A node, if it is of that type.
    pub fn node<N: Node>(&self, id: NodeId) -> Option<&N> {
        let node: &dyn Any = self.nodes.get(id.0 as usize)?.node.as_ref();
        node.downcast_ref()
    }

    /// A node to be changed from outside, if it is of that type. Its deadline is looked at again.
    pub fn node_mut<N: Node>(&mut self, id: NodeId) -> Option<&mut N> {
        let slot = self.nodes.get_mut(id.0 as usize)?;
        self.agenda.set(slot.actor, Some(self.now));
        let node: &mut dyn Any = slot.node.as_mut();
        node.downcast_mut()
    }

    /// A host, if it is of that type.
    pub fn host<H: HostModel>(&self, id: HostId) -> Option<&H> {
        let model: &dyn Any = self.hosts.get(id.0 as usize)?.model.as_ref();
        model.downcast_ref()
    }

    /// A host to be changed from outside, if it is of that type; its time has come up to the present before.
    pub fn host_mut<H: HostModel>(&mut self, id: HostId) -> Option<&mut H> {
        if id.0 as usize >= self.hosts.len() {
            return None;
        }
        self.on_host(id);
        let slot = &mut self.hosts[id.0 as usize];
        self.agenda.set(slot.actor, Some(self.now));
        let model: &mut dyn Any = slot.model.as_mut();
        model.downcast_mut()
    }

    /// A link's path.
    pub fn path(&self, id: LinkId) -> Option<&Path> {
        self.links.get(id.0 as usize).map(|link| &link.path)
    }

    /// Buffers of packets that are under way.
    pub fn buffers_in_use(&self) -> usize {
        self.transit_buffers.in_use()
    }

    /// Runs until `until`; what happens at that time happens.
    pub fn run_until(&mut self, until: Time) {
        self.run_while(until, |_| true);
    }

    /// Runs while `keep` says so, but not beyond `cap`. It is asked whenever a node has said that something
    /// happened ([`Node::happenings`]).
    pub fn run_while(&mut self, cap: Time, mut keep: impl FnMut(&Self) -> bool) -> Ended {
        if !keep(self) {
            return Ended::Done;
        }
        let mut seen = self.happenings;
        while let Some((at, actor)) = self.agenda.first() {
            if at > cap {
                self.now = self.now.max(cap);
                return Ended::Cap;
            }
            self.now = self.now.max(at);
            self.act(self.actors[actor as usize]);
            if seen != self.happenings {
                seen = self.happenings;
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
            Actor::Launches => self.on_later(),
            Actor::Script => self.on_script(),
            Actor::Recorder => self.on_recorder(),
        }
    }

    fn on_script(&mut self) {
        while let Some((_, action)) = self.script.pop_due(self.now) {
            action(self);
        }
        self.agenda.set(SCRIPT, self.script.next());
    }

    fn on_recorder(&mut self) {
        let Some(mut recorder) = self.recorder.take() else {
            return self.agenda.set(RECORDER, None);
        };
        recorder.sample(Parts {
            now: self.now,
            flows: &self.flows,
            links: &self.links,
            nodes: &self.nodes,
            hosts: &self.hosts,
        });
        // Alone it would keep the world going for ever.
        self.agenda.set(RECORDER, None);
        let due = self.agenda.first().map(|_| recorder.due());
        self.agenda.set(RECORDER, due);
        self.recorder = Some(recorder);
    }
}
