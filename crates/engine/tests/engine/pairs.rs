//! An acknowledgement and a message in one datagram.

use std::net::UdpSocket;
use std::time::Duration;

use haul_engine::{Channel, ConnectionOptions, Endpoint, Listener};
use haul_wire::packet::{INITIAL_HEADER_KIND, PAIR_KIND, PairHeader};

use crate::connections::{recv, send, until};
use crate::support::listener;
use crate::waiting::pair_on;

fn channels(listener: &Listener) -> (Endpoint, Channel, Channel) {
    let endpoint = Endpoint::client().unwrap();
    let (client, server) = pair_on(&endpoint, listener, &listener.url("127.0.0.1", b""));
    (endpoint, client, server)
}

fn exchange(client: &Channel, server: &Channel, rounds: u32) {
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
fn acknowledgements_and_messages_share_datagrams_in_sleeping_and_polling_threads() {
    for busy_poll in [Duration::ZERO, Duration::from_millis(1)] {
        let listener = listener("127.0.0.1");
        listener.endpoint().set_options(ConnectionOptions { busy_poll, ..ConnectionOptions::default() });
        let (endpoint, client, server) = channels(&listener);
        exchange(&client, &server, 500);
        for stats in [endpoint.stats(), listener.endpoint().stats()] {
            assert!(stats.pairs > 100, "{stats:?}");
            assert_eq!((stats.strays, stats.unknown, stats.unauthentic), (0, 0, 0), "{stats:?}");
        }
    }
}

#[test]
fn other_coalesced_pairs_are_counted_and_ignored() {
    let listener = listener("127.0.0.1");
    let (_endpoint, client, server) = channels(&listener);
    exchange(&client, &server, 20);
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let identity = client.identity().to_be_bytes();
    let stranger = [&[1, 0, 0, 0, 0, 0, 9][..], &[0xEE; 4], &[7; 40]].concat();
    let forged = [&[1, 0, 0, 0, 0, 0, 9][..], &identity, &[7; 40]].concat();
    let open = [&[INITIAL_HEADER_KIND][..], &[7; 60]].concat();
    let pair = |first: &[u8], second: &[u8]| {
        [&PairHeader { first: first.len() as u16 }.to_bytes()[..], first, second].concat()
    };
    // One of each counter: unknown, unauthentic, and neither packet nor pair.
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
    exchange(&client, &server, 20);
}
