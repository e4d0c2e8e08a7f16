//! Transfers, and other traffic.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use haul_base::{Probability, Rate, Span, Time};
use haul_proto::config::{BitmapAckConfig, Over};
use haul_proto::{
    ChosenLaw, ControllerError, DiagnosedWindow, LawChange, Receiver, ReceiverConfig, ReceiverEvent, Sender,
    SenderConfig, SenderEvent, SenderStats,
};
use haul_sim::tcp::{
    BbrConfig, ControlKind, CubicConfig, MSS, TcpEvent, TcpReceiver, TcpReceiverConfig, TcpSender,
    TcpSenderConfig,
};
use haul_sim::{
    Aggregate, ChannelSpec, FlowId, LinkId, NodeId, SessionNode, Sink, UdpSource, World, WorldError,
};
use haul_stack::{Part, Recipe, RecipeError};

use super::discriminate::Watched;
use super::ends::{Application, Bin, ClockedNode, Source, UNWRITTEN, link, node};
use super::locate::Fault;
use super::scenario::{SessionEnd, SessionEntry, TcpEntry, TcpLaw, TrafficEntry, Way};
use super::site::{PORT, Site, directions_of, recipe_of, set_of};

/// A transfer in a world.
#[derive(Debug)]
pub(super) struct Session {
    pub name: String,
    /// Rate controller.
    pub controller: String,
    /// Virtual time at which the session starts.
    pub start: Time,
    /// Maximum rate of the law, if configured.
    pub ceiling: Option<Rate>,
    /// Flow of data packets.
    pub data: FlowId,
    /// Flow of feedback packets.
    pub feedback: FlowId,
    sender: NodeId,
    receiver: NodeId,
    complete: Arc<AtomicU64>,
    /// Windows that drive a virtual transfer, if enabled.
    pub windows: Option<Windows>,
    /// Windows kept for the report, if enabled.
    pub kept: Option<Windows>,
    /// Observer for the published discriminators, if enabled.
    pub watched: Option<Watched>,
}

impl Session {
    fn new(
        world: &mut World,
        entry: &SessionEntry,
        recipe: &Recipe,
        (data, feedback): (FlowId, FlowId),
        (sender, receiver): (NodeId, NodeId),
        complete: Arc<AtomicU64>,
    ) -> Self {
        let mut session = Self {
            name: entry.name.clone(),
            controller: recipe.text("rate_control", "controller").unwrap_or_default(),
            start: Time::ZERO + entry.start.0,
            ceiling: entry.rate.map(|rate| rate.0),
            data,
            feedback,
            sender,
            receiver,
            complete,
            windows: None,
            kept: None,
            watched: entry.discriminators.then(|| Watched::of(data)),
        };
        let windows = (entry.virtual_transfer || entry.windows).then(|| session.record_windows(world));
        session.kept = windows.clone().filter(|_| entry.windows);
        session.windows = windows.filter(|_| entry.virtual_transfer);
        session
    }

    /// Returns the sender's counters.
    pub(super) fn stats(&self, world: &World) -> SenderStats {
        node::<Sender>(world, self.sender).map(|n| n.machine().stats()).unwrap_or_default()
    }

    /// Returns the longest time for which the receiver waited for its core.
    pub(super) fn longest_wait(&self, world: &World) -> Span {
        world.longest_wait(self.receiver)
    }

    /// Returns the bytes delivered by the receiver.
    pub(super) fn bytes(&self, world: &World) -> u64 {
        node::<Receiver>(world, self.receiver).map_or(0, |n| n.machine().stats().object_bytes)
    }

    /// Whether the object is complete, with every byte delivered once.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed) > 0
    }

    /// Returns when the sender learnt that all data had arrived.
    pub(super) fn finished(&self, world: &World) -> Option<Time> {
        let node = node::<Sender>(world, self.sender)?;
        let delivered = node.events().iter().find(|(_, event)| *event == SenderEvent::Delivered);
        delivered.map(|(at, _)| node.world_time(*at))
    }

    /// Returns how often either side reported silence of its peer.
    pub(super) fn silences(&self, world: &World) -> u64 {
        let sender = node::<Sender>(world, self.sender).map_or(0, |n| {
            n.events().iter().filter(|(_, event)| matches!(event, SenderEvent::Silent(_))).count()
        });
        let receiver = node::<Receiver>(world, self.receiver).map_or(0, |n| {
            n.events().iter().filter(|(_, event)| matches!(event, ReceiverEvent::Silent(_))).count()
        });
        (sender + receiver) as u64
    }

    /// Starts to record every transmission window.
    pub(super) fn record_windows(&self, world: &mut World) -> Windows {
        let windows = Windows::default();
        collect_windows_from(world, self.sender, Arc::clone(&windows));
        windows
    }

    /// Whether both sides have finished.
    pub(super) fn is_over(&self, world: &World) -> bool {
        self.is_complete() && self.finished(world).is_some()
    }
}

