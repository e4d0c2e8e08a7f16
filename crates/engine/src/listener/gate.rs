//! How many connections may be in the handshake at once. When there are too many, the one that has been there
//! longest has to go, of the address that has most of them: a client in earnest needs two round trips, so
//! strangers who only hold connections open cannot keep it out.

use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// In the order of their arrival.
    inside: Vec<Inside>,
}

struct Inside {
    id: u64,
    ip: IpAddr,
    tcp: TcpStream,
}

/// A connection's permission to be in the handshake; given back when dropped.
pub(super) struct Admission {
    gate: Arc<Gate>,
    id: u64,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `tcp` in, which is a second handle of the connection, and throws out another one if there are
    /// `limit` already; also says whether it did.
    pub(super) fn admit(self: &Arc<Self>, tcp: TcpStream, ip: IpAddr, limit: usize) -> (Admission, bool) {
        let mut state = self.lock();
        let full = state.inside.len() >= limit.max(1);
        if full {
            state.evict();
        }
        let id = state.next;
        state.next += 1;
        state.inside.push(Inside { id, ip, tcp });
        (Admission { gate: self.clone(), id }, full)
    }
}

impl Gate {
    /// Whether anyone is in the handshake.
    pub(super) fn is_busy(&self) -> bool {
        !self.lock().inside.is_empty()
    }
}

impl State {
    fn evict(&mut self) {
        let mut counts = HashMap::new();
        for inside in &self.inside {
            *counts.entry(inside.ip).or_insert(0usize) += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let oldest = self.inside.iter().position(|inside| counts[&inside.ip] == most);
        if let Some(index) = oldest {
            // Its thread sees the end of the connection.
            let _ = self.inside.remove(index).tcp.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.gate.lock().inside.retain(|inside| inside.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn is_closed(tcp: &mut TcpStream) -> bool {
        tcp.set_nonblocking(true).unwrap();
        matches!(tcp.read(&mut [0]), Ok(0))
    }

    #[test]
    fn the_oldest_of_the_greediest_address_has_to_go() {
        let gate = Arc::new(Gate::default());
        let ips = ["192.0.2.1", "192.0.2.9", "192.0.2.9", "192.0.2.2"];
        let mut held: Vec<_> = ips
            .map(|ip| {
                let (client, server) = connection();
                let (admission, evicted) = gate.admit(server, ip.parse().unwrap(), 3);
                (client, admission, evicted)
            })
            .into();
        assert_eq!(held.iter().map(|h| h.2).collect::<Vec<_>>(), [false, false, false, true]);
        let closed: Vec<_> = held.iter_mut().map(|h| is_closed(&mut h.0)).collect();
        assert_eq!(closed, [false, true, false, false]);
        assert_eq!(gate.lock().inside.len(), 3);
        held.clear();
        assert!(gate.lock().inside.is_empty());
    }
}
