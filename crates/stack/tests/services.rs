//! Services of the framework besides events: values provided by the session, probes larger than a packet,
//! external events, socket reports.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use std::any::Any;
use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Time};
use haul_stack::{
    Batch, Context, Declaration, Event, EventId, Kind, MicroProtocol, Name, Order, Recipe, Registration,
    Registry, Resolution, Setup, SharedValue, Stack,
};

/// Provided by the session.
struct Greeting(&'static str);

/// The values seen by every handler.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    greeting: &'static str,
    sizes: Vec<usize>,
    marked: bool,
    drops: u32,
}

const SIZE: Name<Event<usize>> = Name::new("size");
const KIND: Kind = Kind(20);

/// Sends a probe of a size given from outside.
#[derive(Debug)]
struct Prober {
    greeting: &'static str,
    size: Option<usize>,
    seen: Option<SharedValue<Seen>>,
    event: Option<Event<usize>>,
}

impl MicroProtocol for Prober {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.kind(KIND);
        self.seen = Some(declaration.shared(Seen::default));
        self.event = Some(declaration.event(SIZE));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(self.event.unwrap(), Order::NORMAL);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.shared(self.seen.unwrap()).greeting = self.greeting;
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        self.size = self.event.unwrap().of(event, argument).copied();
        context.request_control();
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        let payload = self.size.unwrap() - batch.layout().clear_len();
        let i = batch.push_probe(KIND, payload).unwrap();
        batch.payload_mut(i).fill(7);
        assert!(batch.push(KIND, 1).is_none(), "a probe must be sent alone");
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        assert!(batch.payload(i).iter().all(|&byte| byte == 7));
        let arrival = context.arrival();
        let seen = context.shared(self.seen.unwrap());
        seen.sizes.push(batch.size(i));
        seen.marked |= arrival.ecn == Ecn::Ce;
        seen.drops = arrival.socket_drops;
    }
}

/// Uses another type for the size.
#[derive(Debug, Default)]
struct Mistaken;

impl MicroProtocol for Mistaken {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.event(Name::<Event<u16>>::new(SIZE.text()));
    }

    fn bind(&mut self, _: &mut Resolution<'_>) {}
}

fn registry() -> Arc<Registry> {
    let mut registry = Registry::empty();
    registry.register(Registration::new("prober", 1, "probes", |_, setup| {
        let greeting = setup.take::<Greeting>().map_or("none", |greeting| greeting.0);
        Ok(Box::new(Prober { greeting, size: None, seen: None, event: None }))
    }));
    let mistaken = |_: &_, _: &mut _| Ok(Box::<Mistaken>::default() as Box<dyn MicroProtocol>);
    registry.register(Registration::new("mistaken", 1, "is wrong about the size", mistaken));
    Arc::new(registry)
}

fn stack() -> Stack {
    let compiled = registry().compile(&Recipe::new("probes").with("prober"), 0).unwrap();
    Stack::new(compiled, Setup::new(Time::ZERO).provide(Greeting("hello"))).unwrap()
}

fn hand(stack: &mut Stack, data: &mut [u8], ecn: Ecn, socket_drops: Option<u32>) {
    let stride = data.len();
    let path = PathId::default();
    stack.on_receive(Time::ZERO, &mut Received { data, stride, arrival: None, path, ecn, socket_drops });
}

#[test]
fn session_resources_are_passed_by_type() {
    assert_eq!(stack().shared::<Seen>().unwrap().greeting, "hello");
    assert!(stack().shared::<u64>().is_none());
}

#[test]
fn one_event_name_with_two_argument_types_is_refused() {
    let recipe = Recipe::new("probes").with("prober").with("mistaken");
    let refused = registry().compile(&recipe, 0).unwrap_err().to_string();
    assert!(refused.contains("mistaken declares the event `size` with another argument type"), "{refused}");
}

#[test]
fn a_probe_exceeds_the_packet_size_and_arrives_with_socket_metadata() {
    let (mut a, mut b) = (stack(), stack());
    a.raise(Time::ZERO, SIZE, &mut 4_000_usize);
    a.raise(Time::ZERO, Name::<Event<()>>::new("nobody knows this"), &mut ());
    // An event of this name exists, but with another argument.
    a.raise(Time::ZERO, Name::<Event<u16>>::new("size"), &mut 5_000);
    let mut slot = vec![0; 65_536];
    let sent = a.poll_transmit(Time::ZERO, &mut slot).unwrap();
    assert_eq!((sent.len, sent.segment_size), (4_000, 4_000));
    assert!(usize::from(a.path().datagram) < 4_000);
    hand(&mut b, &mut slot[..sent.len], Ecn::Ce, Some(3));
    let expected = Seen { greeting: "hello", sizes: vec![4_000], marked: true, drops: 3 };
    assert_eq!(b.shared::<Seen>(), Some(&expected));
    assert_eq!(b.arrival().socket_drops, 3);
}

#[test]
fn control_frames_of_the_connection_are_skipped_and_not_counted() {
    let mut stack = stack();
    let mut packet = [0; 40];
    packet[0] = Kind::CONTROL_FRAME.0;
    hand(&mut stack, &mut packet, Ecn::NotEct, None);
    let stats = stack.stats();
    assert_eq!((stats.unauthentic, stats.violations, stats.control_received), (0, 0, 0));
    hand(&mut stack, &mut [99; 40], Ecn::NotEct, None);
    assert_eq!(stack.stats().violations, 1);
}
