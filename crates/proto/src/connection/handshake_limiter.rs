//! Limits the connections in the handshake, which are not authenticated yet, and the threads that serve them.
//!
//! A connection occupies a slot from its arrival until its client has proved that it knows the secret and
//! sent its request, or its thread has finished and its socket is closed. When a limit is reached, the oldest
//! connection is closed of the address with the most connections in the network with the most: a genuine
//! client needs two round trips, so others that hold connections open, or connect rapidly, cannot lock it
//! out. The newcomer takes over the thread of the closed one, so there are never more threads than slots.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum numbers of concurrent handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Total.
    pub total: usize,
    /// Per network: the first 24 bits of an IPv4 address, 64 of an IPv6 address.
    pub per_network: usize,
    /// Per IP address.
    pub per_address: usize,
}

impl Default for HandshakeLimits {
    /// Neither one address nor one network can occupy all slots.
    fn default() -> Self {
        Self { total: 64, per_network: 48, per_address: 32 }
    }
}

/// Connections in the handshake, each with its driver's handle `C`.
#[derive(Debug)]
pub struct HandshakeLimiter<C> {
    limits: HandshakeLimits,
    next: u64,
    /// In the order of arrival.
    admitted: Vec<Admitted<C>>,
    /// Threads that serve connections, including those of evicted connections.
    threads: usize,
}

/// A connection in the handshake.
#[derive(Debug)]
struct Admitted<C> {
    id: u64,
    /// Client address; IPv4-mapped addresses are converted to IPv4.
    ip: IpAddr,
    connection: C,
    is_served: bool,
}

impl<C: Clone> HandshakeLimiter<C> {
    /// Creates a limiter without connections.
    pub fn new(limits: HandshakeLimits) -> Self {
        Self { limits, next: 0, admitted: Vec::new(), threads: 0 }
    }

    /// Adds a connection from `ip`. Returns the connection to close for it, if there are too many, and
    /// whether to start a thread; otherwise an existing one serves it.
    pub fn accept(&mut self, ip: IpAddr, connection: C) -> (Option<C>, bool) {
        let ip = ip.to_canonical();
        let evicted = self.victim(ip).map(|index| self.admitted.remove(index).connection);
        self.admitted.push(Admitted { id: self.next, ip, connection, is_served: false });
        self.next += 1;
        let may_start = self.threads < self.limits.total.max(1);
        self.threads += usize::from(may_start);
        (evicted, may_start)
    }

    /// Returns the connection that has waited longest for a thread, with its number. `None`: no connection is
    /// waiting, and the thread counts as ended.
    pub fn next_waiting(&mut self) -> Option<(u64, C)> {
        let Some(waiting) = self.admitted.iter_mut().find(|admitted| !admitted.is_served) else {
            self.end_thread();
            return None;
        };
        waiting.is_served = true;
        Some((waiting.id, waiting.connection.clone()))
    }

    /// Records that a thread has ended without calling [`next_waiting`](Self::next_waiting).
    pub fn end_thread(&mut self) {
        self.threads -= 1;
    }

    /// Releases the slot of a connection. Returns false if it has none: it was evicted.
    pub fn leave(&mut self, id: u64) -> bool {
        let index = self.admitted.iter().position(|admitted| admitted.id == id);
        index.map(|index| self.admitted.remove(index)).is_some()
    }

    /// Removes all waiting connections because there is no thread for them, and returns their number.
    pub fn refuse_waiting(&mut self) -> usize {
        let all = self.admitted.len();
        self.admitted.retain(|admitted| admitted.is_served);
        all - self.admitted.len()
    }

    /// Returns the index of the connection to evict for another one from `ip`.
    fn victim(&self, ip: IpAddr) -> Option<usize> {
        let limits = &self.limits;
        let of_address = |admitted: &&Admitted<C>| admitted.ip == ip;
        let of_network = |admitted: &&Admitted<C>| network(admitted.ip) == network(ip);
        if self.admitted.iter().filter(of_address).count() >= limits.per_address.max(1) {
            return self.oldest_of_busiest(|admitted| of_address(&admitted));
        }
        if self.admitted.iter().filter(of_network).count() >= limits.per_network.max(1) {
            return self.oldest_of_busiest(|admitted| of_network(&admitted));
        }
        if self.admitted.len() >= limits.total.max(1) {
            return self.oldest_of_busiest(|_| true);
        }
        None
    }

