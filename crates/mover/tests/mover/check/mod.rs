//! The rules of jobs as functions, for the tests here and for the fuzz targets of the same names. Each takes an empty
//! directory; what the job reads and writes lies in it.

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

/// The options that a byte stands for.
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

/// Checks a receiving job: whatever its peer says and whatever contents come, no thread of it panics, it ends when the
/// peer is gone, nothing outside of its root changes, and a job that only reports changes nothing inside either. Of
/// arbitrary bytes the first two say how it receives, the others are [`Steps`](haul_wire::check::Steps): messages, contents, waiting. True if a
/// message was understood.
///
/// # Panics
/// If a rule is broken, or the directory cannot be used.
pub(crate) fn receive_job(directory: &Path, bytes: &[u8]) -> bool {
    let Some((&[how, place], steps)) = bytes.split_first_chunk() else { return false };
    let world = World::new(directory);
    if place & 1 == 1 {
        world.occupy();
    }
    receive(&world, how, place & 2 == 2, steps)
}

/// Runs a receiving job and its peer in the world; whether a message was understood.
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

/// Checks a sending job: whatever its peer says, no thread of it panics, it ends when the peer is gone, what it has to
/// send never becomes less, and its sources do not change. Arbitrary bytes are [`Steps`](haul_wire::check::Steps): messages, reading, waiting. True
/// if a message was understood.
///
/// # Panics
/// If a rule is broken, or the directory cannot be used.
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

/// Checks what becomes of a journal that is found: whatever it claims, and whatever set comes then, all that
/// [`receive_job`] checks holds. Of arbitrary bytes the first says how the job receives, the next one whether the journal is
/// made of records with right checks; then come the length (2, big-endian) of the journal's bytes, those, and [`Steps`](haul_wire::check::Steps).
/// True if a message was understood.
///
/// # Panics
/// If a rule is broken, or the directory cannot be used.
pub(crate) fn journal_with_set(directory: &Path, bytes: &[u8]) -> bool {
    let Some((&[how, form, len_high, len_low], rest)) = bytes.split_first_chunk() else { return false };
    let world = World::new(directory);
    let len = usize::from(u16::from_be_bytes([len_high, len_low]));
    let (journal, steps) = rest.split_at(len.min(rest.len()));
    let journal = if form % 2 == 0 { journal.to_vec() } else { seal(JOURNAL, journal) };
    world.leave(&journal);
    receive(&world, how, false, steps)
}

/// Writes a file of the world of a job.
fn write(path: &Path, contents: &[u8]) {
    fs::write(path, contents).expect("the directory can be written");
}
