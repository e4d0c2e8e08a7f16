//! Many senders and one receiver that assigns each a rate, on real sockets.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use haulage::{Connection, Group, Listener, Options, Rate, preset};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that repeatedly sends 1,000 bytes and waits for `pause`, and a thread that reads them.
fn sender(listener: &Listener, pause: Duration) -> (Connection, Connection) {
    let url = listener.url("127.0.0.1");
    let open =
        thread::spawn(move || Connection::open(&url, &preset("viz").unwrap(), &Options::default()).wait());
    let server_end = listener.accept().wait_for(TIMEOUT).unwrap();
    let client_end = open.join().unwrap().unwrap();
    let (writing, reading) = (client_end.clone(), server_end.clone());
    thread::spawn(move || {
        while writing.send(&[7; 1_000]).wait().is_ok() {
            thread::sleep(pause);
        }
    });
    thread::spawn(move || while reading.recv().wait_for(TIMEOUT).is_ok() {});
    (client_end, server_end)
}

/// Runs rounds until the shares, in Mbit/s, are as expected.
fn settle(group: &mut Group, right: impl Fn(&[f64]) -> bool) {
    let until = Instant::now() + TIMEOUT;
    loop {
        thread::sleep(Duration::from_millis(200));
        group.round();
        let shares: Vec<f64> = group.shares().map(|(_, rate)| rate.as_bps() as f64 / 1e6).collect();
        if right(&shares) {
            return;
        }
        assert!(Instant::now() < until, "{shares:?}");
    }
}

#[test]
fn unused_quota_is_shared_by_weight() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut group = Group::new(Rate::from_mbps(30));
    let modest = sender(&listener, Duration::from_millis(8));
    let greedy: Vec<_> = (0..2).map(|_| sender(&listener, Duration::ZERO)).collect();
    group.add(modest.1.clone(), NonZeroU32::MIN);
    assert_eq!(group.shares().map(|(_, rate)| rate).collect::<Vec<_>>(), [Rate::from_mbps(30)]);
    for (weight, (_, server_end)) in (1..).zip(&greedy) {
        group.add(server_end.clone(), NonZeroU32::new(weight).unwrap());
    }
    // The first sender uses 1 of its 7.5 Mbit/s.
    settle(&mut group, |shares| {
        let unused = 30.0 - shares[0];
        shares[0] < 3.0 && (shares[1] - unused / 3.0).abs() < 0.01 && (shares[2] - unused / 1.5).abs() < 0.01
    });
    // The share of a sender that has left, and a smaller capacity, are divided in the same way.
    greedy[1].0.abort();
    settle(&mut group, |shares| {
        shares.len() == 2 && (shares[0] + shares[1] - 30.0).abs() < 0.01 && shares[0] < 3.0
    });
    group.set_capacity(Rate::from_mbps(10));
    settle(&mut group, |shares| (shares[0] + shares[1] - 10.0).abs() < 0.01 && shares[0] < 3.0);
    for (client_end, _) in [&modest, &greedy[0]] {
        client_end.abort();
    }
    settle(&mut group, <[f64]>::is_empty);
}
