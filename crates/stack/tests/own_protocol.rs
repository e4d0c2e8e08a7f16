//! Two micro-protocols from outside the crate, as a user would write them, and a stack composed of them.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Span, Time};
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Kind, MicroProtocol, Name, Order, Part, Recipe,
    RecipeError, Registration, Registry, Resolution, SendOptions, Setup, Stack, StackEvent, configuration,
};

const NUMBER: Name<Attribute<u32>> = Name::new("number");

/// A message is a packet.
#[derive(Debug, Default)]
struct Whole {
    number: Option<Attribute<u32>>,
}

impl MicroProtocol for Whole {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.number = Some(declaration.attribute(NUMBER));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::FILL, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::LATE);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.set_max_message(1_000);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let number = self.number.expect("declared");
        if event == BatchEvent::FILL {
            while let Some(len) =
                context.queue().front().map(|m| m.data.len()).filter(|_| !context.is_draining())
            {
                let Some(i) = batch.push(Kind::DATA, len) else { return };
                let Some(message) = context.queue().sent(len) else { return };
                batch.payload_mut(i).copy_from_slice(&message.data);
                batch.set(i, number, message.id as u32);
                context.pool().put(message.data);
            }
        } else {
            for i in batch.live() {
                context.deliver(u64::from(batch.get(i, number)), batch.payload(i));
            }
        }
    }
}

configuration! {
    /// Parameters of `watch`.
    struct WatchConfig: "watch" {
        limit: u64 in (1, 1_000) = "2", "messages after which it speaks";
    }
}

/// Panics on the message "boom", and reports how many messages it has seen.
#[derive(Debug, Default)]
struct Watch {
    seen: u64,
    limit: u64,
}

impl MicroProtocol for Watch {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_delivery(Order::NORMAL);
    }

    fn on_delivery(&mut self, delivery: &mut haul_stack::Delivery<'_>, context: &mut Context<'_>) {
        assert!(delivery.data != b"boom", "I do not like boom");
        self.seen += 1;
        if self.seen == self.limit {
            context.emit(StackEvent::User("limit", self.seen));
        }
    }

    fn on_parameters(&mut self, parameters: &Part, _: &mut Context<'_>) -> Result<(), String> {
        self.limit = parameters.read::<WatchConfig>().limit;
        Ok(())
    }
}

fn registry() -> Arc<Registry> {
    let mut registry = Registry::empty();
    registry.register(Registration::new("whole", 1, "a message is a packet", |_, _| {
        Ok(Box::new(Whole::default()))
    }));
    registry.register(Registration {
        needs: &[&["whole"]],
        ..Registration::of::<WatchConfig>(1, "counts messages", |parameters, _| {
            let WatchConfig { limit } = parameters.read();
            Ok(Box::new(Watch { seen: 0, limit }))
        })
    });
    Arc::new(registry)
}

fn pair(recipe: &Recipe) -> (Stack, Stack) {
    let compiled = registry().compile(recipe, 0).unwrap();
    let make = |initiator| {
        let setup = Setup { initiator, initial_rtt: Span::from_millis(10), ..Setup::new(Time::ZERO) };
        Stack::new(compiled.clone(), setup).unwrap()
    };
    (make(true), make(false))
}

/// Transfers everything that `from` sends.
fn carry(now: Time, from: &mut Stack, to: &mut Stack) -> usize {
    let mut slot = vec![0xAA; 65_536];
    let mut batches = 0;
    while let Some(transmit) = from.poll_transmit(now, &mut slot) {
        batches += 1;
        let mut received = Received {
            data: &mut slot[..transmit.len],
            stride: transmit.segment_size,
            arrival: None,
            path: PathId::default(),
            ecn: Ecn::NotEct,
            socket_drops: None,
        };
        to.on_receive(now, &mut received);
    }
    batches
}

fn events(stack: &mut Stack) -> Vec<StackEvent> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}

#[test]
fn messages_travel_in_batches_of_equal_size() {
    let (mut a, mut b) = pair(&Recipe::new("own").with("whole").with("watch"));
    for text in ["one", "two", "six", "four", "five"] {
        a.send(Time::ZERO, text.as_bytes(), SendOptions::default()).unwrap();
    }
    // A batch ends with its first shorter packet, and a longer one starts the next.
    assert_eq!(carry(Time::ZERO, &mut a, &mut b), 2);
    let got: Vec<_> = std::iter::from_fn(|| b.recv()).map(|(id, m)| (id, m.to_vec())).collect();
    assert_eq!(got[3], (3, b"four".to_vec()));
    assert_eq!(got.len(), 5);
    assert!(events(&mut b).contains(&StackEvent::User("limit", 2)));
}

