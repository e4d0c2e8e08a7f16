//! Verdicts of the published congestion discriminators on a session's losses, from the times at which packets
//! are sent and reach the receiver's kernel.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use haul_base::Time;
use haul_diagnosis::{Discriminator, Discriminators};
use haul_sim::{Exit, FlowId, Place, TraceEvent};

/// The packets of one flow, observed during a run.
#[derive(Clone, Debug)]
pub(super) struct Watched(Arc<Mutex<Watch>>);

#[derive(Debug)]
struct Watch {
    flow: FlowId,
    /// Number of the first packet of each batch in transit, and its sending time.
    under_way: HashMap<u64, (u64, Time)>,
    next: u64,
    discriminators: Discriminators,
    lost: u64,
    /// Losses that each discriminator attributes to congestion.
    congestion: [u64; Discriminator::ALL.len()],
}

impl Watched {
    /// Observes the packets of `flow`.
    pub(super) fn of(flow: FlowId) -> Self {
        Self(Arc::new(Mutex::new(Watch {
            flow,
            under_way: HashMap::new(),
            next: 0,
            discriminators: Discriminators::default(),
            lost: 0,
            congestion: [0; Discriminator::ALL.len()],
        })))
    }

    /// Processes a trace event.
    pub(super) fn on_event(&self, event: &TraceEvent<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).on_event(event);
    }

    /// Returns the share of lost packets that each attributes to congestion; empty without losses.
    pub(super) fn shares(&self) -> BTreeMap<&'static str, f64> {
        let watch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = Discriminator::ALL.into_iter().zip(watch.congestion);
        each.filter(|_| watch.lost > 0)
            .map(|(which, called)| (which.name(), called as f64 / watch.lost as f64))
            .collect()
    }
}

impl Watch {
    fn on_event(&mut self, event: &TraceEvent<'_>) {
        if event.parcel.flow() != self.flow || event.exit != Exit::Delivered {
            return;
        }
        match event.place {
            // A batch reuses an identifier only when all packets of the previous batch are gone.
            Place::Source(_) => {
                self.under_way.insert(event.parcel.id(), (self.next, event.at));
                self.next += u64::from(event.parcel.packets());
            }
            Place::Node(_) => self.on_arrival(event),
            Place::Link(_) | Place::Host(_) => {}
        }
    }

    fn on_arrival(&mut self, event: &TraceEvent<'_>) {
        let Some(&(first, sent)) = self.under_way.get(&event.parcel.id()) else { return };
        let arrived = event.arrived.since(Time::ZERO).as_secs_f64();
        let trip = event.arrived.since(sent).as_secs_f64();
        for index in event.parcel.indices() {
            let Some(classified) = self.discriminators.on_arrival(first + index as u64, arrived, trip) else {
                continue;
            };
            self.lost += classified.lost;
            for (called, is_congestion) in self.congestion.iter_mut().zip(classified.is_congestion) {
                *called += if is_congestion { classified.lost } else { 0 };
            }
        }
    }
}
