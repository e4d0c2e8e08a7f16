//! How much disk space a sender can occupy without sending the data.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_base::Piece;
use haul_mover::{ControlLink as _, MinFree, ReceiveJob, ReceiveOptions, Root, receive_files};
use haul_wire::control::{ControlMessage, Entry, EntryKind, Fault, FaultCode, Layout, RelPath};

use crate::harness::{Link, bytes, fault_of, link_pair, names_below, options};

const MIB: u64 = 1 << 20;
/// Overhead of a file system for the location of the data.
const TABLES: u64 = 128 << 10;

/// A receiver to which files of this size were announced, and its peer.
fn announce_files(dst: &Path, options: ReceiveOptions, count: u64, size: u64) -> (Arc<Link>, ReceiveJob) {
    fs::create_dir(dst).unwrap();
    let (peer, link) = link_pair();
    let job = receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, link, options).unwrap();
    loop {
        match peer.recv(Duration::from_secs(60)).unwrap() {
            Some(ControlMessage::Ready(_)) => break,
            Some(ControlMessage::DestinationLineage(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let entry = |number| Entry {
        path: RelPath::new(format!("file-{number}").into_bytes()).unwrap(),
        kind: EntryKind::File { size, holes: vec![] },
        mode: 0o644,
        mtime_secs: 0,
        mtime_nanos: 0,
        extras: None,
    };
    peer.send(ControlMessage::Entries((0..count).map(entry).collect())).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: count, bytes: count * size }).unwrap();
    (peer, job)
}

fn deliver(job: &mut ReceiveJob, offset: u64, len: u64) {
    let bytes = vec![7; len as usize];
    job.sink.deliver(&bytes, &[Piece { offset, range: 0..bytes.len() }]);
}

/// Returns the allocated bytes of the temporary files, and their lengths.
fn occupied(dst: &Path) -> (u64, u64) {
    let parts = names_below(dst).into_iter().filter(|name| name.as_os_str().as_bytes().ends_with(b".part"));
    let stats = parts.filter_map(|part| fs::metadata(part).ok());
    stats.fold((0, 0), |(blocks, len), stat| (blocks + stat.blocks() * 512, len + stat.len()))
}

#[test]
fn a_transfer_reserves_at_most_the_received_amount_ahead_and_frees_it() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst");
    let (_peer, mut job) = announce_files(&dst, options(), 1, 512 * MIB);
    let mut sent = 0;
    for len in [1, 300_000, 2 * MIB, 3 * MIB + 5, 9 * MIB] {
        deliver(&mut job, sent, len);
        sent += len;
        while occupied(&dst).1 < sent {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(20));
        let (blocks, _) = occupied(&dst);
        assert!(blocks <= 2 * sent + TABLES, "{blocks} bytes are allocated for {sent}");
    }
    job.handle.abort(Fault::new(FaultCode::ControlLost, "gone", ""));
    assert_eq!(fault_of(job.handle).code, FaultCode::ControlLost);
    let (blocks, len) = occupied(&dst);
    assert_eq!(len, sent, "it can be resumed");
    assert!(blocks <= sent + TABLES, "{blocks} bytes are kept for {sent}");
}

#[test]
fn one_byte_at_the_end_reserves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst");
    let (_peer, mut job) = announce_files(&dst, options(), 4, 512 * MIB);
    for file in 1..=4 {
        deliver(&mut job, file * 512 * MIB - 1, 1);
    }
    while occupied(&dst).1 < 4 * 512 * MIB {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(50));
    let (blocks, _) = occupied(&dst);
    assert!(blocks <= TABLES, "{blocks} bytes are allocated for 4");
}

#[test]
fn the_required_free_space_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst");
    let options = ReceiveOptions { min_free: MinFree::Bytes(u64::MAX / 2), ..options() };
    let (_peer, mut job) = announce_files(&dst, options.clone(), 1, 5 * MIB);
    deliver(&mut job, 0, 2 * MIB);
    let fault = fault_of(job.handle);
    assert_eq!(fault.code, FaultCode::DiskFull);
    assert!(fault.message.contains("file-0") && fault.message.contains("must stay free"), "{fault}");
    assert!(fault.hint.contains("--min-free"), "{fault}");
    assert_eq!(occupied(&dst), (0, 0));
    // Small files are checked together.
    let dst = dir.path().join("small");
    let (_peer, mut job) = announce_files(&dst, options, 40, 600_000);
    deliver(&mut job, 0, 40 * 600_000);
    assert_eq!(fault_of(job.handle).code, FaultCode::DiskFull);
    let kept: u64 = names_below(&dst).iter().map(|name| fs::metadata(name).unwrap().len()).sum();
    assert!(kept <= 17 * MIB, "{kept}");
}
