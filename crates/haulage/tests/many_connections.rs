//! Threads and sockets of an endpoint, in a separate process with one test.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use haul_testing::block_on;
use haulage::{ConnectionError, Endpoint, Listener, Options, Url, WaitError, preset};

use common::{TIMEOUT, exchange};

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn sockets() -> usize {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Returns the numbers of threads and sockets, once the handshakes have released theirs.
fn settled(expected: (usize, usize)) -> (usize, usize) {
    let until = Instant::now() + TIMEOUT;
    loop {
        let now = (threads(), sockets());
        if now == expected || Instant::now() > until {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_connections_share_one_socket_and_one_thread() {
    let (listener, recipe) =
        (Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap(), preset("msg").unwrap());
    let (url, options) = (listener.url("127.0.0.1"), Options::default());
    let before = (threads(), sockets());
    let endpoint = Endpoint::client().unwrap();
    let mut ends: Vec<_> = (0..1_000)
        .map(|_| {
            let client = endpoint.connect(&url, &recipe, &options).wait().unwrap();
            (client, listener.accept().wait_for(TIMEOUT).unwrap())
        })
        .collect();
    let one_more = (before.0 + 1, before.1 + 1);
    assert_eq!(settled(one_more), one_more, "threads and sockets, {before:?} before");
    for (number, (client, server)) in ends.iter().enumerate() {
        exchange(client, server, &number.to_string());
    }
    assert_eq!(endpoint.known_peers(), 1_000);
    let (client, server) = ends.swap_remove(500);
    client.close().wait_for(TIMEOUT).unwrap();
    assert!(matches!(server.recv().wait_for(TIMEOUT), Err(WaitError::Ended(ConnectionError::Closed))));
    // A connection that ends affects no other, and leaves nothing behind.
    drop(client);
    assert_eq!(endpoint.known_peers(), 999);
    exchange(&ends[7].0, &ends[7].1, "goes on");
    drop((ends, endpoint));
    assert_eq!(settled(before), before, "threads and sockets");
    many_opens_that_nobody_answers_have_few_threads(before);
}

/// A server that accepts TCP connections and never answers: the clients wait.
fn many_opens_that_nobody_answers_have_few_threads((threads_before, _): (usize, usize)) {
    const MAX_HELPERS: usize = 16;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let real = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url: Url = real.url("127.0.0.1").parse().unwrap();
    let url = Url { port: silent.local_addr().unwrap().port(), ..url }.to_string();
    let (recipe, endpoint) = (preset("msg").unwrap(), Endpoint::client().unwrap());
    let options = Options { timeout: Duration::from_millis(300), ..Options::default() };
    let threads_of_endpoints = threads() - threads_before;
    let mut opens: Vec<_> = (0..200).map(|_| Box::pin(endpoint.connect(&url, &recipe, &options))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for open in &mut opens {
        assert!(open.as_mut().poll(&mut context).is_pending());
        let helpers = threads() - threads_before - threads_of_endpoints;
        assert!(helpers <= MAX_HELPERS, "{helpers} threads");
    }
    // Operations dropped before they started never start, and the others end.
    opens.truncate(20);
    for open in opens {
        assert!(block_on(open).is_err());
    }
}
