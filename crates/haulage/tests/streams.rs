//! Several byte streams on one connection, also over a path that drops, duplicates and reorders packets.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use haul_engine::{Endpoint, OpenOptions, block_on};
use haul_testing::send_until_full;
use haulage::{
    Bytes, Connection, ConnectionError, ConnectionOptions, Ends, Error, Event, Listener, Options, Recipe,
    RecvStream, SendError, SendOptions, SendStream, Url, WaitError, preset,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn recipe() -> Recipe {
    preset("streams").unwrap()
}

fn pair(listener: &Listener, recipe: &Recipe) -> (Connection, Connection) {
    let client = Connection::open(&listener.url("127.0.0.1"), recipe, &Options::default()).wait().unwrap();
    (client, listener.accept().wait_for(TIMEOUT).unwrap())
}

fn bytes(seed: u32, len: u32) -> Vec<u8> {
    (0..len).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}

fn read_to_end(stream: &mut RecvStream) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    read
}

fn open(connection: &Connection) -> (SendStream, RecvStream) {
    connection.open_stream().wait_for(TIMEOUT).unwrap()
}

fn accept(connection: &Connection) -> (SendStream, RecvStream) {
    connection.accept_stream().wait_for(TIMEOUT).unwrap()
}

/// A path to a server that impairs UDP, and drops everything while it is `cut`. Returns the port for a single
/// client.
fn bad_path(server: SocketAddr, cut: &Arc<AtomicBool>) -> u16 {
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            break (tcp, udp);
        }
    };
    let port = tcp.local_addr().unwrap().port();
    let (cut_back, cut) = (cut.clone(), cut.clone());
    thread::spawn(move || {
        for client in tcp.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(server).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    thread::spawn(move || {
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(server).unwrap();
        let (_, client) = udp.peek_from(&mut [0; 2_000]).unwrap();
        let (front, other) = (udp.try_clone().unwrap(), back.try_clone().unwrap());
        thread::spawn(move || {
            forward(2, &cut_back, |buffer| other.recv(buffer), |packet| drop(front.send_to(packet, client)));
        });
        forward(1, &cut, |buffer| udp.recv(buffer), |packet| drop(back.send(packet)));
    });
    port
}

/// Of every hundred packets, six are dropped, six duplicated and six delayed.
fn forward(
    mut random: u32,
    cut: &AtomicBool,
    mut recv: impl FnMut(&mut [u8]) -> io::Result<usize>,
    send: impl Fn(&[u8]),
) {
    let (mut buffer, mut late) = (vec![0; 65_536], Vec::new());
    while let Ok(len) = recv(&mut buffer) {
        if cut.load(Ordering::Relaxed) {
            continue;
        }
        let packet = &buffer[..len];
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match random >> 28 {
            0 => continue,
            1 => send(packet),
            2 => {
                late.push(packet.to_vec());
                continue;
            }
            _ => {}
        }
        send(packet);
        if late.len() > 3 {
            late.drain(..).for_each(|packet| send(&packet));
        }
    }
}

#[test]
fn streams_of_both_ends_and_messages_arrive_whole_over_a_bad_path() {
    const LEN: u32 = 300_000;
    let listener = listener();
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    let url = Url { port: bad_path(listener.local_addr(), &Arc::default()), ..url }.to_string();
    let client = Connection::open(&url, &recipe(), &Options::default()).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    thread::scope(|scope| {
        for (end, opener, acceptor) in [(0, &client, &server), (1, &server, &client)] {
            for number in 0..4 {
                scope.spawn(move || {
                    let (mut writer, mut reader) = open(opener);
                    let data = bytes(number, LEN);
                    writer.write_all(&data).unwrap();
                    writer.finish().unwrap();
                    assert!(read_to_end(&mut reader) == data, "{end} {number}");
                });
                scope.spawn(move || {
                    let (mut writer, mut reader) = accept(acceptor);
                    let echo = io::copy(&mut reader, &mut writer).unwrap();
                    assert_eq!(echo, u64::from(LEN));
                    writer.finish().unwrap();
                });
            }
            scope.spawn(move || {
                (0..500_u32).try_for_each(|it| opener.send(&it.to_be_bytes()).wait().map(drop)).unwrap();
            });
            scope.spawn(move || {
                let mut got: Vec<_> =
                    (0..500).map(|_| acceptor.recv().wait_for(TIMEOUT).unwrap().data).collect();
                got.sort();
                assert!(got.into_iter().eq((0..500_u32).map(|it| it.to_be_bytes().to_vec())), "{end}");
            });
        }
    });
    client.close().wait_for(TIMEOUT).unwrap();
    assert!(client.statistics().totals.data_resent > 0, "nothing was retransmitted");
}

/// Control frames of streams do not fit then either. They must not be retried in a loop: that would occupy
/// the thread that has to receive the acknowledgements.
#[test]
fn streams_wait_during_an_outage_and_continue_after_it() {
    let (listener, cut) = (listener(), Arc::new(AtomicBool::new(false)));
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    let url = Url { port: bad_path(listener.local_addr(), &cut), ..url }.to_string();
    let connection = ConnectionOptions { queue: Bytes(100_000), ..ConnectionOptions::default() };
    let options = Options { connection, ..Options::default() };
    let client = Connection::open(&url, &recipe(), &options).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    let ((mut long, _a), (mut other, unread)) = (open(&client), open(&client));
    long.write_all(b"long").unwrap();
    other.write_all(b"other").unwrap();
    client.flush().wait_for(TIMEOUT).unwrap();
    cut.store(true, Ordering::Relaxed);
    let (piece, mut written) = (vec![7; 10_000], 4);
    while let Ok(bytes) = long.write_some(&piece).wait_for(SHORT) {
        written += bytes;
    }
    while client.send(b"").now().unwrap().is_some() {}
    drop(unread);
    // Retransmissions are sent meanwhile.
    thread::sleep(Duration::from_secs(1));
    cut.store(false, Ordering::Relaxed);
    let ((_b, mut reader), (mut answer, _c)) = (accept(&server), accept(&server));
    long.finish().unwrap();
    assert_eq!(read_to_end(&mut reader).len(), written);
    let error = loop {
        if let Err(error) = answer.write_some(&piece).wait_for(TIMEOUT) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_stalled_reader_blocks_only_its_own_stream() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    let ((mut idle, _a), (mut busy, _b)) = (open(&client), open(&client));
    let (piece, window) = (vec![7; 100_000], 1 << 20);
    let mut written = 0;
    while written < window {
        written += idle.write_some(&piece).wait_for(TIMEOUT).unwrap();
    }
    assert_eq!(idle.write_some(&piece).wait_for(SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(written, window);
    // Unread messages block messages.
    while client.send_with(&piece[..10_000], SendOptions::default()).wait_for(SHORT).is_ok() {}
    let data = bytes(3, 5_000_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            busy.write_all(&data).unwrap();
            busy.finish().unwrap();
        });
        let (_c, mut unread) = accept(&server);
        let (_d, mut reader) = accept(&server);
        assert!(read_to_end(&mut reader) == data);
        let mut read = vec![0; written];
        unread.read_exact(&mut read).unwrap();
        assert!(read.iter().all(|&byte| byte == 7));
        assert_eq!(unread.read_some(&mut read).wait_for(SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data.len(), 10_000);
        idle.write_all(b"there is room again").unwrap();
    });
}

#[test]
fn an_aborted_stream_has_not_ended() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    for dropped in [false, true] {
        let (mut writer, mut answers) = open(&client);
        writer.write_all(b"the beginning").unwrap();
        let (mut answer, mut reader) = accept(&server);
        reader.read_exact(&mut [0; 13]).unwrap();
        if dropped {
            drop(writer);
        } else {
            writer.abort();
        }
        for _ in 0..2 {
            assert_eq!(reader.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        // The other direction still works.
        answer.write_all(b"goes on").unwrap();
        answer.finish().unwrap();
        assert_eq!(read_to_end(&mut answers), b"goes on");
    }
    let (mut writer, _answers) = open(&client);
    writer.write_all(b"nobody reads this").unwrap();
    drop(accept(&server));
    let error = loop {
        if let Err(error) = writer.write_some(&[1; 1_000]).wait_for(TIMEOUT) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn empty_streams_end_and_any_number_can_follow() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    let (mut writer, mut answers) = open(&client);
    writer.finish().unwrap();
    assert!(writer.write(b"more").is_err(), "the stream was finished");
    let (mut answer, mut reader) = accept(&server);
    assert_eq!(read_to_end(&mut reader), b"");
    answer.finish().unwrap();
    assert_eq!(read_to_end(&mut answers), b"");
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1_000 {
                let (mut answer, mut question) = accept(&server);
                answer.write_all(&read_to_end(&mut question)).unwrap();
                answer.finish().unwrap();
            }
        });
        for round in 0..1_000_u32 {
            let (mut question, mut answer) = open(&client);
            question.write_all(&round.to_be_bytes()).unwrap();
            question.finish().unwrap();
            assert_eq!(read_to_end(&mut answer), round.to_be_bytes());
        }
    });
    client.close().wait_for(TIMEOUT).unwrap();
}

