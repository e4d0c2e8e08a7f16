//! Errors at both peers when a connection ends before all data has arrived.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;
#[path = "common/relay.rs"]
mod relay;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{TIMEOUT, exchange};
use haul_base::Piece;
use haul_engine::{Session, Transfer, Waker};
use haul_proto::{Available, ObjectSink, ObjectSource};
use haul_testing::send_until_full;
use haul_wire::control::Request;
use haul_wire::packet::{ControlFrame, ControlFrameKind};
use haulage::{
    ByteReader, ByteWriter, Connection, ConnectionError, Endpoint, LawChange, Listener, Options, Rate,
    SendOptions, Url, WaitError, preset,
};
use relay::relay;

const SHORT: Duration = Duration::from_millis(300);

/// Returns a client that has sent more than its server, which does not read, accepts; and the number of
/// messages sent.
fn stuck(listener: &Listener) -> (Connection, Connection, usize) {
    let recipe = preset("msg").unwrap();
    let client = Connection::open(&listener.url("127.0.0.1"), &recipe, &Options::default()).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    let (message, options) = (vec![7; 60_000], SendOptions::default());
    let sent = send_until_full(|| client.send_with(&message, options).wait_for(SHORT).is_ok());
    (client, server, sent)
}

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Reads all messages; returns their number and how the connection ended.
fn read_to_end(connection: &Connection) -> (usize, WaitError) {
    let mut messages = 0;
    loop {
        match connection.recv().wait_for(TIMEOUT) {
            Ok(_) => messages += 1,
            Err(error) => return (messages, error),
        }
    }
}

#[test]
fn a_close_fails_if_the_peer_closed_before_receiving_everything() {
    let listener = listener();
    let (client, server, _) = stuck(&listener);
    server.close().wait_for(TIMEOUT).unwrap();
    for ended in
        [client.flush().wait_for(TIMEOUT), client.close().wait_for(TIMEOUT), client.close().wait_for(TIMEOUT)]
    {
        assert!(matches!(ended, Err(WaitError::Ended(ConnectionError::Closed))), "{ended:?}");
    }
}

#[test]
fn a_close_that_times_out_tells_the_peer_that_data_is_missing() {
    let listener = listener();
    let (client, server, sent) = stuck(&listener);
    for timeout in [SHORT, SHORT / 6] {
        assert!(matches!(client.close().wait_for(timeout), Err(WaitError::TimedOut(_))));
    }
    drop(client);
    let (messages, error) = read_to_end(&server);
    assert!(messages < sent);
    assert!(
        matches!(error, WaitError::Ended(ConnectionError::Aborted(_))),
        "{messages} of {sent}: {error:?}"
    );
}

/// Regression test: the peer took the end for a graceful one.
#[test]
fn a_close_that_times_out_while_streams_wait_tells_the_peer_that_data_is_missing() {
    let listener = listener();
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    let port = relay(listener.local_addr(), |packet, _| packet.len() < 1_000);
    let (recipe, through) = (preset("streams").unwrap(), Url { port, ..url });
    let client = Connection::open(&through.to_string(), &recipe, &Options::default()).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    let (mut stream, back) = client.open_stream().wait().unwrap();
    stream.write_all(&[7; 1_100]).unwrap();
    // So that nothing is queued when the connection is dropped: that alone would not end gracefully.
    stream.finish().unwrap();
    drop(back);
    assert!(matches!(client.close().wait_for(SHORT), Err(WaitError::TimedOut(_))));
    drop((stream, client));
    let ended = server.closed().wait_for(TIMEOUT).unwrap();
    assert!(matches!(ended, ConnectionError::Aborted(_)), "{ended:?}");
}

#[test]
fn a_close_without_an_answer_times_out_and_can_wait_for_its_last_repetition() {
    let listener = listener();
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    for recipe in ["msg", "streams"] {
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = is_cut.clone();
        let port = relay(listener.local_addr(), move |_, _| !cut.load(Ordering::SeqCst));
        let through = Url { port, ..url.clone() }.to_string();
        let client = Connection::open(&through, &preset(recipe).unwrap(), &Options::default());
        let client = client.wait().unwrap();
        let server = listener.accept().wait_for(TIMEOUT).unwrap();
        exchange(&client, &server, "all there is");
        client.flush().wait_for(TIMEOUT).unwrap();
        is_cut.store(true, Ordering::SeqCst);
        let closed = client.close().wait_for(SHORT / 6);
        assert!(matches!(closed, Err(WaitError::TimedOut(_))), "{closed:?}");
        assert!(matches!(client.flush().now(), Ok(Some(()))));
        client.close().wait_for(TIMEOUT).unwrap();
    }
}

