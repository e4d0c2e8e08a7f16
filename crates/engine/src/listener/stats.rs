use std::sync::atomic::{AtomicU64, Ordering};

/// A count that several threads add to.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Counter,
    pub(super) evicted: Counter,
    pub(super) failed: Counter,
    pub(super) refused: Counter,
    pub(super) sessions: Counter,
}

/// What a listener has seen since it was bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListenerStats {
    /// TCP connections.
    pub connections: u64,
    /// Connections closed in the handshake because too many were in it.
    pub evicted: u64,
    /// Connections that did not get through the handshake, evicted ones included.
    pub failed: u64,
    /// Clients that were refused: no Hello, wrong secret, expired, other version, cipher, too many waiting.
    pub refused: u64,
    /// Clients that have authenticated.
    pub sessions: u64,
}

impl Counters {
    pub(super) fn read(&self) -> ListenerStats {
        ListenerStats {
            connections: self.connections.get(),
            evicted: self.evicted.get(),
            failed: self.failed.get(),
            refused: self.refused.get(),
            sessions: self.sessions.get(),
        }
    }
}
