//! Arbitrary messages with arbitrary numbers in any order: the job ends with a fault, and none of its threads
//! panics.

use std::fs;
use std::path::Path;
use std::time::Duration;

use haul_base::{Piece, Rng};
use haul_mover::{
    ControlLink as _, ReceiveOptions, SendLimits, receive_files, receive_stream, receive_to, send_files,
};
use haul_testing::fuzz::drive;
use haul_wire::check::{Steps, message_body};
use haul_wire::control::{
    Action, ByteRange, ControlMessage, Destination, Durability, Entry, EntryKind, EntryRequest, Equal,
    Extent, Extraneous, Fault, FaultCode, FileDigest, Filtered, Item, Layout, Leftovers, More, Notes,
    Outcome, Proof, ReceivePolicy, RelPath, Removal, RequestRun, RunMode, Selection, Summary,
};

use super::world::World;
use crate::check;
use crate::harness::link_pair;

/// Number of conversations of each kind.
const ROUNDS: u64 = 150;

/// Boundary values.
const NUMBERS: [u64; 10] =
    [0, 1, 2, 5, 1 << 20, u32::MAX as u64, 1 << 32, (1 << 48) - 1, u64::MAX - 1, u64::MAX];

fn number(rng: &mut Rng) -> u64 {
    NUMBERS[rng.below(NUMBERS.len() as u64) as usize]
}

/// Generates an entry number, mostly one of the first.
fn entry_number(rng: &mut Rng) -> u64 {
    if rng.chance(0.8) { rng.below(4) } else { number(rng) }
}

fn fault() -> Fault {
    Fault::new(FaultCode::Io, "said by the peer", "")
}

fn ranges(rng: &mut Rng) -> Vec<ByteRange> {
    (0..rng.below(3)).map(|_| ByteRange { start: number(rng), len: number(rng) }).collect()
}

fn entry(rng: &mut Rng) -> Entry {
    let path = ["f", "d", "d/f", "d/sub", "d/sub/f", "l", "large"][rng.below(7) as usize];
    let kind = match rng.below(6) {
        0 | 1 => EntryKind::File { size: number(rng), holes: ranges(rng) },
        2 => EntryKind::Directory,
        3 => EntryKind::Symlink { target: b"../outside/f".to_vec() },
        4 => EntryKind::HardLink { entry: entry_number(rng) },
        _ => EntryKind::Failed(fault()),
    };
    let path = RelPath::new(path.as_bytes().to_vec()).unwrap();
    Entry {
        path,
        kind,
        mode: 0o644,
        mtime_secs: number(rng).cast_signed(),
        mtime_nanos: 999_999_999,
        extras: None,
    }
}

fn request(rng: &mut Rng) -> EntryRequest {
    match rng.below(5) {
        0 => EntryRequest::Nothing,
        1 => EntryRequest::Kept,
        2 => EntryRequest::Compare,
        3 => EntryRequest::Ranges(ranges(rng)),
        _ => EntryRequest::All,
    }
}

fn result(rng: &mut Rng) -> Result<[u8; 32], Fault> {
    if rng.chance(0.5) { Ok([0; 32]) } else { Err(fault()) }
}

