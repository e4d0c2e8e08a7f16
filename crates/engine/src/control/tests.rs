use std::io::Write;
use std::sync::atomic::AtomicUsize;

use haul_testing::attempts;
use haul_wire::control::{FaultCode, MAX_RULES, Rule, Verdict, encode_frame};

use super::*;
use crate::tls::{BlockingWait, pair};

/// Longer than any operation takes on a busy machine.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn timing(silence_ms: u64) -> Timing {
    Timing { ping: Span::from_millis(50), silence: Span::from_millis(silence_ms) }
}

fn channels(timing: Timing) -> [Control; 2] {
    pair().map(|(tls, tcp)| Control::start(tls, tcp, timing).unwrap())
}

fn text(len: usize) -> ControlMessage {
    ControlMessage::Digests(vec![haul_wire::control::FileDigest { entry: 7, result: Ok([7; 32]) }; len / 32])
}

#[test]
fn messages_arrive_in_order_both_ways() {
    let [a, b] = channels(Timing::default());
    for bytes in 0..100 {
        a.send(ControlMessage::ObjectSent { bytes }).unwrap();
        b.send(ControlMessage::EntriesEnd { entries: 1, bytes }).unwrap();
    }
    for bytes in 0..100 {
        assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes });
        assert_eq!(a.recv(TIMEOUT).unwrap(), ControlMessage::EntriesEnd { entries: 1, bytes });
    }
}

#[test]
fn many_large_messages_pass_both_ways_at_once_with_little_memory() {
    let [a, b] = channels(Timing::default());
    let write_all_to =
        |to: Control| std::thread::spawn(move || (0..60).for_each(|_| to.send(text(900_000)).unwrap()));
    let drain = |from: Control| {
        std::thread::spawn(move || {
            (0..60).for_each(|_| assert_eq!(from.recv(TIMEOUT).unwrap(), text(900_000)));
        })
    };
    let threads = [write_all_to(a.clone()), write_all_to(b.clone()), drain(a), drain(b)];
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_sleeping_reader_blocks_the_sender_without_timeouts() {
    let failures = || {
        let [a, b] = channels(timing(2000));
        let sender = a.clone();
        let thread = std::thread::spawn(move || (0..50).all(|_| sender.send(text(900_000)).is_ok()));
        std::thread::sleep(Duration::from_secs(3));
        let is_blocked = !thread.is_finished();
        let received = (0..50).take_while(|_| b.recv(TIMEOUT).is_ok()).count();
        (is_blocked, received, thread.join().unwrap(), a.failure(), b.failure())
    };
    // A busy machine can stall the threads that serve the channel for the timeout.
    let is_expected = |found: &_| matches!(found, (true, 50, true, None, None));
    let found = attempts(failures, is_expected);
    assert!(is_expected(&found), "{found:?}: 50 MB fit nowhere, and nothing fails");
}

/// A queue that the session's own packets keep full delays TCP, but must not end the session.
#[test]
fn a_silent_channel_with_active_data_has_four_times_the_timeout() {
    // The peer never sends anything.
    let lifetime = || {
        let [(tls, tcp), _silent] = pair();
        let (started, channel) = (Instant::now(), Control::start(tls, tcp, timing(500)).unwrap());
        while channel.failure().is_none() {
            channel.on_data_received();
            std::thread::sleep(Duration::from_millis(10));
        }
        started.elapsed()
    };
    // If the machine stalls this thread for the timeout, the data is not active.
    let is_extended = |lifetime: &Duration| *lifetime >= Duration::from_secs(2);
    let lifetime = attempts(lifetime, is_extended);
    assert!(is_extended(&lifetime), "{lifetime:?}");
}

/// A process that was stopped, for example with its machine, does not know whether its peer was silent.
#[test]
fn a_channel_that_was_not_served_for_longer_than_the_timeout_continues_with_what_has_arrived() {
    let pumps = pair().map(|(tls, tcp)| {
        let mut pump = Pump::new(tls, tcp, timing(3_000)).unwrap();
        pump.send(&ControlMessage::Ping(1)).unwrap();
        pump
    });
    std::thread::sleep(Duration::from_secs(4));
    let [a, b] = pumps.map(|pump| Control::served_by(pump).unwrap());
    a.send(ControlMessage::ObjectSent { bytes: 1 }).unwrap();
    assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 1 });
    b.send(ControlMessage::ObjectSent { bytes: 2 }).unwrap();
    assert_eq!(a.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 2 });
    assert!(a.failure().is_none() && b.failure().is_none());
}

