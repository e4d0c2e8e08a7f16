//! Memory that a hostile peer's set can occupy, by every means of the peer. Counts the allocations of the
//! whole process, so no other test may run in it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::alloc::System;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded, unbounded};
use haul_base::{Bytes, Piece};
use haul_mover::{ControlLink, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{
    ByteRange, ControlMessage, Durability, Entry, EntryKind, EntryRequest, Extraneous, Extras, Fault,
    FaultCode, FileDigest, Filtered, Layout, Preserve, ReceivePolicy, RelPath, RequestRun, Selection, Xattr,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Memory budget of the set.
const BUDGET: usize = 16 << 20;

/// Peak memory use since [`peak`] started.
static MOST: AtomicUsize = AtomicUsize::new(0);

fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    let now = stats.bytes_allocated.saturating_sub(stats.bytes_deallocated);
    MOST.fetch_max(now, Ordering::Relaxed);
    now
}

/// A channel that accepts a message only when the previous one was received, as a connection with little
/// memory does.
struct Narrow {
    out: Sender<ControlMessage>,
    inc: Receiver<ControlMessage>,
}

fn narrow_pair() -> (Arc<Narrow>, Arc<Narrow>) {
    // Messages of the job under test must not block.
    let (to, from) = (bounded(0), unbounded());
    (Arc::new(Narrow { out: to.0, inc: from.1 }), Arc::new(Narrow { out: from.0, inc: to.1 }))
}

fn lost() -> Fault {
    Fault::new(FaultCode::ControlLost, "the other end is gone", "")
}

impl ControlLink for Narrow {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        self.out.send(message).map_err(|_| lost())
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        match self.inc.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }
}

impl Narrow {
    /// Sends a message. False: the job has ended.
    fn push(&self, mut message: ControlMessage, is_over: &dyn Fn() -> bool) -> bool {
        while !is_over() {
            // On a busy machine the sampling thread may not run while the set grows.
            in_use();
            match self.out.send_timeout(message, Duration::from_millis(10)) {
                Ok(()) => return true,
                Err(SendTimeoutError::Timeout(back)) => message = back,
                Err(SendTimeoutError::Disconnected(_)) => return false,
            }
        }
        false
    }
}

/// Returns the peak memory use while something runs, above that at its start.
fn peak(work: impl FnOnce()) -> usize {
    MOST.store(0, Ordering::Relaxed);
    let (before, over) = (in_use(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                in_use();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let ended = catch_unwind(AssertUnwindSafe(work));
        in_use();
        over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|reason| resume_unwind(reason));
    });
    MOST.load(Ordering::Relaxed).saturating_sub(before)
}

fn entry(path: String, kind: EntryKind) -> Entry {
    let path = RelPath::new(path.into_bytes()).unwrap();
    Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None }
}

fn empty(path: String) -> Entry {
    entry(path, EntryKind::File { size: 0, holes: vec![] })
}

/// Creates the n-th message of a kind, each with a fixed number of entries.
type Flood = fn(u64) -> ControlMessage;

fn entries(of: u64, number: u64, make: impl Fn(u64) -> Entry) -> ControlMessage {
    ControlMessage::Entries((0..of).map(|at| make(number * of + at)).collect())
}

fn with_extras(number: u64, extras: &dyn Fn(Xattr) -> Extras) -> ControlMessage {
    entries(8, number, |n| {
        let value = vec![n as u8; 30_000];
        let name = format!("user.{n}").into_bytes();
        Entry { extras: Some(Box::new(extras(Xattr { name, value }))), ..empty(format!("x{n}")) }
    })
}

const FLOODS: [(&str, Flood); 11] = [
    ("names", |n| entries(1024, n, |n| empty(format!("{n:0>200}")))),
    ("short names", |n| entries(1024, n, |n| empty(n.to_string()))),
    ("targets of links", |n| {
        entries(16, n, |n| entry(n.to_string(), EntryKind::Symlink { target: vec![b'x'; 4_000] }))
    }),
    ("holes", |n| {
        entries(2, n, |n| {
            let holes = (0..4_096).map(|at| ByteRange { start: 2 * at + 1, len: 1 }).collect();
            entry(n.to_string(), EntryKind::File { size: 1 << 20, holes })
        })
    }),
    ("attributes", |n| with_extras(n, &|x| Extras { xattrs: Some(vec![x]), ..Extras::default() })),
    ("directories", |n| {
        let long = vec!["d".repeat(200); 20];
        if n == 0 {
            let above = (1..=20).map(|depth| entry(long[..depth].join("/"), EntryKind::Directory));
            return ControlMessage::Entries(above.collect());
        }
        entries(64, n, |n| {
            let path = format!("{}/{}", long.join("/"), n / 2);
            if n % 2 == 0 { entry(path, EntryKind::Directory) } else { empty(format!("{path}/f")) }
        })
    }),
    ("entries that could not be read", |n| {
        entries(8, n, |n| {
            let fault = Fault::new(FaultCode::Io, "x".repeat(30_000), "");
            entry(format!("{n:0>250}"), EntryKind::Failed(fault))
        })
    }),
    ("hard links", |n| {
        entries(1024, n, |n| match n {
            0 => empty("first".to_owned()),
            n => entry(format!("{n:0>200}"), EntryKind::HardLink { entry: 0 }),
        })
    }),
    ("names left out", |n| {
        let path = |at| RelPath::new(format!("{}", n * 2_048 + at).into_bytes()).unwrap();
        ControlMessage::Filtered(Filtered { paths: (0..2_048).map(path).collect(), ..Filtered::default() })
    }),
    ("digests of what could not be read", |n| match n {
        0..10 => entries(1_000, n, |n| entry(n.to_string(), EntryKind::File { size: 1, holes: vec![] })),
        n => {
            let fault = Fault::new(FaultCode::Io, "x".repeat(30_000), "");
            let digest = |at| FileDigest { entry: (n - 10) * 8 + at, result: Err(fault.clone()) };
            ControlMessage::Digests((0..8).map(digest).collect())
        }
    }),
    ("files of which a byte is there", |n| {
        entries(256, n, |n| entry(format!("{n:0>100}"), EntryKind::File { size: 2, holes: vec![] }))
    }),
];