#[test]
fn the_recipe_limits_the_number_of_open_streams() {
    let listener = listener();
    let mut recipe = recipe();
    haulage::registry().set(&mut recipe, "streams.most", "3").unwrap();
    let (client, server) = pair(&listener, &recipe);
    let mut opened: Vec<_> = (0..3).map(|_| open(&client)).collect();
    assert!(matches!(client.open_stream().wait_for(SHORT), Err(WaitError::TimedOut(_))));
    assert!(
        matches!(server.accept_stream().wait_for(SHORT), Err(WaitError::TimedOut(_))),
        "nothing was sent"
    );
    // A dropped stream frees its slot as soon as its reader knows.
    drop(opened.remove(1));
    let first = accept(&server);
    let (_answer, mut second) = accept(&server);
    assert!(matches!(client.open_stream().wait_for(SHORT), Err(WaitError::TimedOut(_))));
    assert_eq!(second.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    opened.push(open(&client));
    drop(first);
}

#[test]
fn the_end_of_a_connection_does_not_end_its_streams_cleanly() {
    let listener = listener();
    for case in 0..3 {
        let (client, server) = pair(&listener, &recipe());
        let (mut complete, complete_answer) = open(&client);
        let (mut cut, cut_answer) = open(&client);
        complete.write_all(b"whole").unwrap();
        complete.finish().unwrap();
        cut.write_all(b"cut").unwrap();
        let (mut answer, mut received_complete) = accept(&server);
        let (_, mut reads_cut) = accept(&server);
        client.flush().wait_for(TIMEOUT).unwrap();
        match case {
            0 => client.close().wait_for(TIMEOUT).unwrap(),
            1 => client.abort(),
            // The streams of a connection own it; the last of them drops it.
            _ => drop((client, complete, complete_answer, cut, cut_answer)),
        }
        let ended = server.closed().wait_for(TIMEOUT).unwrap();
        assert_eq!(matches!(ended, ConnectionError::Closed), case != 1, "{ended:?}");
        assert_eq!(
            read_to_end(&mut received_complete),
            b"whole",
            "data received with the end must be readable"
        );
        let error = reads_cut.read_to_end(&mut Vec::new()).unwrap_err();
        // Dropping a stream also tells the peer that it is incomplete.
        let kinds = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
        assert!(kinds.contains(&error.kind()), "{case}: {error:?}");
        assert_eq!(answer.write(b"nobody hears this").unwrap_err().kind(), ErrorKind::ConnectionAborted);
        for error in [server.accept_stream().wait().unwrap_err(), server.open_stream().wait().unwrap_err()] {
            assert!(matches!(error, WaitError::Ended(_)), "{error:?}");
        }
    }
}

/// A peer violates the format: its connection ends with a reason, and others are not affected.
#[test]
fn a_peer_that_opens_a_million_streams_ends_only_its_own_connection() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    let endpoint = Endpoint::client().unwrap();
    let number = 2 * ((1_u32 << 20) - 1);
    let open = [&[1][..], &number.to_be_bytes(), &0_u64.to_be_bytes(), b"x"].concat();
    for (frame, expected) in
        [(&open[..], "more streams"), (&[9, 9, 9][..], "not a stream frame"), (&[][..], "not a stream frame")]
    {
        let options = OpenOptions::default();
        let false_client = block_on(endpoint.connect(&url, &recipe(), &options, Ends::default())).unwrap();
        let poll = |context: &mut Context<'_>| false_client.poll_send(context, frame, SendOptions::default());
        false_client.wait_for(Some(TIMEOUT), "room", poll).unwrap();
        let acceptor = listener.accept().wait_for(TIMEOUT).unwrap();
        let error = acceptor.accept_stream().wait_for(TIMEOUT).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(acceptor.ended().unwrap().to_string().contains(expected), "{:?}", acceptor.ended());
        let ended = |context: &mut Context<'_>| false_client.poll_ended(context).map(Ok::<_, Error>);
        false_client.wait_for(Some(TIMEOUT), "the end", ended).unwrap();
    }
    client.send(b"goes on").wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"goes on");
}

