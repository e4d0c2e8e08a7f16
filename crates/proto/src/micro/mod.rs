//! Micro-protocols: one file each, one line each in [`registry`]. The framework is `haul-stack`; what they say to each
//! other is in [`events`].

pub mod events;

use haul_stack::Registry;

/// All micro-protocols of this project. Add your own with [`Registry::register`].
pub fn registry() -> Registry {
    Registry::empty()
}
