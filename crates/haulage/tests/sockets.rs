//! Cases not covered by the examples: tasks, timeouts, clones, changing rates and recipes, interrupted
//! streams.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use haul_testing::{block_on, send_until_full};
use haulage::config::ScalableConfig;
use haulage::stack::{MessageSink, MessageSource, Part, SendError as MessageError};
use haulage::{
    AcceptError, Accepted, ByteWriter, Connection, ConnectionError, Endpoint, Ends, Event, LawChange,
    LawRequestError, ListenOptions, Listener, OpenError, Options, Rate, Recipe, SendError, Time, WaitError,
    preset,
};

const TIMEOUT: Duration = Duration::from_secs(60);
fn bulk() -> Recipe {
    preset("bulk").unwrap()
}

fn open_writer(url: &str, recipe: &Recipe, options: &Options) -> Result<ByteWriter, OpenError> {
    Endpoint::client().unwrap().open_writer(url, recipe, options).wait()
}

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn pair(listener: &Listener, recipe: &Recipe) -> (Connection, Connection) {
    let client = Connection::open(&listener.url("127.0.0.1"), recipe, &Options::default()).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    (client, server)
}

#[test]
fn tasks_send_receive_and_flush_on_any_executor() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    let echo = std::thread::spawn(move || {
        block_on(async {
            while let Ok(message) = server.recv().await {
                server.send(&message.data).await.unwrap();
            }
        });
    });
    block_on(async {
        for round in 0..200u32 {
            client.send(&round.to_be_bytes()).await.unwrap();
            assert_eq!(client.recv().await.unwrap().data, round.to_be_bytes());
        }
        client.flush().await.unwrap();
    });
    client.close().wait_for(TIMEOUT).unwrap();
    echo.join().unwrap();
}

#[test]
fn waits_end_in_time_and_clones_share_one_connection() {
    let listener = listener();
    assert!(matches!(listener.accept().wait_for(Duration::from_millis(20)), Err(AcceptError::TimedOut(_))));
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    assert!(matches!(client.recv().wait_for(Duration::from_millis(20)), Err(WaitError::TimedOut(_))));
    assert!(server.recv().now().unwrap().is_none());
    let (reading, writing) = (server.clone(), client.clone());
    let reader = std::thread::spawn(move || {
        std::iter::from_fn(|| reading.recv().wait().ok()).map(|message| message.data.len()).sum::<usize>()
    });
    for _ in 0..100 {
        writing.send(&[1; 10_000]).wait().unwrap();
    }
    drop(writing);
    client.close().wait_for(TIMEOUT).unwrap();
    assert_eq!(reader.join().unwrap(), 1_000_000);
    assert!(matches!(server.ended(), Some(ConnectionError::Closed)));
    let too_long = vec![0; 1 << 20];
    let (client, _server) = pair(&listener, &preset("msg").unwrap());
    assert!(matches!(client.send(&too_long).wait(), Err(SendError::Message(_))));
}

#[test]
fn the_receiver_sets_the_rate_and_the_sender_learns_it() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("viz").unwrap());
    let rate = Rate::from_bps(7_000_000);
    server.set_rate(rate);
    loop {
        if client.event().wait_for(TIMEOUT).unwrap() == Event::Rate(rate) {
            break;
        }
    }
}

#[test]
fn the_recipe_changes_while_messages_flow_and_none_is_lost() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    let reading = server.clone();
    let reader = std::thread::spawn(move || {
        (0..300u32).map(|_| reading.recv().wait_for(TIMEOUT).unwrap().data).collect::<Vec<_>>()
    });
    let sent: Vec<_> = (0..300u32).map(|number| number.to_be_bytes().to_vec()).collect();
    for (number, message) in sent.iter().enumerate() {
        if number == 100 {
            client.reconfigure(&preset("msg").unwrap().with("in_order")).unwrap();
        }
        client.send(message).wait().unwrap();
    }
    let mut got = reader.join().unwrap();
    got.sort();
    assert_eq!(got, sent);
    assert_eq!(client.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
    assert!(client.recipe().has("in_order") && server.recipe().has("in_order"));
}

