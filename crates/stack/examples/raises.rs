//! When the handlers of an event run that a micro-protocol raises: at once, when the present input has been handled, or
//! after a time. Run it with `cargo run -p haul-stack --example raises`.

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

/// The events, with what they carry. Whoever raises or handles them uses these constants.
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

/// Tells the stack's runner of each alarm, and when it came.
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

/// What the micro-protocols have told since the last time.
fn told(stack: &mut Stack) -> Vec<&'static str> {
    let events = from_fn(|| stack.poll_event());
    let texts = events.filter_map(|event| match event {
        StackEvent::User(text, micros) => Some((text, micros)),
        _ => None,
    });
    texts.inspect(|(text, micros)| println!("{micros:>6} us: {text}")).map(|(text, _)| text).collect()
}

/// Smoke at time zero, and what the alarm says then and at the stack's deadline.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut stack = stack()?;
    stack.raise(Time::ZERO, SMOKE, &mut ());
    if told(&mut stack) != ["at once", "the detector's handler ends", "queued"] {
        return Err("a queued event waits for the end of the input, and no longer".into());
    }
    // The stack reads no clock: whoever runs it waits until its deadline, and calls it then.
    let deadline = stack.deadline().ok_or("the delayed event has no timer")?;
    stack.on_deadline(deadline.at);
    if deadline.at != Time::ZERO + DELAY || told(&mut stack) != ["delayed"] {
        return Err("a delayed event comes after its delay".into());
    }
    Ok(())
}