/// Interval of collecting windows: a sender would discard some only above 6 Gbit/s with small windows.
const POLL_INTERVAL: Span = Span::from_millis(10);

/// Transmission windows as diagnosed by a sender, filled during a run.
pub(crate) type Windows = Arc<Mutex<Vec<DiagnosedWindow>>>;

fn collect_windows_from(world: &mut World, sender: NodeId, into: Windows) {
    let Some(node) = world.node_mut::<ClockedNode<Sender>>(sender) else { return };
    let windows = std::iter::from_fn(|| node.machine_mut().take_window());
    into.lock().unwrap_or_else(PoisonError::into_inner).extend(windows);
    let next = world.now() + POLL_INTERVAL;
    world.at(next, move |world| collect_windows_from(world, sender, into));
}

/// Traffic in a world.
#[derive(Debug)]
pub(super) struct Traffic {
    pub name: String,
    /// `udp`, `aggregate` or `tcp`.
    pub kind: &'static str,
    /// Flow from the source to the sink.
    pub data: FlowId,
    /// Destination.
    pub receiver: NodeId,
    /// Sender of a finite TCP flow, for which a run without sessions waits.
    pub ends: Option<NodeId>,
}

impl Traffic {
    /// Whether the traffic, if finite, has completed.
    pub(super) fn is_over(&self, world: &World) -> bool {
        let sender = self.ends.and_then(|id| node::<TcpSender>(world, id));
        sender.is_none_or(|n| n.events().iter().any(|(_, event)| matches!(event, TcpEvent::Complete { .. })))
    }
}

/// Datagram sizes that the protocol supports: enough for its headers, up to UDP's maximum.
const DATAGRAMS: std::ops::RangeInclusive<u16> = 576..=65_507;

/// Returns the recipe of a session, with its entry's law and report interval.
fn recipe(entry: &SessionEntry, index: usize) -> Result<Recipe, Fault> {
    let own = [
        ("controller", "rate_control.controller", entry.controller.clone()),
        ("rate", "rate_control.rate", entry.rate.map(|rate| rate.0.exact())),
        ("chunk", "object.chunk", entry.chunk.map(|chunk| chunk.0.exact())),
        ("feedback", "bitmap_ack.interval", entry.feedback.map(|span| span.0.exact())),
    ];
    let own = own.into_iter().filter_map(|(field, key, value)| Some((field, key, value?)));
    let recipe = recipe_of(&entry.recipe, set_of(&entry.set).chain(own), ("session", index))?;
    let law = recipe.part("rate_control");
    law.map_or(Ok(()), |law| check_law(law, index))?;
    Ok(recipe)
}

fn check_law(part: &Part, index: usize) -> Result<(), Fault> {
    ChosenLaw::check(part).map(|_| ()).map_err(|error| {
        let message = match error {
            ControllerError::NeedsRate(name) => {
                format!("controller `{name}` needs a rate in this session, for example rate = \"950Mbit\"")
            }
            other => other.to_string(),
        };
        Fault::of("session", index, "controller", message)
    })
}

/// Schedules the switches of a session's law, each checked before the run starts.
fn add_switches(
    world: &mut World,
    sender: NodeId,
    recipe: &Recipe,
    index: usize,
    entry: &SessionEntry,
) -> Result<(), Fault> {
    let mut part = recipe.part("rate_control").cloned().unwrap_or("rate_control".into());
    for switch in &entry.switch {
        let controller = switch.controller.clone().map(|name| ("controller".to_owned(), name));
        let rate = switch.rate.map(|rate| ("rate".to_owned(), rate.0.exact()));
        let change = LawChange::parse(&part, &controller.into_iter().chain(rate).collect::<Vec<_>>());
        let law = change
            .and_then(|change| ChosenLaw::change(&mut part, &change))
            .map_err(|error| Fault::of("session", index, "switch", error.to_string()))?;
        world.at(Time::ZERO + entry.start.0 + switch.at.0, move |world| {
            let now = world.now();
            if let Some(node) = world.node_mut::<ClockedNode<Sender>>(sender) {
                node.machine_mut().switch_law(now, law.clone());
            }
        });
    }
    Ok(())
}

