//! An answer and a message in one datagram, and threads that look for the next message instead of sleeping.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use haul_engine::{AssociateOptions, Channel, ChannelOptions, Endpoint, Listener, TicketFile};
use haul_stack::Ends;
use haul_wire::packet::{OPEN_KIND, PAIR_KIND, PairHeader};

use crate::associations::{client_of, flight, own_registry, recv, send, until};
use crate::support::{PATIENCE, listener};
use crate::waiting::{pair_on, pair_with};

fn channels(listener: &Listener) -> (Endpoint, Channel, Channel) {
    let endpoint = Endpoint::client("127.0.0.1".parse().unwrap()).unwrap();
    let (client, server) = pair_on(&endpoint, listener, &listener.url("127.0.0.1", b""));
    (endpoint, client, server)
}

fn take_turns(client: &Channel, server: &Channel, rounds: u32) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let question = recv(server);
                send(server, &question);
            }
        });
        for round in 0..rounds {
            send(client, &round.to_be_bytes());
            assert_eq!(recv(client), round.to_be_bytes());
        }
    });
}

#[test]
fn answers_and_messages_share_datagrams_whether_threads_sleep_or_look() {
    for busy_poll in [Duration::ZERO, Duration::from_millis(1)] {
        let listener = listener("127.0.0.1");
        listener.endpoint().set_options(ChannelOptions { busy_poll, ..ChannelOptions::default() });
        let (endpoint, client, server) = channels(&listener);
        take_turns(&client, &server, 500);
        for stats in [endpoint.stats(), listener.endpoint().stats()] {
            assert!(stats.pairs > 100, "{stats:?}");
            assert_eq!((stats.strays, stats.unknown, stats.unauthentic), (0, 0, 0), "{stats:?}");
        }
    }
}

#[test]
fn a_thread_that_knows_when_its_answer_comes_looks_for_it_unless_it_may_not() {
    for (busy_poll, may_look) in [(Duration::from_millis(5), true), (Duration::ZERO, false)] {
        let listener = listener("127.0.0.1");
        listener
            .endpoint()
            .set_options(ChannelOptions { busy_poll: Duration::ZERO, ..ChannelOptions::default() });
        let endpoint = Endpoint::client("127.0.0.1".parse().unwrap()).unwrap();
        let channel = ChannelOptions { busy_poll, ..ChannelOptions::default() };
        let options = AssociateOptions { channel, ..AssociateOptions::default() };
        let url = listener.url("127.0.0.1", b"");
        let (client, server) = pair_with(&endpoint, &listener, &url, &options);
        let end = Instant::now() + PATIENCE;
        let mut turns = 0;
        while turns < 30 || (may_look && endpoint.stats().looks == 0) {
            assert!(Instant::now() < end, "nobody looked in {turns} turns");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let question = recv(&server);
                    std::thread::sleep(Duration::from_millis(25));
                    send(&server, &question);
                });
                send(&client, b"?");
                assert_eq!(recv(&client), b"?");
            });
            turns += 1;
        }
        assert_eq!(endpoint.stats().looks > 0, may_look);
        assert_eq!(listener.endpoint().stats().looks, 0);
    }
}

#[test]
fn who_knows_the_path_looks_for_the_very_first_answer() {
    let round_trip = Duration::from_millis(25);
    let listener = listener("127.0.0.1");
    let directory = tempfile::tempdir().unwrap();
    let ticket = TicketFile::new(directory.path().join("ticket"));
    let mut known = client_of(&listener, &listener.url("127.0.0.1", b""));
    ticket.keep(&mut known).unwrap();
    known.close(PATIENCE).unwrap();
    drop(flight(&listener));
    // What is said of the path is true as long as the server answers so late.
    let text = std::fs::read_to_string(ticket.path()).unwrap();
    let measured = text.lines().find(|line| line.starts_with("round_trip_us ")).unwrap();
    let text = text.replace(measured, &format!("round_trip_us {}", round_trip.as_micros()));
    std::fs::write(ticket.path(), text).unwrap();
    let options = ChannelOptions { busy_poll: Duration::from_millis(5), ..ChannelOptions::default() };
    let end = Instant::now() + PATIENCE;
    // A busy host may be late for one.
    loop {
        let endpoint = Endpoint::client("127.0.0.1".parse().unwrap()).unwrap();
        let client = ticket.resume(Some(&endpoint), &own_registry(), &options, Ends::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let server = flight(&listener);
                let question = recv(&server);
                std::thread::sleep(round_trip);
                send(&server, &question);
                server.flush(Some(PATIENCE)).unwrap();
            });
            send(&client, b"?");
            assert_eq!(recv(&client), b"?");
        });
        if endpoint.stats().looks > 0 {
            return;
        }
        assert!(Instant::now() < end, "nobody looked for a first answer");
        client.close(PATIENCE).unwrap();
    }
}

#[test]
fn pairs_of_anything_else_are_counted_and_change_nothing() {
    let listener = listener("127.0.0.1");
    let (_endpoint, client, server) = channels(&listener);
    take_turns(&client, &server, 20);
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let identity = client.identity().to_be_bytes();
    let stranger = [&[1, 0, 0, 0, 0, 0, 9][..], &[0xEE; 4], &[7; 40]].concat();
    let forged = [&[1, 0, 0, 0, 0, 0, 9][..], &identity, &[7; 40]].concat();
    let open = [&[OPEN_KIND][..], &[7; 60]].concat();
    let pair = |first: &[u8], second: &[u8]| {
        [&PairHeader { first: first.len() as u16 }.to_bytes()[..], first, second].concat()
    };
    // Of each, what it counts as: unknown, not authentic, or neither packet nor pair.
    for (datagram, expected) in [
        (pair(&stranger, &stranger), (2, 0, 0)),
        (pair(&forged, &forged), (0, 2, 0)),
        (pair(&open, &pair(&forged, &forged)), (0, 0, 2)),
        ([&[PAIR_KIND, 0xFF, 0xFF][..], &forged].concat(), (0, 0, 1)),
        ([&[PAIR_KIND, 0, 0][..], &forged].concat(), (0, 0, 1)),
    ] {
        let stats = || {
            let stats = listener.endpoint().stats();
            (stats.unknown, stats.unauthentic, stats.strays)
        };
        let before = stats();
        let after = (before.0 + expected.0, before.1 + expected.1, before.2 + expected.2);
        attacker.send_to(&datagram, listener.local_addr()).unwrap();
        until("the datagram is not counted", || stats() == after);
    }
    take_turns(&client, &server, 20);
}