#[test]
fn messages_use_their_recipes_control_law_and_it_can_change() {
    let listener = listener();
    let bare = preset("msg").unwrap().without("fixed_rate").with("rate_control");
    let error = Connection::open(&listener.url("127.0.0.1"), &bare, &Options::default())
        .wait()
        .unwrap_err()
        .to_string();
    assert!(error.contains("rate_control needs bitmap_ack or receiver_report"), "{error}");
    let recipe = bare.with("receiver_report").with("rate_feedback");
    let (client, server) = pair(&listener, &recipe);
    let reading = server.clone();
    let reader = std::thread::spawn(move || {
        (0..3_000u32).map(|_| reading.recv().wait_for(TIMEOUT).unwrap().data).collect::<Vec<_>>()
    });
    let sent: Vec<_> = (0..3_000u32).map(|number| number.to_be_bytes().repeat(200)).collect();
    for (number, message) in sent.iter().enumerate() {
        if number == 1_000 {
            let mut reno = recipe.clone();
            haulage::registry().set(&mut reno, "rate_control.controller", "reno").unwrap();
            client.reconfigure(&reno).unwrap();
        }
        client.send(message).wait().unwrap();
    }
    let mut got = reader.join().unwrap();
    got.sort();
    assert_eq!(got, sent);
    assert_eq!(client.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
    assert_eq!(server.recipe().text("rate_control", "controller").as_deref(), Some("reno"));
    // The rate requested by the receiver limits the law.
    let rate = Rate::from_bps(7_000_000);
    server.set_rate(rate);
    while client.event().wait_for(TIMEOUT).unwrap() != Event::Rate(rate) {}
}

/// What the server does not permit at the start it does not permit later, whichever peer requests it; the
/// current recipe stays in force.
#[test]
fn a_recipe_change_cannot_bypass_permissions() {
    let mut options = ListenOptions::new("127.0.0.1:0".parse().unwrap());
    options.permit = Box::new(|recipe| match recipe.text("retransmit", "memory") {
        Some(memory) if memory != "1MiB" => Err(format!("`{memory}` is more than I have")),
        _ => Ok(()),
    });
    let listener = Listener::bind_with(options).unwrap();
    let with_memory = |memory| {
        let mut recipe = preset("msg").unwrap();
        haulage::registry().set(&mut recipe, "retransmit.memory", memory).unwrap();
        recipe
    };
    let refused =
        Connection::open(&listener.url("127.0.0.1"), &with_memory("4GiB"), &Options::default()).wait();
    assert!(refused.unwrap_err().to_string().contains("more than I have"));
    let (client, server) = pair(&listener, &with_memory("1MiB"));
    let more_parts = with_memory("4GiB").with("in_order");
    for refused in [with_memory("4GiB"), more_parts] {
        client.reconfigure(&refused).unwrap();
        let Event::Refused(reason) = client.event().wait_for(TIMEOUT).unwrap() else {
            panic!("it was permitted")
        };
        assert!(reason.contains("more than I have"), "{reason}");
        for end in [&client, &server] {
            assert_eq!(end.recipe().text("retransmit", "memory").as_deref(), Some("1MiB"));
        }
        assert!(server.reconfigure(&refused).is_err());
    }
    client.reconfigure(&with_memory("1MiB").with("in_order")).unwrap();
    assert_eq!(client.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
    client.send(b"and it goes on").wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"and it goes on");
}

#[test]
fn invalid_recipes_and_urls_have_helpful_errors() {
    let error = preset("vis").unwrap_err().fault().message;
    assert!(error.contains("vis") && error.contains("viz, msg, sensor"), "{error}");
    assert!(matches!(
        Connection::open("http://x", &preset("msg").unwrap(), &Options::default()).wait(),
        Err(OpenError::Url(_))
    ));
}

#[test]
fn servers_send_byte_streams_and_tasks_can_read_them() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let reader = std::thread::spawn(move || {
        let mut reader =
            Endpoint::client().unwrap().open_reader(&url, &bulk(), &Options::default()).wait().unwrap();
        block_on(async {
            let (mut buffer, mut bytes) = (vec![0; 100_000], Vec::new());
            loop {
                match reader.read_some(&mut buffer).await.unwrap() {
                    0 => return bytes,
                    read => bytes.extend_from_slice(&buffer[..read]),
                }
            }
        })
    });
    let Accepted::Writer(mut writer) = listener.accept_any().wait_for(TIMEOUT).unwrap() else {
        panic!("unexpected client of a byte stream");
    };
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253) as u8).collect();
    writer.write_all(&data).unwrap();
    writer.finish().wait().unwrap();
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_stream_that_is_cut_has_not_ended() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let open = || {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| open_writer(&url, &bulk(), &Options::default()).unwrap());
            let reader = listener.accept_reader().wait_for(TIMEOUT).unwrap();
            (writer.join().unwrap(), reader)
        })
    };
    let (mut writer, mut reader) = open();
    writer.write_all(&[1; 1_000]).unwrap();
    let mut buffer = [0; 1_000];
    reader.read_exact(&mut buffer).unwrap();
    drop(writer);
    assert!(reader.read(&mut buffer).is_err());
    // And in reverse: the writer is told that the reader is gone.
    let (mut writer, reader) = open();
    drop(reader);
    let error = loop {
        if let Err(error) = writer.write_all(&vec![1; 1_000_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
}

#[test]
fn a_connection_that_ends_before_its_first_message_is_accepted_as_ended() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    client.close().wait_for(TIMEOUT).unwrap();
    assert!(matches!(server.recv().wait_for(TIMEOUT), Err(WaitError::Ended(ConnectionError::Closed))));
    for preset_name in ["viz", "msg", "sensor"] {
        let open = || {
            Connection::open(&listener.url("127.0.0.1"), &preset(preset_name).unwrap(), &Options::default())
                .wait()
                .unwrap()
        };
        // At once: no packet of the connection was sent yet.
        open().close().wait_for(TIMEOUT).unwrap();
        let server = listener.accept().wait_for(TIMEOUT).unwrap();
        assert!(
            matches!(server.recv().wait_for(TIMEOUT), Err(WaitError::Ended(ConnectionError::Closed))),
            "{preset_name}"
        );
        let client = open();
        assert!(client.send(&vec![0; 1 << 20]).wait().is_err(), "{preset_name}: too large");
        client.abort();
        client.closed().wait_for(TIMEOUT).unwrap();
        let server = listener.accept().wait_for(TIMEOUT).unwrap();
        assert!(
            matches!(server.recv().wait_for(TIMEOUT), Err(WaitError::Ended(ConnectionError::Aborted(_)))),
            "{preset_name}"
        );
        drop(open());
        let server = listener.accept().wait_for(TIMEOUT).unwrap();
        assert!(
            matches!(server.recv().wait_for(TIMEOUT), Err(WaitError::Ended(ConnectionError::Closed))),
            "{preset_name}"
        );
    }
}

#[test]
fn the_resumption_state_of_another_recipe_opens_no_connection() {
    let listener = listener();
    let directory = std::env::temp_dir().join(format!("haulage-resumption-{}", std::process::id()));
    let options = Options { resumption: Some(directory.clone()), ..Options::default() };
    let open = |name: &str| {
        let client =
            Connection::open(&listener.url("127.0.0.1"), &preset(name).unwrap(), &options).wait().unwrap();
        (client, listener.accept().wait_for(TIMEOUT).unwrap())
    };
    for name in ["msg", "viz", "viz"] {
        let (client, server) = open(name);
        client.send(name.as_bytes()).wait().unwrap();
        assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, name.as_bytes());
        client.close().wait_for(TIMEOUT).unwrap();
    }
    assert!(listener.accept().wait_for(Duration::from_millis(300)).is_err(), "one connection each");
    std::fs::remove_file(directory).unwrap();
}