/// Schedules pauses and end of the application.
fn add_application(world: &mut World, sender: NodeId, application: &Arc<Application>, entry: &SessionEntry) {
    let start = Time::ZERO + entry.start.0;
    let pauses = !entry.pause.is_empty();
    let mut schedule = |at: Time, action: fn(&Application)| {
        let application = Arc::clone(application);
        world.at(at, move |world| {
            action(&application);
            if pauses {
                // Wakes the sender, which may have no deadline.
                world.node_mut::<ClockedNode<Sender>>(sender);
            }
        });
    };
    for pause in &entry.pause {
        schedule(start + pause.at.0, |application| application.is_paused.store(true, Ordering::Relaxed));
        let resumes = start + pause.at.0 + pause.length.0;
        schedule(resumes, |application| application.is_paused.store(false, Ordering::Relaxed));
    }
    if let Some(time) = entry.time {
        schedule(start + time.0, |application| application.has_ended.store(true, Ordering::Relaxed));
    }
}

/// Interval at which storage reads or writes.
const STORE_INTERVAL: Span = Span::from_millis(2);

/// Lets storage read or write at `rate` from now on, and wakes the end of the session that waits for it.
fn run_storage<M>(world: &mut World, end: NodeId, storage: Arc<Application>, rate: Rate, since: Time)
where
    M: haul_base::Machine + std::fmt::Debug + Send + 'static,
    M::Event: std::fmt::Debug + Send,
{
    let bytes = rate.bytes_in(world.now().since(since));
    let Some(stored) = &storage.stored else { return };
    stored.store(bytes, Ordering::Relaxed);
    world.node_mut::<ClockedNode<M>>(end);
    let next = world.now() + STORE_INTERVAL;
    world.at(next, move |world| run_storage::<M>(world, end, storage, rate, since));
}

fn add_clock_jumps(world: &mut World, (sender, receiver): (NodeId, NodeId), entry: &SessionEntry) {
    for jump in entry.clock_jump.iter().copied() {
        world.at(Time::ZERO + entry.start.0 + jump.at.0, move |world| {
            let now = world.now();
            match jump.end {
                SessionEnd::Sender => {
                    if let Some(end) = world.node_mut::<ClockedNode<Sender>>(sender) {
                        end.jump(now, jump.by.0);
                    }
                }
                SessionEnd::Receiver => {
                    if let Some(end) = world.node_mut::<ClockedNode<Receiver>>(receiver) {
                        end.jump(now, jump.by.0);
                    }
                }
            }
        });
    }
}

/// Returns a fault in a field of a session.
fn session_fault(index: usize, key: &str, message: impl Into<String>) -> Fault {
    Fault::of("session", index, key, message)
}

/// Checks the fields that need no recipe. Returns the object's length, `None` for a session with a time.
fn check_fields(index: usize, entry: &SessionEntry) -> Result<Option<u64>, Fault> {
    let fault = |key: &str, message: &str| Err(session_fault(index, key, message));
    let len = match (entry.bytes, entry.time) {
        (Some(bytes), None) => Some(bytes.0.0),
        (None, Some(_)) => None,
        _ => return fault("bytes", "give either bytes or time"),
    };
    if entry.feedback.is_some_and(|interval| interval.0 < Span::from_micros(100)) {
        return fault("feedback", "must be at least 100us");
    }
    if !entry.pause.is_empty() && entry.time.is_none() {
        return fault("pause", "requires a session with a time; with bytes, all data is available at once");
    }
    if entry.reads.is_some() && entry.bytes.is_none() {
        return fault("reads", "requires a session with bytes");
    }
    if entry.chunk.is_some_and(|chunk| chunk.0.0 == 0) {
        return fault("chunk", "must be above zero");
    }
    Ok(len)
}

/// Returns the sender's configuration, with the path's round-trip time as the initial estimate.
fn sender_config(index: usize, entry: &SessionEntry, rtt: Span) -> Result<SenderConfig, Fault> {
    let mut config = SenderConfig { initial_rtt: rtt, ..SenderConfig::default() };
    if let Some(datagram) = entry.datagram {
        if !DATAGRAMS.contains(&datagram) {
            let (least, most) = (DATAGRAMS.start(), DATAGRAMS.end());
            let message = format!("must lie between {least} and {most} bytes");
            return Err(session_fault(index, "datagram", message));
        }
        (config.datagram, config.likely_datagram, config.max_datagram) = (datagram, datagram, datagram);
    }
    Ok(config)
}

/// The machines of a session, and the state that the world changes during the run.
struct Machines {
    sender: Sender,
    receiver: Receiver,
    /// Application that feeds the sender.
    application: Arc<Application>,
    /// Storage that consumes the receiver's data.
    storage: Arc<Application>,
    complete: Arc<AtomicU64>,
}

