//! Typed parameters of micro-protocols and control laws, for [`Recipe::with`](haul_stack::Recipe::with) and
//! [`Recipe::configuration`](haul_stack::Recipe::configuration).

pub use crate::control::config::*;
pub use crate::diagnosis::Evidence;
pub use crate::micro::config::*;
