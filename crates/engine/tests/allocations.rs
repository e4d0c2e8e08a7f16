//! Allocations of a running session: none per packet. Without a test harness, whose threads would be counted.

use std::alloc::System;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use haul_base::Piece;
use haul_engine::{ConnectOptions, Counters, ListenOptions, Listener, Waker, connect};
use haul_proto::connection::{Opener, Sealer, settings_for};
use haul_proto::presets::preset;
use haul_proto::{Available, ObjectSink, ObjectSource, Open, Seal};
use haul_wire::control::{Cipher, Request, Settings};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    sealing_and_opening();
    a_whole_session();
}

fn sealing_and_opening() {
    const PACKET: usize = 1400;
    const BATCH: usize = 44;
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None] {
        let (mut sealer, mut opener) = (Sealer::new([1; 32], cipher), Opener::new([1; 32], cipher));
        let mut batch = vec![7; PACKET * BATCH];
        let region = Region::new(ALLOCATOR);
        for round in 0..20 {
            let first = round * BATCH as u64;
            sealer.seal_batch(&mut batch, PACKET, 7, first);
            for (pn, packet) in (first..).zip(batch.chunks_mut(PACKET)) {
                opener.open(packet, 7, pn).expect("a sealed packet opens");
            }
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{cipher}");
        println!("{cipher}: 0 allocations in {} packets sealed and opened", 20 * BATCH);
    }
}

const LEN: u64 = 768 << 20;
/// Counting starts when pools are filled and the path MTU is known.
const WARM: u64 = 128 << 20;

/// Allocations of the process (both peers) when the source was read at `WARM` and at the end.
type Snapshots = Arc<Mutex<Vec<(Instant, Stats)>>>;

struct Zeros {
    snapshots: Snapshots,
    next_mark: u64,
}

impl ObjectSource for Zeros {
    fn available(&mut self) -> Available {
        Available { upto: LEN, end: true }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        if offset >= self.next_mark {
            self.snapshots.lock().expect("no panic elsewhere").push((Instant::now(), ALLOCATOR.stats()));
            self.next_mark = if self.next_mark == WARM { LEN - (8 << 20) } else { u64::MAX };
        }
    }

    fn release(&mut self, _: u64) {}
}

struct DiscardingSink;

impl ObjectSink for DiscardingSink {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        u64::MAX
    }

    fn complete(&mut self, len: u64) {
        assert_eq!(len, LEN);
    }
}

fn settings() -> Settings {
    let mut recipe = preset("bulk").and_then(Result::ok).expect("it is shipped");
    haul_proto::micro::registry()
        .set(&mut recipe, "rate_control.controller", "delivery")
        .expect("it has a law");
    settings_for(&recipe, None).expect("it carries an object")
}

/// Sends 768 MiB over loopback and counts the allocations of the whole process. The control channel may
/// allocate: it pings once a second.
fn a_whole_session() {
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(ListenOptions::new(address)).expect("loopback");
    let url = listener.url("127.0.0.1", b"/");
    let client =
        std::thread::spawn(move || connect(&url, ConnectOptions::new(Request::BenchSend, settings())));
    let timeout = Duration::from_secs(60);
    let incoming = listener.accept(timeout).expect("a client");
    let mut server = incoming.accept().expect("a session");
    let mut client = client.join().expect("no panic").expect("a session");
    let snapshots = Snapshots::default();
    snapshots.lock().expect("no panic elsewhere").reserve(8);
    let source = Zeros { snapshots: snapshots.clone(), next_mark: WARM };
    let mut sending =
        client.start_sending(Box::new(source), Waker::new().expect("a descriptor")).expect("a thread");
    let receiving = server
        .start_receiving(Box::new(DiscardingSink), Waker::new().expect("a descriptor"))
        .expect("a thread");
    assert!(sending.wait_delivered(Duration::from_secs(120)).expect("delivered"), "timed out");
    let Some(Counters::Sending(counters)) = sending.stop() else { panic!("no counters") };
    drop(receiving);
    let snapshots = snapshots.lock().expect("no panic elsewhere");
    let ((began, from), (ended, to)) = (snapshots[0], snapshots[1]);
    let allocations = to.allocations + to.reallocations - from.allocations - from.reallocations;
    let packets = counters.stats.packets * (LEN - WARM - (8 << 20)) / LEN;
    let seconds = ended.duration_since(began).as_secs();
    println!("{allocations} allocations of the whole process in {packets} packets and {seconds} s");
    // A ping and its answer take twelve.
    assert!(allocations < 400 + 15 * seconds as usize, "{allocations} allocations in {packets} packets");
}
