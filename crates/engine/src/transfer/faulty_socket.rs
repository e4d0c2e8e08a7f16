//! The socket as a data thread sends by it. In test builds (feature `faults`) it can lose and damage datagrams.

use haul_base::Ecn;
use haul_udp::{SendError, Sent, UdpSocket};

#[cfg(feature = "faults")]
use super::faults::Faults;

/// Sends a data thread's batches; with the feature `faults` as badly as `HAUL_FAULTS` says.
pub(super) struct FaultySocket<'a> {
    socket: &'a UdpSocket,
    #[cfg(feature = "faults")]
    faults: Option<Faults>,
}

impl<'a> FaultySocket<'a> {
    pub(super) fn new(socket: &'a UdpSocket) -> Self {
        Self {
            socket,
            #[cfg(feature = "faults")]
            faults: Faults::from_environment(),
        }
    }

    /// As [`UdpSocket::send`].
    pub(super) fn send(&mut self, data: &[u8], segment_size: usize, ecn: Ecn) -> Result<Sent, SendError> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &mut self.faults {
            return faults.send(self.socket, data, segment_size, ecn);
        }
        self.socket.send(data, segment_size, ecn)
    }
}
