//! The micro-protocol trait.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::{Batch, Kind};
use crate::context::Context;
use crate::declaration::{Declaration, Resolution};
use crate::event::{BatchEvent, EventId};
use crate::message::{Delivery, Submission};
use crate::recipe::{Part, RecipeError};

/// One property of a transport. It declares what it adds to packets, binds handlers to events, and raises
/// events that others handle; it holds no reference to any of them.
///
/// Events that a handler raises reach all other micro-protocols bound to them, but not the one that raises
/// them.
pub trait MicroProtocol: Debug + Send {
    /// Declares attributes, kinds of control packets, shared values and events.
    fn declare(&mut self, declaration: &mut Declaration<'_>);

    /// Binds handlers and looks up other micro-protocols' declarations. When the recipe changes and this
    /// micro-protocol stays, it declares and binds again: all earlier handles are void.
    fn bind(&mut self, resolution: &mut Resolution<'_>);

    /// Called when the stack starts.
    fn on_start(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Handles a batch event that this micro-protocol is bound to.
    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let _ = (event, batch, context);
    }

    /// Handles an event with an argument that this micro-protocol is bound to.
    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let _ = (event, argument, context);
    }

    /// Handles a message from the user (MESSAGE FROM USER), before it is queued.
    fn on_submit(&mut self, submission: &mut Submission<'_>, context: &mut Context<'_>) {
        let _ = (submission, context);
    }

    /// Handles a message to the user (MESSAGE TO USER), before it is delivered.
    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, context: &mut Context<'_>) {
        let _ = (delivery, context);
    }

    /// Handles a received control packet of one of this micro-protocol's kinds: packet `i` of `batch`.
    fn on_control(&mut self, kind: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        let _ = (kind, context);
        batch.reject(i);
    }

    /// Handles a message of one of this micro-protocol's kinds from the control channel, which keeps the
    /// order of writing. Returns false if the message violates the recipe.
    fn on_channel(&mut self, kind: Kind, body: &[u8], context: &mut Context<'_>) -> bool {
        let _ = (kind, body, context);
        false
    }

    /// Called after [`Context::request_channel`] when the control channel accepts a message. Appends the body
    /// of at most one message to `out`, and returns its kind.
    fn write_channel(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> Option<Kind> {
        let _ = (out, context);
        None
    }

    /// Called after [`Context::request_control`] when a control packet can be sent. Adds at most one packet.
    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let _ = (batch, context);
    }

    /// Called when timer `timer` of this micro-protocol expires.
    fn on_timer(&mut self, timer: u8, context: &mut Context<'_>) {
        let _ = (timer, context);
    }

    /// Applies new parameters, all of which are explicit, in a running stack.
    ///
    /// # Errors
    /// If this micro-protocol cannot change its parameters while running.
    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let _ = (parameters, context);
        Err("its parameters cannot change while running".to_owned())
    }

    /// Number of packets or messages in flight or held that would be lost if the stack were dismantled now.
    fn unfinished(&self) -> usize {
        0
    }

    /// The part of [`MicroProtocol::unfinished`] that comes from the peer.
    fn unfinished_incoming(&self) -> usize {
        0
    }

    /// Frees memory kept for reuse, because nothing was received for a while.
    fn release_idle(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Passes this micro-protocol's counters to `report`, as a struct of its own type.
    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        let _ = report;
    }
}

/// Counters of a micro-protocol: any struct. A program that knows the type reads the fields
/// ([`of`](Self#method.of)); `Debug` shows their names and values to users.
pub trait ProtocolStats: Any + Debug + Send + Sync {
    /// Returns a copy of the counters.
    fn to_arc(&self) -> Arc<dyn ProtocolStats>;
}

impl<T: Any + Clone + Debug + Send + Sync> ProtocolStats for T {
    fn to_arc(&self) -> Arc<dyn ProtocolStats> {
        Arc::new(self.clone())
    }
}

impl dyn ProtocolStats {
    /// Returns the counters, if they are of this type.
    pub fn of<T: Any>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Returns the message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Runs foreign code, which may panic: micro-protocols, sinks, sources and wakers. Catches the panic.
/// Whatever `work` changes must be consistent wherever it may panic, or not be used afterwards.
///
/// # Errors
/// The message of the panic.
pub fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text_of(&*panic))
}

/// Runs code of a micro-protocol while a recipe is checked or a stack is built.
pub(crate) fn checked<R>(protocol: &str, work: impl FnOnce() -> R) -> Result<R, RecipeError> {
    caught(work).map_err(|text| {
        let message = format!("it panicked: {text}");
        RecipeError::Unbuildable { protocol: protocol.to_owned(), message }
    })
}
