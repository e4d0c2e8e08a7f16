//! Sent datagrams arrive complete and with all metadata, with and without offload, over IPv4 and IPv6.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{V4, bind, families, options, pair, pattern, receive};
use haul_base::{Bytes, Ecn, Span, Time};
use haul_udp::{ArrivalClock, Method, Offload, Options, Receiver, UdpSocket};

/// Sends `len` bytes in segments and checks that the same datagrams arrive; returns messages and method.
fn send_and_receive(addr: &str, offload: Offload, len: usize, segment_size: usize) -> (usize, Method) {
    let (sending, receiving) = pair(addr, offload);
    let mut receiver = Receiver::new(&receiving);
    let data = pattern(len);
    let sent = sending.send(&data, segment_size, Ecn::NotEct).expect("the send buffer has space");
    assert_eq!((sent.bytes, sent.datagrams), (len, len.div_ceil(segment_size)));
    let messages = receive(&mut receiver, &receiving);
    assert!(messages.iter().all(|m| m.source == sending.local_addr().expect("bound")));
    let datagrams: Vec<_> = messages.iter().flat_map(|m| m.datagrams.clone()).collect();
    let expected: Vec<_> = data.chunks(segment_size).map(<[u8]>::to_vec).collect();
    assert_eq!(datagrams, expected);
    (messages.len(), sent.method)
}

#[test]
fn datagrams_keep_their_boundaries_with_and_without_offload() {
    for addr in families() {
        for (len, segment_size) in
            [(1, 1200), (1200, 1200), (1201, 1200), (40_000, 1448), (65_507, 8972), (300, 1)]
        {
            for offload in [Offload::Auto, Offload::Off] {
                send_and_receive(addr, offload, len, segment_size);
            }
        }
    }
}

#[test]
fn one_message_carries_a_whole_batch_with_gro() {
    let (sending, receiving) = pair(V4, Offload::Auto);
    if !sending.capabilities().gso.support.is_available() || !receiving.capabilities().gro.is_available() {
        return;
    }
    // A last datagram of 60 bytes, and one that is empty.
    for addr in families() {
        assert_eq!(send_and_receive(addr, Offload::Auto, 40 * 1448 + 60, 1448), (1, Method::Gso));
        assert_eq!(send_and_receive(addr, Offload::Auto, 40 * 1448, 1448), (1, Method::Gso));
    }
}

#[test]
fn batches_beyond_one_call_are_split_at_datagram_boundaries() {
    let (messages, _) = send_and_receive(V4, Offload::Auto, 120_000, 1448);
    assert!(messages >= 2);
    // More segments than any kernel accepts in one call.
    let (messages, _) = send_and_receive(V4, Offload::Auto, 2_000, 10);
    assert!(messages >= 2);
}

#[test]
fn without_offload_every_datagram_is_its_own_message() {
    for addr in families() {
        assert_eq!(send_and_receive(addr, Offload::Off, 100 * 500, 500), (100, Method::Plain));
    }
}

#[test]
fn a_socket_without_a_peer_sends_to_anyone() {
    for (addr, offload) in families().flat_map(|addr| [(addr, Offload::Auto), (addr, Offload::Off)]) {
        let receiving = bind(addr, &options(offload));
        let sending = bind(addr, &options(offload));
        let to = receiving.local_addr().unwrap();
        sending.send_to(&pattern(5_000), 1_000, Ecn::Ect0, to).unwrap();
        let messages = receive(&mut Receiver::new(&receiving), &receiving);
        assert_eq!(messages.iter().map(|m| m.datagrams.len()).sum::<usize>(), 5);
        assert!(messages.iter().all(|m| m.ecn == Ecn::Ect0));
    }
}

#[test]
fn ecn_bits_arrive() {
    for addr in families() {
        for offload in [Offload::Auto, Offload::Off] {
            let (sending, receiving) = pair(addr, offload);
            let mut receiver = Receiver::new(&receiving);
            for ecn in [Ecn::Ect0, Ecn::NotEct, Ecn::Ect1, Ecn::Ce] {
                sending.send(&pattern(3_000), 1_000, ecn).unwrap();
                let messages = receive(&mut receiver, &receiving);
                assert!(!messages.is_empty());
                assert!(messages.iter().all(|m| m.ecn == ecn), "{addr} {offload:?} {ecn:?}");
            }
        }
    }
}

#[test]
fn an_ipv6_socket_serves_ipv4_peers() {
    if !families().any(|addr| addr.contains("::")) {
        return;
    }
    let receiving = bind("[::]:0", &options(Offload::Auto));
    let port = receiving.local_addr().unwrap().port();
    let sending = bind("0.0.0.0:0", &options(Offload::Auto));
    if sending.connect(format!("127.0.0.1:{port}").parse().unwrap()).is_err() {
        return;
    }
    sending.send(&pattern(3_000), 1_000, Ecn::Ect1).unwrap();
    let messages = receive(&mut Receiver::new(&receiving), &receiving);
    // Nothing arrives if the system separates the two (net.ipv6.bindv6only).
    for message in messages {
        assert_eq!(message.ecn, Ecn::Ect1);
        // In the other direction, with ECN, to an IPv4-mapped address (::ffff:127.0.0.1).
        receiving.send_to(&pattern(2_000), 1_000, Ecn::Ce, message.source).unwrap();
        let back = receive(&mut Receiver::new(&sending), &sending);
        assert!(back.iter().all(|m| m.ecn == Ecn::Ce) && !back.is_empty());
    }
}