#[test]
fn the_resumption_state_of_another_server_is_not_used() {
    let (first, second) = (listener(), listener());
    let file = std::env::temp_dir().join(format!("haulage-servers-{}", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    for listener in [&first, &first, &second, &second, &first] {
        let recipe = preset("msg").unwrap();
        let client = Connection::open(&listener.url("localhost"), &recipe, &options).wait().unwrap();
        client.send(b"for this one").wait().unwrap();
        let server = listener.accept().wait_for(TIMEOUT).expect("the server of the URL");
        assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"for this one");
        client.close().wait_for(TIMEOUT).unwrap();
    }
    std::fs::remove_file(file).unwrap();
}

/// Keeps received messages.
struct Sink(mpsc::Sender<Vec<u8>>);

impl MessageSink for Sink {
    fn message(&mut self, _: Time, _: u64, data: &[u8]) {
        self.0.send(data.to_vec()).unwrap();
    }
}

/// Provides this number of messages.
struct Source(u32);

impl MessageSource for Source {
    fn next(&mut self, _: Time, into: &mut [u8]) -> Option<usize> {
        self.0 = self.0.checked_sub(1)?;
        into[..4].copy_from_slice(&self.0.to_be_bytes());
        Some(4)
    }

    fn message_len(&self) -> usize {
        4
    }
}

#[test]
fn sources_and_sinks_work_with_resumption_files() {
    let listener = listener();
    let (url, recipe) = (listener.url("127.0.0.1"), preset("msg").unwrap());
    let file = std::env::temp_dir().join(format!("haulage-sink-{}", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    let endpoint = Endpoint::client().unwrap();
    let open = |round, ends| {
        let client = match round {
            2 => block_on(endpoint.connect_with(&url, &recipe, &options, ends)),
            _ => endpoint.connect_with(&url, &recipe, &options, ends).wait(),
        };
        (client.unwrap(), listener.accept().wait_for(TIMEOUT).unwrap())
    };
    for round in 0..3 {
        let (sink, got) = mpsc::channel();
        let ends = Ends { message_sink: Some(Box::new(Sink(sink))), ..Ends::default() };
        let (client, server) = open(round, ends);
        client.send(b"question").wait().unwrap();
        assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"question");
        server.send(b"answer").wait().unwrap();
        assert_eq!(got.recv_timeout(TIMEOUT).expect("the sink has it"), b"answer", "round {round}");
        client.close().wait_for(TIMEOUT).unwrap();
        let ends = Ends { message_source: Some(Box::new(Source(3))), ..Ends::default() };
        let (client, server) = open(round, ends);
        for remaining in (0..3u32).rev() {
            assert_eq!(
                server.recv().wait_for(TIMEOUT).unwrap().data,
                remaining.to_be_bytes(),
                "round {round}"
            );
        }
        client.close().wait_for(TIMEOUT).unwrap();
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn every_object_recipe_carries_and_counts_a_byte_stream() {
    let data: Vec<u8> = (0..2_000_000u32).map(|i| (i % 249) as u8).collect();
    for name in ["bulk", "fobs", "rbudp"] {
        let listener = listener();
        let url = listener.url("127.0.0.1");
        let options = Options { rate: Some(Rate::from_mbps(300)), ..Options::default() };
        let recipe = preset(name).unwrap();
        let reading = std::thread::spawn(move || {
            let mut reader = listener.accept_reader().wait_for(TIMEOUT).unwrap();
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            (bytes, reader.statistics())
        });
        let mut writer = open_writer(&url, &recipe, &options).unwrap();
        writer.write_all(&data).unwrap();
        writer.finish().wait_for(TIMEOUT).unwrap();
        let sent = writer.statistics();
        let (got, received) = reading.join().unwrap();
        assert!(got == data, "{name}: {} bytes", got.len());
        assert_eq!((sent.bytes, received.bytes), (2_000_000, 2_000_000), "{name}");
        assert!(
            sent.packets > 0 && sent.rtt.is_some() && received.packets > 0,
            "{name}: {sent:?} {received:?}"
        );
        assert!(writer.write(b"more").is_err(), "the stream was finished");
    }
    let (listener, msg) = (listener(), preset("msg").unwrap());
    let error = open_writer(&listener.url("127.0.0.1"), &msg, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("msg: it does not carry an object"), "{error}");
}

#[test]
fn a_writer_times_out_and_can_retry() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let opening = std::thread::spawn(move || open_writer(&url, &bulk(), &Options::default()).unwrap());
    let mut reader = listener.accept_reader().wait_for(TIMEOUT).unwrap();
    let mut writer = opening.join().unwrap();
    let piece = vec![7; 10_000_000];
    let mut written = 0;
    send_until_full(|| match writer.write_some(&piece).wait_for(Duration::from_millis(250)) {
        Ok(taken) => {
            written += taken as u64;
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            false
        }
    });
    let early = writer.finish().wait_for(Duration::from_millis(50));
    assert!(matches!(early, Err(WaitError::TimedOut(_))), "{early:?} after {written} bytes");
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).unwrap());
    writer.finish().wait_for(TIMEOUT).unwrap();
    assert_eq!((reading.join().unwrap(), writer.statistics().bytes), (written, written));
}

/// Over loopback, a segment of 10,000 packets is larger than the writer's buffer.
#[test]
fn a_stream_can_be_longer_than_its_send_buffer() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let reading = std::thread::spawn(move || {
        let mut reader = listener.accept_reader().wait_for(TIMEOUT).unwrap();
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap()
    });
    let mut writer = open_writer(&url, &bulk(), &Options::default()).unwrap();
    let piece = vec![7; 1_000_000];
    for _ in 0..200 {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let taken = writer.write_some(rest).wait_for(TIMEOUT).unwrap();
            rest = &rest[taken..];
        }
    }
    writer.finish().wait_for(TIMEOUT).unwrap();
    assert_eq!(reading.join().unwrap(), 200_000_000);
}

