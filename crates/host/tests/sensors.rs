//! The sensors on this machine.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_base::{HostSample, Span, Time};
use haul_host::Sensors;

fn at(started: Instant) -> Time {
    Time::ZERO + Span::from(started.elapsed())
}

/// Runs `act` while each CPU has two busy threads.
fn beside_load(act: impl FnOnce()) {
    /// Ends the load, also if the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    black_box(());
                }
            });
        }
        act();
    });
}

#[test]
fn available_kernel_counters_are_reported_and_others_are_not() {
    let mut sensors = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
    let sample = sensors.sample(Time::ZERO);
    let is_there = |path: &str| std::fs::read(path).is_ok();
    assert_eq!(sample.cpu_pressure.is_some(), is_there("/proc/pressure/cpu"));
    assert_eq!(sample.disk_pressure.is_some(), is_there("/proc/pressure/io"));
    assert_eq!(sample.steal.is_some(), is_there("/proc/stat"));
    assert!(sample.involuntary_switches.is_some());
    assert_eq!(sample.early_drops.is_some(), is_there("/sys/class/net/lo/statistics/rx_dropped"));
    assert_eq!((sample.socket_fill, sample.sleep_average), (None, None));
    // Totals start with the sensors.
    assert!(sample.steal.is_none_or(|steal| steal < Span::from_secs(1)), "{sample:?}");
    assert!(sample.run_delay.is_none_or(|delay| delay < Span::from_secs(5)), "{sample:?}");
}

#[test]
fn a_thread_that_shares_its_processor_waits_for_it_and_loses_it() {
    beside_load(|| {
        let started = Instant::now();
        let mut sensors = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        let first = sensors.sample(at(started));
        while started.elapsed() < Duration::from_millis(600) {
            black_box(());
        }
        let change = sensors.sample(at(started)).since(&first);
        let elapsed = Span::from(started.elapsed());
        println!("600 ms with two busy threads per core: {change:?}");
        assert!(change.involuntary_switches.unwrap() > 0, "{change:?}");
        if let Some(delay) = change.run_delay {
            assert!((Span::from_millis(50)..elapsed).contains(&delay), "{change:?}");
        }
    });
}

#[test]
fn each_thread_has_its_own_sensors() {
    beside_load(|| {
        let mut ours = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        let before = ours.sample(Time::ZERO);
        let theirs = std::thread::spawn(|| {
            let mut theirs = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(300) {
                black_box(());
            }
            theirs.sample(Time::ZERO)
        });
        let theirs = theirs.join().unwrap();
        // This thread slept, and waits at most for the sample.
        let ours = ours.sample(Time::ZERO).since(&before);
        assert!(theirs.involuntary_switches.unwrap() > ours.involuntary_switches.unwrap());
    });
}

#[test]
fn a_sample_is_never_due_before_its_interval() {
    let mut sensors = Sensors::of_this_thread(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
    assert!(sensors.is_due(Time::ZERO));
    sensors.sample(Time::ZERO);
    assert!(!sensors.is_due(Time::ZERO + HostSample::INTERVAL - Span::from_nanos(1)));
    assert!(sensors.is_due(Time::ZERO + Span::from_secs(60)), "unless it took 20 ms");
}
