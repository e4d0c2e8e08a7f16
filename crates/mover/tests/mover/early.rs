//! A copy starts before all its entries are known.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_mover::faults::{Call, Disk, Verdict};
use haul_mover::{Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Layout, Selection};

use crate::harness::{Pair, Pump, bytes, link_pair, names_below, options};
use crate::trees::{assert_same, contents};

/// Timeout of the walk; a copy that waits for the walk has failed by then.
const GUARD: Duration = Duration::from_secs(60);

/// Number of calls that list a directory: those that return names, and one that returns none.
const CALLS_OF_A_DIRECTORY: u64 = 2;

/// State that both sides share about a blocked walk.
#[derive(Default)]
struct Wait {
    lists: AtomicU64,
    /// Whether the receiver has bytes of the first file.
    arrived: AtomicBool,
    /// Whether the walk has continued, for either reason.
    over: AtomicBool,
}

/// Whether the receiver has written anything of the first file.
fn has_bytes(dst: &Path) -> bool {
    let of_first = |path: &Path| {
        path.file_name().is_some_and(|name| name == "first") || path.extension().is_some_and(|e| e == "part")
    };
    let written = |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.blocks() > 0);
    names_below(dst).iter().any(|path| of_first(path) && written(path))
}

/// A disk that lists the second directory only when the receiver has part of the first file.
fn waiting(wait: Arc<Wait>, src: &Path, dst: &Path) -> Disk {
    let (late, dst) = (src.join("sub/late"), dst.to_path_buf());
    Disk::new(move |_, call| {
        let is_second =
            call == Call::List && wait.lists.fetch_add(1, Ordering::Relaxed) == CALLS_OF_A_DIRECTORY;
        if is_second {
            // Polled: between two names, a file has none for a moment.
            let start = Instant::now();
            let arrived = loop {
                match has_bytes(&dst) {
                    false if start.elapsed() < GUARD => std::thread::sleep(Duration::from_millis(1)),
                    arrived => break arrived,
                }
            };
            wait.arrived.store(arrived, Ordering::Relaxed);
            // Only a walk that has not listed this directory yet finds it.
            fs::write(&late, "late").unwrap();
            wait.over.store(true, Ordering::Relaxed);
        }
        Verdict::Pass
    })
}

/// Copies a set whose second directory cannot be listed until the receiver has part of the first file, of
/// `size` bytes.
fn copies_while_the_walk_waits(size: usize, occupied: bool) {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir_all(src.join("sub")).unwrap();
    fs::create_dir(&dst).unwrap();
    fs::write(src.join("first"), contents(size, 1)).unwrap();
    fs::write(src.join("sub/last"), contents(5000, 2)).unwrap();
    if occupied {
        fs::write(dst.join("bystander"), "here before").unwrap();
    }
    let wait = Arc::new(Wait::default());
    let (a, b) = link_pair();
    let receive = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, b, options()).unwrap();
    let sources = vec![[&bytes(&src)[..], b"/."].concat()];
    let limits = SendLimits::default();
    let disk = waiting(wait.clone(), &src, &dst);
    let send = disk.run(|| send_files(sources, Root::Anywhere, &Selection::default(), a, limits)).unwrap();
    let ends = Pair { send, receive }.run(&Pump::default());
    assert!(wait.over.load(Ordering::Relaxed), "the walk did not wait");
    assert!(
        wait.arrived.load(Ordering::Relaxed),
        "nothing arrived while the walk waited ({size}, {occupied})"
    );
    assert_eq!((ends.clean().files, ends.clean().entries), (3, 4));
    fs::remove_file(dst.join("bystander")).ok();
    for name in ["first", "sub/last", "sub/late"] {
        assert_same(&src.join(name), &dst.join(name));
    }
}

#[test]
fn the_first_file_arrives_while_the_walk_waits_for_the_second_directory() {
    for occupied in [false, true] {
        // One that is complete with its first bytes, and one that is not.
        for size in [5000, 8 << 20] {
            copies_while_the_walk_waits(size, occupied);
        }
    }
}
