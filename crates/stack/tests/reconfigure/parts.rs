//! Micro-protocols for these tests, and a path whose packets the test controls.

use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Configuration, Context, Declaration, Kind, MicroProtocol, Name, Order,
    Part, ProtocolStats, Recipe, Registration, Registry, Resolution, SendOptions, Setup, Stack, StackEvent,
    configuration,
};

/// A message is a packet.
#[derive(Debug, Default)]
struct Whole;

impl MicroProtocol for Whole {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::FILL, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::LATE);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.set_max_message(1_000);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            while !context.is_draining()
                && let Some(len) = context.queue().front().map(|message| message.data.len())
            {
                let Some(i) = batch.push(Kind::DATA, len) else { return };
                let Some(message) = context.queue().sent(len) else { return };
                batch.payload_mut(i).copy_from_slice(&message.data);
            }
        } else {
            for i in batch.live() {
                context.deliver(0, batch.payload(i));
            }
        }
    }
}

/// A micro-protocol with a parameter; it panics on request, and can stay busy forever.
#[derive(Debug)]
struct Knob {
    panics: String,
    clings: bool,
}

impl Knob {
    fn step(&self, step: &str) {
        assert!(self.panics != step, "I do not like to {step}");
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        self.step("drop");
    }
}

impl MicroProtocol for Knob {
    fn declare(&mut self, _: &mut Declaration<'_>) {
        self.step("declare");
    }

    fn bind(&mut self, _: &mut Resolution<'_>) {
        self.step("bind");
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.panics = parameters.read::<KnobConfig>().panics;
        self.step("change");
        Ok(())
    }

    fn unfinished(&self) -> usize {
        self.step("finish");
        usize::from(self.clings)
    }

    fn statistics(&self, tell: &mut dyn FnMut(&dyn ProtocolStats)) {
        tell(&Before(1));
        self.step("count");
    }
}

/// Counters of a knob before it panics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before(pub(crate) u64);

/// A micro-protocol that is added and removed, and makes data packets ECN-capable.
#[derive(Debug)]
struct Extra;

impl MicroProtocol for Extra {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let _ = declaration.attribute(Name::<Attribute<u32>>::new("extra"));
    }

    fn bind(&mut self, _: &mut Resolution<'_>) {}

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.set_ecn(Ecn::Ect0);
    }
}

/// A micro-protocol with an attribute in clear.
#[derive(Debug)]
struct Label;

impl MicroProtocol for Label {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let _ = declaration.clear_attribute(Name::<Attribute<u32>>::new("label"));
    }

    fn bind(&mut self, _: &mut Resolution<'_>) {}
}

/// Provided by the session: the micro-protocol panics when it is built in a session, but not when the recipe
/// is checked.
#[derive(Debug)]
pub(crate) struct Boom;

/// Provided by the session: the micro-protocol panics when the session ends.
#[derive(Debug)]
pub(crate) struct Fuse;

/// Provided by an end that stays busy.
#[derive(Debug)]
pub(crate) struct Cling;

mod shared {
    haul_stack::parameter!(pub(super) panics: String = "never", "where it panics");
}
use shared::panics;

configuration! {
    /// Parameters of the knob.
    pub(crate) struct KnobConfig: "knob" {
        at: u32 in (0, 100) = "0", "a number";
        panics: String = panics;
    }
}

configuration! {
    /// As [`KnobConfig`], for an end that accepts a smaller range.
    pub(crate) struct NarrowConfig: "knob" {
        at: u32 in (0, 50) = "0", "a number";
        panics: String = panics;
    }
}

pub(crate) fn registry<C: Configuration>() -> Arc<Registry> {
    let mut registry = Registry::empty();
    registry.register(Registration::new("whole", 1, "a message is a packet", |_, _| Ok(Box::new(Whole))));
    registry.register(Registration::new("extra", 1, "is there or is not", |_, _| Ok(Box::new(Extra))));
    registry.register(Registration {
        clear_bytes: 4,
        ..Registration::new("label", 1, "is readable without keys", |_, _| Ok(Box::new(Label)))
    });
    registry.register(Registration::of::<C>(1, "has a parameter", |parameters, setup| {
        let KnobConfig { panics, .. } = parameters.read();
        let is_lit = setup.take::<Fuse>().is_some();
        let panics = if is_lit { "drop".to_owned() } else { panics };
        let knob = Knob { panics, clings: setup.take::<Cling>().is_some() };
        knob.step("build");
        assert!(setup.take::<Boom>().is_none(), "I do not like this session");
        Ok(Box::new(knob))
    }));
    Arc::new(registry)
}

