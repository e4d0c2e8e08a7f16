//! The receiving side of a UDP socket: reads what waits, in the buffers of the kernel.

use haul_base::Time;
use haul_udp::{ArrivalClock, Datagrams, Receiver, RecvError, UdpSocket};

use crate::{Clock, EngineError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// No packet.
    Nothing,
    /// All packets that waited.
    All,
    /// As many as were asked for; more may wait.
    Some,
}

/// Buffers for one socket, and the clock of its arrivals.
pub(crate) struct SocketReader {
    receiver: Receiver,
    arrivals: ArrivalClock,
}

impl SocketReader {
    pub(crate) fn new(socket: &UdpSocket) -> Self {
        Self { receiver: Receiver::new(socket), arrivals: ArrivalClock::new() }
    }

    /// Receives the packets that wait, with at most `rounds` calls. Gives each buffer of the kernel to `take`, with the
    /// time and when the kernel got it.
    ///
    /// # Errors
    /// If the socket has failed.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        clock: Clock,
        rounds: usize,
        mut take: impl FnMut(Time, Option<Time>, Datagrams<'_>),
    ) -> Result<Received, EngineError> {
        for round in 0..rounds {
            match self.receiver.recv(socket) {
                Ok(_) => {}
                Err(RecvError::WouldBlock) if round == 0 => return Ok(Received::Nothing),
                Err(RecvError::WouldBlock) => return Ok(Received::All),
                Err(RecvError::Io(error)) => return Err(EngineError::system("the UDP socket failed", error)),
                // ICMP errors for earlier packets: silence is what ends a connection.
                Err(_) => continue,
            }
            let now = clock.now();
            self.arrivals.sync(now);
            for batch in self.receiver.datagrams() {
                let arrival = batch.arrival.and_then(|at| self.arrivals.time_of(at));
                take(now, arrival, batch);
            }
            if self.receiver.took_all() {
                return Ok(Received::All);
            }
        }
        Ok(Received::Some)
    }
}
