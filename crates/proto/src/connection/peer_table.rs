//! An endpoint's peers: their resumption state and current connections.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[cfg(not(test))]
use haul_base::Time;
use haul_wire::control::{Fault, FaultCode};
use haul_wire::packet::ConnectionId;

#[cfg(test)]
use super::counted_time::Time;
use super::resumption::ResumptionState;
use super::{ResumptionSecret, Role};

/// Resumption state of a peer and its current connection `C`.
#[derive(Debug)]
pub struct Peer<C> {
    /// State from which its connections are opened.
    pub resumption: ResumptionState,
    /// Epoch of the latest connection; packets of earlier epochs are refused.
    pub last_epoch: u64,
    /// The current connection.
    pub live: Option<Arc<C>>,
    /// When a connection last began or ended.
    pub last_used: Time,
    /// Client's address when this end closed the connection: a late close is answered there.
    pub last_peer: Option<Box<SocketAddr>>,
    /// Client's validated address: a connection from there needs no challenge.
    pub validated: Option<IpAddr>,
}

impl<C> Peer<C> {
    /// Creates a peer without a connection; `validated` is the client's known address.
    pub fn new(resumption: ResumptionState, now: Time, validated: Option<IpAddr>) -> Self {
        Self { resumption, last_epoch: 0, live: None, last_used: now, last_peer: None, validated }
    }
}

/// Why a peer was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The identity is taken.
    IdentityTaken,
    /// The table is full, and all peers have connections.
    Full,
}

impl AddError {
    /// Returns the fault to send to the client.
    pub fn fault(self) -> Fault {
        let message = match self {
            Self::IdentityTaken => "the identity is taken",
            Self::Full => "the server cannot accept another client",
        };
        Fault::new(FaultCode::Busy, message, "")
    }
}

/// The peers of an endpoint by identity.
#[derive(Debug)]
pub struct PeerTable<C> {
    /// Boxed, because up to half of a hash table's slots are empty.
    entries: HashMap<u32, Box<Peer<C>>>,
    /// Peers without a connection by last use: when the table is full, the first is evicted.
    idle: BTreeSet<(Time, u32)>,
    most: usize,
}

impl<C> PeerTable<C> {
    /// Creates a table for at most `most` peers.
    pub fn new(most: usize) -> Self {
        Self { entries: HashMap::new(), idle: BTreeSet::new(), most }
    }

    /// Returns the number of peers.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the peer with this identity.
    pub fn get(&self, identity: u32) -> Option<&Peer<C>> {
        self.entries.get(&identity).map(|entry| &**entry)
    }

    /// Returns the peer's current connection.
    pub fn live(&self, identity: u32) -> Option<Arc<C>> {
        self.get(identity)?.live.clone()
    }

    /// Adds a peer. If the table is full, evicts the peer without a connection that was idle longest.
    ///
    /// # Errors
    /// Why it was not added.
    pub fn insert(&mut self, peer: Peer<C>) -> Result<(), AddError> {
        let identity = peer.resumption.identity;
        if self.entries.contains_key(&identity) {
            return Err(AddError::IdentityTaken);
        }
        if !self.has_space() {
            return Err(AddError::Full);
        }
        if peer.live.is_none() {
            self.idle.insert((peer.last_used, identity));
        }
        self.entries.insert(identity, Box::new(peer));
        Ok(())
    }

    /// Removes a peer.
    pub fn remove(&mut self, identity: u32) {
        if let Some(entry) = self.entries.remove(&identity) {
            self.idle.remove(&(entry.last_used, identity));
        }
    }

    /// Removes the client that shares `secret` with this endpoint; false if the server was another endpoint.
    pub fn remove_own_client(&mut self, identity: u32, secret: &ResumptionSecret) -> bool {
        let is_match = |it: &Peer<C>| it.resumption.role == Role::Server && it.resumption.secret == *secret;
        let exists = self.get(identity).is_some_and(is_match);
        if exists {
            self.remove(identity);
        }
        exists
    }

    /// Removes all peers and returns their connections.
    pub fn clear(&mut self) -> Vec<Arc<C>> {
        self.idle.clear();
        self.entries.drain().filter_map(|(_, entry)| entry.live).collect()
    }

    /// Sets the peer's new connection; returns the previous one if it has not ended.
    pub fn begin(&mut self, now: Time, id: ConnectionId, connection: Arc<C>) -> Option<Arc<C>> {
        let ConnectionId { identity, epoch, .. } = id;
        let entry = self.entries.get_mut(&identity)?;
        self.idle.remove(&(entry.last_used, identity));
        entry.last_epoch = epoch;
        entry.last_used = now;
        entry.live.replace(connection)
    }

    /// Adds a peer with its first connection. If the peer exists already, sets its new connection, and
    /// returns the previous one if it has not ended.
    ///
    /// # Errors
    /// Why it was not added.
    pub fn insert_or_begin(
        &mut self,
        now: Time,
        id: ConnectionId,
        peer: Peer<C>,
    ) -> Result<Option<Arc<C>>, AddError> {
        let ours = &peer.resumption;
        let is_same = |it: &&Peer<C>| it.resumption.role == ours.role && it.resumption.secret == ours.secret;
        match (self.get(ours.identity).filter(is_same), &peer.live) {
            (Some(_), Some(live)) => Ok(self.begin(now, id, live.clone())),
            _ => self.insert(peer).map(|()| None),
        }
    }

