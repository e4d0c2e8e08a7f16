//! Services: stacks of micro-protocols that carry messages over a simulated path.

use std::sync::Arc;

use haul_base::{Deadline, DeadlineReason, Machine, Rate, Received, Span, Time, Transmit};
use haul_proto::micro;
use haul_sim::{FlowId, FlowTruth, NodeId, SessionNode, World, WorldError};
use haul_stack::{SendError, SendOptions, Setup, Stack, StackEvent, StackStats};
use serde::Serialize;

use super::ends::{ClockedNode, keys, node};
use super::locate::Fault;
use super::scenario::ServiceEntry;
use super::site::{PORT, Site, directions_of, recipe_of, set_of};

/// Bytes that a sender keeps queued when it sends as fast as the stack permits.
const AHEAD: usize = 128 << 10;
/// Bytes of the send time at the start of every message.
const STAMP: usize = 8;
/// Time after the last message after which nothing more is expected.
const REST: Span = Span::from_secs(1);
/// UDP payload of a 1,500-byte IP packet.
const DATAGRAM: u16 = 1_472;

/// Sends messages at regular intervals, or as fast as the stack permits.
#[derive(Debug)]
struct Sender {
    stack: Stack,
    body: Vec<u8>,
    remaining: u64,
    every: Option<Span>,
    next_at: Time,
    last_sent: Time,
}

impl Sender {
    fn send_due(&mut self, now: Time) {
        while self.remaining > 0
            && self.next_at <= now
            && (self.every.is_some() || self.stack.queued_bytes() < AHEAD)
        {
            self.body[..STAMP].copy_from_slice(&now.as_nanos().to_be_bytes());
            match self.stack.send(now, &self.body, SendOptions::default()) {
                Ok(_) => self.remaining -= 1,
                Err(SendError::Full(_)) => {
                    self.next_at = now + Span::from_millis(1);
                    return;
                }
                Err(_) => self.remaining = 0,
            }
            self.last_sent = now;
            self.next_at += self.every.unwrap_or(Span::ZERO);
        }
    }
}

impl Machine for Sender {
    type Event = StackEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        self.stack.on_receive(now, batch);
    }

    fn on_deadline(&mut self, now: Time) {
        self.stack.on_deadline(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        self.send_due(now);
        self.stack.poll_transmit(now, slot)
    }

    fn poll_event(&mut self) -> Option<StackEvent> {
        self.stack.poll_event()
    }

    fn deadline(&self) -> Option<Deadline> {
        let message_deadline = Deadline { at: self.next_at, reason: DeadlineReason::Timer };
        let has_timer = self.remaining > 0 && (self.every.is_some() || self.next_at > self.last_sent);
        Deadline::earlier(self.stack.deadline(), has_timer.then_some(message_deadline))
    }
}

/// Receives messages, and records their delays.
#[derive(Debug)]
struct Receiver {
    stack: Stack,
    bytes: u64,
    delays: Vec<u64>,
    first: Option<Time>,
    last: Time,
}

impl Machine for Receiver {
    type Event = StackEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        self.stack.on_receive(now, batch);
        while let Some((_, message)) = self.stack.recv() {
            let stamp = message.first_chunk::<STAMP>().map_or(0, |stamp| u64::from_be_bytes(*stamp));
            self.delays.push(now.as_nanos().saturating_sub(stamp));
            self.bytes += message.len() as u64;
            self.first.get_or_insert(now);
            self.last = now;
            self.stack.recycle(message);
        }
    }

    fn on_deadline(&mut self, now: Time) {
        self.stack.on_deadline(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        self.stack.poll_transmit(now, slot)
    }

    fn poll_event(&mut self) -> Option<StackEvent> {
        self.stack.poll_event()
    }

    fn deadline(&self) -> Option<Deadline> {
        self.stack.deadline()
    }
}

/// A service in a world.
#[derive(Debug)]
pub(super) struct Service {
    name: String,
    recipe: String,
    messages: u64,
    data: FlowId,
    back: FlowId,
    sender: NodeId,
    receiver: NodeId,
}

/// Results of a service.
#[derive(Debug, Serialize)]
pub(super) struct ServiceReport {
    pub name: String,
    recipe: String,
    /// Messages to be sent.
    pub messages: u64,
    /// Messages deliberately suppressed by the recipe.
    suppressed: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// From the first delivered message to the last.
    pub goodput_bps: u64,
    /// From the sending to the receiving program.
    pub delay_mean_ms: f64,
    /// 99 % quantile of the delay.
    pub delay_p99_ms: f64,
    /// Data packets sent, including retransmissions.
    pub packets: u64,
    /// Retransmitted data packets.
    pub resent: u64,
    /// Other packets: acknowledgements, rates.
    control: u64,
    /// Reason if the session ended with an error.
    failure: Option<String>,
    /// Fate of the sender's packets.
    pub there: FlowTruth,
    /// Fate of the receiver's packets.
    pub back: FlowTruth,
}

fn failure(events: &[(Time, StackEvent)]) -> Option<String> {
    events.iter().find_map(|(_, event)| match event {
        StackEvent::Failed { protocol, message } => Some(format!("{protocol}: {message}")),
        _ => None,
    })
}

