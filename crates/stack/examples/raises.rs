//! Three ways to raise an event, which run its handlers at once, when the current input has been handled, or
//! after a delay. Run it with `cargo run -p haul-stack --example raises`.

use std::any::Any;
use std::error::Error;
use std::iter::from_fn;
use std::sync::Arc;

use haul_base::{Machine, Span, Time};
use haul_stack::{
    Context, Declaration, Event, EventId, MicroProtocol, Name, Order, Recipe, Registration, Registry,
    Resolution, Setup, Stack, StackEvent,
};

const DELAY: Span = Span::from_millis(30);

/// Names of the events, with the types of their arguments. Everything that raises or handles them uses these
/// constants.
const SMOKE: Name<Event<()>> = Name::new("smoke");
const ALARM: Name<Event<&'static str>> = Name::new("alarm");

/// Raises the event `alarm` in each of the three ways when it handles `smoke`.
#[derive(Debug, Default)]
struct Detector {
    smoke: Option<Event<()>>,
    alarm: Option<Event<&'static str>>,
}

impl MicroProtocol for Detector {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.smoke = Some(declaration.event(SMOKE));
        self.alarm = Some(declaration.event(ALARM));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(self.smoke.expect("declared"), Order::NORMAL);
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        let alarm = self.alarm.expect("declared");
        context.raise_later(alarm, "delayed", DELAY);
        context.raise_queued(alarm, "queued");
        context.raise(alarm, &mut "at once");
        context.emit(StackEvent::User("the detector's handler ends", 0));
    }
}

/// Reports each alarm to the driver, and when it was raised.
#[derive(Debug, Default)]
struct Bell {
    alarm: Option<Event<&'static str>>,
}

impl MicroProtocol for Bell {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.alarm = Some(declaration.event(ALARM));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(self.alarm.expect("declared"), Order::NORMAL);
    }

    fn on_event(&mut self, event: EventId, raised: &mut dyn Any, context: &mut Context<'_>) {
        if let Some(how) = self.alarm.expect("declared").of(event, raised) {
            context.emit(StackEvent::User(how, context.now().since(Time::ZERO).as_micros()));
        }
    }
}

fn stack() -> Result<Stack, Box<dyn Error>> {
    let mut registry = Registry::empty();
    let detector = |_: &_, _: &mut _| Ok(Box::<Detector>::default() as Box<dyn MicroProtocol>);
    registry.register(Registration::new("detector", 1, "raises the alarm", detector));
    let bell = |_: &_, _: &mut _| Ok(Box::<Bell>::default() as Box<dyn MicroProtocol>);
    registry.register(Registration::new("bell", 1, "tells of alarms", bell));
    let recipe = Recipe::new("raises").with("detector").with("bell");
    Ok(Stack::new(Arc::new(registry).compile(&recipe, 0)?, Setup::new(Time::ZERO))?)
}

/// Reports of the micro-protocols since the last call.
fn told(stack: &mut Stack) -> Vec<&'static str> {
    let events = from_fn(|| stack.poll_event());
    let texts = events.filter_map(|event| match event {
        StackEvent::User(text, micros) => Some((text, micros)),
        _ => None,
    });
    texts.inspect(|(text, micros)| println!("{micros:>6} us: {text}")).map(|(text, _)| text).collect()
}

/// Raises `smoke` at time zero; prints the alarms then and at the stack's deadline.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut stack = stack()?;
    stack.raise(Time::ZERO, SMOKE, &mut ());
    if told(&mut stack) != ["at once", "the detector's handler ends", "queued"] {
        return Err("a queued event waits for the end of the input, and no longer".into());
    }
    // The stack reads no clock: the driver waits until its deadline, then calls it.
    let deadline = stack.deadline().ok_or("the delayed event has no timer")?;
    stack.on_deadline(deadline.at);
    if deadline.at != Time::ZERO + DELAY || told(&mut stack) != ["delayed"] {
        return Err("a delayed event comes after its delay".into());
    }
    Ok(())
}
