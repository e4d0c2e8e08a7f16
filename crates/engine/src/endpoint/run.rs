//! The thread of an endpoint: reads the socket, gives packets to their flights, and looks after them in time.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use haul_base::{Ecn, Received, Span, Time};
use haul_udp::{ArrivalClock, Datagrams, Receiver, RecvError};
use haul_wire::packet::{
    FlightWord, IDENTITY_AT, OPEN_KIND, OpenHeader, PAIR_KIND, PacketKind, PairHeader, WORD_KIND, WordPacket,
};
use rustix::event::PollFlags;

use super::guard::caught;
use super::helm::Sleeper;
use super::inner::{Header, Inner, received};
use super::shared::{Shared, count, lock};
use crate::EngineError;

/// Receive calls before it is time to look at deadlines.
const ROUNDS: usize = 4;
/// Flights looked after before it is time to receive.
const MOST_DUE: usize = 256;
/// Longest sleep.
pub(super) const LONGEST_WAIT: Span = Span::from_millis(500);
/// Keys of flights that were silent for so long are dropped, where there are many.
const KEYS_REST: Span = Span::from_secs(2);
/// With fewer flights than this, keys are not worth the search.
const MANY: usize = 64;

/// Takes datagrams that belong to no flight, and gives what goes back to their source.
pub(crate) type Strays = Box<dyn FnMut(&mut [u8], SocketAddr) -> Option<Vec<u8>> + Send>;

/// What a datagram is, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Open,
    Word,
    Stack(u32),
    Pair,
    Stray,
}