impl Machines {
    /// `len`: length of the object, if known; `damages`: whether a link on the route damages packets.
    fn new(
        entry: &SessionEntry,
        recipe: &Recipe,
        config: &SenderConfig,
        len: Option<u64>,
        damages: bool,
    ) -> Result<Self, RecipeError> {
        // The recipe overrides both intervals.
        let receiver_config = ReceiverConfig {
            feedback_interval: config.feedback_interval,
            feedback_datagram: 1_200.min(config.datagram),
            silence: config.silence,
        };
        let start = Time::ZERO + entry.start.0;
        let application = Arc::new(Application::new(entry.reads.is_some()));
        let storage = Arc::new(Application::new(entry.writes.is_some()));
        let complete = Arc::new(AtomicU64::new(0));
        let source = Box::new(Source::new(len, Arc::clone(&application)));
        let limit = if entry.writes.is_some() { UNWRITTEN } else { u64::MAX >> 16 };
        let sender = Sender::of_recipe(start, recipe.clone(), config, link(damages), source, limit)?;
        let sink = Box::new(Bin::new(complete.clone(), Arc::clone(&storage)));
        let receiver = Receiver::of_recipe(start, recipe, receiver_config, link(damages), sink)?;
        Ok(Self { sender, receiver, application, storage, complete })
    }

    /// Adds the machines to the world. Returns the nodes of sender and receiver.
    fn add_to(self, world: &mut World, entry: &SessionEntry) -> (NodeId, NodeId) {
        let start = Time::ZERO + entry.start.0;
        let law_rate = |machine: &Sender| Some(machine.rate_state().rate);
        let mut sender = SessionNode::new(self.sender).with_law_rate(law_rate);
        if entry.truth {
            sender = sender.with_verdict(Sender::on_verdict);
        }
        let sender = world.add_node(&entry.name, ClockedNode::new(start, sender));
        let received = |machine: &Receiver| Some(machine.stats().object_bytes);
        let receiver = SessionNode::new(self.receiver)
            .with_progress(received)
            .with_host_sample(Receiver::on_host_sample);
        let receiver = world.add_node(&format!("{} receiver", entry.name), ClockedNode::new(start, receiver));
        add_application(world, sender, &self.application, entry);
        let (application, storage) = (self.application, self.storage);
        if let Some(rate) = entry.reads {
            world.at(start, move |world| run_storage::<Sender>(world, sender, application, rate.0, start));
        }
        if let Some(rate) = entry.writes {
            world.at(start, move |world| run_storage::<Receiver>(world, receiver, storage, rate.0, start));
        }
        add_clock_jumps(world, (sender, receiver), entry);
        (sender, receiver)
    }
}

/// Connects the two flows of a session: data to the receiver, feedback to the sender.
fn connect_ends(
    world: &mut World,
    entry: &SessionEntry,
    (sender, receiver): (NodeId, NodeId),
    (there, back): &(Vec<LinkId>, Vec<LinkId>),
) -> Result<(FlowId, FlowId), WorldError> {
    let (from, to) = ((sender, PORT), (receiver, PORT));
    let data = world.connect(&entry.name, from, to, there)?;
    let feedback = world.connect(&format!("{} feedback", entry.name), to, from, back)?;
    Ok((data, feedback))
}

/// Adds both machines of a transfer to the world and connects them.
pub(super) fn add_session(site: &mut Site<'_>, index: usize, entry: &SessionEntry) -> Result<Session, Fault> {
    let route = site.route(&entry.path.0, "session", index)?;
    let paths = directions_of(&route);
    let rtt = route.iter().fold(Span::ZERO, |sum, link| sum + link.delay).max(Span::from_micros(10));
    let damages = route.iter().any(|link| link.damages);
    let len = check_fields(index, entry)?;
    let recipe = recipe(entry, index)?;
    let config = sender_config(index, entry, rtt)?;
    let machines = Machines::new(entry, &recipe, &config, len, damages)
        .map_err(|error| session_fault(index, "recipe", error.to_string()))?;
    let complete = Arc::clone(&machines.complete);
    let (sender, receiver) = machines.add_to(site.world, entry);
    add_switches(site.world, sender, &recipe, index, entry)?;
    site.place(receiver, entry.host.as_ref(), ("session", index, "host"))?;
    site.place(sender, entry.sender_host.as_ref(), ("session", index, "sender_host"))?;
    let wrong = |error: WorldError| session_fault(index, "path", error.to_string());
    let flows = connect_ends(site.world, entry, (sender, receiver), &paths).map_err(wrong)?;
    if let Some(BitmapAckConfig { over: Over::Control, .. }) = recipe.configuration() {
        // TCP without loss.
        let spec = ChannelSpec { delay: rtt / 2, loss: Probability::default(), recovery: rtt };
        site.world.open_channel(sender, receiver, spec).map_err(wrong)?;
    }
    Ok(Session::new(site.world, entry, &recipe, flows, (sender, receiver), complete))
}

