//! The three ways in which CTP and H-CTP raise an event: at once (blocking), when the current input has been
//! handled (non-blocking), and after a delay.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::any::Any;
use std::sync::Arc;

use haul_base::{Machine, Span, Time};
use haul_stack::{
    Context, Declaration, Event, EventId, MicroProtocol, Name, Order, Recipe, Registration, Registry,
    Resolution, Setup, Stack, StackEvent,
};

const LATER: Span = Span::from_millis(30);

const ASKED: Name<Event<()>> = Name::new("asked");
const HEARD: Name<Event<&'static str>> = Name::new("heard");

/// The events that both micro-protocols use.
#[derive(Clone, Copy, Debug)]
struct Events {
    asked: Event<()>,
    heard: Event<&'static str>,
}

impl Events {
    fn declare(declaration: &mut Declaration<'_>) -> Self {
        Self { asked: declaration.event(ASKED), heard: declaration.event(HEARD) }
    }
}

/// Raises an event later on request, and reports when it handles it.
#[derive(Debug, Default)]
struct Raises(Option<Events>);

impl MicroProtocol for Raises {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.0 = Some(Events::declare(declaration));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        let Events { asked, heard } = self.0.unwrap();
        resolution.on_event(asked, Order::NORMAL);
        resolution.on_event(heard, Order::NORMAL);
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let Events { heard, .. } = self.0.unwrap();
        if let Some(way) = heard.of(event, argument) {
            return context.emit(StackEvent::User(way, context.now().as_nanos()));
        }
        context.raise_later(heard, "later", LATER);
        context.raise_queued(heard, "queued");
        context.emit(StackEvent::User("end of the handler", context.now().as_nanos()));
    }
}

/// Raises the same event at once on request.
#[derive(Debug, Default)]
struct AtOnce(Option<Events>);

impl MicroProtocol for AtOnce {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.0 = Some(Events::declare(declaration));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(self.0.unwrap().asked, Order::LATE);
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        context.raise(self.0.unwrap().heard, &mut "at once");
        context.emit(StackEvent::User("end of the second handler", context.now().as_nanos()));
    }
}

#[test]
fn events_are_handled_at_once_after_the_input_or_after_a_delay() {
    let mut registry = Registry::empty();
    registry.register(Registration::new("raises", 1, "raises later", |_, _| Ok(Box::<Raises>::default())));
    registry.register(Registration::new("at_once", 1, "raises now", |_, _| Ok(Box::<AtOnce>::default())));
    let compiled = Arc::new(registry).compile(&Recipe::new("own").with("raises").with("at_once"), 0).unwrap();
    let mut stack = Stack::new(compiled, Setup::new(Time::ZERO)).unwrap();
    let at = |millis| Time::ZERO + Span::from_millis(millis);
    let heard = |stack: &mut Stack| -> Vec<(&'static str, u64)> {
        let events = std::iter::from_fn(|| stack.poll_event());
        events
            .filter_map(|event| if let StackEvent::User(way, at) = event { Some((way, at)) } else { None })
            .collect()
    };
    stack.raise(at(1), ASKED, &mut ());
    let now = at(1).as_nanos();
    let wanted =
        [("end of the handler", now), ("at once", now), ("end of the second handler", now), ("queued", now)];
    assert_eq!(heard(&mut stack), wanted);
    assert_eq!(stack.deadline().map(|deadline| deadline.at), Some(at(31)));
    stack.on_deadline(at(30));
    assert_eq!(heard(&mut stack), []);
    stack.on_deadline(at(31));
    assert_eq!(heard(&mut stack), [("later", at(31).as_nanos())]);
    assert!(stack.deadline().is_none());
}
