use proptest::prelude::*;

use super::*;

fn client() -> PathProbe {
    PathProbe::new(at(0), [192, 0, 2, 1].into(), u32::MAX)
}

fn answer(probe: &mut PathProbe, response: Challenge) -> bool {
    probe.on_frame(ControlFrameKind::Response, response.size)
}

/// All responses that the server has to send.
fn responses(server: &mut Challenges) -> Vec<Challenge> {
    std::iter::from_fn(|| server.poll_transmit()).collect()
}

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn drain(probe: &mut PathProbe) -> Vec<Challenge> {
    std::iter::from_fn(|| probe.poll_transmit()).collect()
}

fn sizes(challenges: &[Challenge]) -> Vec<u16> {
    challenges.iter().map(|it| it.size).collect()
}

fn round(client: &mut PathProbe, now: Time) -> Vec<u16> {
    client.on_deadline(now);
    sizes(&drain(client))
}

#[test]
fn the_first_round_tries_every_size_and_an_answer_to_the_largest_ends_it() {
    let (mut client, mut server) = (client(), Challenges::default());
    let challenges = drain(&mut client);
    assert_eq!(sizes(&challenges), [1200, 1472, 8972]);
    for challenge in challenges {
        server.add_challenge(challenge);
    }
    assert_eq!(server.largest, 8972);
    for response in responses(&mut server) {
        assert!(answer(&mut client, response));
    }
    assert_eq!(client.datagram(), 8972);
    assert!(round(&mut client, at(100)).is_empty());
    assert_eq!(client.next_round, None);
}

#[test]
fn ipv6_sizes_account_for_the_longer_header() {
    assert_eq!(sizes_for("2001:db8::1".parse().unwrap()), [1200, 1452, 8952]);
    assert_eq!(sizes_for("::ffff:192.0.2.1".parse().unwrap()), [1200, 1472, 8972]);
}

#[test]
fn unanswered_challenges_are_repeated_and_large_ones_abandoned() {
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
    let (mut client, mut server) = (client(), Challenges::default());
    for millis in [0, 100, 200, 300] {
        client.on_deadline(at(millis));
        drain(&mut client).into_iter().filter(|it| it.size <= 1472).for_each(|it| server.add_challenge(it));
        for response in responses(&mut server) {
            answer(&mut client, response);
        }
    }
    assert_eq!(client.datagram(), 1472);
    assert_eq!(client.next_round, None);
    assert!(!client.is_unanswered(at(10_000)));
}

#[test]
fn silence_counts_four_seconds_after_the_accept() {
    let mut client = client();
    client.on_accepted(at(500));
    assert!(!client.is_unanswered(at(4499)) && client.is_unanswered(at(4500)));
}

#[test]
fn replays_and_other_answers_do_no_harm() {
    let (mut client, mut server) = (client(), Challenges::default());
    let first = drain(&mut client)[0];
    (0..100).for_each(|_| server.add_challenge(first));
    assert_eq!(responses(&mut server), [first], "one answer to a hundred replays");
    (0..100).for_each(|size| server.add_challenge(Challenge { number: 1, size }));
    assert!(responses(&mut server).len() <= MAX_WAITING, "too many pending challenges");
    assert!(!answer(&mut client, Challenge { number: 1, size: 1300 }), "a size that was not requested");
    assert!(client.is_unanswered(at(5_000)));
}

#[test]
fn a_server_challenge_makes_the_client_repeat_and_is_no_path_sample() {
    let mut client = client();
    drain(&mut client);
    assert!(!client.on_frame(ControlFrameKind::Challenge, 36), "it is not an answer");
    assert!(client.is_unanswered(at(5_000)));
    assert_eq!(sizes(&drain(&mut client)), [1200]);
}

proptest! {
    #[test]
    fn the_probe_succeeds_on_any_path_that_delivers_packets(
        losses in prop::collection::vec(any::<bool>(), 400), largest in 1200u16..9000,
    ) {
        let (mut client, mut server) = (client(), Challenges::default());
        let mut losses = losses.into_iter();
        let mut passes = |it: &Challenge| it.size <= largest && !losses.next().unwrap_or(false);
        let mut now = at(0);
        while let Some(deadline) = client.next_round {
            now = now.max(deadline);
            client.on_deadline(now);
            for challenge in drain(&mut client) {
                if passes(&challenge) {
                    server.add_challenge(challenge);
                }
            }
            now += Span::from_millis(20);
            for response in responses(&mut server) {
                if passes(&response) {
                    answer(&mut client, response);
                }
            }
        }
        prop_assert!(!client.is_unanswered(now + Span::from_secs(10)));
        prop_assert!(client.datagram() <= largest);
    }
}
