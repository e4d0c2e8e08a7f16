//! A malicious sender cannot write outside of the destination.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_base::Piece;
use haul_mover::{ControlLink as _, Expectations, MoveReport, ReceiveOptions, Root, receive_files};
use haul_proto::ObjectSink;
use haul_wire::control::{
    ControlMessage, Destination, Entry, EntryKind, EntryRequest, Equal, Fault, FaultCode, FileDigest,
    Filtered, Layout, Outcome, Proof, ReceivePolicy, RelPath,
};
use proptest::prelude::*;

use crate::harness::{Link, all, assert_no_parts, bytes, fault_of, link_pair, names_below, options};

fn entry(path: &str, kind: EntryKind) -> Entry {
    let path = RelPath::new(path.as_bytes().to_vec()).unwrap();
    Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None }
}

fn file(path: &str, contents: &str) -> (Entry, Vec<u8>) {
    (entry(path, EntryKind::File { size: contents.len() as u64, holes: vec![] }), contents.into())
}

fn directory(path: &str) -> (Entry, Vec<u8>) {
    (entry(path, EntryKind::Directory), Vec::new())
}

fn link(path: &str, target: &str) -> (Entry, Vec<u8>) {
    (entry(path, EntryKind::Symlink { target: target.into() }), Vec::new())
}

/// Collects outcomes until the receiver finishes.
fn outcomes(link: &Arc<Link>, early: Vec<Outcome>) -> Vec<Outcome> {
    let mut all = early;
    loop {
        match link.recv(Duration::from_secs(60)).unwrap() {
            Some(ControlMessage::Outcomes(some)) => all.extend(some),
            Some(ControlMessage::Finish(_)) => break,
            Some(ControlMessage::Ready(_) | ControlMessage::DestinationLineage(_)) => {}
            Some(other) => panic!("{other:?}"),
            None => panic!("the receiver is silent"),
        }
    }
    link.send(ControlMessage::Close).unwrap();
    all.sort_by_key(|outcome| outcome.entry);
    all
}

fn is_fresh(link: &Arc<Link>) -> bool {
    match link.recv(Duration::from_secs(60)).unwrap() {
        Some(ControlMessage::DestinationLineage(_)) => is_fresh(link),
        Some(ControlMessage::Ready(destination)) => destination == Destination::Fresh,
        other => panic!("{other:?}"),
    }
}

fn deliver(sink: &mut dyn ObjectSink, object: &[u8]) {
    sink.deliver(object, &[Piece { offset: 0, range: 0..object.len() }]);
    sink.complete(object.len() as u64);
}

/// Returns the contents of the files that the receiver requests, which are all that may be created.
fn requested_object(link: &Arc<Link>, set: &[(Entry, Vec<u8>)], early: &mut Vec<Outcome>) -> Vec<u8> {
    let (mut object, mut entries) = (Vec::new(), set.iter());
    loop {
        match link.recv(Duration::from_secs(60)).unwrap() {
            Some(ControlMessage::EntryRequests(runs)) => {
                for run in runs {
                    for (_, contents) in entries.by_ref().take(run.count as usize) {
                        match run.request {
                            EntryRequest::All => object.extend_from_slice(contents),
                            EntryRequest::Nothing => {}
                            _ => panic!("unexpected request: {run:?}"),
                        }
                    }
                }
            }
            Some(ControlMessage::EntryRequestsEnd { bytes }) => {
                assert_eq!(bytes, object.len() as u64);
                return object;
            }
            // Entries that failed at once.
            Some(ControlMessage::Outcomes(some)) => early.extend(some),
            other => panic!("{other:?}"),
        }
    }
}

