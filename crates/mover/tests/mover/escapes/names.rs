//! Names chosen by a peer: of entries, destinations and streams.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use haul_mover::{ControlLink as _, ReceiveOptions, receive_files, receive_stream};
use haul_wire::control::{ControlMessage, Entry, EntryKind, Fault, FaultCode, Layout, RelPath};

use super::world::World;
use crate::harness::{link_pair, names_below, options};

/// Names of journals and temporary files of a job, also as matched by case-insensitive file systems.
const RESERVED: [&str; 6] = [
    ".haul-0000000a.journal",
    ".haul-0000000a-0.part",
    ".haul-deadbeef-4294967295.part",
    ".HAUL-0000000A.JOURNAL",
    ".Haul-0000000a-7.Part",
    ".haul-0000000a.jOurnal",
];

/// Paths that lead out of the root, or attempt to.
const OUT: [&str; 9] = [
    "../outside/new",
    "/../outside/new",
    "a/../../outside/new",
    "./../outside/new",
    "out/new",
    "out/../outside/new",
    "a/out/new",
    "up/outside/new",
    "dangling/new",
];

fn world() -> World {
    let world = World::new();
    fs::create_dir(world.root.join("a")).unwrap();
    symlink(&world.outside, world.root.join("out")).unwrap();
    symlink("..", world.root.join("up")).unwrap();
    symlink("../../outside", world.root.join("a/out")).unwrap();
    symlink("/nowhere/at/all", world.root.join("dangling")).unwrap();
    world
}

/// Requests a destination of each kind; returns the server's answers.
fn begin(world: &World, destination: &str) -> Vec<Option<Fault>> {
    let (root, path) = (world.root(), destination.as_bytes());
    let files = |layout| receive_files(path, &root, layout, link_pair().1, options()).err();
    vec![files(Layout::As), files(Layout::Into), receive_stream(path, &root, link_pair().1, options()).err()]
}

#[test]
fn reserved_and_escaping_destinations_are_refused() {
    let mut cases = 0;
    let below =
        |name: &&str| [(*name).to_owned(), format!("a/{name}"), format!("{name}/x"), format!("/{name}/")];
    for destination in RESERVED.iter().flat_map(below) {
        let world = world();
        let before = names_below(&world.root);
        for fault in begin(&world, &destination) {
            let fault = fault.unwrap_or_else(|| panic!("{destination}"));
            assert_eq!(fault.code, FaultCode::Usage, "{destination}: {fault}");
            assert!(fault.message.contains("journals and temporary files"), "{fault}");
            cases += 1;
        }
        assert_eq!(names_below(&world.root), before);
    }
    for destination in OUT {
        let world = world();
        let before = world.outside();
        for fault in begin(&world, destination) {
            assert!(fault.is_some(), "{destination}");
            cases += 1;
        }
        world.assert_same_outside(&before, destination);
    }
    println!("{cases} destinations refused");
    assert!(cases >= 90, "{cases}");
}

fn entry(path: &str, kind: EntryKind) -> Entry {
    let path = RelPath::new(path.as_bytes().to_vec()).unwrap();
    Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None }
}

/// Sends invalid entries; returns the outcome of the last one.
fn last_outcome(world: &World, entries: Vec<Entry>) -> Option<FaultCode> {
    let (peer, link) = link_pair();
    let options = ReceiveOptions { session: 5, ..options() };
    let mut job = receive_files(b"", &world.root(), Layout::Into, link, options).unwrap();
    let last = entries.len() as u64 - 1;
    peer.send(ControlMessage::Entries(entries)).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: last + 1, bytes: 0 }).unwrap();
    job.sink.complete(0);
    let digest = Ok(*blake3::hash(b"").as_bytes());
    let digests = vec![haul_wire::control::FileDigest { entry: 0, result: digest }];
    peer.send(ControlMessage::Digests(digests)).unwrap();
    let mut found = None;
    loop {
        match peer.recv(std::time::Duration::from_secs(30)).unwrap() {
            Some(ControlMessage::Outcomes(outcomes)) => {
                if let Some(outcome) = outcomes.iter().find(|outcome| outcome.entry == last) {
                    found = Some(outcome.fault.as_ref().map(|fault| fault.code));
                }
            }
            Some(ControlMessage::Finish(_)) => {
                peer.send(ControlMessage::Close).unwrap();
                job.handle.join().unwrap();
                return found.expect("every entry has an outcome");
            }
            Some(ControlMessage::Abort(fault)) => panic!("{fault}"),
            Some(_) => {}
            None => panic!("the receiver is silent"),
        }
    }
}

#[test]
fn entries_named_like_journals_and_parts_are_not_created() {
    let mut cases = 0;
    for name in RESERVED {
        let kinds = [
            EntryKind::File { size: 0, holes: vec![] },
            EntryKind::Directory,
            EntryKind::Symlink { target: b"../outside/f".to_vec() },
            EntryKind::HardLink { entry: 0 },
        ];
        for kind in kinds {
            for below in ["", "d/"] {
                let world = world();
                let before = world.outside();
                let first = entry("first", EntryKind::File { size: 0, holes: vec![] });
                let path = format!("{below}{name}");
                let set = vec![first, entry("d", EntryKind::Directory), entry(&path, kind.clone())];
                assert_eq!(last_outcome(&world, set), Some(FaultCode::Usage), "{path}: {kind:?}");
                assert!(!is_there(&world.root.join(&path)), "{path}");
                world.assert_same_outside(&before, &path);
                cases += 1;
            }
        }
    }
    println!("{cases} entries refused");
    assert!(cases >= 40, "{cases}");
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
