//! Micro-protocols: one file each, one line each in [`registry`]. The framework is `haul-stack`; what they say to each
//! other is in [`events`], what they share in [`shared`].

mod bitmap_ack;
pub mod events;
mod liveness;
mod object;
mod path_mtu;
mod rate_control;
mod retransmit;
mod seal;
mod sequenced_segment;
pub mod shared;

use haul_stack::Registry;

/// All micro-protocols of this project. Add your own with [`Registry::register`].
pub fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.register(sequenced_segment::registration());
    registry.register(object::registration());
    registry.register(bitmap_ack::registration());
    registry.register(retransmit::registration());
    registry.register(rate_control::registration());
    registry.register(path_mtu::registration());
    registry.register(liveness::registration());
    registry.register(seal::registration());
    registry
}

/// Tells the two calls of a handler apart that is bound twice to the same event.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    second: bool,
}

impl Turns {
    /// Whether this call is the one with the later order.
    fn is_second(&mut self) -> bool {
        self.second = !self.second;
        !self.second
    }
}