    /// Records the end of a connection with the client at `address`. Returns whether it was the current one.
    pub fn end(
        &mut self,
        now: Time,
        identity: u32,
        connection: &Arc<C>,
        address: Option<SocketAddr>,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(&identity) else { return false };
        let ended = entry.live.take_if(|live| Arc::ptr_eq(live, connection)).is_some();
        if ended {
            entry.last_used = now;
            entry.last_peer = address.map(Box::new);
            entry.validated = address.map(|address| address.ip().to_canonical()).or(entry.validated);
            self.idle.insert((now, identity));
        }
        ended
    }

    /// Whether another peer can be added, after evicting an idle one if necessary.
    fn has_space(&mut self) -> bool {
        if self.entries.len() < self.most {
            return true;
        }
        let oldest = self.idle.pop_first();
        oldest.is_some_and(|(_, identity)| self.entries.remove(&identity).is_some())
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;
    use haul_stack::{CompiledStack, Recipe};
    use haul_wire::control::Cipher;
    use proptest::prelude::*;

    use super::*;
    use crate::connection::counted_time::comparisons;
    use crate::micro::registry;

    const MAX_PER_ADDRESS: usize = 5;

    /// Creates peers of one compiled stack; a connection is its epoch.
    struct Maker(Arc<CompiledStack>);

    impl Maker {
        fn new() -> Self {
            let recipe = Recipe::new("test").with("fixed_size").with("transport_driver").with("seal");
            Self(Arc::new(registry()).compile(&recipe, 16).unwrap())
        }

        fn peer(&self, identity: u32, last_used: Time) -> Peer<u64> {
            let (secret, round_trip) = (ResumptionSecret([1; 32].into()), Span::from_millis(1));
            let (cipher, compiled) = (Cipher::Aes128Gcm, self.0.clone());
            let resumption =
                ResumptionState { role: Role::Server, identity, secret, cipher, compiled, round_trip };
            Peer::new(resumption, last_used, None)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Begin(u32),
        End(u32),
        Remove(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let identity = 0..8_u32;
        prop_oneof![
            3 => identity.clone().prop_map(Step::Insert),
            2 => identity.clone().prop_map(Step::Begin),
            2 => identity.clone().prop_map(Step::End),
            1 => identity.prop_map(Step::Remove),
        ]
    }

    /// Reference model: a list with the most recently used peer last.
    #[derive(Default)]
    struct Plain(Vec<(u32, Option<Arc<u64>>)>);

    impl Plain {
        fn place(&self, identity: u32) -> Option<usize> {
            self.0.iter().position(|known| known.0 == identity)
        }

        fn use_again(&mut self, identity: u32, live: Option<Arc<u64>>) {
            if let Some(place) = self.place(identity) {
                self.0.remove(place);
                self.0.push((identity, live));
            }
        }

        fn insert(&mut self, identity: u32) -> Result<(), AddError> {
            if self.place(identity).is_some() {
                return Err(AddError::IdentityTaken);
            }
            if self.0.len() == MAX_PER_ADDRESS {
                let idle = self.0.iter().position(|known| known.1.is_none()).ok_or(AddError::Full)?;
                self.0.remove(idle);
            }
            self.0.push((identity, None));
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn the_longest_silent_peer_is_evicted(steps in proptest::collection::vec(step(), 1..60)) {
            let maker = Maker::new();
            let (mut table, mut plain) = (PeerTable::new(MAX_PER_ADDRESS), Plain::default());
            for (number, step) in (1..).zip(steps) {
                let now = Time::ZERO + Span::from_millis(number);
                match step {
                    Step::Insert(identity) => {
                        prop_assert_eq!(table.insert(maker.peer(identity, now)), plain.insert(identity));
                    }
                    Step::Begin(identity) => {
                        let connection = Arc::new(number);
                        let id = ConnectionId { identity, epoch: number, salt: 0 };
                        table.begin(now, id, connection.clone());
                        plain.use_again(identity, Some(connection));
                    }
                    Step::End(identity) => {
                        if let Some(connection) = table.live(identity) {
                            let mut end = || table.end(now, identity, &connection, None);
                            prop_assert!(end() && !end());
                            plain.use_again(identity, None);
                        }
                    }
                    Step::Remove(identity) => {
                        table.remove(identity);
                        plain.0.retain(|known| known.0 != identity);
                    }
                }
                prop_assert_eq!(table.count(), plain.0.len());
                for (identity, live) in &plain.0 {
                    let same = match (table.live(*identity), live) {
                        (Some(one), Some(other)) => Arc::ptr_eq(&one, other),
                        (one, other) => one.is_none() && other.is_none(),
                    };
                    prop_assert!(same && table.get(*identity).is_some());
                }
            }
            let connections = plain.0.iter().filter(|known| known.1.is_some()).count();
            prop_assert_eq!((table.clear().len(), table.count()), (connections, 0));
        }
    }

    /// Adds 100 peers to a full table of idle ones; returns how often times were compared.
    fn comparisons_of_evictions(most: u32) -> u64 {
        const NEW: u32 = 100;
        let (maker, mut table) = (Maker::new(), PeerTable::new(most as usize));
        let mut insert = |identities: std::ops::Range<u32>| {
            let before = comparisons();
            for identity in identities {
                let now = Time::ZERO + Span::from_millis(u64::from(identity));
                table.insert(maker.peer(identity, now)).unwrap();
            }
            comparisons() - before
        };
        insert(0..most);
        let compared = insert(most..most + NEW);
        assert!(table.get(NEW - 1).is_none() && table.get(NEW).is_some());
        compared
    }

    #[test]
    fn eviction_does_not_visit_every_idle_peer() {
        let [few, many] = [1_000, 100_000].map(comparisons_of_evictions);
        assert!(few >= 100, "the table does not compare times: {few}");
        assert!(many <= 3 * few, "{few} comparisons with 1,000 peers, {many} with 100,000");
    }
}