impl Service {
    /// Whether everything was sent, and everything expected has arrived.
    pub(super) fn is_over(&self, world: &World) -> bool {
        node::<Sender>(world, self.sender).is_some_and(|node| {
            let sender = node.machine();
            let rested = world.now().since(sender.last_sent) >= REST;
            sender.stack.has_failed() || (sender.remaining == 0 && sender.stack.unfinished() == 0 && rested)
        })
    }

    pub(super) fn report(&self, world: &World) -> ServiceReport {
        let sender = node::<Sender>(world, self.sender);
        let receiver = node::<Receiver>(world, self.receiver);
        let stats = |node: Option<StackStats>| node.unwrap_or_default();
        let sent = stats(sender.map(|node| node.machine().stack.stats()));
        let received = stats(receiver.map(|node| node.machine().stack.stats()));
        let mut delays = receiver.map_or(Vec::new(), |node| node.machine().delays.clone());
        delays.sort_unstable();
        let ms = |nanos: f64| nanos / 1e6;
        let span = receiver
            .map_or(Span::ZERO, |node| node.machine().last.since(node.machine().first.unwrap_or(Time::ZERO)));
        let failed = sender.and_then(|node| failure(node.events()));
        ServiceReport {
            name: self.name.clone(),
            recipe: self.recipe.clone(),
            messages: self.messages,
            suppressed: sent.messages_suppressed,
            delivered: delays.len() as u64,
            goodput_bps: Rate::from_transfer(receiver.map_or(0, |node| node.machine().bytes), span).as_bps(),
            delay_mean_ms: ms(delays.iter().sum::<u64>() as f64 / delays.len().max(1) as f64),
            delay_p99_ms: ms(delays.get(delays.len() * 99 / 100).copied().unwrap_or(0) as f64),
            packets: sent.data_sent,
            resent: sent.data_resent,
            control: sent.control_sent + received.control_sent,
            failure: failed.or_else(|| receiver.and_then(|node| failure(node.events()))),
            there: world.truth(self.data),
            back: world.truth(self.back),
        }
    }
}

/// Adds both stacks of a service to the world and connects them.
pub(super) fn add_service(site: &mut Site<'_>, index: usize, entry: &ServiceEntry) -> Result<Service, Fault> {
    let fault = |key: &str, message: String| Fault::of("service", index, key, message);
    let route = site.route(&entry.path.0, "service", index)?;
    let (there, back) = directions_of(&route);
    let initial_rtt = route.iter().fold(Span::ZERO, |sum, link| sum + link.delay).max(Span::from_micros(10));
    let damages = route.iter().any(|link| link.damages);
    let size = usize::try_from(entry.message.0.0).unwrap_or(usize::MAX);
    if size < STAMP || entry.messages == 0 || entry.every.is_some_and(|every| every.0 == Span::ZERO) {
        return Err(fault(
            "message",
            "needs messages of at least 8 bytes, at least one of them, and no zero `every`".into(),
        ));
    }
    let recipe = recipe_of(&entry.recipe, set_of(&entry.set), ("service", index))?;
    let tag = keys(damages).0.tag_len();
    let compiled = Arc::new(micro::registry())
        .compile(&recipe, tag)
        .map_err(|error| fault("recipe", error.to_string()))?;
    let start = Time::ZERO + entry.start.0;
    let make = |initiator| {
        let setup = Setup {
            initiator,
            initial_rtt,
            datagram: DATAGRAM,
            identity: index as u32 + 1,
            keys: Some(keys(damages)),
            ..Setup::new(start)
        };
        Stack::new(compiled.clone(), setup).map_err(|error| fault("recipe", error.to_string()))
    };
    let (mut ours, theirs) = (make(true)?, make(false)?);
    // Reports a message that is too long now rather than during a run.
    let probe = ours.send(start, &vec![0; size], SendOptions::default());
    probe.map_err(|error| fault("message", error.to_string()))?;
    let every = entry.every.map(|every| every.0);
    let sender = Sender {
        stack: make(true)?,
        body: vec![0; size],
        remaining: entry.messages,
        every,
        next_at: start,
        last_sent: start,
    };
    let receiver = Receiver { stack: theirs, bytes: 0, delays: Vec::new(), first: None, last: start };
    let progress = |machine: &Receiver| Some(machine.bytes);
    let sender = site.world.add_node(&entry.name, ClockedNode::new(start, SessionNode::new(sender)));
    let receiver_node = ClockedNode::new(start, SessionNode::new(receiver).with_progress(progress));
    let receiver = site.world.add_node(&format!("{} receiver", entry.name), receiver_node);
    site.place(receiver, entry.host.as_ref(), ("service", index, "host"))?;
    let wrong = |error: WorldError| fault("path", error.to_string());
    let (from, to) = ((sender, PORT), (receiver, PORT));
    let data = site.world.connect(&entry.name, from, to, &there).map_err(wrong)?;
    let answers = site.world.connect(&format!("{} answers", entry.name), to, from, &back).map_err(wrong)?;
    let (name, recipe, messages) = (entry.name.clone(), entry.recipe.clone(), entry.messages);
    Ok(Service { name, recipe, messages, data, back: answers, sender, receiver })
}