/// Floods a receiver until it ends; returns its memory use and its result.
fn flood(what: &str, flood: Flood) -> (usize, Fault) {
    let dir = tempfile::tempdir().unwrap();
    // The destination is occupied, so that bytes are sent on request.
    std::fs::write(dir.path().join("there"), "").unwrap();
    let root = Root::beneath(dir.path()).unwrap();
    let (peer, link) = narrow_pair();
    let receive_policy = ReceivePolicy {
        durability: Durability::Cached,
        extraneous: Extraneous::Delete,
        ..ReceivePolicy::default()
    };
    let options = ReceiveOptions {
        set_memory: Bytes(BUDGET as u64),
        permit: Preserve::ALL,
        ..ReceiveOptions::with_policy(1, receive_policy)
    };
    let mut job = receive_files(b"", &root, Layout::Into, link, options).unwrap();
    // The job's own buffers are allocated by now.
    loop {
        match peer.recv(Duration::from_secs(30)).unwrap() {
            Some(ControlMessage::Ready(_)) => break,
            Some(ControlMessage::DestinationLineage(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    let drips = what.contains("a byte");
    let taken = peak(|| {
        for number in 0..1_000_000 {
            if !peer.push(flood(number), &|| job.handle.is_finished()) {
                break;
            }
            if drips {
                let pieces: Vec<Piece> = (0..256)
                    .map(|at| Piece { offset: (number * 256 + at) * 2, range: at as usize..at as usize + 1 })
                    .collect();
                job.sink.deliver(&[7; 256], &pieces);
                // Buffered contents have their own limit.
                let done = || job.handle.progress().bytes_done.get() >= (number + 1) * 256;
                while !done() && !job.handle.is_finished() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            while let Ok(Some(_)) = peer.recv(Duration::ZERO) {}
        }
    });
    (taken, job.handle.join().unwrap_err())
}

fn report(what: &str, taken: usize, fault: &Fault) {
    println!("{what}: {:.1} MiB of {} MiB", taken as f64 / f64::from(1 << 20), BUDGET >> 20);
    assert_eq!(fault.code, FaultCode::SetTooLarge, "{what}: {fault}");
    assert!(taken <= BUDGET, "{what}: {taken} bytes");
    // Overestimates would reject sets that fit. The journal stores paths of directories later.
    let least = if what == "directories" { 0 } else { BUDGET / 3 };
    assert!(taken >= least, "{what}: {taken} bytes");
}

/// Attributes that may not be set are not stored, however many there are.
fn attributes_that_are_not_permitted_take_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (peer, link) = narrow_pair();
    let options = ReceiveOptions {
        set_memory: Bytes(BUDGET as u64),
        ..ReceiveOptions::with_policy(1, ReceivePolicy::default())
    };
    let job = receive_files(b"", &Root::beneath(dir.path()).unwrap(), Layout::Into, link, options).unwrap();
    let taken = peak(|| {
        for number in 0..1_000 {
            let message = with_extras(number, &|x| Extras { xattrs: Some(vec![x]), ..Extras::default() });
            assert!(peer.push(message, &|| job.handle.is_finished()), "it has ended");
            while let Ok(Some(_)) = peer.recv(Duration::ZERO) {}
        }
    });
    assert!(!job.handle.is_finished());
    println!("240 MB of attributes that are not permitted: {:.1} MiB", taken as f64 / f64::from(1 << 20));
    assert!(taken < (12 << 20), "{taken}");
    drop(peer);
    job.handle.join().unwrap_err();
}

/// A receiver that requests every byte of each file separately, and receives none.
fn what_is_wanted_of_a_sender_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..64 {
        let file = std::fs::File::create(dir.path().join(number.to_string())).unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).unwrap();
    }
    let (peer, link) = narrow_pair();
    let limits = SendLimits { set_memory: Bytes(BUDGET as u64), ..SendLimits::default() };
    let root = Root::beneath(dir.path()).unwrap();
    let job = send_files(vec![b".".to_vec()], root, &Selection::default(), link, limits).unwrap();
    peer.send(ControlMessage::Ready(haul_wire::control::Destination::Occupied)).unwrap();
    let ranges: Vec<ByteRange> = (0..1 << 16).map(|at| ByteRange { start: 2 * at, len: 1 }).collect();
    let mut known = 0;
    let taken = peak(|| {
        while !job.handle.is_finished() {
            match peer.recv(Duration::from_millis(20)) {
                Ok(Some(ControlMessage::Entries(entries))) => {
                    for entry in entries {
                        let is_file = matches!(entry.kind, EntryKind::File { .. });
                        let request =
                            if is_file { EntryRequest::Ranges(ranges.clone()) } else { EntryRequest::All };
                        known += 1;
                        let requests = ControlMessage::EntryRequests(vec![RequestRun { count: 1, request }]);
                        if !peer.push(requests, &|| job.handle.is_finished()) {
                            return;
                        }
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    let fault = job.handle.join().unwrap_err();
    assert!(known > 1);
    report("what is wanted of a sender", taken, &fault);
}

fn main() {
    for (what, make) in FLOODS {
        let (taken, fault) = flood(what, make);
        report(what, taken, &fault);
    }
    attributes_that_are_not_permitted_take_nothing();
    what_is_wanted_of_a_sender_is_counted();
}