#[test]
fn a_panic_ends_only_its_session_and_names_its_cause() {
    let (mut a, mut b) = pair(&Recipe::new("own").with("whole").with("watch"));
    a.send(Time::ZERO, b"boom", SendOptions::default()).unwrap();
    carry(Time::ZERO, &mut a, &mut b);
    let failed = StackEvent::Failed { protocol: "watch".into(), message: "I do not like boom".into() };
    assert_eq!(events(&mut b), [failed]);
    assert!(b.has_failed() && b.deadline().is_none() && !a.has_failed());
    assert!(b.send(Time::ZERO, b"x", SendOptions::default()).is_err());
}

#[test]
fn impossible_recipes_report_what_is_missing() {
    let compile = |recipe: Recipe| registry().compile(&recipe, 0).unwrap_err().to_string();
    assert_eq!(compile(Recipe::new("x").with("watch")), "watch needs whole");
    assert_eq!(compile(Recipe::new("x").with("whole").with("whole")), "`whole` is in the recipe twice");
    let refused = |text| registry().parse(text).unwrap_err().to_string();
    let unknown = refused("name = \"x\"\n[whole]\n[wach]\n");
    assert!(
        unknown.starts_with("line 3: there is no micro-protocol `wach` (did you mean `watch`?)"),
        "{unknown}"
    );
    let value = refused("[whole]\n[watch]\nlimit = 0\n");
    assert_eq!(value, "line 3: `watch.limit = 0`: write a whole number from 1 to 1000");
    let value = compile(Recipe::new("x").with("whole").with(WatchConfig { limit: 0 }));
    assert_eq!(value, "`watch.limit = 0`: write a whole number from 1 to 1000");
    assert!(compile(Recipe::new("x").with("wach")).starts_with("there is no micro-protocol `wach` (did you"));
}

fn exchange(now: Time, a: &mut Stack, b: &mut Stack) {
    while carry(now, a, b) + carry(now, b, a) > 0 {}
}

#[test]
fn parameters_change_on_both_sides_while_running() {
    let (mut a, mut b) = pair(&Recipe::new("own").with("whole").with("watch"));
    let recipe = Recipe::new("own").with("whole").with(WatchConfig { limit: 1 });
    a.reconfigure(Time::ZERO, &recipe).unwrap();
    assert_eq!(a.reconfigure(Time::ZERO, &recipe), Err(RecipeError::Busy));
    exchange(Time::ZERO, &mut a, &mut b);
    assert_eq!(
        (events(&mut a), events(&mut b)),
        (vec![StackEvent::Reconfigured], vec![StackEvent::Reconfigured])
    );
    a.send(Time::ZERO, b"one", SendOptions::default()).unwrap();
    exchange(Time::ZERO, &mut a, &mut b);
    assert!(events(&mut b).contains(&StackEvent::User("limit", 1)));
}

#[test]
fn micro_protocols_are_replaced_at_a_packet_boundary() {
    let (mut a, mut b) = pair(&Recipe::new("own").with("whole"));
    a.send(Time::ZERO, b"before", SendOptions::default()).unwrap();
    a.reconfigure(Time::ZERO, &Recipe::new("own").with("watch").with("whole")).unwrap();
    a.send(Time::ZERO, b"after", SendOptions::default()).unwrap();
    exchange(Time::ZERO, &mut a, &mut b);
    let later = Time::ZERO + Span::from_secs(1);
    a.on_deadline(later);
    b.on_deadline(later);
    exchange(later, &mut a, &mut b);
    assert_eq!(
        (events(&mut a), a.recipe().parts.len(), b.recipe().parts.len()),
        (vec![StackEvent::Reconfigured], 2, 2)
    );
    let got: Vec<_> = std::iter::from_fn(|| b.recv()).map(|(id, m)| (id, m.to_vec())).collect();
    assert_eq!(got, [(0, b"before".to_vec()), (1, b"after".to_vec())]);
}
