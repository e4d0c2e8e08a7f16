//! Changes of a running recipe: from both ends at once, with lost and late packets; and micro-protocols that
//! panic where no handler runs.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod changes;
mod panics;
mod parts;
