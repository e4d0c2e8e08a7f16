//! Names by which micro-protocols find each other's declarations.

use std::fmt;
use std::marker::PhantomData;

/// Name of an attribute or an event. `H` is the handle that it resolves to: a `Name<Attribute<u32>>` finds an
/// [`Attribute<u32>`](crate::Attribute), a `Name<Event<Quota>>` an [`Event<Quota>`](crate::Event), a
/// `Name<BatchEvent>` a [`BatchEvent`](crate::BatchEvent). Within a stack, equal names of one kind mean the
/// same thing.
///
/// Declare names as constants and share them, so that a misspelt name or an argument of another type does not
/// compile:
///
/// ```
/// # use haul_stack::{Declaration, Event, Name};
/// const ALARM: Name<Event<u32>> = Name::new("alarm");
///
/// fn declare(declaration: &mut Declaration<'_>) -> Event<u32> {
///     declaration.event(ALARM)
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use haul_stack::{Declaration, Event, Name};
/// const ALARM: Name<Event<u32>> = Name::new("alarm");
///
/// fn declare(declaration: &mut Declaration<'_>) -> Event<u64> {
///     declaration.event(ALARM)
/// }
/// ```
pub struct Name<H> {
    text: &'static str,
    of_handle: PhantomData<fn() -> H>,
}

impl<H> Name<H> {
    /// Creates a name with this text.
    pub const fn new(text: &'static str) -> Self {
        Self { text, of_handle: PhantomData }
    }

    /// Returns the text.
    pub const fn text(self) -> &'static str {
        self.text
    }
}

impl<H> Clone for Name<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Name<H> {}

impl<H> fmt::Debug for Name<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({})", self.text)
    }
}
