//! Threads that send, receive and close at random, on several channels of one endpoint: none hangs, and every
//! message is answered once. `HAUL_INTERLEAVINGS` is the number of runs.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use haul_base::Rng;
use haul_engine::{Channel, Endpoint, EngineError, Message};
use haul_stack::SendOptions;
use haul_testing::block_on;

use crate::support::{TIMEOUT, Waits, listener};
use crate::waiting::pair_on;

/// A run that takes longer hangs; most take less than 1 s.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Pauses at random, so that no thread drives the endpoint inline for a while.
fn random_delay(rng: &mut Rng) {
    match rng.below(8) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(600))),
        1 => std::thread::yield_now(),
        _ => {}
    }
}

/// Receives the next message in a random way.
fn receive(channel: &Channel, rng: &mut Rng) -> Result<Message, EngineError> {
    loop {
        random_delay(rng);
        match rng.below(6) {
            0 => match channel.recv(Some(Duration::from_micros(rng.below(2_000)))) {
                Err(EngineError::TimedOut { .. }) => {}
                other => return other,
            },
            1 => match channel.try_recv().transpose() {
                Some(result) => return result,
                None => std::thread::yield_now(),
            },
            2 => return block_on(poll_fn(|context| channel.poll_recv(context))),
            _ => return channel.recv(None),
        }
    }
}

fn submit(channel: &Channel, data: &[u8], rng: &mut Rng) -> Result<(), EngineError> {
    random_delay(rng);
    let options = SendOptions::default();
    match rng.below(3) {
        0 => block_on(poll_fn(|context| channel.poll_send(context, data, options))).map(drop),
        1 => {
            while channel.try_send(data, options)?.is_none() {
                std::thread::yield_now();
            }
            Ok(())
        }
        _ => channel.send(data, options, None).map(drop),
    }
}

/// Answers every message until the connection ends.
fn echo(channel: &Channel, mut rng: Rng) {
    while let Ok(message) = receive(channel, &mut rng) {
        if submit(channel, &message.data, &mut rng).is_err() {
            return;
        }
    }
}

fn send_all(channel: &Channel, numbers: std::ops::Range<u64>, mut rng: Rng) {
    for number in numbers {
        let mut data = vec![0; 8 + rng.below(2_000) as usize];
        data[..8].copy_from_slice(&number.to_be_bytes());
        if submit(channel, &data, &mut rng).is_err() {
            return;
        }
    }
}

/// Receives answers; the thread that gets the last one closes or aborts.
fn collect(channel: &Channel, back: &Mutex<HashSet<u64>>, last: usize, cut: bool, mut rng: Rng) {
    while let Ok(message) = receive(channel, &mut rng) {
        let number = u64::from_be_bytes(message.data[..8].try_into().unwrap());
        let mut back = back.lock().unwrap();
        assert!(back.insert(number), "message {number} was delivered twice");
        if back.len() == last {
            drop(back);
            if cut {
                return channel.abort();
            }
            return channel.close(TIMEOUT).unwrap();
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    let channels = 1 + rng.below(3) as usize;
    // One endpoint for all clients, or one for each: then each waiting thread may be alone.
    let endpoints: Vec<_> = (0..channels).map(|_| Endpoint::client().unwrap()).collect();
    let alone = rng.chance(0.5);
    let pairs: Vec<_> =
        (0..channels).map(|i| pair_on(&endpoints[if alone { i } else { 0 }], &listener, &url)).collect();
    let backs: Vec<Mutex<HashSet<u64>>> = (0..channels).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for ((client, server), back) in pairs.iter().zip(&backs) {
            let mut seed = || Rng::from_seed(rng.next_u64());
            let (senders, each) = (1 + seed().below(2), 20 + seed().below(80));
            // Some are aborted after this many answers.
            let cut = seed().chance(0.2);
            let all = senders * each;
            let last = if cut { 1 + seed().below(all) } else { all };
            for sender in 0..senders {
                let rng = seed();
                scope.spawn(move || send_all(client, sender * each..(sender + 1) * each, rng));
            }
            for _ in 0..=u64::from(seed().chance(0.3)) {
                let rng = seed();
                scope.spawn(move || collect(client, back, last as usize, cut, rng));
            }
            for _ in 0..=u64::from(seed().chance(0.3)) {
                let rng = seed();
                scope.spawn(move || echo(server, rng));
            }
            if seed().chance(0.3) {
                scope.spawn(move || until_ended(client));
            }
        }
    });
    let of_clients: u64 = endpoints.iter().map(|endpoint| endpoint.stats().inline_waits).sum();
    let waits = (of_clients, listener.endpoint().stats().inline_waits);
    println!("seed {seed}: {channels} channels, {waits:?} inline waits");
}

/// Waits for the end, not for a message.
fn until_ended(channel: &Channel) {
    while channel.ended().is_none() {
        // A flush that succeeds, or one that waits.
        let _ = channel.flush(Some(Duration::from_millis(2)));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn any_thread_interleaving_wakes_every_waiter_and_loses_nothing() {
    let runs = std::env::var("HAUL_INTERLEAVINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    for seed in 1..=runs {
        let (done, wait) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            run(seed);
            done.send(()).unwrap();
        });
        match wait.recv_timeout(MAX_WAIT) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed} hangs"),
            _ => thread.join().unwrap(),
        }
    }
}