    /// Returns, of the matching connections, the oldest of the busiest address in the busiest network.
    fn oldest_of_busiest(&self, is_eligible: impl Fn(&Admitted<C>) -> bool) -> Option<usize> {
        let networks = most(
            self.admitted
                .iter()
                .filter(|admitted| is_eligible(admitted))
                .map(|admitted| network(admitted.ip)),
        );
        let is_in_network =
            |admitted: &&Admitted<C>| is_eligible(admitted) && networks.contains(&network(admitted.ip));
        let addresses = most(self.admitted.iter().filter(is_in_network).map(|admitted| admitted.ip));
        self.admitted.iter().position(|admitted| is_in_network(&admitted) && addresses.contains(&admitted.ip))
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

/// Returns the network of a site: a /24 of IPv4, or a /64 of IPv6, one link (RFC 4291, section 2.5.1).
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << 8)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits { total: 4, per_network: 4, per_address: 4 };

    fn arrive(limiter: &mut HandshakeLimiter<usize>, ip: &str, connection: usize) -> (Option<usize>, bool) {
        limiter.accept(ip.parse().unwrap(), connection)
    }

    /// Accepts clients from these addresses, and returns which of them were evicted.
    fn closed(limits: HandshakeLimits, ips: &[&str]) -> Vec<bool> {
        let mut limiter = HandshakeLimiter::new(limits);
        let mut closed = vec![false; ips.len()];
        for (number, ip) in ips.iter().enumerate() {
            if let (Some(evicted), _) = arrive(&mut limiter, ip, number) {
                closed[evicted] = true;
            }
        }
        closed
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_address_is_evicted() {
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
    fn one_address_or_network_never_has_all_slots() {
        let documented = HandshakeLimits { total: 64, per_network: 48, per_address: 32 };
        assert_eq!(HandshakeLimits::default(), documented, "docs/security.md");
        let limits = HandshakeLimits { total: 8, per_network: 3, per_address: 2 };
        // The same address, also as an IPv4-mapped IPv6 address.
        assert_eq!(closed(limits, &["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"]), [true, false, false]);
        let network = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "198.51.100.1"];
        assert_eq!(closed(limits, &network), [true, false, false, false, false]);
    }

    #[test]
    fn threads_are_limited_and_new_connections_wait_for_a_free_one() {
        let mut limiter = HandshakeLimiter::new(HandshakeLimits { total: 2, ..LIMITS });
        for connection in 0..2 {
            assert_eq!(arrive(&mut limiter, "192.0.2.1", connection), (None, true));
            assert!(limiter.next_waiting().is_some());
        }
        assert_eq!(arrive(&mut limiter, "198.51.100.1", 2), (Some(0), false));
        let waiting = limiter.admitted.iter().filter(|admitted| !admitted.is_served).count();
        assert_eq!((limiter.threads, limiter.admitted.len(), waiting), (2, 2, 1));
        assert_eq!([limiter.leave(0), limiter.leave(1)], [false, true]);
        assert_eq!(limiter.next_waiting(), Some((2, 2)));
        assert_eq!(limiter.next_waiting(), None, "nobody waits any more");
        assert!(limiter.leave(2) && limiter.admitted.is_empty());
        limiter.end_thread();
        assert_eq!(limiter.threads, 0);
    }

    #[test]
    fn an_evicted_client_cannot_authenticate() {
        let mut limiter = HandshakeLimiter::new(HandshakeLimits { total: 1, ..LIMITS });
        arrive(&mut limiter, "192.0.2.1", 0);
        let (client, _) = limiter.next_waiting().unwrap();
        assert_eq!(arrive(&mut limiter, "192.0.2.1", 1), (Some(0), false));
        assert!(!limiter.leave(client));
        assert_eq!(limiter.refuse_waiting(), 1);
        assert!(limiter.admitted.is_empty());
    }
}
