use haul_base::{Ecn, PathId};
use haul_stack::{Declaration, Delivery, MicroProtocol, Order, Registration, Resolution, SendOptions};
use haul_wire::control::Cipher;
use haul_wire::packet::ConnectionId;

use super::*;
use crate::connection::{ResumptionSecret, compile};
use crate::micro::registry;

const KEY: [u8; 32] = [6; 32];

/// The client's end, at 192.0.2.7, and the server's.
fn ends() -> [(ConnectionState<Failure>, Keys); 2] {
    ends_with(&[])
}

/// As `ends`, with these micro-protocols too.
fn ends_with(parts: &[&'static str]) -> [(ConnectionState<Failure>, Keys); 2] {
    let recipe = Recipe::new("test").with("fixed_size").with("transport_driver").with("seal");
    let recipe = parts.iter().fold(recipe, |recipe, part| recipe.with(*part));
    let cipher = Cipher::Aes128Gcm;
    let mut registry = registry();
    registry.register(Registration::new("failing", 1, "panics", |_, _| Ok(Box::new(Failing))));
    let compiled = compile(&Arc::new(registry), &recipe, cipher).unwrap();
    [Role::Client, Role::Server].map(|role| {
        let (secret, round_trip) = (ResumptionSecret([1; 32].into()), Span::from_millis(1));
        let id = ConnectionId { identity: 7, epoch: 1, salt: 0 };
        let keys = ConnectionKeys::new(&secret, &id, role);
        let resumption =
            ResumptionState { role, identity: 7, secret, cipher, compiled: compiled.clone(), round_trip };
        let peer = PeerAddress { at: ([192, 0, 2, 7], 7).into(), moves: Some(0) };
        let (options, ends) = (ConnectionOptions::default(), Ends::default());
        let opening = Span::from_secs(10);
        let state = ConnectionState::begin(Time::ZERO, &resumption, &keys, peer, opening, &options, ends);
        (state.unwrap(), Keys::Resumable(keys))
    })
}

#[test]
fn a_peer_has_moved_once_its_new_address_answered() {
    let [(mut client, client_keys), (mut server, keys)] = ends();
    let [first, second, third]: [SocketAddr; 3] = [7, 8, 9].map(|host| ([192, 0, 2, host], 7).into());
    let mut take = |frame: &[u8], from| {
        let frame = ControlFrame::parse(frame).unwrap();
        let answer = server.on_frame(Time::ZERO, &keys, &KEY, &frame, from);
        (answer.map(|(datagram, to)| (ControlFrame::parse(&datagram).unwrap().kind, to)), server.peer.at)
    };
    let ping = client_keys.frames().frame(ControlFrameKind::Ping, 5, BARE_FRAME_LEN);
    assert_eq!(take(&ping, first), (Some((ControlFrameKind::Pong, first)), first));
    assert_eq!(take(&ping, second), (Some((ControlFrameKind::Challenge, second)), first), "it may be a copy");
    let (challenge, to) = ends()[1].0.challenge(&ends()[1].1, &KEY, second);
    assert_eq!(to, second);
    let challenge = ControlFrame::parse(&challenge).unwrap();
    let response = client.on_frame(Time::ZERO, &client_keys, &KEY, &challenge, first);
    let (response, _) = response.unwrap();
    assert_eq!(take(&response, third), (None, first), "the challenge was for another address");
    assert_eq!(take(&response, second), (Some((ControlFrameKind::Opened, second)), second));
    assert_eq!(take(&response, first), (None, second), "a copy does not move it back");
}

#[test]
fn a_closing_or_ended_connection_refuses_to_change_its_recipe() {
    let [(mut client, _), (mut server, _)] = ends();
    let changed = client.stack.recipe().clone().with("sequenced_segment");
    client.lifecycle.start_close(Time::ZERO, ControlFrameKind::Close, CloseReason::Graceful);
    server.lifecycle.end(None);
    for end in [&mut client, &mut server] {
        assert_eq!(end.reconfigure(Time::ZERO, &changed), Err(RecipeError::Ended));
    }
    let [(mut open, _), _] = ends();
    assert_eq!(open.reconfigure(Time::ZERO, &changed), Ok(()));
}

/// A pong would end the client's initial headers, and nothing would validate its address any more.
#[test]
fn a_server_challenges_a_client_that_pings_before_its_address_is_validated() {
    let [(_, client_keys), (mut server, keys)] = ends();
    server.peer.moves = None;
    let ping = client_keys.frames().frame(ControlFrameKind::Ping, 5, BARE_FRAME_LEN);
    let (ping, from) = (ControlFrame::parse(&ping).unwrap(), server.peer.at);
    let (answer, to) = server.on_frame(Time::ZERO, &keys, &KEY, &ping, from).unwrap();
    assert_eq!((ControlFrame::parse(&answer).unwrap().kind, to), (ControlFrameKind::Challenge, from));
}

/// Anybody can send a delayed copy from their own address, followed by a forged packet with a newer number.
#[test]
fn only_the_newest_packet_of_a_run_can_indicate_a_move() {
    let [(mut client, _), (mut server, keys)] = ends();
    let [first, second]: [SocketAddr; 2] = [7, 8].map(|host| ([192, 0, 2, host], 7).into());
    let mut packet = || {
        client.stack.send(Time::ZERO, &[1; 100], SendOptions::default()).unwrap();
        let mut slot = vec![0; 65_536];
        let sent = client.stack.poll_transmit(Time::ZERO, &mut slot).unwrap();
        slot[..sent.len].to_vec()
    };
    let [delayed, newest, next] = std::array::from_fn(|_| packet());
    // Returns the address that is challenged.
    let mut take = |run: &[&[u8]], from| {
        let (data, stride) = (&mut run.concat()[..], run[0].len());
        let (path, ecn) = (PathId::default(), Ecn::NotEct);
        let mut received = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
        let taken = server.on_packets(Time::ZERO, &keys, &KEY, &mut received, (from, Header::Absent));
        assert_eq!(server.peer.at, first);
        match taken {
            PacketVerdict::Consumed(challenge) => challenge.map(|(_, to)| to),
            refused => panic!("{refused:?}"),
        }
    };
    assert_eq!(take(&[&newest], first), None);
    let mut forged = next.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(take(&[&delayed, &forged], second), None);
    assert_eq!(take(&[&next], second), Some(second), "the client itself is there");
}

#[test]
fn a_close_is_answered_and_reports_missing_data() {
    for (reason, failure) in [(CloseReason::Graceful, None), (CloseReason::Abort, Some(Failure::Aborted))] {
        let [(_, client_keys), (mut server, keys)] = ends();
        let close = client_keys.frames().frame(ControlFrameKind::Close, reason as u32, BARE_FRAME_LEN);
        let (close, from) = (ControlFrame::parse(&close).unwrap(), server.peer.at);
        let (answer, to) = server.on_frame(Time::ZERO, &keys, &KEY, &close, from).unwrap();
        assert_eq!((ControlFrame::parse(&answer).unwrap().kind, to), (ControlFrameKind::Closed, from));
        assert!(server.lifecycle.is_ended() && server.lifecycle.failure() == failure.as_ref());
    }
}

/// With retransmission they may only follow what the sender has given up.
#[test]
fn unreliable_messages_after_a_gap_are_delivered_when_the_peer_closes() {
    let unreliable: &[&str] = &["sequenced_segment", "in_order"];
    let reliable = [unreliable, &["positive_ack", "retransmit"]].concat();
    for (parts, expected) in [(unreliable, &[0, 2][..]), (&reliable, &[0])] {
        let [(mut client, client_keys), (mut server, keys)] = ends_with(parts);
        let (mut slot, from) = (vec![0; 65_536], server.peer.at);
        for n in 0..3 {
            client.stack.send(Time::ZERO, &[1; 100], SendOptions::default()).unwrap();
            let sent = client.stack.poll_transmit(Time::ZERO, &mut slot).unwrap();
            let (data, stride) = (&mut slot[..sent.len], sent.segment_size);
            let (path, ecn) = (PathId::default(), Ecn::NotEct);
            let mut received = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
            if n != 1 {
                server.on_packets(Time::ZERO, &keys, &KEY, &mut received, (from, Header::Absent));
            }
        }
        let close =
            client_keys.frames().frame(ControlFrameKind::Close, CloseReason::Graceful as u32, BARE_FRAME_LEN);
        server.on_frame(Time::ZERO, &keys, &KEY, &ControlFrame::parse(&close).unwrap(), from).unwrap();
        let got: Vec<u64> = std::iter::from_fn(|| server.stack.recv()).map(|(id, _)| id).collect();
        assert!(got == expected && server.lifecycle.is_ended(), "{got:?}");
    }
}

/// Panics on every message.
#[derive(Debug)]
struct Failing;

impl MicroProtocol for Failing {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_delivery(Order::NORMAL);
    }

    fn on_delivery(&mut self, _: &mut Delivery<'_>, _: &mut haul_stack::Context<'_>) {
        panic!("no message is good enough");
    }
}

