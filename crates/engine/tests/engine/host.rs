//! Load of the receiving host, as reported to the sender in a running transfer.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_base::{HostSample, Span};
use haul_engine::{ConnectOptions, Counters, Waker};
use haul_proto::PeerHost;
use haul_wire::control::Request;

use crate::support::{DiscardingSink, TIMEOUT, Zeros, listener, session_pair, settings};

/// 1.6 s at the rate below: about thirty samples.
const LEN: u64 = 40_000_000;
const RATE_BPS: u64 = 200_000_000;

/// Transfers the object while each CPU runs this many busy threads; returns what the sender knows of the
/// receiver's host, and what the receiver knows.
fn transfer(busy_threads: usize) -> (PeerHost, HostSample) {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    let settings = settings();
    let (mut client, mut server) =
        session_pair(&listener, &url, ConnectOptions::new(Request::BenchSend, settings));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..busy_threads * std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    black_box(());
                }
            });
        }
        let mut sending = client.start_sending(Box::new(Zeros(LEN)), Waker::new().unwrap()).unwrap();
        let mut receiving = server.start_receiving(Box::new(DiscardingSink), Waker::new().unwrap()).unwrap();
        let arrived = sending.wait_delivered(TIMEOUT);
        over.store(true, Ordering::Relaxed);
        assert!(arrived.unwrap(), "timed out");
        let Some(Counters::Sending(sent)) = sending.stop() else { panic!("the sender has no counters") };
        let Some(Counters::Receiving(received)) = receiving.stop() else {
            panic!("the receiver has no counters")
        };
        (sent.stats.receiver_host, received.host.expect("the receiver sampled its host"))
    })
}

#[test]
fn a_sender_learns_that_the_receiver_is_short_of_processor_time() {
    let (reported, local) = transfer(3);
    println!("with three busy threads per core: {reported:?}");
    let sample = reported.sample.expect("the receiver reported a sample");
    assert_eq!(sample.run_delay.is_some(), std::fs::read("/proc/thread-self/schedstat").is_ok());
    if let Some(delay) = sample.run_delay {
        assert!((Span::from_millis(1)..Span::from_secs(60)).contains(&delay), "{sample:?}");
        // Totals: the sender knows at most what the receiver does.
        assert!(Some(delay) <= local.run_delay, "{sample:?}, {local:?}");
    }
    // At this rate the thread sleeps voluntarily and waits to be scheduled again: there may be no involuntary
    // switches.
    assert!(sample.involuntary_switches.is_some(), "{sample:?}");
    assert!(sample.socket_fill.is_some_and(|fill| fill <= 1_000), "{sample:?}");
    assert!(sample.sleep_average.is_none(), "no current kernel provides it");
    assert!(
        reported.drain_rate.is_some() && reported.arrival_rate.is_some() && reported.read_delay.is_some(),
        "{reported:?}"
    );
}

#[test]
fn reported_host_data_matches_its_kernel() {
    let (reported, local) = transfer(0);
    println!("without load: {reported:?}");
    let sample = reported.sample.expect("the receiver reported a sample");
    let has = |sample: HostSample| {
        [
            sample.run_delay.is_some(),
            sample.involuntary_switches.is_some(),
            sample.cpu_pressure.is_some(),
            sample.disk_pressure.is_some(),
            sample.steal.is_some(),
            sample.socket_fill.is_some(),
        ]
    };
    assert_eq!(has(sample), has(local));
    let is_there = |path: &str| std::fs::read(path).is_ok();
    assert_eq!(sample.cpu_pressure.is_some(), is_there("/proc/pressure/cpu"));
    assert!(sample.cpu_pressure.is_none_or(|share| share <= 1_000), "{sample:?}");
    // The round trip is far below 1 ms, so this is a rate of few packets.
    let drained = reported.drain_rate.unwrap().as_bps();
    assert!((RATE_BPS / 100..RATE_BPS * 100).contains(&drained), "{drained} bit/s");
}
