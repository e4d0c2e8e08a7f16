//! Threads that wait on channels and drive the endpoint: beside other threads and tasks, when they stop
//! waiting, and when they fail.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use haul_engine::{Channel, ConnectionOptions, Endpoint, EngineError, HaulUrl, Listener, OpenOptions, Terms};
use haul_proto::presets;
use haul_stack::{Ends, Recipe, SendOptions};
use haul_testing::block_on;

use crate::connections::{agree_with_client, connection, custom_registry, recv, send, until};
use crate::support::{Relay, TIMEOUT, Waits, connect_by, listener};

/// Two ends with retransmission, the client's on this endpoint.
pub(crate) fn pair_on(endpoint: &Endpoint, listener: &Listener, url: &HaulUrl) -> (Channel, Channel) {
    pair_with(endpoint, listener, url, &OpenOptions::default())
}

pub(crate) fn pair_with(
    endpoint: &Endpoint,
    listener: &Listener,
    url: &HaulUrl,
    options: &OpenOptions,
) -> (Channel, Channel) {
    let recipe = presets::preset("msg").unwrap().unwrap();
    let terms = Terms::new(custom_registry());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            connect_by(Some(endpoint), url, &recipe, &custom_registry(), options, Ends::default()).unwrap()
        });
        agree_with_client(listener, &terms).unwrap();
        (client.join().unwrap(), connection(listener))
    })
}

fn endpoint() -> Endpoint {
    Endpoint::client().unwrap()
}

fn pair(endpoint: &Endpoint, listener: &Listener) -> (Channel, Channel) {
    pair_on(endpoint, listener, &listener.url("127.0.0.1", b""))
}

/// Waits until the thread waiting on the channel drives the endpoint, or has done so since `before` inline
/// waits.
fn until_inline(endpoint: &Endpoint, channel: &Channel, before: u64) {
    until("the thread that waits does not drive the endpoint", || {
        // It retries after any possible change.
        assert!(channel.try_recv().unwrap().is_none());
        endpoint.stats().inline_waits > before
    });
}

fn echo(channel: &Channel) {
    while let Ok(message) = channel.recv(None) {
        channel.send(&message.data, SendOptions::default(), None).unwrap();
    }
}

#[test]
fn both_ends_wait_for_each_other_and_drive_their_endpoints() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (client, server) = pair(&endpoint, &listener);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&server));
        for round in 0..1_000u32 {
            send(&client, &round.to_be_bytes());
            assert_eq!(recv(&client), round.to_be_bytes());
        }
        client.close(TIMEOUT).unwrap();
    });
    let waits = (endpoint.stats().inline_waits, listener.endpoint().stats().inline_waits);
    assert!(waits.0 > 0 && waits.1 > 0, "{waits:?}");
}

#[test]
fn a_channel_is_usable_during_another_threads_inline_wait() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (client, server) = pair(&endpoint, &listener);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&server));
        let before = endpoint.stats().inline_waits;
        let waits = scope.spawn(|| (client.recv(None), client.recv(None)));
        until_inline(&endpoint, &client, before);
        send(&client, b"round");
        until("the message has not arrived", || client.stats().messages_delivered > 0);
        // Ends the wait at once although no packet arrives: an abort is not answered.
        client.abort();
        let (first, second) = waits.join().unwrap();
        assert_eq!(first.unwrap().data, b"round");
        assert!(second.is_err(), "{second:?}");
    });
}

#[test]
fn two_threads_wait_on_two_channels_of_one_endpoint() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let pairs = [pair(&endpoint, &listener), pair(&endpoint, &listener)];
    std::thread::scope(|scope| {
        for (client, server) in &pairs {
            scope.spawn(|| echo(server));
            scope.spawn(|| {
                for round in 0..500u32 {
                    send(client, &round.to_be_bytes());
                    assert_eq!(recv(client), round.to_be_bytes());
                }
                client.close(TIMEOUT).unwrap();
            });
        }
    });
}

#[test]
fn a_finished_inline_driver_hands_over_to_remaining_waiters() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (early, late) = (pair(&endpoint, &listener), pair(&endpoint, &listener));
    std::thread::scope(|scope| {
        let before = endpoint.stats().inline_waits;
        let first = scope.spawn(|| recv(&early.0));
        until_inline(&endpoint, &early.0, before);
        let second = scope.spawn(|| late.0.recv(None).unwrap().data);
        send(&early.1, b"early");
        assert_eq!(first.join().unwrap(), b"early");
        send(&late.1, b"late");
        assert_eq!(second.join().unwrap(), b"late");
    });
}