#[test]
fn the_law_of_a_stream_changes_while_it_runs() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let data: Vec<u8> = (0..30_000_000u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut bytes = Vec::new();
            listener.accept_reader().wait_for(TIMEOUT).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        });
        // Sending it all would take four minutes.
        let options = Options { rate: Some(Rate::from_bps(1_000_000)), ..Options::default() };
        let mut writer = open_writer(&url, &bulk(), &options).unwrap();
        let (first, rest) = data.split_at(100_000);
        writer.write_all(first).unwrap();
        let refused = writer.set_law(&controller("frobnicate")).unwrap_err();
        assert!(refused.to_string().contains("frobnicate"), "{refused}");
        let unlimited = LawChange::of(writer.law().unwrap(), |law| law.rate = Rate::MAX);
        writer.set_law(&LawChange::to(&ScalableConfig::default()).and(unlimited)).unwrap();
        writer.write_all(rest).unwrap();
        let rate = LawChange::of(writer.law().unwrap(), |law| law.rate = Rate::from_mbps(4_000));
        writer.set_law(&rate).unwrap();
        writer.finish().wait_for(TIMEOUT).unwrap();
        assert!(reading.join().unwrap() == data);
    });
}

fn controller(name: &str) -> LawChange {
    LawChange::of(&Part::from("rate_control"), |law| name.clone_into(&mut law.controller))
}