/// Generates any message of either side, in any order.
fn message(rng: &mut Rng) -> ControlMessage {
    let some = |rng: &mut Rng| 1 + rng.below(3);
    match rng.below(20) {
        0..=4 => ControlMessage::Entries((0..some(rng)).map(|_| entry(rng)).collect()),
        5 => ControlMessage::EntriesEnd { entries: entry_number(rng), bytes: number(rng) },
        6 | 7 => {
            let digest = |_| FileDigest { entry: entry_number(rng), result: result(rng) };
            ControlMessage::Digests((0..2).map(digest).collect())
        }
        8 | 9 => {
            let (entry, first) = (entry_number(rng), number(rng));
            ControlMessage::Proofs(vec![Proof { entry, first, values: vec![[0; 32]; some(rng) as usize] }])
        }
        10 => ControlMessage::Extent(Extent::Destination),
        11 => ControlMessage::Filtered(Filtered::default()),
        12 | 13 => ControlMessage::EntryRequests(vec![RequestRun {
            count: entry_number(rng),
            request: request(rng),
        }]),
        14 => ControlMessage::More(More { entry: entry_number(rng), ranges: ranges(rng) }),
        15 => ControlMessage::EntryRequestsEnd { bytes: number(rng) },
        16 => {
            let fault = rng.chance(0.5).then(fault);
            ControlMessage::Outcomes(vec![Outcome { entry: entry_number(rng), fault }])
        }
        17 => ControlMessage::Ready([Destination::Fresh, Destination::Occupied][rng.below(2) as usize]),
        18 => {
            let (have, size) = (number(rng), number(rng));
            let path = RelPath::new(*b"f").unwrap();
            ControlMessage::Items(vec![Item { path, action: Action::Resume { have, size } }])
        }
        _ if rng.chance(0.5) => {
            ControlMessage::Removed(Removal { removed: number(rng), ..Removal::default() })
        }
        _ => ControlMessage::Finish(Summary {
            entries: number(rng),
            failed: number(rng),
            bytes: number(rng),
            digest: [0; 32],
            notes: Notes::default(),
        }),
    }
}

/// Sends a random message that fits in a frame. False: the peer has ended.
fn say(peer: &crate::harness::Link, rng: &mut Rng) -> bool {
    let message = loop {
        let message = message(rng);
        if message.validate().is_ok() {
            break message;
        }
    };
    peer.send(message).is_ok()
}

fn options(rng: &mut Rng) -> ReceiveOptions {
    let pick = |rng: &mut Rng| rng.below(3) as usize;
    let receive_policy = ReceivePolicy {
        equal: [Equal::SizeAndTime, Equal::Contents, Equal::Nothing][pick(rng)],
        extraneous: [Extraneous::Keep, Extraneous::Delete, Extraneous::DeleteAtMost(0)][pick(rng)],
        leftovers: [Leftovers::Resume, Leftovers::Ignore, Leftovers::Extend][pick(rng)],
        run: [RunMode::Move, RunMode::ListChanges, RunMode::Verbose][pick(rng)],
        durability: Durability::Cached,
        ..ReceivePolicy::default()
    };
    ReceiveOptions::with_policy(1, receive_policy)
}

fn assert_no_panic<T>(ended: Result<T, Fault>, case: &str) {
    if let Err(fault) = ended {
        assert!(!fault.message.contains("panic"), "{case}: {fault}");
    }
}

/// Encodes a message as the body of its frame.
fn body(rng: &mut Rng) -> Vec<u8> {
    loop {
        if let Some(body) = message_body(&message(rng)) {
            return body;
        }
    }
}

/// Messages, contents and pauses, for [`check`].
fn conversation(rng: &mut Rng, out: &mut Vec<u8>) {
    for _ in 0..=rng.below(16) {
        match rng.below(6) {
            0 => Steps::write(2, &[[0, rng.below(2) as u8, 7], [1; 3]].concat(), out),
            1 => Steps::write(3, [&[][..], &[0, 0, 5]][rng.below(2) as usize], out),
            _ => Steps::write(0, &body(rng), out),
        }
    }
}

/// Runs the check of a fuzz target in its own directory.
fn in_directory(check: fn(&Path, &[u8]) -> bool) -> impl Fn(&[u8]) -> bool {
    move |bytes| check(tempfile::tempdir().unwrap().path(), bytes)
}

#[test]
fn receive_job() {
    let valid = |rng: &mut Rng| {
        let mut bytes = vec![rng.next_u64() as u8, rng.below(4) as u8];
        conversation(rng, &mut bytes);
        bytes
    };
    drive("receive_job", 300, valid, in_directory(check::receive_job));
}

#[test]
fn send_job() {
    let valid = |rng: &mut Rng| {
        let mut bytes = Vec::new();
        let ready = message_body(&ControlMessage::Ready(Destination::Fresh)).unwrap();
        Steps::write(0, &ready, &mut bytes);
        conversation(rng, &mut bytes);
        bytes
    };
    drive("send_job", 300, valid, in_directory(check::send_job));
}

