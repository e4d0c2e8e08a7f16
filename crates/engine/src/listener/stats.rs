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
    pub(super) udp_taken: Counter,
    pub(super) udp_early: Counter,
    pub(super) udp_strays: Counter,
    pub(super) udp_unknown_sessions: Counter,
    pub(super) udp_unauthentic: Counter,
    pub(super) udp_foreign: Counter,
    pub(super) udp_challenged: Counter,
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
    /// UDP: authentic control frames.
    pub udp_taken: u64,
    /// UDP: control frames for an unknown session that were kept, as a handshake was under way.
    pub udp_early: u64,
    /// UDP: datagrams of another kind.
    pub udp_strays: u64,
    /// UDP: control frames for a session that does not exist.
    pub udp_unknown_sessions: u64,
    /// UDP: control frames that did not authenticate.
    pub udp_unauthentic: u64,
    /// UDP: control frames from another address than the session's first.
    pub udp_foreign: u64,
    /// UDP: control frames from another address than the TCP connection's that were answered by a challenge.
    pub udp_challenged: u64,
}

impl Counters {
    pub(super) fn read(&self) -> ListenerStats {
        ListenerStats {
            connections: self.connections.get(),
            evicted: self.evicted.get(),
            failed: self.failed.get(),
            refused: self.refused.get(),
            sessions: self.sessions.get(),
            udp_taken: self.udp_taken.get(),
            udp_early: self.udp_early.get(),
            udp_strays: self.udp_strays.get(),
            udp_unknown_sessions: self.udp_unknown_sessions.get(),
            udp_unauthentic: self.udp_unauthentic.get(),
            udp_foreign: self.udp_foreign.get(),
            udp_challenged: self.udp_challenged.get(),
        }
    }
}
