//! `transport_driver`: identifies the session of every packet, readable without keys.

use super::attributes::IDENTITY;
use super::stats::TransportDriverStats;
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, MicroProtocol, Order, ProtocolStats, Registration,
    Resolution,
};

/// Foreign packets are rejected before time is spent on opening them.
const CHECK: Order = Order(Order::FIRST.0 - 1);

#[derive(Debug)]
struct TransportDriver {
    identity: u32,
    attribute: Option<Attribute<u32>>,
    foreign: u64,
}

pub(super) fn registration() -> Registration {
    Registration {
        clear_bytes: 4,
        ..Registration::new("transport_driver", 1, "names the session in every packet", |_, setup| {
            Ok(Box::new(TransportDriver { identity: setup.identity, attribute: None, foreign: 0 }))
        })
    }
}

impl MicroProtocol for TransportDriver {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.attribute = Some(declaration.clear_attribute(IDENTITY));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_batch(BatchEvent::RAW_FROM_NET, CHECK);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        let attribute = self.attribute.expect("declared");
        if event == BatchEvent::SEGMENT_TO_NET {
            batch.set_all(attribute, self.identity);
            return;
        }
        let header = batch.layout().clear_len();
        let long_enough = batch.shortest() >= header;
        if long_enough && batch.values(attribute).all(|identity| identity == self.identity) {
            return;
        }
        for i in batch.live() {
            if batch.size(i) < header || batch.get(i, attribute) != self.identity {
                self.foreign += 1;
                batch.reject_unauthentic(i);
            }
        }
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&TransportDriverStats { foreign: self.foreign });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Machine;
    use haul_stack::{Recipe, SendOptions};

    use crate::micro::stats::TransportDriverStats;
    use crate::micro::testing::{Pair, Path, T0, compiled, receive, setup, stats};

    #[test]
    fn packets_of_other_sessions_and_truncated_ones_are_dropped() {
        let recipe = Recipe::new("test").with("fixed_size").with("transport_driver");
        let mut pair = Pair::new(&recipe);
        pair.a.send(T0, b"mine", SendOptions::default()).unwrap();
        pair.exchange(T0, &mut Path::default());
        assert_eq!(pair.received_by_b(), [(0, b"mine".to_vec())]);
        let mut other = setup(true);
        other.identity += 1;
        let mut stranger = haul_stack::Stack::new(compiled(&recipe), other).unwrap();
        stranger.send(T0, b"not mine", SendOptions::default()).unwrap();
        let mut slot = vec![0; 65_536];
        let sent = stranger.poll_transmit(T0, &mut slot).unwrap();
        for len in 0..=sent.len {
            receive(&mut pair.b, T0, &mut slot[..len].to_vec(), len);
        }
        assert!(pair.received_by_b().is_empty());
        assert!(pair.b.stats().unauthentic >= sent.len as u64);
        assert!(stats::<TransportDriverStats>(&pair.b).foreign > 0);
    }
}