#[test]
fn packets_are_answered_after_the_application_stops_polling() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (client, server) = pair(&endpoint, &listener);
    for round in 0..20u8 {
        std::thread::scope(|scope| {
            let before = listener.endpoint().stats().inline_waits;
            let waits = scope.spawn(|| recv(&server));
            until_inline(listener.endpoint(), &server, before);
            send(&client, &[round]);
            assert_eq!(waits.join().unwrap(), [round]);
        });
        // The server is idle now, and the client drives nothing.
        send(&client, b"unread");
        block_on(poll_fn(|context| client.poll_flush(context))).unwrap();
        assert_eq!(recv(&server), b"unread");
    }
}

#[test]
fn losses_are_retransmitted_without_waiters() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let (client, server) = pair_on(&endpoint, &listener, &url);
    std::thread::scope(|scope| {
        let before = endpoint.stats().inline_waits;
        let waits = scope.spawn(|| recv(&client));
        until_inline(&endpoint, &client, before);
        send(&server, b"first");
        assert_eq!(waits.join().unwrap(), b"first");
    });
    relay.to_server.store(false, Ordering::Relaxed);
    let received = || relay.received.lock().unwrap().len();
    let before = received();
    send(&client, b"again");
    until("nothing is repeated", || received() >= before + 4);
    relay.to_server.store(true, Ordering::Relaxed);
    assert_eq!(recv(&server), b"again");
}

#[test]
fn pending_data_is_sent_before_the_close() {
    let listener = listener("127.0.0.1");
    for _ in 0..30 {
        let endpoint = endpoint();
        let (client, server) = pair(&endpoint, &listener);
        let client = Arc::new(client);
        std::thread::scope(|scope| {
            let (before, ours) = (endpoint.stats().inline_waits, client.clone());
            // The last owner of the channel drops it as soon as the message has arrived.
            let waits = scope.spawn(move || recv(&ours));
            until_inline(&endpoint, &client, before);
            drop(client);
            send(&server, b"last");
            assert_eq!(waits.join().unwrap(), b"last");
        });
        // A dropped client sends no more: the message has arrived already.
        server.flush(Some(TIMEOUT)).unwrap();
    }
}

#[test]
fn an_inline_wait_ends_at_its_timeout() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (client, _server) = pair(&endpoint, &listener);
    for _ in 0..20 {
        let waited = client.recv(Some(Duration::from_millis(5)));
        assert!(matches!(waited, Err(EngineError::TimedOut { .. })), "{waited:?}");
    }
    assert!(endpoint.stats().inline_waits > 0);
    for _ in 0..50 {
        let short = self::endpoint();
        let (client, server) = pair(&short, &listener);
        send(&server, b"once");
        assert_eq!(recv(&client), b"once");
    }
}

#[test]
fn a_busy_polling_thread_is_woken_without_a_packet() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let channel = ConnectionOptions {
        // A failure is found before it stops polling.
        busy_poll: TIMEOUT * 2,
        keep_alive: Some(Duration::from_millis(100)),
        ..ConnectionOptions::default()
    };
    let options = OpenOptions { connection: channel, ..OpenOptions::default() };
    let (client, _server) = pair_with(&endpoint, &listener, &url, &options);
    client.wait_confirmed(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let before = endpoint.stats().inline_waits;
        let waits = scope.spawn(|| client.recv(None));
        until("no thread drives the endpoint", || endpoint.stats().inline_waits > before);
        relay.to_client.store(false, Ordering::Relaxed);
        // The endpoint's thread detects that the server is silent.
        until("the waiting thread was not woken", || waits.is_finished());
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(EngineError::Silent(_))), "{ended:?}");
    });
}

#[test]
fn tasks_are_woken_by_an_inline_driver() {
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (of_task, of_thread) = (pair(&endpoint, &listener), pair(&endpoint, &listener));
    std::thread::scope(|scope| {
        let before = endpoint.stats().inline_waits;
        let waits = scope.spawn(|| recv(&of_thread.0));
        let task = scope.spawn(|| {
            block_on(poll_fn(|context| of_task.0.poll_recv(context))).unwrap();
            block_on(poll_fn(|context| of_task.0.poll_send(context, b"back", SendOptions::default())))
                .unwrap();
            block_on(poll_fn(|context| of_task.0.poll_flush(context))).unwrap();
        });
        until_inline(&endpoint, &of_thread.0, before);
        send(&of_task.1, b"to the task");
        assert_eq!(recv(&of_task.1), b"back");
        task.join().unwrap();
        send(&of_thread.1, b"to the thread");
        assert_eq!(waits.join().unwrap(), b"to the thread");
    });
}

