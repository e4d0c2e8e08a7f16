//! What an endpoint knows of its peers: resumption state, and the present connection.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use haul_base::Time;
use haul_wire::packet::ConnectionId;

use super::connection::{Connection, ResumptionState};

/// Resumption state and the present connection.
pub(super) struct Entry {
    pub(super) resumption: ResumptionState,
    /// Epoch of the latest connection; earlier ones are not taken any more.
    pub(super) last_epoch: u64,
    pub(super) live: Option<Arc<Connection>>,
    pub(super) last_used: Time,
    /// The client's address when this end closed the connection: a late close is answered there.
    pub(super) last_peer: Option<Box<SocketAddr>>,
    /// The client's validated address: a connection from there needs no challenge.
    pub(super) validated: Option<IpAddr>,
}

impl Entry {
    /// Without a connection; the client is known to be at `validated`.
    pub(super) fn new(resumption: ResumptionState, now: Time, validated: Option<IpAddr>) -> Self {
        Self { resumption, last_epoch: 0, live: None, last_used: now, last_peer: None, validated }
    }
}

/// Why a peer was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdded {
    /// Another one has its identity.
    Taken,
    /// There are as many as there may be, and all of them have connections.
    Full,
}

pub(super) struct Table {
    /// Boxed, because up to half of the places of a table are empty.
    entries: HashMap<u32, Box<Entry>>,
    /// Those without a connection, by when they were used last: at the limit the first gives way to a new one.
    idle: BTreeSet<(Time, u32)>,
    most: usize,
}