#[test]
fn arrival_times_are_between_sending_and_reading() {
    for addr in families() {
        let (sending, receiving) = pair(addr, Offload::Auto);
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        sending.send(&pattern(3_000), 1_000, Ecn::NotEct).unwrap();
        let messages = receive(&mut Receiver::new(&receiving), &receiving);
        let mut clock = ArrivalClock::new();
        let now = Time::from_nanos(1 << 50);
        clock.sync(now);
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        for message in messages {
            let arrival = message.arrival.expect("Linux gives arrival times");
            // The kernel's clock may have a lower resolution than ours.
            let slack = Duration::from_millis(10);
            assert!(
                arrival.since_unix_epoch() + slack >= before && arrival.since_unix_epoch() <= after + slack
            );
            let mapped = clock.time_of(arrival).expect("the clocks were just synchronised");
            assert!(mapped <= now && now.since(mapped) < Span::from_secs(5));
        }
    }
}

#[test]
fn drops_are_counted_and_located_between_packets() {
    let tiny = Options { recv_buffer: Bytes(8_192), offload: Offload::Off, ..Options::default() };
    let receiving = bind(V4, &tiny);
    let sending = bind(V4, &options(Offload::Off));
    sending.connect(receiving.local_addr().unwrap()).unwrap();
    let mut receiver = Receiver::new(&receiving);
    sending.send(&pattern(100 * 1_000), 1_000, Ecn::NotEct).unwrap();
    let first = receive(&mut receiver, &receiving);
    assert!(first.len() < 100);
    assert!(first.iter().all(|m| m.drops.is_none()), "these came before the first drop");
    sending.send(&[1], 1_000, Ecn::NotEct).unwrap();
    let second = receive(&mut receiver, &receiving);
    let lost = (100 - first.len()) as u32;
    assert_eq!(second.iter().map(|m| m.drops).collect::<Vec<_>>(), [Some(lost)]);
    assert_eq!(receiving.socket_memory().unwrap().drops, lost);
}

#[test]
fn socket_memory_shows_queued_data() {
    let (sending, receiving) = pair(V4, Offload::Auto);
    assert_eq!(receiving.socket_memory().unwrap().receive_used, Bytes(0));
    sending.send(&pattern(3_000), 1_000, Ecn::NotEct).unwrap();
    let memory = receiving.socket_memory().unwrap();
    assert!(memory.receive_used >= Bytes(3_000) && memory.receive_used < memory.receive_limit);
    assert_eq!(memory.drops, 0);
}

#[test]
fn a_message_larger_than_its_buffer_is_discarded_and_counted() {
    let (sending, receiving) = pair(V4, Offload::Off);
    let mut receiver = Receiver::new(&receiving);
    sending.send(&pattern(10_000), 10_000, Ecn::NotEct).unwrap();
    sending.send(&pattern(100), 100, Ecn::NotEct).unwrap();
    let messages = receive(&mut receiver, &receiving);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].datagrams, [pattern(100)]);
    assert_eq!(receiver.counts().truncated, 1);
}

#[test]
fn a_session_socket_shares_the_port_with_its_listener() {
    let shared = Options { reuse_port: true, ..options(Offload::Auto) };
    let listener = bind(V4, &shared);
    let addr = listener.local_addr().unwrap();
    let client = bind(V4, &options(Offload::Auto));
    client.connect(addr).unwrap();
    assert!(UdpSocket::bind(addr, &shared).is_err(), "two listeners");
    let session = UdpSocket::connected(addr, client.local_addr().unwrap(), &shared).unwrap();
    assert_eq!(session.peer_addr(), Some(client.local_addr().unwrap()));
    client.send(b"for the session", 100, Ecn::NotEct).unwrap();
    assert_eq!(receive(&mut Receiver::new(&session), &session).len(), 1);
    let intruder = bind(V4, &options(Offload::Auto));
    intruder.send_to(b"for the listener", 100, Ecn::NotEct, addr).unwrap();
    assert_eq!(receive(&mut Receiver::new(&listener), &listener).len(), 1);
}

#[test]
fn buffers_are_reported_as_granted() {
    let requested = Bytes(1 << 40);
    let socket = bind(V4, &Options { recv_buffer: requested, ..Options::default() });
    let grant = socket.capabilities().recv_buffer;
    assert_eq!(grant.requested, requested);
    assert!(grant.granted > Bytes(0) && grant.granted < requested);
    let fallbacks = socket.capabilities().fallbacks();
    assert!(
        fallbacks.iter().any(|f| f.hint == format!("sysctl -w net.core.rmem_max={}", requested.0)),
        "{fallbacks:?}"
    );
}

#[test]
fn empty_batches_and_empty_datagrams_are_harmless() {
    let (sending, receiving) = pair(V4, Offload::Auto);
    let sent = sending.send(&[], 1_000, Ecn::NotEct).unwrap();
    assert_eq!((sent.bytes, sent.datagrams), (0, 0));
    let std = std::net::UdpSocket::bind(V4).unwrap();
    std.send_to(&[], receiving.local_addr().unwrap()).unwrap();
    let messages = receive(&mut Receiver::new(&receiving), &receiving);
    assert_eq!(messages.len(), 1);
    assert!(messages[0].datagrams.is_empty());
}
