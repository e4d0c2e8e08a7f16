use haul_wire::control::FaultCode;
use haul_wire::packet::ConnectionId;
use proptest::prelude::*;

use super::*;
use crate::Role;
use crate::crypto::ResumptionSecret;

const PEER: &str = "192.0.2.1:7000";

fn keys(seed: u8, role: Role) -> FrameKeys {
    FrameKeys::new(&ResumptionSecret([seed; 32].into()), ConnectionId::of_session(77), role)
}

fn client() -> PathProbe {
    PathProbe::new(at(0), keys(1, Role::Client), PEER.parse().unwrap(), u32::MAX)
}

impl PathProbe {
    /// Whether the datagram is an authentic answer.
    fn on_packet(&mut self, packet: &[u8]) -> bool {
        let frame = ControlFrame::parse(packet).ok().filter(|frame| keys(1, Role::Client).verifies(frame));
        frame.is_some_and(|frame| self.on_frame(&frame))
    }
}

/// The server's part.
#[derive(Default)]
struct Server(Challenges);

impl Server {
    fn on_packet(&mut self, packet: &[u8]) -> bool {
        let frame = ControlFrame::parse(packet).ok().filter(|frame| keys(1, Role::Server).verifies(frame));
        let challenge = frame.filter(|frame| frame.kind == ControlFrameKind::Challenge);
        challenge.inspect(|challenge| self.0.note(challenge)).is_some()
    }

    fn responses(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.0.respond(&keys(1, Role::Server))).collect()
    }
}

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn drain(probe: &mut PathProbe) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| probe.poll_transmit()).collect()
}

fn round(client: &mut PathProbe, now: Time) -> Vec<usize> {
    client.on_deadline(now);
    drain(client).iter().map(Vec::len).collect()
}

#[test]
fn the_first_round_tries_every_size_and_an_answer_to_the_largest_settles_all() {
    let (mut client, mut server) = (client(), Server::default());
    let challenges = drain(&mut client);
    assert_eq!(challenges.iter().map(Vec::len).collect::<Vec<_>>(), [1200, 1472, 8972]);
    for challenge in challenges {
        assert!(server.on_packet(&challenge));
    }
    assert_eq!(server.0.largest, 8972);
    for response in server.responses() {
        assert!(client.on_packet(&response));
    }
    assert_eq!(client.datagram(), 8972);
    assert!(round(&mut client, at(100)).is_empty());
    assert_eq!(client.next_round, None);
}

#[test]
fn ipv6_sizes_leave_room_for_the_longer_header() {
    assert_eq!(sizes_for("[2001:db8::1]:1".parse().unwrap()), [1200, 1452, 8952]);
    assert_eq!(sizes_for("[::ffff:192.0.2.1]:1".parse().unwrap()), [1200, 1472, 8972]);
}

#[test]
fn unanswered_challenges_are_repeated_and_large_ones_given_up() {
    let mut client = client();
    assert_eq!(round(&mut client, at(0)), [1200, 1472, 8972]);
    assert_eq!(round(&mut client, at(50)), [0; 0]);
    assert_eq!(client.next_round, Some(at(100)));
    assert_eq!(round(&mut client, at(100)), [1200, 1472, 8972]);
    assert_eq!(round(&mut client, at(200)), [1200, 1472, 8972]);
    assert_eq!(round(&mut client, at(300)), [1200]);
    assert_eq!(round(&mut client, at(3900)), [1200]);
}

#[test]
fn sizes_that_the_interface_refuses_are_not_tried_again() {
    let mut client = client();
    round(&mut client, at(0));
    client.on_too_large(8972);
    assert_eq!(round(&mut client, at(100)), [1200, 1472]);
}

#[test]
fn a_path_that_loses_large_datagrams_is_used_with_small_ones() {
    let (mut client, mut server) = (client(), Server::default());
    for millis in [0, 100, 200, 300] {
        client.on_deadline(at(millis));
        for challenge in drain(&mut client).iter().filter(|it| it.len() <= 1472) {
            server.on_packet(challenge);
        }
        for response in server.responses() {
            client.on_packet(&response);
        }
    }
    assert_eq!(client.datagram(), 1472);
    assert_eq!(client.next_round, None);
    assert!(client.failure(at(10_000), false).is_none());
}

#[test]
fn silence_is_named_with_port_and_direction_four_seconds_after_the_accept() {
    let mut client = client();
    client.on_accepted(at(500));
    assert!(client.failure(at(4400), false).is_none());
    let fault = |seen| client.failure(at(4500), seen).unwrap().fault();
    assert_eq!(fault(true).code, FaultCode::UdpBlocked);
    assert!(fault(false).message.contains("from the client to the server (UDP port 7000"));
    assert!(fault(true).message.contains("from the server to the client"));
}

#[test]
fn strangers_reflections_and_replays_do_no_harm() {
    let (mut client, mut server) = (client(), Server::default());
    let challenges = drain(&mut client);
    assert!(!client.on_packet(&challenges[0]), "reflected");
    let challenge = ControlFrame::parse(&challenges[0]).unwrap();
    assert!(!keys(9, Role::Server).verifies(&challenge), "other session");
    for _ in 0..100 {
        assert!(server.on_packet(&challenges[0]));
    }
    assert_eq!(server.responses().len(), 1, "one answer to a hundred replays");
    assert!(!server.on_packet(&challenges[2][..1200]), "the size is authenticated");
    let longer = [&challenges[0][..], &[0; 300]].concat();
    assert!(!server.on_packet(&longer));
}

#[test]
fn a_challenge_of_the_server_has_the_client_ask_again_and_tells_nothing_of_the_path() {
    let mut client = client();
    drain(&mut client);
    let challenge = keys(1, Role::Server).frame(ControlFrameKind::Challenge, 9, BARE);
    assert!(!client.on_packet(&challenge), "it is not an answer");
    assert!(client.failure(at(5_000), true).is_some());
    assert_eq!(drain(&mut client).iter().map(Vec::len).collect::<Vec<_>>(), [1200]);
}

proptest! {
    #[test]
    fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        prop_assert!(!client().on_packet(&bytes));
        prop_assert!(!Server::default().on_packet(&bytes));
    }

    #[test]
    fn the_exchange_ends_well_on_any_path_that_passes_something(
        losses in prop::collection::vec(any::<bool>(), 400), largest in 1200usize..9000,
    ) {
        let (mut client, mut server) = (client(), Server::default());
        let mut losses = losses.into_iter();
        let mut passes = |packet: &[u8]| packet.len() <= largest && !losses.next().unwrap_or(false);
        let mut now = at(0);
        while let Some(deadline) = client.next_round {
            now = now.max(deadline);
            client.on_deadline(now);
            for challenge in drain(&mut client) {
                if passes(&challenge) {
                    server.on_packet(&challenge);
                }
            }
            now += Span::from_millis(20);
            for response in server.responses() {
                if passes(&response) {
                    client.on_packet(&response);
                }
            }
        }
        prop_assert!(client.failure(now + Span::from_secs(10), false).is_none());
        prop_assert!(usize::from(client.datagram()) <= largest);
    }
}
