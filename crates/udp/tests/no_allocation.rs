//! Sending and receiving allocate nothing once the buffers exist. A separate program with one thread, so that
//! all counted allocations are the driver's.

use std::alloc::System;
use std::time::Duration;

use haul_base::{Bytes, Ecn, Time};
use haul_udp::{ArrivalClock, Interest, Offload, Options, Receiver, RecvError, SendError, UdpSocket};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Loop {
    sending: UdpSocket,
    receiving: UdpSocket,
    receiver: Receiver,
    data: Vec<u8>,
    too_large: Vec<u8>,
    clock: ArrivalClock,
}

impl Loop {
    fn new(addr: &str, offload: Offload) -> Self {
        let options = Options { recv_buffer: Bytes(200_000), offload, ..Options::default() };
        let addr = addr.parse().expect("a literal");
        let receiving = UdpSocket::bind(addr, &options).expect("loopback is there");
        let sending = UdpSocket::bind(addr, &options).expect("loopback is there");
        sending.connect(receiving.local_addr().expect("bound")).expect("loopback is there");
        let receiver = Receiver::new(&receiving);
        let (data, too_large) = (vec![5; 50_000], vec![5; 70_000]);
        Self { sending, receiving, receiver, data, too_large, clock: ArrivalClock::new() }
    }

    /// Sends and receives one batch, including an empty queue and a datagram that is too large.
    fn round(&mut self) -> usize {
        assert!(matches!(self.receiver.recv(&self.receiving), Err(RecvError::WouldBlock)));
        let too_large = self.sending.send(&self.too_large, 70_000, Ecn::NotEct);
        assert!(matches!(too_large, Err(SendError::TooLarge)));
        let sent = self.sending.send(&self.data, 1_400, Ecn::Ect0).expect("the send buffer has space");
        self.receiving.wait(Interest::Read, Duration::from_secs(5)).expect("poll works");
        let mut bytes = 0;
        while bytes < sent.bytes && self.receiver.recv(&self.receiving).is_ok() {
            self.clock.sync(Time::from_nanos(1 << 40));
            for batch in self.receiver.datagrams() {
                assert!(batch.arrival.and_then(|arrival| self.clock.time_of(arrival)).is_some());
                bytes += batch.data.len();
            }
        }
        let _ = self.receiving.socket_memory();
        bytes
    }
}

fn main() {
    let v6 = "[::1]:0";
    let families = ["127.0.0.1:0"].into_iter().chain(std::net::UdpSocket::bind(v6).is_ok().then_some(v6));
    for addr in families {
        for offload in [Offload::Auto, Offload::Off] {
            let mut run = Loop::new(addr, offload);
            run.round();
            let region = Region::new(ALLOCATOR);
            let bytes: usize = (0..100).map(|_| run.round()).sum();
            let change = region.change();
            assert!(bytes > 0);
            assert_eq!((change.allocations, change.reallocations), (0, 0), "{addr} {offload:?}");
        }
    }
}
