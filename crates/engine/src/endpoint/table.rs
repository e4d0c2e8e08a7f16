//! The associations of an endpoint.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use haul_base::{Span, Time};
use haul_stack::Blueprint;
use haul_wire::control::Cipher;

use super::inner::Inner;
use crate::crypto::TicketSecret;

/// What both ends know of an association.
#[derive(Clone, Debug)]
pub(crate) struct Bond {
    pub(crate) identity: u32,
    pub(crate) secret: TicketSecret,
    pub(crate) cipher: Cipher,
    pub(crate) blueprint: Arc<Blueprint>,
    /// First estimate of the round trip.
    pub(crate) round_trip: Span,
}

/// An association and its present flight.
pub(super) struct Entry {
    pub(super) bond: Bond,
    /// Epoch of the latest flight; earlier ones are not taken any more.
    pub(super) last_epoch: u64,
    pub(super) live: Option<Arc<Inner>>,
    pub(super) last_used: Time,
    /// Where the client of a flight was that this end has closed: a late goodbye of it is answered there.
    pub(super) last_peer: Option<Box<SocketAddr>>,
    /// The client's address that is known to be its own: a flight from there needs no challenge.
    pub(super) proven: Option<IpAddr>,
}

/// Why an association was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdded {
    /// Another one has its identity.
    Taken,
    /// There are as many as there may be, and all of them have flights.
    Full,
}

/// Associations by identity.
pub(super) struct Table {
    /// Boxed, because up to half of the places of a table are empty.
    pub(super) entries: HashMap<u32, Box<Entry>>,
    /// Most entries.
    most: usize,
}

impl Table {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: HashMap::new(), most }
    }

    /// Adds one. If there are too many, the one without a flight that has been silent longest is forgotten for it.
    pub(super) fn insert(&mut self, entry: Entry) -> Result<(), NotAdded> {
        let identity = entry.bond.identity;
        if self.entries.contains_key(&identity) {
            return Err(NotAdded::Taken);
        }
        if !self.has_room() {
            return Err(NotAdded::Full);
        }
        self.entries.insert(identity, Box::new(entry));
        Ok(())
    }

    pub(super) fn live(&self, identity: u32) -> Option<Arc<Inner>> {
        self.entries.get(&identity)?.live.clone()
    }

    /// Whether there is room for one more, if need be after forgetting one.
    fn has_room(&mut self) -> bool {
        if self.entries.len() < self.most {
            return true;
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.live.is_none());
        let oldest = idle.min_by_key(|(_, entry)| entry.last_used).map(|(&identity, _)| identity);
        oldest.is_some_and(|identity| self.entries.remove(&identity).is_some())
    }
}
