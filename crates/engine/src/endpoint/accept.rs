//! The server's side of connections: each begins once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use haul_base::{Ecn, Time};
use haul_stack::Ends;
use haul_wire::packet::{Flight, FlightWord, OpenHeader, WordPacket};

use super::address::Standing;
use super::connection::{Connection, Header, received};
use super::event_loop::split_open;
use super::guard::caught;
use super::shared::{Shared, count, lock};
use super::table::Table;
use crate::crypto::ResumptionSecret;
use crate::error::CloseReason;
use crate::{EngineError, Role};

/// A packet with an initial header has come.
pub(super) fn on_open(shared: &Arc<Shared>, now: Time, packet: &mut [u8], source: SocketAddr, ecn: Ecn) {
    let Some((header, inner)) = split_open(packet) else { return count(&shared.counters.strays) };
    let flight = match admit(shared, now, &header, source) {
        Ok(flight) => flight,
        Err(Refusal::Unknown) => return count(&shared.counters.unknown),
        Err(Refusal::Unauthentic) => return count(&shared.counters.unauthentic),
        Err(Refusal::Replayed) => return count(&shared.counters.replayed_flights),
        Err(Refusal::Over) => return say_closed(shared, header.flight),
        Err(Refusal::NoRoom) => return,
    };
    // To where the connection is known to be: a copy of the header from elsewhere moves nothing. Before that is known the
    // client goes on to send headers, so that a challenge that is lost is followed by another.
    let state = flight.lock();
    match state.proven_peer() {
        Some(peer) => flight.say(shared, peer, FlightWord::Opened, 0),
        None => flight.challenge(shared, &state, source),
    }
    drop(state);
    let len = inner.len();
    flight.guarded(shared, |flight| {
        if len == 0 {
            flight.keys().prepare();
            // Its questions for signs of life are due some time, whether anybody waits on it or not.
            flight.flush(shared, now);
        } else {
            flight.on_packets(shared, now, received(inner, len, ecn, None), source, Header::Present);
        }
    });
}

enum Refusal {
    Unknown,
    Unauthentic,
    Replayed,
    /// The connection was accepted before, and this end has closed it.
    Over,
    NoRoom,
}

/// The connection of an initial header: the present one, or a new one if its epoch is higher than any before.
fn admit(
    shared: &Arc<Shared>,
    now: Time,
    header: &OpenHeader,
    source: SocketAddr,
) -> Result<Arc<Connection>, Refusal> {
    if shared.role == Role::Client {
        return Err(Refusal::Unknown);
    }
    let flight = header.flight;
    let (secret, live, last) = known(&lock(&shared.table), flight.identity)?;
    if !secret.verifies(Role::Client, &OpenHeader::authenticated(&flight), &header.mac) {
        return Err(Refusal::Unauthentic);
    }
    if let Some(live) = live.filter(|live| live.flight() == flight) {
        return Ok(live);
    }
    match flight.epoch {
        epoch if epoch < last => Err(Refusal::Replayed),
        epoch if epoch == last => Err(Refusal::Over),
        _ => begin(shared, now, header, source),
    }
}

type Known = (ResumptionSecret, Option<Arc<Connection>>, u64);

fn known(table: &Table, identity: u32) -> Result<Known, Refusal> {
    let entry = table.get(identity).ok_or(Refusal::Unknown)?;
    Ok((entry.bond.secret.clone(), entry.live.clone(), entry.last_epoch))
}

fn begin(
    shared: &Arc<Shared>,
    now: Time,
    header: &OpenHeader,
    source: SocketAddr,
) -> Result<Arc<Connection>, Refusal> {
    let flight = header.flight;
    let options = *lock(&shared.options);
    let (bond, known) = match lock(&shared.table).get(flight.identity) {
        Some(entry) => (entry.bond.clone(), entry.proven),
        None => return Err(Refusal::Unknown),
    };
    let standing =
        if known == Some(source.ip().to_canonical()) { Standing::Proven } else { Standing::Claimed };
    let made =
        Connection::new(now, Role::Server, &bond, flight, (source, standing), &options, Ends::default());
    let made = made.map(Arc::new).map_err(|error| {
        tracing::warn!(%error, "a stack cannot be made from a recipe that was accepted");
        say(shared, &bond.secret, flight, (FlightWord::Close, CloseReason::Abort as u32), source);
        Refusal::NoRoom
    })?;
    let mut table = lock(&shared.table);
    table.get(flight.identity).ok_or(Refusal::Unknown)?;
    let wakers = shared.announce(made.clone()).ok_or(Refusal::NoRoom)?;
    let old = table.begin(now, made.clone());
    drop(table);
    count(&shared.counters.flights);
    if let Some(old) = old {
        let mut state = old.lock();
        state.end(EngineError::Closed);
        old.release(shared, state);
    }
    // A waker that panics has been called all the same.
    let _ = caught(|| wakers.into_iter().for_each(Waker::wake));
    Ok(made)
}

/// Answers the close of the latest connection, which this end has closed already. The answer goes to where the client
/// was: a copy of its packet from elsewhere gets none.
pub(super) fn say_closed(shared: &Shared, flight: Flight) {
    let (secret, peer) = match lock(&shared.table).get(flight.identity) {
        Some(entry) if entry.last_epoch == flight.epoch => match &entry.last_peer {
            Some(peer) => (entry.bond.secret.clone(), **peer),
            None => return,
        },
        _ => return,
    };
    say(shared, &secret, flight, (FlightWord::Closed, 0), peer);
}

/// Says something about a connection that is not there.
fn say(
    shared: &Shared,
    secret: &ResumptionSecret,
    flight: Flight,
    (word, number): (FlightWord, u32),
    to: SocketAddr,
) {
    let mut packet = WordPacket { flight, word, number, mac: [0; 12] };
    packet.mac = secret.mac(shared.role, &packet.authenticated());
    shared.send(&packet.to_bytes(), to);
}

/// The client will not come back with this association.
pub(super) fn drop_resumption_state_if_asked(shared: &Shared, word: &WordPacket) {
    if word.word != FlightWord::Forget || shared.role == Role::Client {
        return;
    }
    let mut table = lock(&shared.table);
    let entry = table.get(word.flight.identity);
    // A copy of another flight of the same time does not forget the one that runs.
    let is_it = |live: &Arc<Connection>| live.flight() == word.flight;
    if entry.is_some_and(|it| it.last_epoch == word.flight.epoch && it.live.as_ref().is_none_or(is_it)) {
        table.remove(word.flight.identity);
    }
}