#[test]
fn the_close_of_a_failed_connection_is_repeated_until_it_is_answered() {
    for is_answered in [false, true] {
        let [(mut client, client_keys), (mut server, keys)] = ends_with(&["failing"]);
        let (mut slot, from) = (vec![0; 65_536], server.peer.at);
        client.stack.send(Time::ZERO, b"hello", SendOptions::default()).unwrap();
        let sent = client.stack.poll_transmit(Time::ZERO, &mut slot).unwrap();
        let (data, stride) = (&mut slot[..sent.len], sent.segment_size);
        let (path, ecn) = (PathId::default(), Ecn::NotEct);
        let mut received = Received { data, stride, arrival: None, path, ecn, socket_drops: None };
        server.on_packets(Time::ZERO, &keys, &KEY, &mut received, (from, Header::Absent));
        let mut closes: Vec<_> = server.take_events(Time::ZERO, &keys).1.into_iter().collect();
        while let Some(at) = server.deadline() {
            assert!(server.lifecycle.is_ended(), "the application is told at once");
            closes.extend(server.due_frames(at, &keys));
            if is_answered && closes.len() == 2 {
                let answer = client_keys.frames().frame(ControlFrameKind::Closed, 0, BARE_FRAME_LEN);
                server.on_frame(at, &keys, &KEY, &ControlFrame::parse(&answer).unwrap(), from);
            }
        }
        for (frame, _) in &closes {
            let frame = ControlFrame::parse(frame).unwrap();
            assert_eq!((frame.kind, frame.number), (ControlFrameKind::Close, CloseReason::Abort as u32));
        }
        assert_eq!(closes.len(), if is_answered { 2 } else { 6 });
        let failure = server.lifecycle.failure();
        assert!(matches!(failure, Some(Failure::MicroProtocol { .. })), "{failure:?}");
    }
}

