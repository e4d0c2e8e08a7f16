//! `seal`: every packet is encrypted and authenticated with the session's keys; the clear attributes are
//! authenticated. The packet number is the nonce.

use super::stats::SealStats;
use haul_stack::{
    Batch, BatchEvent, Context, Declaration, MicroProtocol, Open, Order, ProtocolStats, Registration,
    Resolution, Seal,
};

#[derive(Debug)]
struct SealPackets {
    seal: Box<dyn Seal>,
    open: Box<dyn Open>,
    refused: u64,
}

pub(super) fn registration() -> Registration {
    Registration::new("seal", 1, "encrypts and authenticates every packet", |_, setup| {
        let keys = setup.keys.take().ok_or("this session has no keys; leave `seal` out or provide keys")?;
        Ok(Box::new(SealPackets { seal: keys.0, open: keys.1, refused: 0 }))
    })
}

impl MicroProtocol for SealPackets {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        declaration.tag(self.seal.tag_len());
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LAST);
        resolution.on_batch(BatchEvent::RAW_FROM_NET, Order::FIRST);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        let header = batch.layout().clear_len();
        if event == BatchEvent::SEGMENT_TO_NET {
            let (packets, stride, first_pn) = batch.sealable();
            self.seal.seal_batch(packets, stride, header, first_pn);
            return;
        }
        let least = header + batch.layout().tag_len();
        self.refused += batch.open_each(least, |packet, pn| self.open.open(packet, header, pn).is_ok());
    }

    fn release_idle(&mut self, _: &mut Context<'_>) {
        self.seal.release_idle();
        self.open.release_idle();
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&SealStats { refused: self.refused });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Machine;
    use haul_stack::{Recipe, SendOptions, Stack};
    use proptest::prelude::*;

    use crate::micro::testing::{Pair, T0, compiled, receive, setup};

    fn recipe() -> Recipe {
        Recipe::new("test").with("fixed_size").with("transport_driver").with("sequenced_segment").with("seal")
    }

    #[test]
    fn a_stack_requires_keys() {
        let mut bare = setup(true);
        bare.keys = None;
        let error = Stack::new(compiled(&recipe()), bare).unwrap_err().to_string();
        assert!(error.starts_with("seal: this session has no keys"), "{error}");
    }

    proptest! {
        #[test]
        fn one_changed_bit_loses_one_packet(bit in 0usize..8 * 200) {
            let mut pair = Pair::new(&recipe());
            pair.a.send(T0, &[7; 150], SendOptions::default()).unwrap();
            let mut slot = vec![0; 65_536];
            let sent = pair.a.poll_transmit(T0, &mut slot).unwrap();
            let mut damaged = slot[..sent.len].to_vec();
            let at = bit / 8 % sent.len;
            damaged[at] ^= 1 << (bit % 8);
            receive(&mut pair.b, T0, &mut damaged, sent.len);
            prop_assert!(pair.received_by_b().is_empty());
            prop_assert_eq!(pair.b.stats().unauthentic, 1);
            receive(&mut pair.b, T0, &mut slot[..sent.len], sent.len);
            prop_assert_eq!(pair.received_by_b(), [(0, vec![7; 150])]);
        }

        #[test]
        fn garbage_is_only_counted(noise in prop::collection::vec(any::<u8>(), 0..400), stride in 1usize..400) {
            let mut pair = Pair::new(&recipe());
            receive(&mut pair.b, T0, &mut noise.clone(), stride);
            prop_assert!(pair.received_by_b().is_empty() && !pair.b.has_failed());
            prop_assert_eq!(pair.b.stats().violations, 0);
        }
    }
}
