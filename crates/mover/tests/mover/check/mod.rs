//! Invariants of jobs as functions, for the tests here and for the fuzz targets of the same names. Each uses
//! an empty directory for all files of the job.

mod conversation;
pub(crate) mod link;
mod world;

use std::fs;
use std::path::Path;

use haul_wire::control::{
    Durability, Equal, Extraneous, Layout, Leftovers, ReceivePolicy, RunMode, Selection,
};

use conversation::{Peer, receiving, sending};
use haul_mover::check::seal;
use haul_mover::{ReceiveOptions, Root, SendLimits, receive_files, receive_to, send_files};
use world::{JOURNAL, World, tree};

/// Decodes the options from a byte.
fn options(byte: u8) -> ReceiveOptions {
    let pick = |shift: u32| usize::from(byte >> shift & 3);
    let receive_policy = ReceivePolicy {
        equal: [Equal::SizeAndTime, Equal::Contents, Equal::Nothing, Equal::SizeAndTime][pick(0)],
        extraneous: [Extraneous::Keep, Extraneous::Delete, Extraneous::DeleteAtMost(0), Extraneous::Keep]
            [pick(2)],
        leftovers: [Leftovers::Resume, Leftovers::Ignore, Leftovers::Extend, Leftovers::Resume][pick(4)],
        run: [RunMode::Move, RunMode::ListChanges, RunMode::Verbose, RunMode::Move][pick(6)],
        durability: Durability::Cached,
        ..ReceivePolicy::default()
    };
    ReceiveOptions::with_policy(1, receive_policy)
}

/// Checks a receiving job: for arbitrary messages and contents, none of its threads panics, it ends when the
/// peer disconnects, nothing outside of its root changes, and a dry run changes nothing inside either. The
/// first two bytes select the options, the others are [`Steps`](haul_wire::check::Steps): messages, contents,
/// waiting. Returns true if a message was valid.
///
/// # Panics
/// If an invariant is violated, or the directory cannot be used.
pub(crate) fn receive_job(directory: &Path, bytes: &[u8]) -> bool {
    let Some((&[how, place], steps)) = bytes.split_first_chunk() else { return false };
    let world = World::new(directory);
    if place & 1 == 1 {
        world.occupy();
    }
    receive(&world, how, place & 2 == 2, steps)
}

/// Runs a receiving job and its peer in the world; returns whether a message was valid.
fn receive(world: &World, how: u8, to_pipe: bool, steps: &[u8]) -> bool {
    let (outside, inside) = (tree(&world.outside), tree(&world.root));
    let (peer, link) = Peer::new();
    let options = options(how);
    let only_reports = options.receive_policy.run == RunMode::ListChanges;
    let job = if to_pipe {
        receive_to(Box::new(std::io::sink()), link, options)
    } else {
        let root = Root::beneath(&world.root).expect("it is a directory");
        receive_files(b"", &root, Layout::Into, link, options)
    };
    let understood = job.is_ok_and(|job| receiving(job, peer, steps));
    assert_eq!(tree(&world.outside), outside, "something outside of the root has changed");
    assert!(!only_reports || tree(&world.root) == inside, "a job that only reports has changed something");
    understood
}

/// Checks a sending job: for arbitrary messages, none of its threads panics, it ends when the peer
/// disconnects, the available length never decreases, and its sources do not change. The bytes are
/// [`Steps`](haul_wire::check::Steps): messages, reading, waiting. Returns true if a message was valid.
///
/// # Panics
/// If an invariant is violated, or the directory cannot be used.
pub(crate) fn send_job(directory: &Path, bytes: &[u8]) -> bool {
    let world = World::new(directory);
    world.occupy();
    let before = tree(directory);
    let (peer, link) = Peer::new();
    let source = [world.root.as_os_str().as_encoded_bytes(), b"/."].concat();
    let job = send_files(vec![source], Root::Anywhere, &Selection::default(), link, SendLimits::default());
    let job = job.expect("everything can be read");
    let understood = sending(job, peer, bytes);
    assert_eq!(tree(directory), before, "a source has changed");
    understood
}

/// Checks the handling of an existing journal: for arbitrary journals and sets, the invariants of
/// [`receive_job`] hold. The first byte selects the options, the next one whether the journal consists of
/// records with valid checksums; then follow the length (2 bytes, big-endian) of the journal, its bytes, and
/// [`Steps`](haul_wire::check::Steps). Returns true if a message was valid.
///
/// # Panics
/// If an invariant is violated, or the directory cannot be used.
pub(crate) fn journal_with_set(directory: &Path, bytes: &[u8]) -> bool {
    let Some((&[how, form, len_high, len_low], rest)) = bytes.split_first_chunk() else { return false };
    let world = World::new(directory);
    let len = usize::from(u16::from_be_bytes([len_high, len_low]));
    let (journal, steps) = rest.split_at(len.min(rest.len()));
    let journal = if form % 2 == 0 { journal.to_vec() } else { seal(JOURNAL, journal) };
    world.leave(&journal);
    receive(&world, how, false, steps)
}

/// Writes a file for the world of a job.
fn write(path: &Path, contents: &[u8]) {
    fs::write(path, contents).expect("the directory can be written");
}