/// Generates the payload of a journal record: a started file, a written range, or a directory.
fn record(rng: &mut Rng) -> Vec<u8> {
    let number = rng.below(4) as u8;
    let path: &[u8] = [&b"f"[..], b"d/f", b"out/f", b"l", b"../outside/f", b"d"][rng.below(6) as usize];
    let path = [&[path.len() as u8], path].concat();
    match rng.below(4) {
        0 => [vec![0], path].concat(),
        1 => [vec![2, number, 0, rng.below(7) as u8]].concat(),
        _ => [vec![1, number], path, vec![5, 0, 0], vec![0; 32]].concat(),
    }
}

#[test]
fn journal_with_set() {
    let valid = |rng: &mut Rng| {
        let mut journal = Vec::new();
        for _ in 0..=rng.below(6) {
            let record = record(rng);
            journal.push(record.len() as u8);
            journal.extend(record);
        }
        let mut bytes = vec![rng.next_u64() as u8, 1];
        bytes.extend((journal.len() as u16).to_be_bytes());
        bytes.extend(journal);
        let path = |name: &[u8]| RelPath::new(name.to_vec()).unwrap();
        let entry = |(name, kind): (&[u8], EntryKind)| Entry {
            path: path(name),
            kind,
            mode: 0o644,
            mtime_secs: 0,
            mtime_nanos: 0,
            extras: None,
        };
        let file = || EntryKind::File { size: 5, holes: Vec::new() };
        let set = [(&b"d"[..], EntryKind::Directory), (b"d/f", file()), (b"f", file()), (b"out/f", file())];
        let entries = ControlMessage::Entries(set.map(entry).into());
        Steps::write(0, &message_body(&entries).unwrap(), &mut bytes);
        let end = ControlMessage::EntriesEnd { entries: 4, bytes: 15 };
        Steps::write(0, &message_body(&end).unwrap(), &mut bytes);
        Steps::write(3, &[], &mut bytes);
        conversation(rng, &mut bytes);
        bytes
    };
    drive("journal_with_set", 300, valid, in_directory(check::journal_with_set));
}

#[test]
fn no_message_of_a_sender_makes_a_receiver_panic() {
    for seed in 0..ROUNDS {
        let mut rng = Rng::from_seed(seed);
        let world = World::new();
        let before = world.outside();
        if rng.chance(0.5) {
            fs::write(world.root.join("f"), "12345").unwrap();
        }
        let (peer, link) = link_pair();
        let kind = rng.below(10);
        let options = options(&mut rng);
        let mut job = match kind {
            0..2 => receive_to(Box::new(std::io::sink()), link, options),
            2..4 => receive_stream(b"stream", &world.root(), link, options),
            _ => receive_files(b"", &world.root(), Layout::Into, link, options),
        }
        .unwrap();
        for _ in 0..12 {
            if !say(&peer, &mut rng) {
                break;
            }
            if rng.chance(0.3) {
                let offset = number(&mut rng).min(1 << 20);
                job.sink.deliver(&[1; 9], &[Piece { offset, range: 0..9 }]);
            }
            while let Ok(Some(_)) = peer.recv(Duration::ZERO) {}
        }
        if rng.chance(0.5) {
            job.sink.complete(9);
        }
        drop(peer);
        assert_no_panic(job.handle.join(), &format!("seed {seed}"));
        world.assert_same_outside(&before, &format!("seed {seed}"));
    }
}

#[test]
fn no_message_of_a_receiver_makes_a_sender_panic() {
    for seed in 0..ROUNDS {
        let mut rng = Rng::from_seed(seed);
        let world = World::new();
        let (peer, link) = link_pair();
        let sources = vec![[world.src.as_os_str().as_encoded_bytes(), b"/."].concat()];
        let root = haul_mover::Root::Anywhere;
        let job = send_files(sources, root, &Selection::default(), link, SendLimits::default()).unwrap();
        let destination = [Destination::Fresh, Destination::Occupied][rng.below(2) as usize];
        peer.send(ControlMessage::Ready(destination)).unwrap();
        let mut rest = 12;
        while rest > 0 && say(&peer, &mut rng) {
            rest -= 1;
            if rng.chance(0.5) {
                // The peer may have announced entries by now.
                let _ = peer.recv(Duration::from_millis(1));
            }
        }
        drop(peer);
        assert_no_panic(job.handle.join(), &format!("seed {seed}"));
    }
}