/// The endpoint outlives its listener as long as a connection is open, but nobody would read further ones.
#[test]
fn a_listener_that_is_dropped_accepts_no_more_connections() {
    let listener = listener();
    let recipe = preset("msg").unwrap();
    let file = std::env::temp_dir().join(format!("haulage-dropped-{}", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    let connect =
        || Connection::open(&listener.url("127.0.0.1"), &recipe, &Options::default()).wait().unwrap();
    let known = Endpoint::client().unwrap();
    let returning = known.connect(&listener.url("127.0.0.1"), &recipe, &options).wait().unwrap();
    let _server = listener.accept().wait_for(TIMEOUT).unwrap();
    let waiting = connect();
    waiting.send(b"read by nobody").wait().unwrap();
    drop((listener, returning));
    let resumed = known.resume(&options).unwrap();
    for rejected in [waiting, resumed] {
        let sent = rejected.send(b"too late").wait();
        let closed = rejected.close().wait_for(TIMEOUT);
        assert!(sent.is_err() || closed.is_err(), "{closed:?}");
        assert!(matches!(rejected.ended(), Some(ConnectionError::Aborted(_))), "{:?}", rejected.ended());
    }
    fs::remove_file(file).unwrap();
}

#[test]
fn a_connection_replaced_by_its_client_has_not_been_closed() {
    let listener = listener();
    let file = std::env::temp_dir().join(format!("haulage-endings-{}", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    let (first, recipe) = (Endpoint::client().unwrap(), preset("msg").unwrap());
    let client = first.connect(&listener.url("127.0.0.1"), &recipe, &options).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    exchange(&client, &server, "before");
    // The client's program ended without closing and was started again.
    let again = Endpoint::client().unwrap().resume(&options).unwrap();
    exchange(&again, &listener.accept().wait_for(TIMEOUT).unwrap(), "after");
    let (_, error) = read_to_end(&server);
    assert!(matches!(error, WaitError::Ended(ConnectionError::Aborted(_))), "{error:?}");
    fs::remove_file(file).unwrap();
}

#[test]
fn a_connection_dropped_before_everything_arrived_was_not_closed() {
    let listener = listener();
    let (client, server, sent) = stuck(&listener);
    drop(client);
    let (messages, error) = read_to_end(&server);
    assert!(messages < sent);
    assert!(
        matches!(error, WaitError::Ended(ConnectionError::Aborted(_))),
        "{messages} of {sent}: {error:?}"
    );
}

/// Starts a relay that loses the first three close frames of each end; returns its port.
fn losing_closes(server: SocketAddr) -> u16 {
    let mut closes = HashMap::new();
    relay(server, move |packet, from| {
        let kind = ControlFrame::parse(packet).ok().map(|frame| frame.kind);
        if !matches!(kind, Some(ControlFrameKind::Close | ControlFrameKind::CloseAndDropResumption)) {
            return true;
        }
        let count: &mut u32 = closes.entry(from).or_default();
        *count += 1;
        *count > 3
    })
}

#[test]
fn the_close_of_a_dropped_connection_is_repeated_until_it_is_answered() {
    for server_drops in [true, false] {
        let listener = listener();
        let port = losing_closes(listener.local_addr());
        let url = listener
            .url("127.0.0.1")
            .replace(&format!(":{}/", listener.local_addr().port()), &format!(":{port}/"));
        let endpoint = Endpoint::client().unwrap();
        let client = endpoint.connect(&url, &preset("msg").unwrap(), &Options::default()).wait().unwrap();
        let server = listener.accept().wait_for(TIMEOUT).unwrap();
        exchange(&client, &server, "hello");
        let (dropped, kept) = if server_drops { (server, client) } else { (client, server) };
        drop(dropped);
        let ended = kept.recv().wait_for(Duration::from_secs(10));
        assert!(matches!(ended, Err(WaitError::Ended(ConnectionError::Closed))), "{server_drops}: {ended:?}");
        drop(kept);
        let until = Instant::now() + TIMEOUT;
        while endpoint.known_peers() > 0 {
            assert!(Instant::now() < until, "the client still knows the connection");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// An object without an end, of zeros.
struct Endless;

impl ObjectSource for Endless {
    fn available(&mut self) -> Available {
        Available { upto: 1 << 40, end: false }
    }

    fn read(&mut self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn release(&mut self, _: u64) {}
}

impl ObjectSink for Endless {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        u64::MAX
    }

    fn complete(&mut self, _: u64) {}
}

/// The server's end of a byte stream, which this test ends as it likes.
struct Server {
    session: Session,
    _listener: haul_engine::Listener,
}

impl Server {
    /// Returns a client's stream, and the server's end.
    fn with<S: Send>(open: impl FnOnce(&str) -> S + Send) -> (S, Self) {
        let options = haul_engine::ListenOptions::new("127.0.0.1:0".parse().unwrap());
        let listener = haul_engine::Listener::bind(options).unwrap();
        let url = listener.url("127.0.0.1", b"").to_string();
        thread::scope(|scope| {
            let client = scope.spawn(|| open(&url));
            let session = listener.accept(TIMEOUT).unwrap().accept().unwrap();
            (client.join().unwrap(), Self { session, _listener: listener })
        })
    }

    fn start(&mut self) -> Transfer {
        let waker = Waker::new().unwrap();
        match self.session.request() {
            Request::StreamSend => self.session.start_receiving(Box::new(Endless), waker),
            _ => self.session.start_sending(Box::new(Endless), waker),
        }
        .unwrap()
    }

    /// Ends the transfer before the object is complete, and the control channel if `closes`.
    fn end_early(&mut self, closes: bool) {
        drop(self.start());
        if closes {
            self.session.control().close().unwrap();
        }
    }
}

fn writer(url: &str) -> ByteWriter {
    Endpoint::client()
        .unwrap()
        .open_writer(url, &preset("bulk").unwrap(), &Options::default())
        .wait()
        .unwrap()
}

fn reader(url: &str) -> ByteReader {
    Endpoint::client()
        .unwrap()
        .open_reader(url, &preset("bulk").unwrap(), &Options::default())
        .wait()
        .unwrap()
}

#[test]
fn a_stream_that_its_peer_closes_early_fails() {
    const SOON: Duration = Duration::from_secs(20);
    for closes in [true, false] {
        let (mut finishing, mut server) = Server::with(writer);
        finishing.write_all(&[7; 1_000]).unwrap();
        server.end_early(closes);
        let finished = finishing.finish().wait_for(SOON);
        assert!(matches!(finished, Err(WaitError::Ended(ConnectionError::Closed))), "{closes}: {finished:?}");
        assert!(matches!(finishing.check(), Err(ConnectionError::Closed)), "{closes}");

        let (mut writing, mut server) = Server::with(writer);
        server.end_early(closes);
        let piece = vec![7; 1 << 20];
        let error = (0..).find_map(|_| writing.write_some(&piece).wait_for(SOON).err()).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{closes}: {error}");

        let (mut reading, mut server) = Server::with(reader);
        server.end_early(closes);
        let mut buffer = vec![0; 1 << 20];
        let error = (0..).find_map(|_| reading.read_some(&mut buffer).wait_for(SOON).err()).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{closes}: {error}");
    }
}

/// Does its work when a data thread wakes it, and tells whether that panicked.
struct Works {
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    is_done: Sender<bool>,
}

impl Wake for Works {
    fn wake(self: Arc<Self>) {
        if thread::current().name().is_some_and(|name| ["haul-send", "haul-receive"].contains(&name))
            && let Some(work) = self.work.lock().unwrap().take()
        {
            self.is_done.send(catch_unwind(AssertUnwindSafe(work)).is_ok()).unwrap();
        }
    }
}

#[test]
fn a_waker_may_use_and_drop_its_stream() {
    let (is_done, done) = channel();
    let works = Arc::new(Works { work: Mutex::default(), is_done });
    let waker = works.clone().into();
    let mut task = Context::from_waker(&waker);

    let (mut sending, mut server) = Server::with(writer);
    sending.write_all(&[7; 1_000]).unwrap();
    assert!(pin!(sending.finish()).poll(&mut task).is_pending());
    *works.work.lock().unwrap() = Some(Box::new(move || {
        let rate = LawChange::of(sending.law().unwrap(), |law| law.rate = Rate::from_mbps(50));
        sending.set_law(&rate).unwrap();
        drop(sending);
    }));
    // The object is complete once this is received.
    let _receiving = server.start();
    assert_eq!(done.recv_timeout(TIMEOUT), Ok(true));

    let (mut receiving, mut server) = Server::with(reader);
    assert!(pin!(receiving.read_some(&mut [0])).poll(&mut task).is_pending());
    *works.work.lock().unwrap() = Some(Box::new(|| drop(receiving)));
    let _sending = server.start();
    assert_eq!(done.recv_timeout(TIMEOUT), Ok(true));
}
