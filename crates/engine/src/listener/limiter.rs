//! Limits the connections in the handshake, whose clients have not proved anything yet, and the threads that serve
//! them.
//!
//! A connection has its place from its arrival until its client has proved that it knows the secret, or until its
//! thread has done with it and its socket is closed. When a limit is reached, the connection that has been there
//! longest is closed, of the address that has most of them in the network that has most: a client in earnest needs
//! two round trips, so strangers who only hold connections open, or come fast, cannot keep it out. The newcomer takes
//! over the thread of the one that goes, so there are never more threads than places.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::guard::lock;

/// How many connections may be in the handshake at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// In all.
    pub total: usize,
    /// Of one network: the first 24 bits of an IPv4 address, 64 of an IPv6 address.
    pub per_network: usize,
    /// Of one address.
    pub per_address: usize,
}

impl Default for HandshakeLimits {
    /// One address cannot have all places, and neither can one network.
    fn default() -> Self {
        Self { total: 64, per_network: 48, per_address: 32 }
    }
}

pub(super) struct HandshakeLimiter {
    limits: HandshakeLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// In the order of their arrival.
    inside: Vec<Inside>,
    /// Threads that serve connections, also those of connections that have been closed from here.
    threads: usize,
}

/// A connection that has come.
struct Inside {
    id: u64,
    tcp: Arc<TcpStream>,
    peer: SocketAddr,
    arrived: Instant,
    is_served: bool,
}

impl Inside {
    fn ip(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}

impl HandshakeLimiter {
    pub(super) fn new(limits: HandshakeLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Accepts a connection; closes another one if there are too many, and says whether it has. Gives the permit of a new
    /// thread, if there may be one more; otherwise a present one serves the connection.
    pub(super) fn accept(self: &Arc<Self>, tcp: TcpStream, peer: SocketAddr) -> (Option<WorkerPermit>, bool) {
        let mut state = self.lock();
        let victim = state.victim(&self.limits, peer.ip().to_canonical());
        if let Some(index) = victim {
            state.evict(index);
        }
        let id = state.next;
        state.next += 1;
        let (tcp, arrived) = (Arc::new(tcp), Instant::now());
        state.inside.push(Inside { id, tcp, peer, arrived, is_served: false });
        let may_start = state.threads < self.limits.total.max(1);
        state.threads += usize::from(may_start);
        drop(state);
        let permit = may_start.then(|| WorkerPermit { limiter: self.clone(), is_taken: true });
        (permit, victim.is_some())
    }

    /// Closes the connections that wait for a thread: there is none for them.
    pub(super) fn turn_away_waiting(&self) -> usize {
        let mut state = self.lock();
        let all = state.inside.len();
        state.inside.retain(|inside| inside.is_served);
        all - state.inside.len()
    }
}

impl State {
    /// Which connection has to go so that another one of `ip` can come.
    fn victim(&self, limits: &HandshakeLimits, ip: IpAddr) -> Option<usize> {
        let of_address = |inside: &&Inside| inside.ip() == ip;
        let of_network = |inside: &&Inside| network(inside.ip()) == network(ip);
        if self.inside.iter().filter(of_address).count() >= limits.per_address.max(1) {
            return self.oldest_of_most(|inside| of_address(&inside));
        }
        if self.inside.iter().filter(of_network).count() >= limits.per_network.max(1) {
            return self.oldest_of_most(|inside| of_network(&inside));
        }
        if self.inside.len() >= limits.total.max(1) {
            return self.oldest_of_most(|_| true);
        }
        None
    }

    /// Of those that are `meant`, the oldest of the address that has most, in the network that has most.
    fn oldest_of_most(&self, meant: impl Fn(&Inside) -> bool) -> Option<usize> {
        let networks =
            most(self.inside.iter().filter(|inside| meant(inside)).map(|inside| network(inside.ip())));
        let there = |inside: &&Inside| meant(inside) && networks.contains(&network(inside.ip()));
        let addresses = most(self.inside.iter().filter(there).map(Inside::ip));
        self.inside.iter().position(|inside| there(&inside) && addresses.contains(&inside.ip()))
    }

    /// Closes a connection. A thread that serves it sees its end.
    fn evict(&mut self, index: usize) {
        let gone = self.inside.remove(index);
        let _ = gone.tcp.shutdown(Shutdown::Both);
    }
}

fn most<K: Hash + Eq>(keys: impl Iterator<Item = K>) -> Vec<K> {
    let mut counts = HashMap::new();
    for key in keys {
        *counts.entry(key).or_insert(0usize) += 1;
    }
    let most = counts.values().copied().max().unwrap_or_default();
    counts.into_iter().filter(|&(_, count)| count == most).map(|(key, _)| key).collect()
}

/// What usually belongs to one site: a /24 of IPv4, and a /64 of IPv6, which is one link (RFC 4291, section 2.5.1).
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << 8)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// A thread's permission to serve connections; returned when none waits, or when dropped.
pub(super) struct WorkerPermit {
    limiter: Arc<HandshakeLimiter>,
    is_taken: bool,
}

impl WorkerPermit {
    /// The connection that has waited longest. `None`: none waits, and the thread has to end.
    pub(super) fn next(&mut self) -> Option<Handshake> {
        let mut state = self.limiter.lock();
        let Some(waiting) = state.inside.iter_mut().find(|inside| !inside.is_served) else {
            state.threads -= 1;
            self.is_taken = false;
            return None;
        };
        waiting.is_served = true;
        let Inside { id, ref tcp, peer, arrived, .. } = *waiting;
        Some(Handshake { limiter: self.limiter.clone(), id, tcp: tcp.clone(), peer, arrived })
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if self.is_taken {
            self.limiter.lock().threads -= 1;
        }
    }
}

/// A connection in the handshake, and its place. The place is given back when this is dropped, which closes the
/// connection.
pub(super) struct Handshake {
    pub(super) tcp: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) arrived: Instant,
    limiter: Arc<HandshakeLimiter>,
    id: u64,
}

