//! A peer that agrees to one recipe and sends packets of another.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use std::sync::Arc;

use haul_base::{Ecn, Machine, PathId, Received, Time, Transmit};
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, Kind, MicroProtocol, Order, Recipe, Registration, Registry,
    Resolution, SendOptions, Setup, Stack, StackEvent,
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
        context.set_max_message(100);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_NET {
            batch.live().for_each(|i| context.deliver(0, batch.payload(i)));
            return;
        }
        let Some(len) = context.queue().front().map(|message| message.data.len()) else { return };
        let Some(i) = batch.push(Kind::DATA, len) else { return };
        if let Some(message) = context.queue().sent(len) {
            batch.payload_mut(i).copy_from_slice(&message.data);
        }
    }
}

/// Sends something whenever requested.
#[derive(Debug, Default)]
struct Chatter {
    kind: Option<Kind>,
}

impl MicroProtocol for Chatter {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.kind = Some(declaration.user_kind());
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_submit(Order::NORMAL);
    }

    fn on_submit(&mut self, submission: &mut haul_stack::Submission<'_>, context: &mut Context<'_>) {
        if submission.data == b"chat" {
            submission.verdict = haul_stack::Verdict::Drop;
            context.request_control();
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        batch.push(self.kind.expect("declared"), 0);
    }
}

fn stack(parts: &[&'static str]) -> Stack {
    let mut registry = Registry::empty();
    registry.register(Registration::new("whole", 1, "a message is a packet", |_, _| Ok(Box::new(Whole))));
    registry.register(Registration::new("chatter", 1, "talks", |_, _| Ok(Box::new(Chatter::default()))));
    let recipe = parts.iter().fold(Recipe::new("x"), |recipe, part| recipe.with(*part));
    let compiled = Arc::new(registry).compile(&recipe, 0).unwrap();
    Stack::new(compiled, Setup::new(Time::ZERO)).unwrap()
}

fn say(from: &mut Stack, to: &mut Stack, text: &[u8]) {
    let (now, mut slot) = (Time::ZERO, vec![0; 65_536]);
    from.send(now, text, SendOptions::default()).unwrap();
    while let Some(Transmit { len, segment_size: stride, .. }) = from.poll_transmit(now, &mut slot) {
        let (data, path, ecn) = (&mut slot[..len], PathId::default(), Ecn::NotEct);
        to.on_receive(now, &mut Received { data, stride, arrival: None, path, ecn, socket_drops: None });
    }
}

fn events(stack: &mut Stack) -> Vec<StackEvent> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}

#[test]
fn sixty_four_invalid_packets_are_tolerated_and_one_more_ends_the_session() {
    let (mut other, mut honest) = (stack(&["whole", "chatter"]), stack(&["whole"]));
    for n in 1..=64 {
        say(&mut other, &mut honest, b"chat");
        assert_eq!((honest.stats().violations, honest.has_failed()), (n, false));
    }
    say(&mut other, &mut honest, b"hello");
    assert_eq!(honest.recv().unwrap().1.to_vec(), b"hello");
    assert_eq!(events(&mut honest), [StackEvent::Message]);

    say(&mut other, &mut honest, b"chat");
    let message = "the peer sent 64 packets that the recipe does not allow".to_owned();
    assert_eq!(events(&mut honest), [StackEvent::Failed { protocol: "recipe".to_owned(), message }]);
    assert!(honest.has_failed() && honest.deadline().is_none());
    say(&mut other, &mut honest, b"hello");
    assert!(honest.recv().is_none() && honest.send(Time::ZERO, b"x", SendOptions::default()).is_err());
    assert!(events(&mut honest).is_empty());
}
