//! How the UDP side of a session ends: by a close that the peer answers, or by an idle timeout.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_engine::{Counters, EngineError, HaulUrl, Transfer, Waker};
use haul_proto::{Available, ObjectSource};
use haul_wire::control::Request;
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use crate::support::{DiscardingSink, Relay, TIMEOUT, listener, options, session_pair};

const LEN: u64 = 1_000_000;
/// Longer than either peer's idle timeout.
const LONG: Duration = Duration::from_secs(40);

/// A source with this many bytes so far.
struct GrowingSource(Arc<AtomicU64>);

impl ObjectSource for GrowingSource {
    fn available(&mut self) -> Available {
        let upto = self.0.load(Ordering::Relaxed);
        Available { upto, end: upto == LEN }
    }

    fn read(&mut self, _: u64, into: &mut [u8]) {
        into.fill(7);
    }

    fn release(&mut self, _: u64) {}
}

/// A session through a relay, in which the client sends.
struct Running {
    relay: Relay,
    available: Arc<AtomicU64>,
    sending: Transfer,
    receiving: Transfer,
    // What a dropped session leaves behind is covered by other tests.
    _rest: Box<dyn std::any::Any>,
}

impl Running {
    fn start(available: u64) -> Self {
        let listener = listener("127.0.0.1");
        let relay = Relay::start(listener.local_addr());
        let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
        let (mut client, mut server) = session_pair(&listener, &url, options(Request::BenchSend));
        let available = Arc::new(AtomicU64::new(available));
        let source = Box::new(GrowingSource(available.clone()));
        let sending = client.start_sending(source, Waker::new().unwrap()).unwrap();
        let receiving = server.start_receiving(Box::new(DiscardingSink), Waker::new().unwrap()).unwrap();
        Self { relay, available, sending, receiving, _rest: Box::new((listener, client, server)) }
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not arrive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a control frame of this kind and number.
fn closes(by: &Mutex<Vec<Vec<u8>>>, kind: ControlFrameKind, number: u32) {
    let condition = |packet: &Vec<u8>| {
        ControlFrame::parse(packet).is_ok_and(|frame| (frame.kind, frame.number) == (kind, number))
    };
    wait_until(&format!("{kind:?} {number}"), || by.lock().unwrap().iter().any(condition));
}

/// Object bytes that have arrived.
fn arrived(receiving: &Transfer) -> u64 {
    match receiving.counters() {
        Some(Counters::Receiving(stats)) => stats.object_bytes,
        _ => 0,
    }
}

#[test]
fn an_end_that_has_delivered_closes_and_the_close_is_answered() {
    let run = Running::start(LEN);
    assert!(run.sending.wait_delivered(TIMEOUT).unwrap() && run.receiving.wait_delivered(TIMEOUT).unwrap());
    closes(&run.relay.received, ControlFrameKind::Close, 0);
    closes(&run.relay.answered, ControlFrameKind::Closed, 0);
    assert!(run.sending.failure().is_none() && run.receiving.failure().is_none());
}

#[test]
fn an_end_that_stops_early_reports_it_and_the_control_channel_the_reason() {
    for stops_at_sender in [true, false] {
        let run = Running::start(LEN / 2);
        wait_until("a part", || arrived(&run.receiving) > LEN / 4);
        let (stopped, other, closes_from, answered_by) = if stops_at_sender {
            (run.sending, run.receiving, &run.relay.received, &run.relay.answered)
        } else {
            (run.receiving, run.sending, &run.relay.answered, &run.relay.received)
        };
        drop(stopped);
        closes(closes_from, ControlFrameKind::Close, 1);
        closes(answered_by, ControlFrameKind::Closed, 0);
        assert!(!other.wait_delivered(Duration::from_millis(100)).unwrap());
        assert!(other.failure().is_none());
        // The channel contains none, so it is not waited for any longer.
        let error = other.wait_delivered(LONG).unwrap_err();
        assert!(matches!(error, EngineError::Closed), "{error}");
    }
}

#[test]
fn a_silent_path_is_noticed_at_both_ends() {
    let run = Running::start(LEN / 2);
    wait_until("a part", || arrived(&run.receiving) > LEN / 4);
    run.relay.to_server.store(false, Ordering::Relaxed);
    run.relay.to_client.store(false, Ordering::Relaxed);
    // Data is pending, so the sender's stack alone would notice.
    run.available.store(LEN, Ordering::Relaxed);
    for end in [&run.sending, &run.receiving] {
        let error = end.wait_delivered(LONG).unwrap_err();
        assert!(matches!(&error, EngineError::Silent(_)), "{error}");
        assert!(error.to_string().contains("UDP"), "{error}");
    }
}

#[test]
fn a_waiting_end_is_not_considered_silent() {
    let run = Running::start(LEN / 2);
    std::thread::sleep(Duration::from_secs(17));
    run.available.store(LEN, Ordering::Relaxed);
    run.sending.waker().wake();
    assert!(run.sending.wait_delivered(TIMEOUT).unwrap() && run.receiving.wait_delivered(TIMEOUT).unwrap());
}

#[test]
fn a_client_is_found_again_after_nat_rebinding() {
    let run = Running::start(LEN / 2);
    wait_until("a part", || arrived(&run.receiving) > LEN / 4);
    run.relay.rebind.store(true, Ordering::Relaxed);
    run.available.store(LEN, Ordering::Relaxed);
    run.sending.waker().wake();
    assert!(run.sending.wait_delivered(TIMEOUT).unwrap() && run.receiving.wait_delivered(TIMEOUT).unwrap());
}
