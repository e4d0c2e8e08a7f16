//! What a micro-protocol is.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::{Batch, Kind};
use crate::context::Context;
use crate::declaration::{Declaration, Resolution};
use crate::event::{BatchEvent, EventId};
use crate::message::{Delivery, Submission};
use crate::recipe::{Parameters, RecipeError};

/// One property of a transport. It declares what it adds to packets, binds handlers to events, and raises events
/// that others handle; it holds no reference to any of them.
///
/// While a handler runs, events that it raises reach all the others that are bound to them, not itself.
pub trait MicroProtocol: Debug + Send {
    /// Declares attributes, kinds of control packets, shared values, events.
    fn declare(&mut self, declaration: &mut Declaration<'_>);

    /// Binds handlers and looks up what others have declared. When the recipe changes and this micro-protocol stays, it
    /// declares and binds again: whatever it had looked up or been given before is void.
    fn bind(&mut self, resolution: &mut Resolution<'_>);

    /// The stack starts.
    fn on_start(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// An event with a batch that this micro-protocol is bound to.
    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let _ = (event, batch, context);
    }

    /// An event with an argument that this micro-protocol is bound to.
    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let _ = (event, argument, context);
    }

    /// A message from the user (MESSAGE FROM USER), before it is queued.
    fn on_submit(&mut self, submission: &mut Submission<'_>, context: &mut Context<'_>) {
        let _ = (submission, context);
    }

    /// A message for the user (MESSAGE TO USER), before the user gets it.
    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, context: &mut Context<'_>) {
        let _ = (delivery, context);
    }

    /// A control packet of one of this micro-protocol's kinds has come; packet `i` of `batch`.
    fn on_control(&mut self, kind: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let _ = (kind, context);
        batch.reject(i);
    }

    /// A message of one of this micro-protocol's kinds has come over the control channel, behind all that were written
    /// before it. False if it breaks the recipe.
    fn on_channel(&mut self, kind: Kind, body: &[u8], context: &mut Context<'_>) -> bool {
        let _ = (kind, body, context);
        false
    }

    /// The control channel has room: asked for with [`Context::want_channel`]. Writes the body of at most one message
    /// behind what `out` holds, and gives its kind.
    fn write_channel(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> Option<Kind> {
        let _ = (out, context);
        None
    }

    /// A control packet may leave: asked for with [`Context::want_control`]. Adds at most one packet.
    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let _ = (batch, context);
    }

    /// The timer `timer` of this micro-protocol has run out.
    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        let _ = (timer, context);
    }

    /// New parameters in a running stack.
    ///
    /// # Errors
    /// If this micro-protocol cannot change them while running.
    fn on_parameters(&mut self, parameters: &Parameters, context: &mut Context<'_>) -> Result<(), String> {
        let _ = (parameters, context);
        Err("it takes no new parameters while running".to_owned())
    }

    /// How much is on its way or held that would be lost if the stack were taken apart now, in packets or messages.
    fn unfinished(&self) -> usize {
        0
    }

    /// How much of [`MicroProtocol::unfinished`] has come from the other side.
    fn unfinished_incoming(&self) -> usize {
        0
    }

    /// Nothing has come for a while: memory that is kept for what may come next can be given back.
    fn release_idle(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Tells what it has counted, as a struct of its own.
    fn statistics(&self, tell: &mut dyn FnMut(&dyn ProtocolStats)) {
        let _ = tell;
    }
}

/// What a micro-protocol has counted: any struct. A program that knows its type reads the fields
/// ([`of`](Self#method.of)); `Debug` shows people their names and values.
pub trait ProtocolStats: Any + Debug + Send + Sync {
    /// A copy to keep.
    fn to_arc(&self) -> Arc<dyn ProtocolStats>;
}

impl<T: Any + Clone + Debug + Send + Sync> ProtocolStats for T {
    fn to_arc(&self) -> Arc<dyn ProtocolStats> {
        Arc::new(self.clone())
    }
}

impl dyn ProtocolStats {
    /// These counters, if they are of this type.
    pub fn of<T: Any>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Runs code of others, which may panic: micro-protocols, sinks, sources and wakers. A panic does not end the thread.
/// What `work` changes must be consistent wherever it may panic, or not be used afterwards.
///
/// # Errors
/// The text of the panic.
pub fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text_of(&*panic))
}

/// Lets a micro-protocol do something while a recipe is checked or a stack is made of it.
pub(crate) fn checked<R>(protocol: &str, work: impl FnOnce() -> R) -> Result<R, RecipeError> {
    caught(work).map_err(|text| {
        let message = format!("it panicked: {text}");
        RecipeError::Unbuildable { protocol: protocol.to_owned(), message }
    })
}