#[test]
fn a_reader_requests_another_law_and_the_writer_decides() {
    let listener = listener();
    let url = listener.url("127.0.0.1");
    let requests_reno = |law: Option<&Part>| law.unwrap().value("controller") == Some("reno".to_owned());
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reader = listener.accept_reader().wait_for(TIMEOUT).unwrap();
            let mut requests = reader.law_requests();
            let before = requests.law().unwrap().clone();
            let refused = requests.request(&controller("frobnicate")).unwrap_err();
            assert!(matches!(refused, LawRequestError::Law(_)), "{refused}");
            let long = LawChange::of(&before, |law| law.switch = " ".repeat(9_000));
            assert!(matches!(requests.request(&long).unwrap_err(), LawRequestError::TooLong));
            let wrong = LawChange::of(&before, |law| law.switch = "x".to_owned());
            assert!(requests.request(&controller("reno").and(wrong)).is_err());
            assert_eq!(requests.law(), Some(&before));
            requests.request(&controller("reno")).unwrap();
            assert!(requests_reno(requests.law()));
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            assert_eq!(reader.law(), Some(&before));
            let slow = LawChange::of(&before, |law| law.rate = Rate::from_mbps(1));
            assert!(matches!(requests.request(&slow).unwrap_err(), LawRequestError::Ended(_)));
            bytes
        });
        let mut writer = open_writer(&url, &bulk(), &Options::default()).unwrap();
        writer.write_all(b"bytes").unwrap();
        let started = Instant::now();
        let received = loop {
            match writer.take_law_request() {
                Some(change) => break change.unwrap(),
                None => assert!(started.elapsed() < TIMEOUT, "no request"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(received, controller("reno"));
        assert!(!requests_reno(writer.law()), "the application decides");
        writer.set_law(&received).unwrap();
        writer.finish().wait_for(TIMEOUT).unwrap();
        assert_eq!(reading.join().unwrap(), b"bytes");
    });
}

