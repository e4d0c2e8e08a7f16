//! Micro-protocols that handle one event twice.

/// Distinguishes two bindings of one micro-protocol to one event. Handlers run in order, so the calls
/// alternate.
#[derive(Debug, Default)]
pub(super) struct Turns {
    second: bool,
}

impl Turns {
    /// Whether this call is the one with the later order.
    pub(super) fn is_second(&mut self) -> bool {
        self.second = !self.second;
        !self.second
    }
}
