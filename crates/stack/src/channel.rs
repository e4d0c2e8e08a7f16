//! Micro-protocols' messages over the session's control channel, which is reliable and ordered: a kind and a
//! body, without packet number or tag, which the channel does not need.

use haul_base::Time;

use crate::batch::Kind;
use crate::stack::Stack;

impl Stack {
    /// Writes one message: of the first micro-protocol in the recipe that has requested it.
    pub(crate) fn write_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        while self.core.channel_wanted != 0 {
            let owner = self.core.channel_wanted.trailing_zeros() as u8;
            self.core.channel_wanted &= self.core.channel_wanted - 1;
            let (start, mut kind) = (out.len(), None);
            out.push(0);
            self.context(now).run(owner, |protocol, context| kind = protocol.write_channel(out, context));
            if let Some(Kind(kind)) = kind {
                out[start] = kind;
                self.core.stats.control_sent += 1;
                return true;
            }
            out.truncate(start);
        }
        false
    }

    /// Delivers a message to the owner of its kind.
    pub(crate) fn take_channel(&mut self, now: Time, message: &[u8]) {
        let known = message.split_first().and_then(|(&kind, body)| {
            let owner = self.compiled.tables.kinds.iter().find(|known| known.0 == Kind(kind))?.1;
            Some((Kind(kind), owner, body))
        });
        let mut understood = false;
        if let Some((kind, owner, body)) = known {
            self.context(now).run(owner, |protocol, context| {
                understood = protocol.on_channel(kind, body, context);
            });
        }
        self.core.stats.control_received += u64::from(understood);
        self.core.stats.violations += u64::from(!understood);
        self.check_violations(message.first().copied().map(Kind));
    }
}