#[test]
fn a_connection_has_streams_only_if_its_recipe_has_and_keeps_them() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    for error in [client.open_stream().wait().err(), server.accept_stream().wait().err()] {
        assert!(Error::from(error.unwrap()).fault().message.contains("`streams`"));
    }
    let (client, server) = pair(&listener, &recipe());
    assert!(client.reconfigure(&recipe().without("streams")).is_err());
    let mut wider = recipe();
    haulage::registry().set(&mut wider, "streams.window", "2MiB").unwrap();
    assert!(client.reconfigure(&wider).is_err());
    // The longest message is that of the recipe minus a byte.
    let longest = vec![5; (64 << 10) - 1];
    client.send(&longest).wait().unwrap();
    assert!(server.recv().wait_for(TIMEOUT).unwrap().data == longest);
    for too_long in [64 << 10, 3 << 20] {
        assert!(matches!(client.send(&vec![5; too_long]).wait(), Err(SendError::Message(_))));
    }
    // Streams continue while the rest of the recipe changes.
    let (mut writer, _a) = open(&client);
    writer.write_all(b"before ").unwrap();
    client.reconfigure(&recipe().with("in_order")).unwrap();
    assert_eq!(client.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
    writer.write_all(b"and after").unwrap();
    writer.finish().unwrap();
    assert_eq!(read_to_end(&mut accept(&server).1), b"before and after");
}

