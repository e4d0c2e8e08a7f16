//! What the receiving end's law is told of its host when it says for how long the sender should pause.

use haul_base::HostSample;
use haul_stack::Context;

use crate::control::OwnHost;

/// What this end, which receives, was found to be when it was looked at last: totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    host: HostSample,
    received: u64,
    socket_drops: u32,
}

impl Looked {
    /// What has happened since it was looked at last; what is found now is kept.
    pub(super) fn again(&mut self, host: Option<HostSample>, context: &Context<'_>) -> OwnHost {
        let (received, drops) = (context.stats().data_received, context.arrival().socket_drops);
        let look = OwnHost {
            now: context.now(),
            host: host.map(|host| host.since(&self.host)),
            received: received - self.received,
            socket_drops: u64::from(drops.wrapping_sub(self.socket_drops)),
        };
        *self = Self { host: host.unwrap_or(self.host), received, socket_drops: drops };
        look
    }
}