/// Adds a traffic source and its destination to the world.
pub(super) fn add_traffic(site: &mut Site<'_>, index: usize, entry: &TrafficEntry) -> Result<Traffic, Fault> {
    let fault = |key: &str, message: &str| Fault::of("traffic", index, key, message);
    let (forward, toward_senders) = directions_of(&site.route(&entry.path.0, "traffic", index)?);
    let (there, back) = match entry.direction {
        Way::Forward => (forward, toward_senders),
        Way::Back => (toward_senders, forward),
    };
    let seed = site.world.seed_for((2 << 32) + index as u64);
    let end_name = format!("{} end", entry.name);
    let (kind, source, receiver, ends) = match (&entry.udp, &entry.aggregate, &entry.tcp) {
        (Some(udp), None, None) => {
            if udp.rate == Rate::ZERO || !(29..=65_535).contains(&udp.packet) {
                return Err(fault("udp", "needs a rate above zero and packets of 29 to 65535 bytes"));
            }
            let source = site.world.add_node(&entry.name, UdpSource::new(*udp, seed));
            ("udp", source, site.world.add_node(&end_name, Sink::new()), None)
        }
        (None, Some(spec), None) => {
            let sane = spec.load > Rate::ZERO && spec.access > Rate::ZERO && spec.mean_size.0 > 0;
            if !sane || !(29..=65_535).contains(&spec.packet) || spec.shape.is_nan() || spec.shape <= 1.0 {
                let allowed = "needs load, access and mean_size above zero, packets of 29 to 65535 bytes, shape above 1";
                return Err(fault("aggregate", allowed));
            }
            let source = site.world.add_node(&entry.name, Aggregate::new(*spec, seed));
            ("aggregate", source, site.world.add_node(&end_name, Sink::new()), None)
        }
        (None, None, Some(tcp)) => {
            let (source, receiver) = add_tcp(site.world, &entry.name, tcp);
            (tcp_name(tcp.control), source, receiver, tcp.bytes.map(|_| source))
        }
        _ => return Err(fault("name", "needs exactly one of udp, aggregate and tcp")),
    };
    let on_host = match entry.direction {
        Way::Forward => receiver,
        Way::Back => source,
    };
    site.place(on_host, entry.host.as_ref(), ("traffic", index, "host"))?;
    let wrong = |error: WorldError| fault("path", &error.to_string());
    let (from, to) = ((source, PORT), (receiver, PORT));
    let data = site.world.connect(&entry.name, from, to, &there).map_err(wrong)?;
    if entry.tcp.is_some() {
        site.world.connect(&format!("{} acks", entry.name), to, from, &back).map_err(wrong)?;
    }
    Ok(Traffic { name: entry.name.clone(), kind, data, receiver, ends })
}

const fn tcp_name(law: TcpLaw) -> &'static str {
    match law {
        TcpLaw::Reno => "reno",
        TcpLaw::Cubic => "cubic",
        TcpLaw::Bbr => "bbr",
    }
}

fn add_tcp(world: &mut World, name: &str, tcp: &TcpEntry) -> (NodeId, NodeId) {
    let control = match tcp.control {
        TcpLaw::Reno => ControlKind::Reno,
        TcpLaw::Cubic => ControlKind::Cubic(CubicConfig::default()),
        TcpLaw::Bbr => ControlKind::Bbr(BbrConfig::default()),
    };
    let segments = tcp.bytes.map(|bytes| bytes.0.0.div_ceil(u64::from(MSS)).max(1));
    let mut config = TcpSenderConfig { segments, ..TcpSenderConfig::endless(control) };
    if let Some(buffer) = tcp.buffer {
        config.receive_window = (buffer.0.0 / u64::from(MSS)).max(1);
    }
    let sender = TcpSender::new(config);
    let start = Time::ZERO + tcp.start.0;
    let source = world.add_node(name, ClockedNode::new(start, SessionNode::new(sender)));
    let progress = |machine: &TcpReceiver| Some(machine.in_order() * u64::from(MSS));
    let receiver = SessionNode::new(TcpReceiver::new(TcpReceiverConfig::default())).with_progress(progress);
    (source, world.add_node(&format!("{name} end"), ClockedNode::new(Time::ZERO, receiver)))
}
