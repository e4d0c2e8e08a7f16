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

/// Associations by identity.
#[derive(Default)]
pub(super) struct Table {
    /// Boxed, because up to half of the places of a table are empty.
    pub(super) entries: HashMap<u32, Box<Entry>>,
}

impl Table {
    /// Adds one; false if its identity is taken.
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        let identity = entry.bond.identity;
        if self.entries.contains_key(&identity) {
            return false;
        }
        self.entries.insert(identity, Box::new(entry));
        true
    }

    pub(super) fn live(&self, identity: u32) -> Option<Arc<Inner>> {
        self.entries.get(&identity)?.live.clone()
    }

    /// Makes room for one more by forgetting the association that has been silent longest and has no flight.
    pub(super) fn make_room(&mut self, most: usize) {
        if self.entries.len() < most {
            return;
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.live.is_none());
        let oldest = idle.min_by_key(|(_, entry)| entry.last_used).map(|(&identity, _)| identity);
        if let Some(identity) = oldest {
            self.entries.remove(&identity);
        }
    }
}
