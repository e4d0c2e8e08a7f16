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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How many connections may be in the handshake at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// In all.
    pub total: usize,
    /// Of one network: the first 24 bits of an IPv4 address, 64 of an IPv6 address.
    pub per_network: usize,
    /// Connections of one IP address.
    pub per_address: usize,
}

impl Default for HandshakeLimits {
    /// One address cannot have all places, and neither can one network.
    fn default() -> Self {
        Self { total: 64, per_network: 48, per_address: 32 }
    }
}

/// The connections in the handshake, each with what its driver knows of it, `C`.
#[derive(Debug)]
pub struct HandshakeLimiter<C> {
    limits: HandshakeLimits,
    next: u64,
    /// In the order of their arrival.
    inside: Vec<Inside<C>>,
    /// Threads that serve connections, also those of connections that had to go.
    threads: usize,
}

/// A connection that has come.
#[derive(Debug)]
struct Inside<C> {
    id: u64,
    /// The client's, one of IPv4 as such.
    ip: IpAddr,
    connection: C,
    is_served: bool,
}

impl<C: Clone> HandshakeLimiter<C> {
    /// Without a connection.
    pub fn new(limits: HandshakeLimits) -> Self {
        Self { limits, next: 0, inside: Vec::new(), threads: 0 }
    }

    /// A connection of `ip` has come. Gives the one that is to be closed for it, if there are too many, and whether one
    /// more thread is to serve connections; otherwise a present one serves it.
    pub fn accept(&mut self, ip: IpAddr, connection: C) -> (Option<C>, bool) {
        let ip = ip.to_canonical();
        let evicted = self.victim(ip).map(|index| self.inside.remove(index).connection);
        self.inside.push(Inside { id: self.next, ip, connection, is_served: false });
        self.next += 1;
        let may_start = self.threads < self.limits.total.max(1);
        self.threads += usize::from(may_start);
        (evicted, may_start)
    }

    /// The connection that has waited longest for a thread, and its number. `None`: none waits, and the thread has
    /// ended.
    pub fn next_waiting(&mut self) -> Option<(u64, C)> {
        let Some(waiting) = self.inside.iter_mut().find(|inside| !inside.is_served) else {
            self.end_thread();
            return None;
        };
        waiting.is_served = true;
        Some((waiting.id, waiting.connection.clone()))
    }

    /// A thread has ended without asking for another connection.
    pub fn end_thread(&mut self) {
        self.threads -= 1;
    }

    /// The connection gives up its place. False if it has none: it had to go for another one.
    pub fn leave(&mut self, id: u64) -> bool {
        let index = self.inside.iter().position(|inside| inside.id == id);
        index.map(|index| self.inside.remove(index)).is_some()
    }

    /// There is no thread for the connections that wait for one: gives them up, and says how many.
    pub fn turn_away_waiting(&mut self) -> usize {
        let all = self.inside.len();
        self.inside.retain(|inside| inside.is_served);
        all - self.inside.len()
    }

    /// Which connection has to go so that another one of `ip` can come.
    fn victim(&self, ip: IpAddr) -> Option<usize> {
        let limits = &self.limits;
        let of_address = |inside: &&Inside<C>| inside.ip == ip;
        let of_network = |inside: &&Inside<C>| network(inside.ip) == network(ip);
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
    fn oldest_of_most(&self, meant: impl Fn(&Inside<C>) -> bool) -> Option<usize> {
        let networks =
            most(self.inside.iter().filter(|inside| meant(inside)).map(|inside| network(inside.ip)));
        let there = |inside: &&Inside<C>| meant(inside) && networks.contains(&network(inside.ip));
        let addresses = most(self.inside.iter().filter(there).map(|inside| inside.ip));
        self.inside.iter().position(|inside| there(&inside) && addresses.contains(&inside.ip))
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits { total: 4, per_network: 4, per_address: 4 };

    fn come(limiter: &mut HandshakeLimiter<usize>, ip: &str, connection: usize) -> (Option<usize>, bool) {
        limiter.accept(ip.parse().unwrap(), connection)
    }

    /// Lets clients of these addresses come, and says which of them had to go.
    fn closed(limits: HandshakeLimits, ips: &[&str]) -> Vec<bool> {
        let mut limiter = HandshakeLimiter::new(limits);
        let mut closed = vec![false; ips.len()];
        for (number, ip) in ips.iter().enumerate() {
            if let (Some(evicted), _) = come(&mut limiter, ip, number) {
                closed[evicted] = true;
            }
        }
        closed
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
        let mut limiter = HandshakeLimiter::new(HandshakeLimits { total: 2, ..LIMITS });
        for connection in 0..2 {
            assert_eq!(come(&mut limiter, "192.0.2.1", connection), (None, true));
            assert!(limiter.next_waiting().is_some());
        }
        assert_eq!(come(&mut limiter, "198.51.100.1", 2), (Some(0), false));
        let waiting = limiter.inside.iter().filter(|inside| !inside.is_served).count();
        assert_eq!((limiter.threads, limiter.inside.len(), waiting), (2, 2, 1));
        assert_eq!([limiter.leave(0), limiter.leave(1)], [false, true]);
        assert_eq!(limiter.next_waiting(), Some((2, 2)));
        assert_eq!(limiter.next_waiting(), None, "nobody waits any more");
        assert!(limiter.leave(2) && limiter.inside.is_empty());
        limiter.end_thread();
        assert_eq!(limiter.threads, 0);
    }

    #[test]
    fn a_client_that_was_closed_for_another_one_cannot_come_in() {
        let mut limiter = HandshakeLimiter::new(HandshakeLimits { total: 1, ..LIMITS });
        come(&mut limiter, "192.0.2.1", 0);
        let (client, _) = limiter.next_waiting().unwrap();
        assert_eq!(come(&mut limiter, "192.0.2.1", 1), (Some(0), false));
        assert!(!limiter.leave(client));
        assert_eq!(limiter.turn_away_waiting(), 1);
        assert!(limiter.inside.is_empty());
    }
}
