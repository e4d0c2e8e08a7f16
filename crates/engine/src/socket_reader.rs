//! The receiving side of a UDP socket: reads queued packets, in the kernel's batches.

use haul_base::Time;
use haul_udp::{ArrivalClock, Datagrams, Receiver, RecvError, UdpSocket};

use crate::{Clock, EngineError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// No packet.
    Empty,
    /// All queued packets.
    Drained,
    /// As many as requested; more may be queued.
    More,
}

/// Receive buffers of one socket, and the clock of its arrival times.
pub(crate) struct SocketReader {
    receiver: Receiver,
    arrivals: ArrivalClock,
}

impl SocketReader {
    pub(crate) fn new(socket: &UdpSocket) -> Self {
        Self { receiver: Receiver::new(socket), arrivals: ArrivalClock::new() }
    }

    /// Receives queued packets with at most `rounds` system calls. Passes each kernel buffer to `take`, with
    /// the current time and the kernel's arrival time.
    ///
    /// # Errors
    /// If the socket has failed.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        clock: Clock,
        rounds: usize,
        mut take: impl FnMut(Time, Option<Time>, Datagrams<'_>),
    ) -> Result<ReceiveOutcome, EngineError> {
        for round in 0..rounds {
            match self.receiver.recv(socket) {
                Ok(_) => {}
                Err(RecvError::WouldBlock) if round == 0 => return Ok(ReceiveOutcome::Empty),
                Err(RecvError::WouldBlock) => return Ok(ReceiveOutcome::Drained),
                Err(RecvError::Io(error)) => return Err(EngineError::system("the UDP socket failed", error)),
                // ICMP errors for earlier packets: only silence ends a connection.
                Err(_) => continue,
            }
            let now = clock.now();
            self.arrivals.sync(now);
            for batch in self.receiver.datagrams() {
                let arrival = batch.arrival.and_then(|at| self.arrivals.time_of(at));
                take(now, arrival, batch);
            }
            if self.receiver.is_drained() {
                return Ok(ReceiveOutcome::Drained);
            }
        }
        Ok(ReceiveOutcome::More)
    }
}