#[test]
fn a_task_is_not_woken_by_its_own_poll() {
    struct Counts(AtomicUsize);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (client, server) = pair(&endpoint, &listener);
    let wakes = Arc::new(Counts(AtomicUsize::new(0)));
    let waker = Waker::from(wakes.clone());
    let poll_once = || client.poll_recv(&mut Context::from_waker(&waker));
    client.flush(Some(TIMEOUT)).unwrap();
    for _ in 0..1_000 {
        assert!(poll_once().is_pending());
    }
    // Packets left over from the handshake may wake it, and nothing else.
    assert!(wakes.0.load(Ordering::Relaxed) < 20);
    send(&server, b"now");
    let seen = AtomicUsize::new(0);
    until("the task is not woken for its message", || {
        // Only a task that was woken polls again.
        let now = wakes.0.load(Ordering::Relaxed);
        now > seen.swap(now, Ordering::Relaxed)
            && matches!(poll_once(), Poll::Ready(Ok(message)) if message.data == b"now")
    });
}

#[test]
fn a_panicking_waker_ends_neither_an_inline_wait_nor_the_endpoint() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a task that cannot be woken");
        }
    }
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    let (of_task, of_thread) = (pair(&endpoint, &listener), pair(&endpoint, &listener));
    std::thread::scope(|scope| {
        let before = endpoint.stats().inline_waits;
        let waits = scope.spawn(|| recv(&of_thread.0));
        until_inline(&endpoint, &of_thread.0, before);
        let waker = Waker::from(Arc::new(Panics));
        assert!(matches!(of_task.0.poll_recv(&mut Context::from_waker(&waker)), Poll::Pending));
        send(&of_task.1, b"wake up");
        until("the task's message has not arrived", || of_task.0.stats().messages_delivered > 0);
        send(&of_thread.1, b"still there");
        assert_eq!(waits.join().unwrap(), b"still there");
    });
    assert_eq!(recv(&of_task.0), b"wake up");
    of_thread.0.close(TIMEOUT).unwrap();
}

/// Runs this test again, as root, on a loopback of 20 Mbit/s: packets wait in its queue and fill the socket's
/// send buffer.
fn on_slow_loopback(test: &str) -> bool {
    const INSIDE: &str = "HAUL_TEST_SLOW_LOOPBACK";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let script =
        "ip link set lo up && tc qdisc add dev lo root tbf rate 20mbit burst 20kb limit 40mb || exit 77
        exec \"$0\" --exact \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", script]).arg(std::env::current_exe().unwrap()).arg(test).env(INSIDE, "1");
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) if output.status.code() == Some(77) || !nix::unistd::geteuid().is_root() => {
            eprintln!("SKIPPED: needs root, and tc with tbf: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => eprintln!("SKIPPED: needs unshare: {error}"),
    }
    false
}

#[test]
fn a_full_socket_delays_packets_and_loses_none() {
    const MESSAGES: u32 = 2_500;
    if !on_slow_loopback("waiting::a_full_socket_delays_packets_and_loses_none") {
        return;
    }
    let (listener, endpoint) = (listener("127.0.0.1"), endpoint());
    // Nothing is retransmitted: packets lost here are lost for good.
    let recipe =
        Recipe::new("x").with("fixed_size").with("transport_driver").with("sequenced_segment").with("seal");
    let (url, terms, options) =
        (listener.url("127.0.0.1", b""), Terms::new(custom_registry()), OpenOptions::default());
    std::thread::scope(|scope| {
        scope.spawn(|| agree_with_client(&listener, &terms).unwrap());
        let ends = Ends::default();
        let client = connect_by(Some(&endpoint), &url, &recipe, &custom_registry(), &options, ends).unwrap();
        let receives = scope.spawn(|| {
            let server = connection(&listener);
            // If two CPUs drain the queue in turn, packets may be reordered.
            let mut missing: BTreeSet<u32> = (0..MESSAGES).collect();
            while !missing.is_empty() {
                let number = u32::from_be_bytes(*recv(&server).first_chunk().unwrap());
                assert!(missing.remove(&number), "message {number} was delivered twice");
            }
        });
        for number in 0..MESSAGES {
            let mut message = [7; 1_000];
            message[..4].copy_from_slice(&number.to_be_bytes());
            send(&client, &message);
        }
        client.flush(Some(TIMEOUT)).unwrap();
        // Flushed data was sent before the connection closes.
        client.close(TIMEOUT).unwrap();
        receives.join().unwrap();
    });
    assert_eq!(endpoint.stats().unsent, 0);
}