impl Table {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: HashMap::new(), idle: BTreeSet::new(), most }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, identity: u32) -> Option<&Entry> {
        self.entries.get(&identity).map(|entry| &**entry)
    }

    pub(super) fn live(&self, identity: u32) -> Option<Arc<Connection>> {
        self.get(identity)?.live.clone()
    }

    /// Adds one. If there are too many, the one without a connection that has been silent longest is forgotten for it.
    pub(super) fn insert(&mut self, entry: Entry) -> Result<(), NotAdded> {
        let identity = entry.resumption.identity;
        if self.entries.contains_key(&identity) {
            return Err(NotAdded::Taken);
        }
        if !self.has_room() {
            return Err(NotAdded::Full);
        }
        if entry.live.is_none() {
            self.idle.insert((entry.last_used, identity));
        }
        self.entries.insert(identity, Box::new(entry));
        Ok(())
    }

    pub(super) fn remove(&mut self, identity: u32) {
        if let Some(entry) = self.entries.remove(&identity) {
            self.idle.remove(&(entry.last_used, identity));
        }
    }

    /// Forgets all, and gives the connections.
    pub(super) fn clear(&mut self) -> Vec<Arc<Connection>> {
        self.idle.clear();
        self.entries.drain().filter_map(|(_, entry)| entry.live).collect()
    }

    /// A connection begins; gives the one before, if that has not ended.
    pub(super) fn begin(&mut self, now: Time, connection: Arc<Connection>) -> Option<Arc<Connection>> {
        let ConnectionId { identity, epoch, .. } = connection.id();
        let entry = self.entries.get_mut(&identity)?;
        self.idle.remove(&(entry.last_used, identity));
        entry.last_epoch = epoch;
        entry.last_used = now;
        entry.live.replace(connection)
    }

    /// Adds a peer with its first connection. If it is here already, the connection begins; gives the one before,
    /// if that has not ended.
    pub(super) fn insert_or_begin(
        &mut self,
        now: Time,
        entry: Entry,
    ) -> Result<Option<Arc<Connection>>, NotAdded> {
        let ours = &entry.resumption;
        let is_same = |it: &&Entry| it.resumption.role == ours.role && it.resumption.secret == ours.secret;
        match (self.get(ours.identity).filter(is_same), &entry.live) {
            (Some(_), Some(live)) => Ok(self.begin(now, live.clone())),
            _ => self.insert(entry).map(|()| None),
        }
    }

    /// This connection is over; its client was at `peer`. Whether it was still the present one.
    pub(super) fn end(&mut self, now: Time, connection: &Arc<Connection>, peer: Option<SocketAddr>) -> bool {
        let identity = connection.id().identity;
        let Some(entry) = self.entries.get_mut(&identity) else { return false };
        let ended = entry.live.take_if(|live| Arc::ptr_eq(live, connection)).is_some();
        if ended {
            entry.last_used = now;
            entry.last_peer = peer.map(Box::new);
            entry.validated = peer.map(|peer| peer.ip().to_canonical()).or(entry.validated);
            self.idle.insert((now, identity));
        }
        ended
    }

    /// Whether there is room for one more, if need be after forgetting one.
    fn has_room(&mut self) -> bool {
        if self.entries.len() < self.most {
            return true;
        }
        let oldest = self.idle.pop_first();
        oldest.is_some_and(|(_, identity)| self.entries.remove(&identity).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use haul_proto::connection::{PeerAddress, ResumptionSecret};
    use haul_base::Span;
    use haul_proto::micro::registry;
    use haul_stack::{CompiledStack, Ends, Recipe};
    use haul_wire::control::Cipher;
    use proptest::prelude::*;

    use super::*;
    use crate::Role;
    use crate::endpoint::ConnectionOptions;

    const MOST: usize = 5;

    /// Peers and connections of one compiled stack.
    struct Maker(Arc<CompiledStack>);

    impl Maker {
        fn new() -> Self {
            let recipe =
                Recipe::new("test").with("fixed_size").with("transport_driver").with("sequenced_segment");
            let registry = Arc::new(registry());
            let compiled =
                crate::endpoint::terms::compile(&registry, &recipe.with("seal"), Cipher::Aes128Gcm);
            Self(compiled.unwrap())
        }

        fn resumption(&self, identity: u32) -> ResumptionState {
            let (secret, round_trip) = (ResumptionSecret([1; 32].into()), Span::from_millis(1));
            ResumptionState {
                role: Role::Server,
                identity,
                secret,
                cipher: Cipher::Aes128Gcm,
                compiled: self.0.clone(),
                round_trip,
            }
        }

        fn entry(&self, identity: u32, last_used: Time) -> Entry {
            Entry::new(self.resumption(identity), last_used, None)
        }

        fn connection(&self, identity: u32, epoch: u64) -> Arc<Connection> {
            let from = PeerAddress { at: "127.0.0.1:9".parse().unwrap(), moves: Some(0) };
            let connection = ConnectionId { identity, epoch, salt: 0 };
            let options = ConnectionOptions::default();
            let (resumption, ends) = (self.resumption(identity), Ends::default());
            Arc::new(
                Connection::new(Time::ZERO, &resumption, connection, from, Duration::ZERO, &options, ends)
                    .unwrap(),
            )
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

    /// The same by a list in which whatever was used stands last.
    #[derive(Default)]
    struct Plain(Vec<(u32, Option<Arc<Connection>>)>);

    impl Plain {
        fn place(&self, identity: u32) -> Option<usize> {
            self.0.iter().position(|known| known.0 == identity)
        }

        fn use_again(&mut self, identity: u32, live: Option<Arc<Connection>>) {
            if let Some(place) = self.place(identity) {
                self.0.remove(place);
                self.0.push((identity, live));
            }
        }

        fn insert(&mut self, identity: u32) -> Result<(), NotAdded> {
            if self.place(identity).is_some() {
                return Err(NotAdded::Taken);
            }
            if self.0.len() == MOST {
                let idle = self.0.iter().position(|known| known.1.is_none()).ok_or(NotAdded::Full)?;
                self.0.remove(idle);
            }
            self.0.push((identity, None));
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn the_one_that_was_silent_longest_gives_way(steps in proptest::collection::vec(step(), 1..60)) {
            let maker = Maker::new();
            let (mut table, mut plain) = (Table::new(MOST), Plain::default());
            for (number, step) in (1..).zip(steps) {
                let now = Time::ZERO + Span::from_millis(number);
                match step {
                    Step::Insert(identity) => {
                        prop_assert_eq!(table.insert(maker.entry(identity, now)), plain.insert(identity));
                    }
                    Step::Begin(identity) => {
                        let connection = maker.connection(identity, number);
                        table.begin(now, connection.clone());
                        plain.use_again(identity, Some(connection));
                    }
                    Step::End(identity) => {
                        if let Some(connection) = table.live(identity) {
                            prop_assert!(table.end(now, &connection, None) && !table.end(now, &connection, None));
                            plain.use_again(identity, None);
                        }
                    }
                    Step::Remove(identity) => {
                        table.remove(identity);
                        plain.0.retain(|known| known.0 != identity);
                    }
                }
                prop_assert_eq!(table.len(), plain.0.len());
                for (identity, live) in &plain.0 {
                    let same = match (table.live(*identity), live) {
                        (Some(one), Some(other)) => Arc::ptr_eq(&one, other),
                        (one, other) => one.is_none() && other.is_none(),
                    };
                    prop_assert!(same && table.get(*identity).is_some());
                }
            }
            let connections = plain.0.iter().filter(|known| known.1.is_some()).count();
            prop_assert_eq!((table.clear().len(), table.len()), (connections, 0));
        }
    }
}
