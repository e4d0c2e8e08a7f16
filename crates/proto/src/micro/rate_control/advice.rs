//! Input for the receiver's law when it decides how long the sender should pause: the state of its host.

use haul_base::HostSample;
use haul_stack::Context;

use crate::control::LocalHostSample;

/// Totals of this receiving end when last sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceivedTotals {
    host: HostSample,
    received: u64,
    socket_drops: u32,
}

impl ReceivedTotals {
    /// Returns the changes since the last sample, and stores the new totals.
    pub(super) fn sample(&mut self, host: Option<HostSample>, context: &Context<'_>) -> LocalHostSample {
        let (received, drops) = (context.stats().data_received, context.arrival().socket_drops);
        let changes = LocalHostSample {
            now: context.now(),
            host: host.map(|host| host.since(&self.host)),
            received: received - self.received,
            socket_drops: u64::from(drops.wrapping_sub(self.socket_drops)),
        };
        *self = Self { host: host.unwrap_or(self.host), received, socket_drops: drops };
        changes
    }
}
