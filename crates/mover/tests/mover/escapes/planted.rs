//! Hostile contents of the root before a transfer starts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use haul_mover::ReceiveOptions;
use haul_wire::control::{Durability, Equal, Extraneous, Leftovers, Preserve, ReceivePolicy, RunMode};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::world::{World, leaks};
use crate::harness::Pump;
use crate::trees::contents;

/// Plants something in the root.
type Plant = fn(&World);

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn cut_off(world: &World) -> (std::path::PathBuf, std::path::PathBuf) {
    world.cut_off(2 << 20, options(ReceivePolicy::default()))
}

const PLANTS: [(&str, Plant); 24] = [
    ("a link to a file", |w| symlink(w.outside.join("f"), w.root.join("f")).unwrap()),
    ("a link upwards to a file", |w| symlink("../outside/f", w.root.join("f")).unwrap()),
    ("a link to a new file", |w| symlink(w.outside.join("new"), w.root.join("f")).unwrap()),
    ("a link to a directory for a file", |w| symlink(w.outside.join("d"), w.root.join("f")).unwrap()),
    ("a link to a file for a directory", |w| symlink(w.outside.join("f"), w.root.join("d")).unwrap()),
    ("a link to a file for a link", |w| symlink(w.outside.join("f"), w.root.join("l")).unwrap()),
    ("a link to a file for a hard link", |w| symlink(w.outside.join("f"), w.root.join("h")).unwrap()),
    ("a link to a directory", |w| symlink(w.outside.join("d"), w.root.join("d")).unwrap()),
    ("a link upwards to a directory", |w| symlink("../outside/d", w.root.join("d")).unwrap()),
    ("a link to nowhere for a directory", |w| symlink(w.outside.join("new"), w.root.join("d")).unwrap()),
    ("links in a row", |w| {
        symlink(w.outside.join("d"), w.root.join("one")).unwrap();
        symlink("one", w.root.join("d")).unwrap();
    }),
    ("a link further down", |w| {
        fs::create_dir(w.root.join("d")).unwrap();
        symlink(w.outside.join("d/sub"), w.root.join("d/sub")).unwrap();
    }),
    ("another name of a file", |w| fs::hard_link(w.outside.join("f"), w.root.join("f")).unwrap()),
    ("another name of an equal file", |w| fs::hard_link(w.outside.join("equal"), w.root.join("f")).unwrap()),
    ("two names of an equal file", |w| {
        fs::hard_link(w.outside.join("equal"), w.root.join("f")).unwrap();
        fs::hard_link(w.outside.join("equal"), w.root.join("h")).unwrap();
    }),
    ("another name of an equal link", |w| fs::hard_link(w.outside.join("l"), w.root.join("l")).unwrap()),
    ("another name of a beginning", |w| {
        fs::hard_link(w.outside.join("beginning"), w.root.join("large")).unwrap();
    }),
    ("a part that is a link", |w| {
        let (_, part) = cut_off(w);
        fs::remove_file(&part).unwrap();
        symlink(w.outside.join("beginning"), part).unwrap();
    }),
    ("a part that is another name", |w| {
        let (_, part) = cut_off(w);
        fs::remove_file(&part).unwrap();
        fs::hard_link(w.outside.join("beginning"), part).unwrap();
    }),
    ("a part with another name", |w| {
        let (_, part) = cut_off(w);
        fs::hard_link(part, w.outside.join("part")).unwrap();
    }),
    ("a part that is a pipe", |w| {
        let (_, part) = cut_off(w);
        fs::remove_file(&part).unwrap();
        pipe(&part);
    }),
    ("a journal that is a link", |w| {
        let (journal, _) = cut_off(w);
        fs::rename(&journal, w.outside.join("journal")).unwrap();
        symlink(w.outside.join("journal"), journal).unwrap();
    }),
    ("a journal with another name", |w| {
        let (journal, _) = cut_off(w);
        fs::hard_link(journal, w.outside.join("journal")).unwrap();
    }),
    ("a journal, and its part with another name", |w| {
        let (journal, part) = cut_off(w);
        fs::rename(&part, w.outside.join("part")).unwrap();
        fs::write(w.outside.join("part"), contents(9 << 20, 1)).unwrap();
        fs::hard_link(w.outside.join("part"), part).unwrap();
        assert!(journal.exists());
    }),
];