/// Callers pass the longest duration where they want no limit.
#[test]
fn no_timeout_is_too_long() {
    let listener = listener();
    let options = Options { timeout: Duration::MAX, ..Options::default() };
    let (url, recipe) = (listener.url("127.0.0.1"), preset("streams").unwrap());
    let client = Connection::open(&url, &recipe, &options).wait().unwrap();
    let server = listener.accept().wait_for(Duration::MAX).unwrap();
    client.send(b"message").wait().unwrap();
    assert_eq!(server.recv().wait_for(Duration::MAX).unwrap().data, b"message");
    let (mut writer, _a) = client.open_stream().wait_for(Duration::MAX).unwrap();
    writer.write_some(b"y").wait_for(Duration::MAX).unwrap();
    let (_b, mut reader) = server.accept_stream().wait_for(Duration::MAX).unwrap();
    assert_eq!(reader.read_some(&mut [0; 9]).wait_for(Duration::MAX).unwrap(), 1);
    let (opened, accepted) = std::thread::scope(|scope| {
        let opened = scope.spawn(|| open_writer(&url, &bulk(), &options));
        let accepted = listener.accept_any().wait_for(Duration::MAX).unwrap();
        (opened.join().unwrap(), accepted)
    });
    let mut writer = opened.unwrap();
    assert_eq!(writer.write_some(b"bytes").wait_for(Duration::MAX).unwrap(), 5);
    let Accepted::Reader(mut reader) = accepted else { panic!("{accepted:?}") };
    assert_eq!(reader.read_some(&mut [0; 9]).wait_for(Duration::MAX).unwrap(), 5);
}

#[test]
fn empty_messages_wait_for_capacity_like_others() {
    let listener = listener();
    let (client, server) = pair(&listener, &preset("msg").unwrap());
    let mut sent = 0;
    while client.send(b"").now().unwrap().is_some() {
        sent += 1;
        assert!(sent < 100_000, "unread data fills the memory");
    }
    for _ in 0..sent {
        assert!(server.recv().wait_for(TIMEOUT).unwrap().data.is_empty());
    }
    client.close().wait_for(TIMEOUT).unwrap();
}

#[test]
fn messages_have_any_length_up_to_the_limit_and_the_error_reports_the_limit() {
    let listener = listener();
    for name in ["viz", "msg", "sensor", "streams"] {
        let (client, server) = pair(&listener, &preset(name).unwrap());
        let Err(SendError::Message(MessageError::TooLarge { max, .. })) =
            client.send(&vec![0; 64 << 20]).wait()
        else {
            panic!("{name} carries it")
        };
        assert!(client.send(&vec![0; max + 1]).wait().is_err(), "{name}");
        for len in [0, 1, max, 0] {
            client.send(&vec![len as u8; len]).wait().unwrap();
            assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data.len(), len, "{name}");
        }
    }
}