pub(crate) fn plain() -> Registry {
    Registry::clone(&registry::<KnobConfig>())
}

pub(crate) fn recipe() -> Recipe {
    Recipe::new("test").with("whole").with("knob")
}

/// A recipe with this number as the knob's parameter.
pub(crate) fn at(number: u32) -> Recipe {
    Recipe::new("test").with("whole").with(KnobConfig { at: number, ..KnobConfig::default() })
}

/// Both ends; `a` has opened the session.
pub(crate) struct Pair {
    pub(crate) a: Stack,
    pub(crate) b: Stack,
    pub(crate) now: Time,
}

pub(crate) fn setup(initiator: bool) -> Setup {
    Setup { initiator, initial_rtt: Span::from_millis(10), ..Setup::new(Time::ZERO) }
}

impl Pair {
    pub(crate) fn new() -> Self {
        let make = |initiator| {
            Stack::new(registry::<KnobConfig>().compile(&recipe(), 0).unwrap(), setup(initiator)).unwrap()
        };
        Self { a: make(true), b: make(false), now: Time::ZERO }
    }

    /// A pair whose `b` accepts only numbers up to 50.
    pub(crate) fn with_narrow_b() -> Self {
        let b = Stack::new(registry::<NarrowConfig>().compile(&recipe(), 0).unwrap(), setup(false)).unwrap();
        Self { b, ..Self::new() }
    }

    /// A pair whose `b` stays busy.
    pub(crate) fn with_clinging_b() -> Self {
        let setup = setup(false).provide(Cling);
        let b = Stack::new(registry::<KnobConfig>().compile(&recipe(), 0).unwrap(), setup).unwrap();
        Self { b, ..Self::new() }
    }

    /// Exchanges packets until neither end has any, for at most `for_so_long`.
    pub(crate) fn exchange(&mut self, for_so_long: Span) {
        let end = self.now + for_so_long;
        loop {
            loop {
                let (from_a, from_b) = (said(&mut self.a, self.now), said(&mut self.b, self.now));
                if from_a.is_empty() && from_b.is_empty() {
                    break;
                }
                hear(&mut self.b, self.now, &from_a);
                hear(&mut self.a, self.now, &from_b);
            }
            let next = [&self.a, &self.b].into_iter().filter_map(Machine::deadline).map(|d| d.at).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.a.on_deadline(self.now);
            self.b.on_deadline(self.now);
        }
        self.now = end;
    }

    /// Drops every packet for this long.
    pub(crate) fn outage(&mut self, lasts: Span) {
        let end = self.now + lasts;
        while self.now < end {
            self.now += Span::from_millis(100);
            for stack in [&mut self.a, &mut self.b] {
                stack.on_deadline(self.now);
                said(stack, self.now);
            }
        }
    }

    /// Asserts that a message arrives each way, both recipes are equal, and nothing is in progress.
    pub(crate) fn assert_at_rest(&mut self) {
        assert!(self.a.recipe().same_stack(self.b.recipe()), "{:?} {:?}", self.a.recipe(), self.b.recipe());
        for stack in [&mut self.a, &mut self.b] {
            stack.send(self.now, b"still there", SendOptions::default()).unwrap();
        }
        self.exchange(Span::from_secs(1));
        for stack in [&mut self.a, &mut self.b] {
            assert_eq!(stack.queued_bytes(), 0, "it must not send");
            let last = std::iter::from_fn(|| stack.recv()).last().map(|(_, message)| message.to_vec());
            assert_eq!(last.as_deref(), Some(&b"still there"[..]));
            assert_eq!((stack.deadline(), stack.stats().violations), (None, 0));
        }
    }
}

/// Packets that a stack has to send.
pub(crate) fn said(stack: &mut Stack, now: Time) -> Vec<Vec<u8>> {
    let (mut slot, mut packets) = (vec![0; 65_536], Vec::new());
    while let Some(sent) = stack.poll_transmit(now, &mut slot) {
        packets.extend(slot[..sent.len].chunks(sent.segment_size).map(<[u8]>::to_vec));
    }
    packets
}

pub(crate) fn hear(stack: &mut Stack, now: Time, packets: &[Vec<u8>]) {
    for packet in packets {
        let mut data = packet.clone();
        let (stride, path, ecn) = (data.len(), PathId::default(), Ecn::NotEct);
        let data = &mut data[..];
        stack.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
    }
}

pub(crate) fn events(stack: &mut Stack) -> Vec<StackEvent> {
    let events = std::iter::from_fn(|| stack.poll_event());
    events.filter(|event| *event != StackEvent::Message).collect()
}