fn options(receive_policy: ReceivePolicy) -> ReceiveOptions {
    let receive_policy = ReceivePolicy { durability: Durability::Cached, ..receive_policy };
    ReceiveOptions { permit: Preserve::ALL, ..ReceiveOptions::with_policy(0xabcd, receive_policy) }
}

/// Destinations that a client may request.
fn all_manners() -> Vec<ReceivePolicy> {
    let usual = ReceivePolicy::default();
    vec![
        usual,
        ReceivePolicy { equal: Equal::Contents, ..usual },
        ReceivePolicy { equal: Equal::Nothing, ..usual },
        ReceivePolicy { extraneous: Extraneous::Delete, ..usual },
        ReceivePolicy { extraneous: Extraneous::Delete, equal: Equal::Contents, ..usual },
        ReceivePolicy { leftovers: Leftovers::Extend, ..usual },
        ReceivePolicy { leftovers: Leftovers::Ignore, ..usual },
        ReceivePolicy { run: RunMode::ListChanges, ..usual },
        ReceivePolicy { run: RunMode::Verbose, ..usual },
    ]
}

#[test]
fn links_in_the_root_do_not_lead_writes_outside() {
    let mut cases = 0;
    for (what, plant) in PLANTS {
        for receive_policy in all_manners() {
            let world = World::new();
            plant(&world);
            let before = world.outside();
            let ends = world.upload(b"", options(receive_policy), &Pump::default());
            world.assert_same_outside(&before, &format!("{what}: {receive_policy:?}: {ends:?}"));
            // A second run handles files that are equal by now, and changes nothing either.
            let ends = world.upload(b"", options(receive_policy), &Pump::default());
            world.assert_same_outside(&before, &format!("{what}, again: {receive_policy:?}: {ends:?}"));
            cases += 1;
        }
    }
    println!("{cases} cases, 0 inodes outside changed");
    assert!(cases >= 200, "{cases}");
}

/// A set is received completely also over files with further hard links: new files are created.
#[test]
fn a_hard_link_to_a_file_outside_becomes_a_separate_file() {
    let world = World::new();
    for name in ["f", "h"] {
        fs::hard_link(world.outside.join("equal"), world.root.join(name)).unwrap();
    }
    let before = world.outside();
    world.upload(b"", options(ReceivePolicy::default()), &Pump::default()).unwrap().clean();
    world.assert_same_outside(&before, "");
    for name in ["f", "h", "d/f", "large", "l"] {
        crate::trees::assert_same(&world.src.join(name), &world.root.join(name));
    }
}

/// Sources in its root that a server may send.
#[test]
fn links_in_the_root_do_not_lead_reads_outside() {
    use haul_wire::control::{LinkChoice, Selection};
    let mut cases = 0;
    for (what, plant) in PLANTS.into_iter().filter(|(what, _)| !what.contains("name")) {
        for links in [LinkChoice::Keep, LinkChoice::Follow] {
            let world = World::new();
            plant(&world);
            let (before, into) = (world.outside(), world.src.join("into"));
            let selection = Selection { links, ..Selection::default() };
            let ends = world.download(&selection, &into, options(ReceivePolicy::default()));
            assert_eq!(leaks(&world.src), Vec::<std::path::PathBuf>::new(), "{what}: {links:?}: {ends:?}");
            world.assert_same_outside(&before, what);
            cases += 1;
        }
    }
    println!("{cases} cases, nothing outside read");
    assert!(cases >= 25, "{cases}");
}