/// Sends handcrafted entries with correct digests; returns the code of each entry's failure.
fn send(
    set: &[(Entry, Vec<u8>)],
    destination: &Path,
    layout: Layout,
) -> (Vec<Option<FaultCode>>, MoveReport) {
    let (peer, link) = link_pair();
    let receive_policy = ReceivePolicy { equal: Equal::Nothing, ..ReceivePolicy::default() };
    let options = ReceiveOptions { session: 5, receive_policy, ..options() };
    let mut job = receive_files(&bytes(destination), &Root::Anywhere, layout, link, options).unwrap();
    let object: Vec<u8> = set.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let mut early = Vec::new();
    let fresh = is_fresh(&peer);
    if fresh {
        // Data is sent before the entries that say where it belongs.
        deliver(&mut *job.sink, &object);
    }
    peer.send(ControlMessage::Entries(set.iter().map(|(entry, _)| entry.clone()).collect())).unwrap();
    peer.send(ControlMessage::EntriesEnd { entries: set.len() as u64, bytes: object.len() as u64 }).unwrap();
    if !fresh {
        deliver(&mut *job.sink, &requested_object(&peer, set, &mut early));
    }
    let is_file = |entry: &Entry| matches!(entry.kind, EntryKind::File { .. });
    let digests = set
        .iter()
        .enumerate()
        .filter(|(_, (entry, _))| is_file(entry))
        .map(|(i, (_, bytes))| FileDigest { entry: i as u64, result: Ok(*blake3::hash(bytes).as_bytes()) });
    peer.send(ControlMessage::Digests(digests.collect())).unwrap();
    let codes = outcomes(&peer, early).into_iter().map(|o| o.fault.map(|f| f.code)).collect();
    (codes, job.handle.join().unwrap())
}

#[test]
fn a_server_that_sends_unrequested_names_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst");
    fs::create_dir(&dst).unwrap();
    for (source, sent) in [("data/run7", ".bashrc"), ("data/run7", "data"), ("run7/", "run"), ("a", "run7")] {
        let (peer, link) = link_pair();
        let expectations = Some(Expectations::new(&[source.as_bytes().to_vec()], &all()));
        let options = ReceiveOptions { expectations, ..options() };
        let job = receive_files(&bytes(&dst), &Root::Anywhere, Layout::Into, link, options).unwrap();
        is_fresh(&peer);
        let entries = vec![directory(sent).0, file(&format!("{sent}/f"), "x").0];
        peer.send(ControlMessage::Entries(entries)).unwrap();
        let fault = fault_of(job.handle);
        assert_eq!(fault.code, FaultCode::NotPermitted);
        assert!(fault.message.contains(sent) && fault.message.contains("not requested"), "{fault}");
        assert!(names_below(&dst).is_empty());
    }
}

#[test]
fn nothing_is_written_through_a_received_link() {
    let dir = tempfile::tempdir().unwrap();
    let (dst, outside) = (dir.path().join("dst"), dir.path().join("outside"));
    fs::create_dir_all(&dst).unwrap();
    fs::create_dir(&outside).unwrap();
    let set = [
        link("l", outside.to_str().unwrap()),
        file("l/evil", "evil"),
        link("up", ".."),
        directory("up/sub"),
        file("up/sub/evil", "evil"),
        file("good", "good"),
    ];
    let (codes, report) = send(&set, &dst, Layout::Into);
    assert_eq!(codes[0], None);
    assert_eq!(codes[1], Some(FaultCode::PathEscape));
    assert_eq!(codes[3], Some(FaultCode::PathEscape));
    assert!(codes[4].is_some());
    assert_eq!(codes[5], None);
    assert_eq!(names_below(&outside), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read(dst.join("good")).unwrap(), b"good");
    assert_eq!(report.failures.count(), 3);
    assert_no_parts(dir.path());
}

