//! Memory per client with a running connection at a base station: real handshakes, one reading each, then the
//! bytes in use after the sensors have left. `HAUL_CONNECTIONS=10000` sets the number; the default is smaller
//! because handshakes take time.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::alloc::System;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use haul_engine::{
    Channel, Endpoint, EngineError, ListenOptions, Listener, OpenOptions, ResumptionFile, Terms, block_on,
    wait_for,
};
use haul_proto::micro::registry;
use haul_stack::{Ends, SendOptions};
use haul_wire::control::FaultCode;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Maximum memory per client in bytes. More than half is the stack, the rest the connection, its keys and
/// table entries.
const MAX_BYTES: usize = 2_048;
const TIMEOUT: Duration = Duration::from_secs(60);
/// By then the sensors' closes are answered and unused keys are dropped, even on a busy machine.
const IDLE_TIME: Duration = Duration::from_secs(40);

/// No more memory is released after this time without a release.
const SETTLED: Duration = Duration::from_secs(4);
/// Delay of a sensor's first reading, after which a thread of the base station waits for it.
const AWAITED: Duration = Duration::from_millis(3);

fn allocated_bytes(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

fn accept(listener: &Listener) -> Channel {
    wait_for(Some(TIMEOUT), "a sensor", |context| listener.endpoint().poll_accept(context)).unwrap()
}

fn send(channel: &Channel, data: &[u8]) {
    let poll = |context: &mut Context<'_>| channel.poll_send(context, data, SendOptions::default());
    channel.wait_for(Some(TIMEOUT), "room", poll).unwrap();
}

fn recv(channel: &Channel) -> Vec<u8> {
    channel.wait_for(Some(TIMEOUT), "a reading", |context| channel.poll_recv(context)).unwrap().data
}

fn main() {
    let number: usize = std::env::var("HAUL_CONNECTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    let listener = Listener::bind(ListenOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let (registry, url) = (Arc::new(registry()), listener.url("127.0.0.1", b""));
    let terms = Terms::new(registry.clone());
    let recipe = haul_proto::presets::preset("sensor").unwrap().unwrap();
    let options = OpenOptions::default();
    let agree_with_client = |count: usize| {
        let mut accepted = 0;
        while accepted < count {
            let incoming = listener.accept(TIMEOUT).unwrap();
            match incoming.agree(&terms) {
                Ok(()) => accepted += 1,
                // Two of 10,000 random numbers are equal in one of 86 runs; the sensor then tries another.
                Err(EngineError::Peer(fault)) if fault.code == FaultCode::Busy => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    // One-off costs: the compiled stack, buffers, TLS.
    let warm = std::thread::scope(|scope| {
        scope.spawn(|| agree_with_client(1));
        let endpoint = Endpoint::client().unwrap();
        block_on(endpoint.connect(&url, &recipe, &options, Ends::default())).unwrap()
    });
    send(&warm, &[7; 8]);
    let warm_station = accept(&listener);
    recv(&warm_station);
    // The first handshake releases its memory.
    let mut before = None;
    while before != Some(ALLOCATOR.stats().bytes_deallocated) {
        before = Some(ALLOCATOR.stats().bytes_deallocated);
        std::thread::sleep(Duration::from_millis(300));
    }
    let began = Instant::now();
    let region = Region::new(ALLOCATOR);
    let sensors = Endpoint::client().unwrap();
    let mut clients = Vec::with_capacity(number);
    // As a base station does: accepts while sensors connect.
    let receive_all = || {
        let mut stations = Vec::with_capacity(number);
        while stations.len() < number {
            let station = accept(&listener);
            assert_eq!(recv(&station).len(), 8);
            stations.push(station);
        }
        stations
    };
    let stations = std::thread::scope(|scope| {
        scope.spawn(|| agree_with_client(number));
        let stations = scope.spawn(receive_all);
        for reading in 0..number as u64 {
            let mut client = block_on(sensors.connect(&url, &recipe, &options, Ends::default())).unwrap();
            file.store(&mut client).unwrap();
            std::thread::sleep(AWAITED);
            send(&client, &reading.to_be_bytes());
            clients.push(client);
        }
        stations.join().unwrap()
    });
    println!("{number} sensors connected and heard in {:.1} s", began.elapsed().as_secs_f64());
    // Both ends' channels and their keys exist; then the sensors leave, and keys of idle connections are
    // dropped.
    let both = allocated_bytes(&region);
    drop((clients, sensors));
    let until = Instant::now() + IDLE_TIME;
    let (mut station, mut since) = (allocated_bytes(&region) / number, Instant::now());
    while Instant::now() < until && (station > MAX_BYTES || since.elapsed() < SETTLED) {
        std::thread::sleep(Duration::from_millis(200));
        let now = allocated_bytes(&region) / number;
        if now != station {
            (station, since) = (now, Instant::now());
        }
    }
    println!("{} bytes for both ends, {station} for each sensor at the base station", both / number);
    assert!(station <= MAX_BYTES, "{station} bytes");
    drop(stations);
}
