//! Divides a receiver's capacity among its concurrent senders.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_engine::{Control, Transfer};
use haul_proto::group::{Group, Member, SenderId};
use haul_wire::control::ControlMessage;
use parking_lot::Mutex;

use crate::transfer::counters::carried;

/// Duration of a round: several round trips, so that most of the received data was sent at the new rate.
const ROUND: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Sender {
    control: Control,
    transfer: Weak<Transfer>,
}

impl Member for Sender {
    /// Returns the object bytes; 0 if the transfer has ended.
    fn received(&self) -> u64 {
        carried(self.transfer.upgrade().and_then(|transfer| transfer.counters()).as_ref())
    }

    /// Never blocks: the other senders wait for the table.
    fn tell(&mut self, rate: Rate) -> bool {
        // An ended session needs no rate.
        self.control.send_if_room(&ControlMessage::Quota { rate_bps: rate.as_bps() }).unwrap_or(true)
    }
}

#[derive(Debug)]
struct Table {
    group: Group<Sender>,
    since: Instant,
}

/// Quotas of all senders; `None` without a capacity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas(Option<Arc<Mutex<Table>>>);

/// A sender's place in the table. Dropping it leaves its quota to the others.
#[derive(Debug)]
pub(crate) struct Part {
    table: Arc<Mutex<Table>>,
    id: SenderId,
}

impl Quotas {
    /// `capacity` is the UDP payload that can be received from all senders.
    pub(crate) fn new(capacity: Option<Rate>) -> Self {
        Self(capacity.map(|capacity| {
            Arc::new(Mutex::new(Table { group: Group::new(capacity), since: Instant::now() }))
        }))
    }

    /// Adds a sender, which reduces the others' quotas.
    pub(crate) fn join(&self, control: Control, transfer: Weak<Transfer>) -> Option<Part> {
        let table = self.0.clone()?;
        let mut open = table.lock();
        let id = open.group.add(Sender { control, transfer }, NonZeroU32::MIN);
        open.since = Instant::now();
        drop(open);
        Some(Part { table, id })
    }
}

impl Part {
    /// Ends a round that is over. To be called many times a second.
    pub(crate) fn look(&self) {
        let mut table = self.table.lock();
        if table.since.elapsed() >= ROUND {
            table.end_round();
        }
    }
}

impl Table {
    fn end_round(&mut self) {
        self.group.round(Span::from(self.since.elapsed()));
        self.since = Instant::now();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.group.retain(|id, _| id != self.id);
        table.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc::channel;
    use std::thread;

    use haul_engine::{ConnectOptions, ListenOptions, Listener, Session, connect};
    use haul_wire::control::{BenchLimit, FileDigest, Request};

    use super::*;
    use crate::settings::{Preset, Settings};

    const SOON: Duration = Duration::from_secs(60);

    /// The two ends of a session, the server's first.
    fn session(listener: &Listener) -> [Session; 2] {
        let url = listener.url("127.0.0.1", b"");
        let settings = Settings::build(&Preset::default_preset(), &[]).unwrap();
        let options = ConnectOptions::new(Request::Check, settings.asked(BenchLimit::Unlimited));
        let client = thread::spawn(move || connect(&url, options).unwrap());
        let server = listener.accept(SOON).unwrap().accept().unwrap();
        [server, client.join().unwrap()]
    }

    /// Sends until there has been no room for a while. How often it was sent.
    fn fill(control: &Control, message: &ControlMessage) -> usize {
        let (mut sent, mut full) = (0, 0);
        while full < 20 {
            if control.send_if_room(message).unwrap() {
                (sent, full) = (sent + 1, 0);
                assert!(sent < 500, "no end of room");
            } else {
                full += 1;
                thread::sleep(Duration::from_millis(50));
            }
        }
        sent
    }

    #[test]
    fn a_sender_that_reads_nothing_holds_up_no_other() {
        let listener =
            Listener::bind(ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        let ([deaf, deaf_client], [other, other_client]) = (session(&listener), session(&listener));
        let much = ControlMessage::Digests(vec![FileDigest { entry: 0, result: Ok([7; 32]) }; 25_000]);
        let unread = fill(deaf.control(), &much);
        let table = Quotas::new(Some(Rate::from_mbps(100)));
        let (done, is_done) = channel();
        let controls = [&deaf, &other].map(|session| session.control().clone());
        let all = table.clone();
        thread::spawn(move || {
            let parts = controls.map(|control| all.join(control, Weak::new()).unwrap());
            done.send(parts).unwrap();
        });
        let parts = is_done.recv_timeout(SOON).expect("nobody waits for the one that reads nothing");
        let half = ControlMessage::Quota { rate_bps: 50_000_000 };
        assert_eq!(other_client.control().recv(Some(SOON)).unwrap(), half);
        // When it reads again, the next round tells it.
        (0..unread).for_each(|_| assert_eq!(deaf_client.control().recv(Some(SOON)).unwrap(), much));
        parts[0].table.lock().end_round();
        let told = deaf_client.control().recv(Some(SOON)).unwrap();
        assert!(matches!(told, ControlMessage::Quota { .. }), "{told:?}");
    }
}
