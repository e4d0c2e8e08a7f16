//! `seal`: encrypts and authenticates every packet with the session's keys. Last before the net, first behind it.

use haul_stack::{
    Batch, BatchEvent, Context, Declaration, MicroProtocol, Open, Order, Registration, Resolution,
    Seal as Keys, Setup,
};

/// See the module's text.
#[derive(Debug)]
struct Seal {
    seal: Box<dyn Keys>,
    open: Box<dyn Open>,
}

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration::new("seal", 1, "encrypts and authenticates every packet", |_, setup: &mut Setup| {
        let (seal, open) = setup.keys.take().ok_or("the session has no keys")?;
        Ok(Box::new(Seal { seal, open }))
    })
}

impl MicroProtocol for Seal {
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
        for i in batch.live() {
            let pn = batch.pn(i);
            if self.open.open(batch.packet_mut(i), header, pn).is_err() {
                batch.reject_unauthentic(i);
            }
        }
    }
}
