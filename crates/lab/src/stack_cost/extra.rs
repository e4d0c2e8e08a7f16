//! Micro-protocols that only add cost, and stacks with them.

use std::error::Error;
use std::sync::{Arc, LazyLock};

use haul_base::{Bytes, Time};
use haul_proto::config::FixedSizeConfig;
use haul_proto::micro;
use haul_proto::micro::attributes::MESSAGE;
use haul_stack::{
    Attribute, Batch, BatchEvent, Configuration as _, Context, Declaration, Ends, MessageSink, MessageSource,
    MicroProtocol, Name, Order, Part, ProtocolStats, Recipe, Registration, Registry, Resolution, Setup,
    Stack, configuration,
};

use super::modes::{Extra, Messages};

/// UDP payload of a 1,500-byte IP packet.
const DATAGRAM: u16 = 1_472;

/// Maximum number of extra events, attributes or copies.
const MOST: u64 = 64;

configuration! {
    /// Parameters of each of these micro-protocols.
    struct CountConfig: "extra" {
        count: usize in (0, MOST) = "1", "how many";
    }
}

/// Names of the extra events or attributes.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| (0..MOST).map(|n| format!("extra {n}")).collect());

fn extra_events(count: usize, declaration: &mut Declaration<'_>) -> Vec<BatchEvent> {
    NAMES.iter().take(count).map(|name| declaration.batch_event(Name::new(name))).collect()
}

/// Raises extra events with every batch, each of which a [`Reader`] handles.
#[derive(Debug)]
struct EventRaiser {
    events: Vec<BatchEvent>,
    count: usize,
}

impl MicroProtocol for EventRaiser {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.events = extra_events(self.count, declaration);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        for &event in &self.events {
            context.raise_batch(event, batch);
        }
    }
}

/// Reads an attribute of every packet in every extra event.
#[derive(Debug)]
struct Reader {
    events: Vec<BatchEvent>,
    count: usize,
    attribute: Option<Attribute<u32>>,
    sum: u64,
}

impl MicroProtocol for Reader {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.events = extra_events(self.count, declaration);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.attribute = Some(resolution.attribute(MESSAGE));
        for &event in &self.events {
            resolution.on_batch(event, Order::NORMAL);
        }
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        let Some(attribute) = self.attribute else { return };
        self.sum = self.sum.wrapping_add(batch.values(attribute).map(u64::from).sum());
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.sum);
    }
}

fn sum(values: [u32; 7]) -> u64 {
    values.into_iter().map(u64::from).sum()
}

/// Writes extra attributes at the sender and reads them at the receiver.
#[derive(Debug)]
struct Attributes {
    places: Vec<Attribute<u32>>,
    count: usize,
    sum: u64,
}

impl MicroProtocol for Attributes {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.places =
            NAMES.iter().take(self.count).map(|name| declaration.attribute(Name::new(name))).collect();
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        // Seven per pass, as H-CTP measured.
        let (groups_of_seven, singles) = self.places.as_chunks::<7>();
        if event == BatchEvent::SEGMENT_FROM_USER {
            for &seven in groups_of_seven {
                batch.set_each(0..batch.len(), seven, |i| [i as u32; 7]);
            }
            for &attribute in singles {
                batch.set_each(0..batch.len(), attribute, |i| i as u32);
            }
            return;
        }
        let seven = groups_of_seven.iter().map(|&seven| batch.values(seven).map(sum).sum::<u64>());
        let single = singles.iter().map(|&attribute| batch.values(attribute).map(u64::from).sum::<u64>());
        self.sum = self.sum.wrapping_add(seven.chain(single).sum());
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&self.sum);
    }
}

/// Copies every payload to a separate buffer, at both ends.
#[derive(Debug)]
struct Copies {
    count: usize,
    copy: Vec<u8>,
}