#[test]
fn streams_continue_when_either_end_lowers_the_message_limit() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    let (mut writer, _a) = open(&client);
    writer.write_all(b"before ").unwrap();
    let mut shorter = recipe();
    for (end, longest) in [(&client, "1KiB"), (&server, "64B")] {
        haulage::registry().set(&mut shorter, "fixed_size.max_message", longest).unwrap();
        end.reconfigure(&shorter).unwrap();
        assert_eq!(end.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
        writer.write_all(&[7; 5_000]).unwrap();
    }
    // The server's change.
    assert_eq!(client.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
    writer.finish().unwrap();
    assert_eq!(read_to_end(&mut accept(&server).1).len(), 10_007);
    client.send(&[1; 63]).wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, [1; 63]);
    assert!(matches!(client.send(&[1; 64]).wait(), Err(SendError::Message(_))));
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn tasks_are_woken_only_for_their_event() {
    let listener = listener();
    let (client, server) = pair(&listener, &recipe());
    let ((mut writer, mut idle), (mut busy, _a)) = (open(&client), open(&client));
    writer.write_all(b"x").unwrap();
    client.flush().wait_for(TIMEOUT).unwrap();
    let wakes: [Arc<Wakes>; 3] = Default::default();
    let wakers = wakes.clone().map(Waker::from);
    let [mut reads, mut receives, mut accepts] = wakers.each_ref().map(Context::from_waker);
    let mut into = [0; 9];
    let (mut recv, mut accept) = (Box::pin(client.recv()), Box::pin(client.accept_stream()));
    assert!(pin!(idle.read_some(&mut into)).poll(&mut reads).is_pending());
    assert!(recv.as_mut().poll(&mut receives).is_pending());
    assert!(accept.as_mut().poll(&mut accepts).is_pending());
    // Other streams are busy meanwhile.
    thread::scope(|scope| {
        scope.spawn(|| (busy.write_all(&vec![1; 3_000_000]).unwrap(), busy.finish().unwrap()));
        let first = server.accept_stream().wait_for(TIMEOUT).unwrap();
        assert_eq!(read_to_end(&mut server.accept_stream().wait_for(TIMEOUT).unwrap().1).len(), 3_000_000);
        assert!(wakes.iter().all(|wakes| wakes.0.load(Ordering::Relaxed) == 0), "spurious wake-up");
        server.send(b"message").wait().unwrap();
        let woken = |task: usize| wakes[task].0.load(Ordering::Relaxed) > 0;
        while !woken(1) {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(matches!(recv.as_mut().poll(&mut receives), Poll::Ready(Ok(_))));
        assert!(!woken(0), "the stream has nothing to read");
        drop(first);
        while !woken(0) {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(matches!(pin!(idle.read_some(&mut into)).poll(&mut reads), Poll::Ready(Err(_))));
    });
}

#[test]
fn empty_writes_complete_at_once_even_without_capacity() {
    let listener = listener();
    let (client, _server) = pair(&listener, &recipe());
    let (mut stream, _reader) = open(&client);
    send_until_full(|| stream.write_some(&[0; 10_000]).wait_for(SHORT).is_ok());
    assert_eq!(stream.write_some(&[]).now().unwrap(), Some(0));
    assert_eq!(stream.write_some(&[0]).now().unwrap(), None);
}
