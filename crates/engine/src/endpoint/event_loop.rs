//! Reads an endpoint's socket and gives packets to their connections.

use std::net::SocketAddr;
use std::sync::Arc;

use haul_base::{Received as Packets, Time};
use haul_udp::{ArrivalClock, Datagrams, Receiver, RecvError, UdpSocket};
use haul_wire::packet::{
    CONTROL_FRAME_KIND, ControlFrame, ControlFrameKind, IDENTITY_AT, INITIAL_HEADER_KIND, InitialHeader,
    PAIR_KIND, PairHeader,
};

use super::connection::{Connection, Header, received};
use super::driver::Received;
use super::shared::{Shared, count, lock};
use crate::EngineError;
use crate::crypto::FrameKeys;

/// Handles a datagram that belongs to no connection; returns the answer to its source.
pub(crate) type Strays = Box<dyn FnMut(&mut [u8], SocketAddr) -> Option<Vec<u8>> + Send>;

/// What a datagram is, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DatagramKind {
    Open,
    ControlFrame,
    Stack(u32),
    Pair,
    Stray,
}

fn kind_of(packet: &[u8]) -> DatagramKind {
    let identity = packet.get(IDENTITY_AT..IDENTITY_AT + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
    match (packet.first(), identity) {
        (Some(&INITIAL_HEADER_KIND), Some(_)) => DatagramKind::Open,
        (Some(&CONTROL_FRAME_KIND), Some(_)) => DatagramKind::ControlFrame,
        (Some(&PAIR_KIND), Some(_)) => DatagramKind::Pair,
        (_, Some(identity)) => DatagramKind::Stack(u32::from_be_bytes(identity)),
        _ => DatagramKind::Stray,
    }
}

/// The receiving side of the socket. The thread that drives the endpoint holds it.
pub(super) struct EventLoop {
    strays: Strays,
    receiver: Receiver,
    arrivals: ArrivalClock,
}

impl EventLoop {
    pub(super) fn new(socket: &UdpSocket, strays: Strays) -> Self {
        Self { strays, receiver: Receiver::new(socket), arrivals: ArrivalClock::new() }
    }

    /// Receives the packets that wait, with at most `rounds` calls, and dispatches them.
    pub(super) fn receive(&mut self, shared: &Arc<Shared>, rounds: usize) -> Result<Received, EngineError> {
        for round in 0..rounds {
            match self.receiver.recv(&shared.socket) {
                Ok(_) => {}
                Err(RecvError::WouldBlock) if round == 0 => return Ok(Received::Nothing),
                Err(RecvError::WouldBlock) => return Ok(Received::All),
                Err(RecvError::Io(error)) => return Err(EngineError::system("the UDP socket failed", error)),
                // ICMP errors for earlier packets: connections have timeouts of their own.
                Err(_) => continue,
            }
            let now = shared.clock.now();
            self.arrivals.sync(now);
            for batch in self.receiver.datagrams() {
                dispatch(shared, &mut self.strays, &self.arrivals, now, batch);
            }
            if self.receiver.took_all() {
                return Ok(Received::All);
            }
        }
        Ok(Received::Some)
    }
}

/// Gives the datagrams of one buffer to their connections; consecutive packets of one connection stay a batch.
fn dispatch(
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
        let what = kind_of(&rest[..rest.len().min(stride)]);
        let run = match what {
            DatagramKind::Stack(_) => {
                rest.chunks(stride).take_while(|packet| kind_of(packet) == what).count()
            }
            _ => 1,
        };
        let (these, others) = rest.split_at_mut((run * stride).min(rest.len()));
        rest = others;
        match what {
            DatagramKind::Stack(identity) => {
                if let Some(connection) = find(shared, identity) {
                    let packets = received(these, stride, ecn, arrival);
                    connection.guarded(shared, |connection| {
                        connection.on_packets(shared, now, packets, source, Header::Absent);
                    });
                } else {
                    count(&shared.counters.unknown);
                    these.chunks_mut(stride).for_each(|packet| stray(shared, strays, packet, source));
                }
            }
            DatagramKind::Open => super::accept::on_open(shared, now, these, source, ecn),
            DatagramKind::ControlFrame => on_frame(shared, strays, now, these, source),
            DatagramKind::Pair => on_pair(shared, now, these, source, |packet| {
                let stride = packet.len();
                received(packet, stride, ecn, arrival)
            }),
            DatagramKind::Stray => {
                count(&shared.counters.strays);
                stray(shared, strays, these, source);
            }
        }
    }
}

fn stray(shared: &Shared, strays: &mut Strays, packet: &mut [u8], source: SocketAddr) {
    if let Some(answer) = strays(packet, source) {
        shared.send(&answer, source);
    }
}

/// Two packets of one connection have come in one datagram.
fn on_pair(
    shared: &Arc<Shared>,
    now: Time,
    datagram: &mut [u8],
    source: SocketAddr,
    received: impl Fn(&mut [u8]) -> Packets<'_>,
) {
    let Ok((first, second)) = PairHeader::split(datagram) else { return count(&shared.counters.strays) };
    for packet in [first, second] {
        match kind_of(packet) {
            DatagramKind::Stack(identity) => match find(shared, identity) {
                Some(connection) => connection.guarded(shared, |connection| {
                    connection.on_packets(shared, now, received(packet), source, Header::Absent);
                }),
                None => count(&shared.counters.unknown),
            },
            _ => count(&shared.counters.strays),
        }
    }
}

fn find(shared: &Shared, identity: u32) -> Option<Arc<Connection>> {
    lock(&shared.table).live(identity)
}

fn on_frame(shared: &Arc<Shared>, strays: &mut Strays, now: Time, packet: &mut [u8], source: SocketAddr) {
    let Ok(frame) = ControlFrame::parse(packet) else { return count(&shared.counters.strays) };
    if frame.id.has_control_channel() {
        return stray(shared, strays, packet, source);
    }
    let (secret, live) = match lock(&shared.table).get(frame.id.identity) {
        Some(entry) => (entry.resumption.secret.clone(), entry.live.clone()),
        None => return count(&shared.counters.unknown),
    };
    if !FrameKeys::new(&secret, frame.id, shared.role).verifies(&frame) {
        return count(&shared.counters.unauthentic);
    }
    match live.filter(|live| live.id() == frame.id) {
        Some(connection) => {
            connection.guarded(shared, |connection| connection.on_frame(shared, now, &frame, source));
        }
        None if matches!(frame.kind, ControlFrameKind::Close | ControlFrameKind::Forget) => {
            super::accept::send_closed(shared, frame.id);
        }
        None => {}
    }
    super::accept::drop_resumption_state_if_asked(shared, &frame);
}

/// Reads an initial header; it is followed by a packet of the stack or by nothing.
pub(super) fn split_open(packet: &mut [u8]) -> Option<(InitialHeader, &mut [u8])> {
    let header = InitialHeader::parse(packet).ok()?.0;
    Some((header, &mut packet[haul_wire::packet::INITIAL_HEADER_LEN..]))
}