fn sort(packet: &[u8]) -> Sort {
    let identity = packet.get(IDENTITY_AT..IDENTITY_AT + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
    match (packet.first(), identity) {
        (Some(&OPEN_KIND), Some(_)) => Sort::Open,
        (Some(&WORD_KIND), Some(_)) => Sort::Word,
        (Some(&PAIR_KIND), Some(_)) => Sort::Pair,
        (Some(&kind), Some(identity)) if kind != PacketKind::Hello as u8 => {
            Sort::Stack(u32::from_be_bytes(identity))
        }
        _ => Sort::Stray,
    }
}

/// What an endpoint is driven with.
pub(super) struct Runner {
    strays: Strays,
    receiver: Receiver,
    arrivals: ArrivalClock,
    rested: Time,
    /// A flight that was left with something to send.
    owing: Option<u32>,
}

/// Runs until the endpoint is stopped or its socket fails.
pub(super) fn run(shared: &Arc<Shared>, strays: Strays) {
    let served = caught(|| serve(shared, Runner::new(shared, strays))).unwrap_or_else(|words| {
        Err(EngineError::System { what: "the endpoint's thread has panicked", reason: words })
    });
    let error = served.err().unwrap_or(EngineError::Closed);
    end_all(shared, &error);
    shared.helm.retire();
}

/// Drives whenever no guest does.
fn serve(shared: &Arc<Shared>, runner: Runner) -> Result<(), EngineError> {
    let mut at_helm = Some(Box::new(runner));
    while !shared.is_stopped() {
        let Some(mut runner) = at_helm.take() else {
            at_helm = shared.helm.stand_by()?;
            continue;
        };
        let more = runner.receive(shared, ROUNDS)?;
        let due = runner.look_after(shared);
        at_helm = if more || due {
            Some(runner)
        } else {
            shared.helm.thread_sleeps(shared.clock.now() + LONGEST_WAIT, runner);
            sleep(shared, Sleeper::Thread)?;
            shared.helm.thread_wakes()
        };
    }
    Ok(())
}

/// Waits for packets, the time that was set, or whoever wakes this sleeper.
pub(super) fn sleep(shared: &Shared, sleeper: Sleeper) -> Result<(), EngineError> {
    if shared.helm.sleep(sleeper, shared.socket.as_fd())?.contains(PollFlags::ERR) {
        shared.socket.drain_errors();
    }
    Ok(())
}

/// Stops the endpoint, and ends all its flights.
pub(super) fn end_all(shared: &Shared, error: &EngineError) {
    if !matches!(error, EngineError::Closed) {
        tracing::error!(%error, "the UDP endpoint has failed");
    }
    shared.stop();
    let flights = lock(&shared.table).clear();
    for flight in flights {
        let mut state = flight.lock();
        state.end(error.clone());
        flight.release_from_outside(shared, state);
    }
}

impl Runner {
    fn new(shared: &Shared, strays: Strays) -> Self {
        let receiver = Receiver::new(&shared.socket);
        Self { strays, receiver, arrivals: ArrivalClock::new(), rested: shared.clock.now(), owing: None }
    }

    /// This flight has something to send that was put off.
    pub(super) fn owe(&mut self, identity: u32) {
        self.owing = Some(identity);
    }

    /// Takes what is waiting, `rounds` calls at most; whether there may be more.
    pub(super) fn receive(&mut self, shared: &Arc<Shared>, rounds: usize) -> Result<bool, EngineError> {
        for _ in 0..rounds {
            match self.receiver.recv(&shared.socket) {
                Ok(_) => {}
                Err(RecvError::WouldBlock) => return Ok(false),
                Err(RecvError::Io(error)) => return Err(EngineError::system("the UDP socket failed", error)),
                // What ICMP says of earlier packets: flights find out by themselves who does not answer.
                Err(_) => continue,
            }
            let now = shared.clock.now();
            self.arrivals.sync(now);
            for batch in self.receiver.datagrams() {
                hand_out(shared, &mut self.strays, &self.arrivals, now, batch);
            }
        }
        Ok(true)
    }

    /// Looks after flights whose time has come; whether there may be more.
    pub(super) fn look_after(&mut self, shared: &Shared) -> bool {
        let now = shared.clock.now();
        if now.since(self.rested) >= KEYS_REST {
            self.rest(shared, now);
        }
        if let Some(flight) = self.owing.take().and_then(|identity| find(shared, identity)) {
            flight.guarded(shared, |flight| flight.make_good(shared, now));
        }
        for _ in 0..MOST_DUE {
            let Some((at, identity)) = shared.helm.due(now) else { return false };
            let flight = lock(&shared.table).live(identity);
            if let Some(flight) = flight {
                flight.guarded(shared, |flight| flight.on_schedule(shared, now, at));
            }
        }
        true
    }

    fn rest(&mut self, shared: &Shared, now: Time) {
        let before = self.rested;
        self.rested = now;
        let flights = {
            let table = lock(&shared.table);
            if table.len() < MANY {
                return;
            }
            table.flights()
        };
        for flight in flights {
            flight.rest(now, before);
        }
    }
}

/// Gives the datagrams of one buffer to whom they belong; runs of one flight stay together.
fn hand_out(
    shared: &Arc<Shared>,
    strays: &mut Strays,
    arrivals: &ArrivalClock,
    now: Time,
    batch: Datagrams<'_>,
) {
    let Datagrams { data, stride, source, ecn, arrival, .. } = batch;
    let arrival = arrival.and_then(|at| arrivals.time_of(at));
    let stride = stride.max(1);
    let mut rest = data;
    while !rest.is_empty() {
        let what = sort(&rest[..rest.len().min(stride)]);
        let run = match what {
            Sort::Stack(_) => rest.chunks(stride).take_while(|packet| sort(packet) == what).count(),
            _ => 1,
        };
        let (these, others) = rest.split_at_mut((run * stride).min(rest.len()));
        rest = others;
        match what {
            Sort::Stack(identity) => {
                if let Some(flight) = find(shared, identity) {
                    let packets = received(these, stride, ecn, arrival);
                    flight.guarded(shared, |flight| {
                        flight.on_packets(shared, now, packets, source, Header::Absent);
                    });
                } else {
                    count(&shared.counters.unknown);
                    these.chunks_mut(stride).for_each(|packet| stray(shared, strays, packet, source));
                }
            }
            Sort::Open => super::accept::on_open(shared, now, these, source, ecn),
            Sort::Word => on_word(shared, now, these, source),
            Sort::Pair => on_pair(shared, now, these, source, |packet| {
                let stride = packet.len();
                received(packet, stride, ecn, arrival)
            }),
            Sort::Stray => {
                count(&shared.counters.strays);
                stray(shared, strays, these, source);
            }
        }
    }
}

fn stray(shared: &Shared, strays: &mut Strays, packet: &mut [u8], source: SocketAddr) {
    if let Some(answer) = strays(packet, source) {
        shared.send(&answer, answer.len(), Ecn::NotEct, source);
    }
}

/// Two packets of one flight have come in one datagram.
fn on_pair(
    shared: &Arc<Shared>,
    now: Time,
    datagram: &mut [u8],
    source: SocketAddr,
    received: impl Fn(&mut [u8]) -> Received<'_>,
) {
    let Ok((first, second)) = PairHeader::split(datagram) else { return count(&shared.counters.strays) };
    for packet in [first, second] {
        match sort(packet) {
            Sort::Stack(identity) => match find(shared, identity) {
                Some(flight) => flight.guarded(shared, |flight| {
                    flight.on_packets(shared, now, received(packet), source, Header::Absent);
                }),
                None => count(&shared.counters.unknown),
            },
            _ => count(&shared.counters.strays),
        }
    }
}

fn find(shared: &Shared, identity: u32) -> Option<Arc<Inner>> {
    lock(&shared.table).live(identity)
}

fn on_word(shared: &Arc<Shared>, now: Time, packet: &[u8], source: SocketAddr) {
    let Ok(word) = WordPacket::parse(packet) else { return count(&shared.counters.strays) };
    let (secret, live) = match lock(&shared.table).get(word.flight.identity) {
        Some(entry) => (entry.bond.secret.clone(), entry.live.clone()),
        None => return count(&shared.counters.unknown),
    };
    if !secret.verifies(shared.role.peer(), &word.authenticated(), &word.mac) {
        return count(&shared.counters.unauthentic);
    }
    match live.filter(|live| live.flight() == word.flight) {
        Some(flight) => flight.guarded(shared, |flight| flight.on_word(shared, now, &word, source)),
        None if matches!(word.word, FlightWord::Close | FlightWord::Forget) => {
            super::accept::say_closed(shared, word.flight);
        }
        None => {}
    }
    super::accept::forget_if_asked(shared, &word);
}

/// Reads an opening header; what follows it is a packet of the stack or nothing.
pub(super) fn split_open(packet: &mut [u8]) -> Option<(OpenHeader, &mut [u8])> {
    let header = OpenHeader::parse(packet).ok()?.0;
    Some((header, &mut packet[haul_wire::packet::OPEN_LEN..]))
}