impl Handshake {
    /// The client has proved that it knows the secret: gives up the place. False if there is none: the connection has
    /// been closed in favour of another one.
    pub(super) fn leave(&self) -> bool {
        let mut state = self.limiter.lock();
        let index = state.inside.iter().position(|inside| inside.id == self.id);
        index.map(|index| state.inside.remove(index)).is_some()
    }

    /// The connection of a client that has left.
    pub(super) fn into_tcp(self) -> Option<TcpStream> {
        let tcp = self.tcp.clone();
        drop(self);
        Arc::into_inner(tcp)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits { total: 4, per_network: 4, per_address: 4 };

    struct Client {
        tcp: TcpStream,
        permit: Option<WorkerPermit>,
        evicted: bool,
    }

    fn come(limiter: &Arc<HandshakeLimiter>, ip: &str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = SocketAddr::new(ip.parse().unwrap(), 7);
        let (permit, evicted) = limiter.accept(listener.accept().unwrap().0, peer);
        Client { tcp, permit, evicted }
    }

    fn limiter(limits: HandshakeLimits) -> Arc<HandshakeLimiter> {
        Arc::new(HandshakeLimiter::new(limits))
    }

    fn is_closed(client: &mut Client) -> bool {
        client.tcp.set_nonblocking(true).unwrap();
        matches!(client.tcp.read(&mut [0]), Ok(0))
    }

    /// Lets clients of these addresses come, and says which of them were closed.
    fn closed(limits: HandshakeLimits, ips: &[&str]) -> Vec<bool> {
        let limiter = limiter(limits);
        let mut clients: Vec<_> = ips.iter().map(|ip| come(&limiter, ip)).collect();
        clients.iter_mut().map(is_closed).collect()
    }

    #[test]
    fn the_oldest_of_the_address_with_most_connections_has_to_go() {
        let limits = HandshakeLimits { total: 3, ..LIMITS };
        let ips = ["192.0.2.1", "192.0.2.9", "192.0.2.9", "192.0.2.2"];
        assert_eq!(closed(limits, &ips), [false, true, false, false]);
    }

    #[test]
    fn many_addresses_of_one_network_count_together() {
        let ips = ["198.51.100.7", "198.51.100.7", "192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let limits = HandshakeLimits { total: 5, per_network: 5, per_address: 5 };
        assert_eq!(
            closed(limits, &[&ips[..], &["203.0.113.1"]].concat()),
            [false, false, true, false, false, false]
        );
        let ips = [
            "2001:db8:1:1::1",
            "2001:db8:2:2::1",
            "2001:db8:2:2:ffff::2",
            "2001:db8:2:2::3",
            "2001:db8:3::1",
        ];
        assert_eq!(closed(LIMITS, &ips), [false, true, false, false, false]);
    }

    #[test]
    fn one_address_or_network_never_has_all_places() {
        let documented = HandshakeLimits { total: 64, per_network: 48, per_address: 32 };
        assert_eq!(HandshakeLimits::default(), documented, "docs/security.md");
        let limits = HandshakeLimits { total: 8, per_network: 3, per_address: 2 };
        // The same address, also as IPv6 writes it.
        assert_eq!(closed(limits, &["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"]), [true, false, false]);
        let network = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "198.51.100.1"];
        assert_eq!(closed(limits, &network), [true, false, false, false, false]);
    }

    #[test]
    fn there_are_never_more_threads_than_places_and_newcomers_wait_for_one_that_ends() {
        let limiter = limiter(HandshakeLimits { total: 2, ..LIMITS });
        let mut served: Vec<_> = (0..2).map(|_| come(&limiter, "192.0.2.1").permit.unwrap()).collect();
        let passes: Vec<_> = served.iter_mut().map(|permit| permit.next().unwrap()).collect();
        let newcomer = come(&limiter, "198.51.100.1");
        assert!(newcomer.permit.is_none() && newcomer.evicted);
        let state = limiter.lock();
        let waiting = state.inside.iter().filter(|inside| !inside.is_served).count();
        assert_eq!((state.threads, state.inside.len(), waiting), (2, 2, 1));
        drop(state);
        drop(passes);
        let client = served[0].next().unwrap();
        assert_eq!(client.peer.ip().to_string(), "198.51.100.1");
        assert!(served[1].next().is_none(), "nobody waits any more");
        assert!(client.leave() && client.into_tcp().is_some());
        assert!(limiter.lock().inside.is_empty());
        drop(served);
        assert_eq!(limiter.lock().threads, 0);
    }

    #[test]
    fn a_client_that_was_closed_for_another_one_cannot_come_in() {
        let limiter = limiter(HandshakeLimits { total: 1, ..LIMITS });
        let mut first = come(&limiter, "192.0.2.1");
        let client = first.permit.as_mut().unwrap().next().unwrap();
        let _second = come(&limiter, "192.0.2.1");
        assert!(!client.leave());
        assert_eq!(limiter.turn_away_waiting(), 1);
        assert!(limiter.lock().inside.is_empty());
    }
}