#[test]
fn contradictory_entries_fail_individually() {
    use FaultCode as C;
    let dir = tempfile::tempdir().unwrap();
    let set = [
        file("f", "first"),
        file("f", "second"),
        file("f/below", "x"),
        directory("f"),
        file("nowhere/f", "x"),
        directory("d"),
        link("d", "/etc"),
        directory("d"),
        file("d/ok", "ok"),
        file(".haul-00000005.journal", "a later job would believe it"),
        (entry("failed", EntryKind::Failed(Fault::new(FaultCode::Unreadable, "no", ""))), Vec::new()),
    ];
    let (codes, report) = send(&set, dir.path(), Layout::Into);
    let expected = [
        None,
        Some(C::Usage),
        Some(C::NotADirectory),
        Some(C::Usage),
        Some(C::Internal),
        None,
        Some(C::Usage),
        None,
        None,
        Some(C::Usage),
    ];
    assert_eq!(codes, expected);
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"first");
    assert_eq!(fs::read(dir.path().join("d/ok")).unwrap(), b"ok");
    assert_eq!((report.failures.count(), report.entries), (7, 11));
    assert_no_parts(dir.path());
}

#[test]
fn existing_links_are_replaced_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (dst, outside) = (dir.path().join("dst"), dir.path().join("outside"));
    fs::create_dir_all(&dst).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "keep").unwrap();
    symlink(&outside, dst.join("d")).unwrap();
    symlink(outside.join("keep"), dst.join("f")).unwrap();
    let set = [directory("d"), file("d/evil", "evil"), file("f", "new")];
    let (codes, _) = send(&set, &dst, Layout::Into);
    assert_eq!(codes[0], Some(FaultCode::PathEscape));
    assert!(codes[1].is_some());
    assert_eq!(codes[2], None);
    assert!(!outside.join("evil").exists());
    assert_eq!(fs::read(outside.join("keep")).unwrap(), b"keep");
    assert!(!dst.join("f").is_symlink());
    assert_eq!(fs::read(dst.join("f")).unwrap(), b"new");
}

#[test]
fn a_name_belongs_to_one_source() {
    let dir = tempfile::tempdir().unwrap();
    let set = [file("a", "a"), file("b", "b")];
    let (codes, _) = send(&set, &dir.path().join("new"), Layout::As);
    assert_eq!(codes, [None, Some(FaultCode::Usage)]);
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"a");
    assert_eq!(names_below(dir.path()).len(), 1);
}

/// Messages that a correct sender never sends; each ends the job with a fault and cleans up.
#[test]
fn protocol_violations_end_the_job() {
    let entries = || ControlMessage::Entries(vec![file("f", "12345").0, directory("d").0]);
    let digest = |entry| ControlMessage::Digests(vec![FileDigest { entry, result: Ok([0; 32]) }]);
    let lies = [
        vec![digest(0)],
        vec![entries(), digest(1)],
        vec![entries(), digest(u64::MAX)],
        vec![entries(), ControlMessage::EntriesEnd { entries: 3, bytes: 5 }],
        vec![entries(), ControlMessage::EntriesEnd { entries: 2, bytes: 6 }],
        vec![entries(), ControlMessage::EntriesEnd { entries: 2, bytes: 5 }, entries()],
        vec![
            entries(),
            ControlMessage::EntriesEnd { entries: 2, bytes: 5 },
            ControlMessage::Filtered(Filtered::default()),
        ],
        vec![entries(), ControlMessage::Outcomes(vec![])],
        vec![ControlMessage::Close],
        vec![ControlMessage::Entries(vec![
            entry("a", EntryKind::File { size: (1 << 48) - 1, holes: vec![] }),
            entry("b", EntryKind::File { size: 1, holes: vec![] }),
        ])],
    ];
    for lie in lies {
        let dir = tempfile::tempdir().unwrap();
        let (peer, link) = link_pair();
        let mut job =
            receive_files(&bytes(dir.path()), &Root::Anywhere, Layout::Into, link, options()).unwrap();
        job.sink.deliver(b"123", &[Piece { offset: 0, range: 0..3 }]);
        let shown = format!("{lie:?}");
        for message in lie {
            peer.send(message).unwrap();
        }
        let fault = job.handle.join().unwrap_err();
        assert!(matches!(fault.code, FaultCode::Internal | FaultCode::ControlLost), "{shown}: {fault}");
        assert_no_parts(dir.path());
        assert!(!dir.path().join("f").exists());
    }
}

