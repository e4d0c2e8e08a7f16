//! `sequenced_segment`: numbers new segments from 0 on; a repeated one keeps its number. Whoever acknowledges by bitmap
//! knows every number that has arrived and drops duplicates itself.

use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, MicroProtocol, Order, Registration, Resolution, U48,
};

/// See the module's text.
#[derive(Debug, Default)]
struct SequencedSegment {
    sequence: Option<Attribute<U48>>,
    next: u64,
}

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration::new("sequenced_segment", 1, "numbers segments", |_, _| {
        Ok(Box::new(SequencedSegment::default()))
    })
}

impl MicroProtocol for SequencedSegment {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.sequence = Some(declaration.attribute("sequence"));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        let sequence = self.sequence.expect("declared before it is used");
        for i in batch.live() {
            if !batch.is_resent(i) {
                batch.set(i, sequence, self.next);
                self.next += 1;
            }
        }
    }
}
