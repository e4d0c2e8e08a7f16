//! The load of this host, as the data thread of a receiver finds it.

use haul_base::{HostSample, Time};
use haul_host::Sensors;
use haul_udp::UdpSocket;

/// Looks at the host, and at how full the socket is.
#[derive(Debug)]
pub(super) struct HostWatch(Sensors);

impl HostWatch {
    /// That of the thread that calls this, which is to be the one that reads the socket.
    pub(super) fn of_this_thread(socket: &UdpSocket) -> Option<Self> {
        let local = socket.local_addr().ok().map(|local| local.ip());
        let sensors = Sensors::of_this_thread(local);
        sensors
            .inspect_err(|error| tracing::debug!(%error, "the load of this host is not known"))
            .ok()
            .map(Self)
    }

    /// What there is to see, if it is time to look again. The socket is as full as what has come since it was read last
    /// makes it, so this is called before it is read.
    pub(super) fn look(&mut self, now: Time, socket: &UdpSocket) -> Option<HostSample> {
        if !self.0.is_due(now) {
            return None;
        }
        let socket_fill = socket.socket_memory().ok().and_then(|memory| memory.receive_fill());
        Some(HostSample { socket_fill, ..self.0.sample(now) })
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Ecn};
    use haul_udp::Options;

    use super::*;

    #[test]
    fn a_socket_that_nobody_reads_is_seen_to_fill_and_no_look_comes_before_it_is_due() {
        let options = Options { recv_buffer: Bytes(64 << 10), ..Options::default() };
        let receiving = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let sending = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        sending.connect(receiving.local_addr().unwrap()).unwrap();
        let mut watch = HostWatch::of_this_thread(&receiving).unwrap();
        let empty = watch.look(Time::ZERO, &receiving).unwrap();
        assert_eq!(empty.socket_fill, Some(0));
        assert!(empty.early_drops.is_some(), "of the interface that the socket is bound to: {empty:?}");
        assert_eq!(watch.look(Time::ZERO + HostSample::INTERVAL / 2, &receiving), None);
        for _ in 0..20 {
            sending.send(&[7; 1_000], 1_000, Ecn::NotEct).unwrap();
        }
        // A look that took very long is not repeated soon.
        let later = watch.look(Time::ZERO + HostSample::INTERVAL * 1_000, &receiving).unwrap();
        // 20 datagrams of 1,000 bytes take 2,304 each of 131,072 on Linux 6.18, other kernels a little more or less.
        assert!((200..500).contains(&later.socket_fill.unwrap()), "{later:?}");
    }
}
