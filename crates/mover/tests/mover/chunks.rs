//! Reading and writing files one chunk of the object at a time.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_base::Bytes;
use haul_mover::faults::{Call, Disk, Verdict};
use haul_mover::{ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Fault, FaultCode, Layout, Selection};

use crate::harness::{Pair, Pump, bytes, link_pair, names_below, options};
use crate::trees::{assert_same, contents, set_mtime};

const CHUNK: usize = 300_000;

/// Reads and writes of files, in order, by the threads that move them.
#[derive(Clone, Default)]
struct Sizes(Arc<Mutex<(Vec<usize>, Vec<usize>)>>);

impl Sizes {
    fn disk(&self) -> Disk {
        let sizes = self.clone();
        Disk::new(move |_, call| {
            let mut sizes = sizes.0.lock().unwrap();
            match (std::thread::current().name().unwrap_or_default(), call) {
                ("haul-read", Call::Read(len)) => sizes.0.push(len),
                ("haul-write", Call::Write(len)) => sizes.1.push(len),
                _ => {}
            }
            Verdict::Pass
        })
    }

    fn read(&self) -> Vec<usize> {
        self.0.lock().unwrap().0.clone()
    }

    /// Returns the lengths of the writes, longest first: chunks may be received in any order.
    fn written(&self) -> Vec<usize> {
        let mut written = self.0.lock().unwrap().1.clone();
        // The journal's records are short.
        written.retain(|len| *len >= 1_000);
        written.sort_unstable_by_key(|len| Reverse(*len));
        written
    }
}

/// Creates files of these sizes in a new directory.
fn files(dir: &Path, sizes: &[usize]) -> std::path::PathBuf {
    let src = dir.join("src");
    fs::create_dir(&src).unwrap();
    fs::create_dir(dir.join("dst")).unwrap();
    for (i, &size) in sizes.iter().enumerate() {
        let path = src.join(format!("f{i}"));
        fs::write(&path, contents(size, i as u64)).unwrap();
        set_mtime(&path, 1_000_000_000, 5);
    }
    src
}

fn pair(dir: &Path, chunk: Option<usize>, sizes: &Sizes) -> Pair {
    let chunk = chunk.map(|chunk| Bytes(chunk as u64));
    let (a, b) = link_pair();
    let (src, dst) = (dir.join("src"), dir.join("dst"));
    sizes.disk().run(|| {
        let options = ReceiveOptions { chunk, ..options() };
        let receive = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, b, options).unwrap();
        let sources = vec![[&bytes(&src)[..], b"/."].concat()];
        let limits = SendLimits { chunk, ..SendLimits::default() };
        let send = send_files(sources, Root::Anywhere, &Selection::default(), a, limits).unwrap();
        Pair { send, receive }
    })
}

fn copied(dir: &Path, chunk: Option<usize>, pump: &Pump<'_>) -> Sizes {
    let sizes = Sizes::default();
    pair(dir, chunk, &sizes).run(pump).clean();
    for path in names_below(&dir.join("src")) {
        assert_same(&path, &dir.join("dst").join(path.file_name().unwrap()));
    }
    sizes
}

/// Copies files, again if something else than `expected` is written: data that pauses for 100 ms is written
/// in smaller parts.
fn without_pauses(files_of: &[usize], pump: &Pump<'_>, expected: &[usize]) -> Sizes {
    let copy = || {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path(), files_of);
        copied(dir.path(), Some(CHUNK), pump)
    };
    haul_testing::attempts(copy, |sizes| sizes.written() == expected)
}

#[test]
fn files_are_read_and_written_in_chunks_despite_losses_and_reordering() {
    for (seed, loss) in [(1, 0.0), (2, 0.1), (3, 0.5)] {
        let pump = Pump { seed, loss, ..Pump::default() };
        let lengths = [CHUNK, CHUNK, CHUNK, 1_234];
        let sizes = without_pauses(&[3 * CHUNK + 1_234], &pump, &lengths);
        assert_eq!(sizes.read(), lengths, "{loss}");
        assert_eq!(sizes.written(), lengths, "{loss}");
    }
}

#[test]
fn small_files_are_read_and_written_whole_except_at_chunk_ends() {
    let parts = [100_000, 150_000, 50_000, 30_000, 60_000];
    let written = [150_000, 100_000, 60_000, 50_000, 30_000];
    let sizes = without_pauses(&[100_000, 150_000, 80_000, 60_000], &Pump::default(), &written);
    assert_eq!(sizes.read(), parts);
    assert_eq!(sizes.written(), written);
}

#[test]
fn without_a_chunk_reads_are_short() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path(), &[3 * CHUNK]);
    let sizes = copied(dir.path(), None, &Pump::default());
    assert!(sizes.read().into_iter().all(|len| len <= 128 << 10));
}

#[test]
fn a_partial_chunk_is_written_when_data_stops_and_at_the_end() {
    // Nothing is kept of shorter files.
    const LARGE: usize = 2_000_000;
    for waits in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path(), &[4 * LARGE]);
        let sizes = Sizes::default();
        let mut broken = pair(dir.path(), Some(LARGE), &sizes);
        let pump = Pump { stop_after: Some((LARGE + LARGE / 2) as u64), window: 20_000, ..Pump::default() };
        let came = pump.run(&mut *broken.send.source, &mut *broken.receive.sink, &|| false) as usize;
        let (progress, begun) = (broken.receive.handle.progress(), Instant::now());
        let total = || progress.bytes_done.get() as usize;
        while waits && total() < came {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} of {came} bytes were written", total());
            std::thread::sleep(Duration::from_millis(5));
        }
        broken.send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
        assert!(broken.send.handle.join().is_err() && broken.receive.handle.join().is_err());
        // The sink keeps the journal locked.
        drop(broken.receive.sink);
        // Data received before is not sent again, and the rest of its chunk is written once received.
        let sizes = Sizes::default();
        let ends = pair(dir.path(), Some(LARGE), &sizes).run(&Pump::default());
        assert!(ends.clean().resumed_bytes >= LARGE as u64, "{waits}");
        assert_same(&dir.path().join("src/f0"), &dir.path().join("dst/f0"));
    }
}

#[test]
fn large_chunks_are_read_in_equal_parts() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path(), &[]);
    // Writing zeros instead of holes would take long in a debug build.
    let file = fs::File::create(dir.path().join("src/f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; 130_200_000], 0).unwrap();
    drop(file);
    // Multiples of a packet, so that no part of one is written alone.
    let sizes = copied(dir.path(), Some(120_400_000), &Pump { window: 16_800_000, ..Pump::default() });
    assert_eq!(sizes.read(), [60_200_000, 60_200_000, 9_800_000]);
    // On a busy machine, data that pauses for 100 ms is written in smaller parts.
    let written = sizes.written();
    assert_eq!((written.iter().sum::<usize>(), written[0].min(60_200_000)), (130_200_000, written[0]));
}
