//! The receiving end's law says for how long the sender should pause.

use haul_base::HostSample;
use haul_stack::Context;

use super::RateControl;
use crate::control::OwnHost;
use crate::micro::events::Pause;

/// What this end, which receives, was found to be when it was looked at last: totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    host: HostSample,
    received: u64,
    socket_drops: u32,
}

impl RateControl {
    /// At the receiving end: lets the law say for how long the sender should pause.
    pub(super) fn advise(&mut self, host: Option<HostSample>, context: &mut Context<'_>) {
        let Some(before) = &mut self.looked else { return };
        let (received, drops) = (context.stats().data_received, context.arrival().socket_drops);
        let look = OwnHost {
            now: context.now(),
            host: host.map(|host| host.since(&before.host)),
            received: received - before.received,
            socket_drops: u64::from(drops.wrapping_sub(before.socket_drops)),
        };
        *before = Looked { host: host.unwrap_or(before.host), received, socket_drops: drops };
        if let Some(lasts) = self.controller.advise(&look) {
            context.raise(self.bindings().pause_wanted, &mut Pause(lasts));
        }
        self.schedule(context);
    }
}