#[test]
fn an_optional_message_is_dropped_instead_of_waiting() {
    let [a, b] = channels(Timing::default());
    // More than the queues of both ends and of the system hold.
    let sent = (0..200).take_while(|_| a.send_if_room(&text(900_000)).unwrap()).count();
    assert!((1..200).contains(&sent), "{sent}");
    for _ in 0..sent {
        b.recv(TIMEOUT).unwrap();
    }
    assert!(a.send_if_room(&ControlMessage::ObjectSent { bytes: 1 }).unwrap());
    assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 1 });
    a.close().unwrap();
    assert!(matches!(a.send_if_room(&ControlMessage::Close), Err(EngineError::Closed)));
}

#[test]
fn closing_sends_everything_and_ends_both_sides_gracefully() {
    let [a, b] = channels(Timing::default());
    for _ in 0..10 {
        a.send(text(900_000)).unwrap();
    }
    a.close().unwrap();
    for _ in 0..10 {
        b.recv(TIMEOUT).unwrap();
    }
    assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::Close);
    assert!(matches!(b.recv(TIMEOUT), Err(EngineError::Closed)));
    assert!(matches!(b.send(ControlMessage::Ping(1)), Err(EngineError::Closed)));
    assert!(a.failure().is_none() && b.failure().is_none());
    b.close().unwrap();
    a.close().unwrap();
}

#[test]
fn an_abort_reaches_the_peer_with_its_fault() {
    let [a, b] = channels(Timing::default());
    let fault = Fault::new(FaultCode::DiskFull, "disk full", "make room");
    a.send(ControlMessage::ObjectSent { bytes: 1 }).unwrap();
    a.abort(fault.clone());
    assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 1 });
    assert_eq!(b.recv(TIMEOUT).unwrap_err().fault(), fault);
    assert_eq!(b.failure().unwrap().fault(), fault);
}

/// A server may accept a session and abort it at once: both messages arrive together.
#[test]
fn a_close_right_after_an_answer_is_not_lost() {
    let [(tls, tcp), server] = pair();
    let mut pump = Pump::new(tls, tcp, Timing::default()).unwrap();
    let server = Control::start(server.0, server.1, Timing::default()).unwrap();
    server.send(text(1)).unwrap();
    // Returns once it is sent.
    server.abort(Fault::new(FaultCode::Usage, "what you ask for is a directory", ""));
    let answer = block_on(pump.recv(after(TIMEOUT.unwrap()), &BlockingWait)).unwrap();
    assert_eq!(answer, Some(text(1)));
    let error = Control::served_by(pump).unwrap().recv(TIMEOUT).unwrap_err();
    assert!(matches!(&error, EngineError::Peer(fault) if fault.code == FaultCode::Usage), "{error}");
}

#[test]
fn a_dropped_channel_is_a_lost_connection_after_pending_messages() {
    let [a, b] = channels(Timing::default());
    a.send(text(900_000)).unwrap();
    drop(a);
    assert_eq!(b.recv(TIMEOUT).unwrap(), text(900_000));
    let error = b.recv(TIMEOUT).unwrap_err();
    assert!(matches!(error, EngineError::ControlLost(_)), "{error}");
    assert!(error.fault().retryable);
    assert!(matches!(b.failure(), Some(EngineError::ControlLost(_))));
}

#[test]
fn a_silent_peer_times_out() {
    let [client, server] = pair();
    let control = Control::start(client.0, client.1, timing(300)).unwrap();
    let error = control.recv(TIMEOUT).unwrap_err();
    assert!(matches!(&error, EngineError::ControlLost(reason) if reason.contains("nothing was received")));
    drop(server);
    assert_eq!(Timing::default().silence, Span::from_secs(15), "docs/security.md");
}

#[test]
fn pings_keep_an_idle_channel_alive_and_measure_the_round_trip() {
    let [a, b] = channels(timing(3_000));
    assert!(a.try_recv(Duration::from_secs(4)).unwrap().is_none());
    while a.round_trip().is_none() || b.round_trip().is_none() {
        assert!(b.try_recv(Duration::from_millis(20)).unwrap().is_none());
    }
    assert!(matches!(a.recv(Some(Duration::ZERO)), Err(EngineError::TimedOut { .. })));
}