impl MicroProtocol for Copies {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::NORMAL);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::NORMAL);
    }

    fn on_batch(&mut self, _: BatchEvent, batch: &mut Batch<'_>, _: &mut Context<'_>) {
        for _ in 0..self.count {
            for i in batch.live() {
                let range = batch.payload_range(i);
                self.copy[..range.len()].copy_from_slice(batch.payload(i));
                std::hint::black_box(&mut self.copy);
            }
        }
    }
}

fn registry() -> Registry {
    let mut registry = micro::registry();
    registry.register(Registration {
        parameters: CountConfig::PARAMETERS,
        ..Registration::new("raiser", 1, "raises further events", |parameters, _| {
            let CountConfig { count } = parameters.read();
            Ok(Box::new(EventRaiser { events: Vec::new(), count }))
        })
    });
    registry.register(Registration {
        parameters: CountConfig::PARAMETERS,
        ..Registration::new("reader", 1, "reads an attribute in each of them", |parameters, _| {
            let CountConfig { count } = parameters.read();
            Ok(Box::new(Reader { events: Vec::new(), count, attribute: None, sum: 0 }))
        })
    });
    registry.register(Registration {
        parameters: CountConfig::PARAMETERS,
        ..Registration::new("attributes", 1, "writes and reads further attributes", |parameters, _| {
            let CountConfig { count } = parameters.read();
            Ok(Box::new(Attributes { places: Vec::new(), count, sum: 0 }))
        })
    });
    registry.register(Registration {
        parameters: CountConfig::PARAMETERS,
        ..Registration::new("copies", 1, "copies payloads", |parameters, _| {
            let CountConfig { count } = parameters.read();
            Ok(Box::new(Copies { count, copy: vec![0; 65_536] }))
        })
    });
    registry
}

/// Endless messages of one size; their bytes are whatever the packet buffer holds.
struct EndlessSource(usize);

impl MessageSource for EndlessSource {
    fn next(&mut self, _: Time, into: &mut [u8]) -> Option<usize> {
        (into.len() >= self.0).then_some(self.0)
    }

    fn message_len(&self) -> usize {
        self.0
    }
}

/// Counts received message bytes.
#[derive(Clone, Default)]
pub(super) struct Counter(pub(super) Arc<std::sync::atomic::AtomicU64>);

impl MessageSink for Counter {
    fn message(&mut self, _: Time, _: u64, data: &[u8]) {
        // Only this thread writes.
        let before = self.0.load(std::sync::atomic::Ordering::Relaxed);
        self.0.store(before + data.len() as u64, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns the base recipe with the extra micro-protocols.
fn recipe(extra: Extra) -> Recipe {
    let mut recipe = Recipe::new("base")
        .with("transport_driver")
        .with(FixedSizeConfig { max_message: Bytes(1 << 20), reassembly: Bytes(16 << 20) });
    for (name, count) in [
        ("raiser", extra.raises),
        ("reader", extra.raises),
        ("attributes", extra.attributes),
        ("copies", extra.copies),
    ] {
        if count > 0 {
            recipe = recipe.with(Part::from(name).with(&CountConfig { count }));
        }
    }
    recipe
}

/// Creates a stack that sends messages of `size` bytes, or receives them into `counter`.
pub(super) fn stack(extra: Extra, size: Option<usize>, counter: Counter) -> Result<Stack, Box<dyn Error>> {
    let compiled = Arc::new(registry()).compile(&recipe(extra), 0)?;
    let mut ends = Ends::default();
    match size {
        Some(size) if extra.messages == Messages::Pulled => {
            ends.message_source = Some(Box::new(EndlessSource(size)));
        }
        Some(_) => {}
        None => ends.message_sink = Some(Box::new(counter)),
    }
    let setup =
        Setup { identity: 7, datagram: DATAGRAM, initiator: size.is_some(), ends, ..Setup::new(Time::ZERO) };
    let mut stack = Stack::new(compiled, setup)?;
    if extra.messages == Messages::PushedUnpooled {
        stack.set_pooled_buffers(0);
    }
    Ok(stack)
}