#[test]
fn an_unanswered_client_repeats_its_header_and_fails() {
    let [(mut client, keys), _] = ends();
    let mut headers = 0;
    while let Some(at) = client.lifecycle.deadline() {
        let frames = client.due_frames(at, &keys);
        assert!(frames.iter().all(|(frame, _)| frame.len() == INITIAL_HEADER_LEN));
        headers += frames.len();
    }
    assert!(headers > 3 && client.lifecycle.failure() == Some(&Failure::Unanswered(7)), "{headers}");
}

#[test]
fn packets_wait_for_an_answer_until_a_pending_timer_expires() {
    let (now, ms) = (Time::ZERO + Span::from_secs(1), Span::from_millis(1));
    let (own, near, far) = (now + ms / 2, ms, ms * 60);
    for (set, rtt, until) in [
        (None, far, own),
        (Some(now + ms * 4), far, now + ms * 4),
        (Some(now + ms * 16), far, own),
        (Some(now + ms / 4), far, own),
        (Some(now + ms * 4 / 5), near, now + ms * 4 / 5),
        (Some(now + ms * 2), near, own),
    ] {
        assert_eq!(deferred_until(now, set, rtt), until, "{set:?} {rtt:?}");
    }
}

#[test]
fn data_is_found_anywhere_in_a_run() {
    let run = |kinds: &[Kind]| kinds.iter().flat_map(|kind| [kind.0, 0, 0, 0]).collect::<Vec<u8>>();
    let answer = Kind::RECONFIGURE;
    for (kinds, expected) in [
        (vec![answer; 3], false),
        (vec![Kind::DATA, answer], true),
        (vec![answer, answer, Kind::DATA_FIN], true),
        (vec![answer, FEC_KIND], true),
        (vec![answer, Kind(Kind::DATA.0 | GENERATION_BIT)], true),
    ] {
        assert_eq!(carries_data(&run(&kinds), 4), expected, "{kinds:?}");
    }
    // The last packet of a run may be shorter.
    assert!(carries_data(&[answer.0, 0, 0, 0, Kind::DATA.0], 4) && !carries_data(&[], 4));
}