#[test]
fn udp_seen_is_recorded_and_not_delivered() {
    let [a, b] = channels(Timing::default());
    b.send(ControlMessage::UdpSeen { size: 1472 }).unwrap();
    b.send(ControlMessage::ObjectSent { bytes: 5 }).unwrap();
    assert_eq!(a.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 5 });
    assert_eq!(a.udp_seen(), Some(1472));
}

#[test]
fn a_peer_that_sends_garbage_gets_an_error_and_is_dropped() {
    let [(mut tls, mut tcp), server] = pair();
    let control = Control::start(server.0, server.1, Timing::default()).unwrap();
    tls.writer().write_all(&[0, 0, 0, 3, 200, 1, 2]).unwrap();
    tls.write_tls(&mut tcp).unwrap();
    assert!(matches!(control.recv(TIMEOUT), Err(EngineError::Protocol(_))));
    let peer = Control::start(tls, tcp, Timing::default()).unwrap();
    assert_eq!(peer.recv(TIMEOUT).unwrap_err().fault().code, FaultCode::Internal);
}

/// Each rule takes 3 bytes on the wire, and 11 times as much in memory.
#[test]
fn queued_messages_count_with_their_decoded_size() {
    let rule = Rule { verdict: Verdict::Exclude, pattern: b"a".to_vec() };
    let message = ControlMessage::LeftOut(vec![rule; MAX_RULES]);
    let (mut frame, memory) = (Vec::new(), message.memory());
    encode_frame(&message, &mut frame).unwrap();
    assert!(memory > 10 * frame.len(), "{memory} {}", frame.len());
    let [a, b] = channels(timing(60_000));
    let sent = Arc::new(AtomicUsize::new(0));
    let (sending, count) = (a.clone(), sent.clone());
    let thread = std::thread::spawn(move || {
        for _ in 0..2_000 {
            sending.send(message.clone()).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let waiting = || b.shared().state.lock().channel.incoming_memory();
    let (mut before, deadline) = (None, Instant::now() + Duration::from_secs(60));
    while (before != Some((waiting(), sent.load(Ordering::Relaxed))) || waiting() < 16 << 20)
        && Instant::now() < deadline
    {
        before = Some((waiting(), sent.load(Ordering::Relaxed)));
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!((16 << 20..(16 << 20) + 2 * memory).contains(&waiting()), "{}", waiting());
    assert!(!thread.is_finished());
    for _ in 0..2_000 {
        b.recv(TIMEOUT).unwrap();
    }
    thread.join().unwrap();
}

#[test]
fn simultaneous_closes_end_gracefully() {
    let [a, b] = channels(Timing::default());
    let other = std::thread::spawn(move || b.close());
    a.close().unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn transport_messages_overtake_unread_ones_and_wake_the_data_thread() {
    let [a, b] = channels(Timing::default());
    let waker = crate::Waker::new().unwrap();
    b.set_data_thread(waker.clone());
    for n in 0..50_u8 {
        a.send(ControlMessage::ObjectSent { bytes: 7 }).unwrap();
        while !a.can_send_transport() {
            std::thread::yield_now();
        }
        a.send_transport(vec![n; 100]);
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(waker.fd(), rustix::event::PollFlags::IN)];
        let received = std::iter::from_fn(|| {
            rustix::event::poll(&mut fds, None).unwrap();
            waker.reset();
            Some(b.take_transport())
        });
        let message = received.flatten().next().unwrap();
        assert_eq!(message, vec![n; 100]);
    }
    for _ in 0..50 {
        assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::ObjectSent { bytes: 7 });
    }
    a.close().unwrap();
}

#[test]
fn a_transport_message_after_the_close_is_dropped_without_delay() {
    let [a, b] = channels(Timing::default());
    let closing = a.clone();
    let thread = std::thread::spawn(move || closing.close());
    for _ in 0..100 {
        a.send_transport(vec![1; 30_000]);
    }
    thread.join().unwrap().unwrap();
    assert_eq!(b.recv(TIMEOUT).unwrap(), ControlMessage::Close);
    assert!(matches!(b.recv(TIMEOUT), Err(EngineError::Closed)));
}