#[test]
fn proofs_of_unknown_groups_end_the_job() {
    for first in [1, u64::from(u32::MAX), u64::MAX] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "12345").unwrap();
        let (peer, link) = link_pair();
        let receive_policy = ReceivePolicy { equal: Equal::Contents, ..ReceivePolicy::default() };
        let options = ReceiveOptions { receive_policy, ..options() };
        let job = receive_files(&bytes(dir.path()), &Root::Anywhere, Layout::Into, link, options).unwrap();
        peer.send(ControlMessage::Entries(vec![file("f", "12345").0])).unwrap();
        peer.send(ControlMessage::Proofs(vec![Proof { entry: 0, first, values: vec![[0; 32]; 2] }])).unwrap();
        let fault = job.handle.join().unwrap_err();
        assert!(fault.message.contains("a group that the file does not have"), "{first}: {fault}");
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"12345");
    }
}

#[test]
fn more_or_fewer_bytes_than_announced_end_the_job() {
    for len in [3usize, 7] {
        let dir = tempfile::tempdir().unwrap();
        let (peer, link) = link_pair();
        let mut job =
            receive_files(&bytes(dir.path()), &Root::Anywhere, Layout::Into, link, options()).unwrap();
        peer.send(ControlMessage::Entries(vec![file("f", "12345").0])).unwrap();
        peer.send(ControlMessage::EntriesEnd { entries: 1, bytes: 5 }).unwrap();
        job.sink.deliver(&vec![0; len], &[Piece { offset: 0, range: 0..len }]);
        job.sink.complete(len as u64);
        assert_eq!(job.handle.join().unwrap_err().code, FaultCode::Internal);
        assert_no_parts(dir.path());
    }
}

#[test]
fn a_lying_receiver_ends_the_sender() {
    let lies = [
        ControlMessage::Outcomes(vec![Outcome { entry: 9, fault: None }]),
        ControlMessage::Finish(haul_wire::control::Summary {
            entries: 1,
            failed: 0,
            bytes: 1,
            digest: [0; 32],
            notes: haul_wire::control::Notes::default(),
        }),
        ControlMessage::Digests(vec![]),
        ControlMessage::Close,
    ];
    for lie in lies {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "x").unwrap();
        let (link, peer) = link_pair();
        let job = haul_mover::send_files(
            vec![bytes(&dir.path().join("f"))],
            Root::Anywhere,
            &haul_wire::control::Selection::default(),
            link,
            haul_mover::SendLimits::default(),
        )
        .unwrap();
        peer.send(lie).unwrap();
        let fault = job.handle.join().unwrap_err();
        assert!(matches!(fault.code, FaultCode::Internal | FaultCode::ControlLost), "{fault}");
    }
}

/// Generates paths from few names, so that they collide, with entries of every kind.
fn any_entry() -> impl Strategy<Value = (Entry, Vec<u8>)> {
    let path = proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..4);
    (path, 0..4u8, 0..40usize).prop_map(|(path, kind, len)| {
        let path = path.join("/");
        match kind {
            0 => file(&path, &"x".repeat(len)),
            1 => link(&path, ["..", "../outside", "a", "/"][len % 4]),
            _ => directory(&path),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every entry gets exactly one outcome, and nothing outside is touched, for arbitrary entries.
    #[test]
    fn no_set_leads_out_of_the_destination(set in proptest::collection::vec(any_entry(), 0..30), repeated: bool) {
        let dir = tempfile::tempdir().unwrap();
        let (dst, outside) = (dir.path().join("dst"), dir.path().join("outside"));
        fs::create_dir(&dst).unwrap();
        fs::create_dir(&outside).unwrap();
        for _ in 0..=u8::from(repeated) {
            let (codes, report) = send(&set, &dst, Layout::Into);
            prop_assert_eq!(codes.len(), set.len());
            prop_assert_eq!(codes.iter().flatten().count() as u64, report.failures.count());
        }
        prop_assert_eq!(names_below(&outside).len(), 0);
        prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert_no_parts(&dst);
    }
}
