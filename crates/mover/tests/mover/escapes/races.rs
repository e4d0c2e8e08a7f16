//! Another program exchanges directories, links and files while a transfer runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use haul_mover::ReceiveOptions;
use haul_wire::control::{Durability, Equal, LinkChoice, Preserve, ReceivePolicy, Selection};
use rustix::fs::{Mode, OFlags, RenameFlags, open, renameat_with, symlinkat};

use super::world::{World, leaks};
use crate::harness::Pump;
use crate::trees::contents;

/// Files in each directory of the set.
const FILES: u64 = 12;
/// Size of each file in bytes.
const SIZE: usize = 200_000;
/// Number of transfers against each attacking program.
const ROUNDS: u64 = 6;

/// One step of an attack; the argument is the number of the step.
type Mischief = fn(&World, u64);

/// Exchanges `name` in `base` with a link to `to`, created beside it. `base` itself may be exchanged by
/// another attack, so it is not followed.
fn with_link(base: &Path, name: &str, to: &Path) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let Ok(base) = open(base, flags, Mode::empty()) else { return };
    let spare = format!("{name}.spare");
    // A name that does not exist now may exist later.
    let _ = symlinkat(to, &base, &spare);
    let _ = renameat_with(&base, name, &base, &spare, RenameFlags::EXCHANGE);
}

fn working_files(base: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in [base.to_path_buf(), base.join("d"), base.join("d/sub")] {
        let Ok(names) = fs::read_dir(directory) else { continue };
        let paths = names.filter_map(Result::ok).map(|name| name.path());
        found.extend(paths.filter(|path| path.to_str().is_some_and(|path| path.ends_with(suffix))));
    }
    found
}

fn replace(path: &Path, with: impl FnOnce(&Path) -> std::io::Result<()>) {
    let spare = path.with_extension("spare");
    if with(&spare).is_ok() {
        let _ = fs::rename(&spare, path);
    }
}

/// Attacks on the receiver: parent directory, final name, temporary file, link, journal.
const AT_DESTINATION: [(&str, Mischief); 9] = [
    ("a parent and a link", |w, _| with_link(&w.root, "d", &w.outside.join("d"))),
    ("a deeper parent and a link", |w, _| with_link(&w.root.join("d"), "sub", &w.outside.join("d/sub"))),
    ("both parents and links", |w, n| {
        if n.is_multiple_of(2) {
            with_link(&w.root, "d", &w.outside.join("d"));
        } else {
            with_link(&w.root.join("d"), "sub", Path::new("../../../outside/d/sub"));
        }
    }),
    ("final names and links", |w, n| {
        let name = w.root.join(["f", "d/f", "d/sub/f", "large"][n as usize % 4]);
        replace(&name, |spare| symlink(w.outside.join("f"), spare));
    }),
    ("final names and names of a file outside", |w, n| {
        let name = w.root.join(["f", "h", "d/f", "d/sub/f"][n as usize % 4]);
        replace(&name, |spare| fs::hard_link(w.outside.join("equal"), spare));
    }),
    ("temporary files and links", |w, _| {
        for part in working_files(&w.root, ".part") {
            replace(&part, |spare| symlink(w.outside.join("f"), spare));
        }
    }),
    ("temporary files and names of a file outside", |w, _| {
        for part in working_files(&w.root, ".part") {
            replace(&part, |spare| fs::hard_link(w.outside.join("f"), spare));
        }
    }),
    ("journals and links", |w, _| {
        for journal in working_files(&w.root, ".journal") {
            replace(&journal, |spare| symlink(w.outside.join("f"), spare));
        }
    }),
    ("journals and names of a file outside", |w, _| {
        for journal in working_files(&w.root, ".journal") {
            replace(&journal, |spare| fs::hard_link(w.outside.join("f"), spare));
        }
    }),
];

/// Attacks on the sender.
const AT_SOURCE: [(&str, Mischief); 5] = [
    ("a parent and a link", |w, _| with_link(&w.root, "d", &w.outside.join("d"))),
    ("a deeper parent and a link", |w, _| with_link(&w.root.join("d"), "sub", &w.outside.join("d/sub"))),
    ("a parent and a link upwards", |w, _| with_link(&w.root, "d", Path::new("../outside/d"))),
    ("files and links", |w, n| {
        let name = ["f", "d/f", "d/sub/f", "d/0"][n as usize % 4];
        let (base, name) = (w.root.join(name), Path::new(name).file_name().unwrap().to_str().unwrap());
        with_link(base.parent().unwrap(), name, &w.outside.join("f"));
    }),
    ("all of it", |w, n| {
        with_link(&w.root, "d", &w.outside.join("d"));
        with_link(&w.root, ["f", "large"][n as usize % 2], &w.outside.join("f"));
    }),
];

/// Adds files, to give the attack more time.
fn fill(base: &Path) {
    for directory in ["", "d", "d/sub"] {
        for number in 0..FILES {
            fs::write(base.join(directory).join(number.to_string()), contents(SIZE, number)).unwrap();
        }
    }
}

/// Runs `transfer` during an attack; returns the number of attack steps.
fn beside(world: &World, mischief: Mischief, transfer: impl FnOnce()) -> u64 {
    let (over, times) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                mischief(world, times.fetch_add(1, Ordering::Relaxed));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let end = ending(&over);
        transfer();
        drop(end);
    });
    times.into_inner()
}

/// Ends the attack also if the transfer panics.
fn ending(over: &AtomicBool) -> impl Drop + '_ {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    End(over)
}

fn options(round: u64) -> ReceiveOptions {
    let equal = [Equal::SizeAndTime, Equal::Contents, Equal::Nothing][round as usize % 3];
    let receive_policy = ReceivePolicy { equal, durability: Durability::Cached, ..ReceivePolicy::default() };
    ReceiveOptions { permit: Preserve::ALL, ..ReceiveOptions::with_policy(0xabcd, receive_policy) }
}

#[test]
fn nothing_outside_is_changed_while_destination_names_are_swapped() {
    let (mut cases, mut times) = (0, 0);
    for (what, mischief) in AT_DESTINATION {
        for round in 0..ROUNDS {
            let world = World::new();
            fill(&world.src);
            if round % 2 == 1 {
                // Leaves something to resume.
                world.cut_off(FILES * SIZE as u64 + (2 << 20), options(0));
            }
            let before = world.outside();
            times += beside(&world, mischief, || {
                // The transfer may fail, be repeated, or complete.
                for _ in 0..2 {
                    let pump = Pump { seed: round, ..Pump::default() };
                    let _ = world.upload(b"", options(round), &pump);
                }
            });
            world.assert_same_outside(&before, what);
            cases += 1;
        }
    }
    println!("{cases} races, names exchanged {times} times, 0 inodes outside changed");
    assert!(times > 10 * cases, "{times} exchanges in {cases} cases are too few for a race");
}

#[test]
fn nothing_outside_is_read_while_source_names_are_swapped() {
    let (mut cases, mut times) = (0, 0);
    for (what, mischief) in AT_SOURCE {
        for round in 0..ROUNDS {
            let world = World::new();
            for directory in ["d", "d/sub"] {
                fs::create_dir(world.root.join(directory)).unwrap();
            }
            for name in ["f", "d/f", "d/sub/f", "large"] {
                fs::copy(world.src.join(name), world.root.join(name)).unwrap();
            }
            fill(&world.root);
            let before = world.outside();
            let into = world.src.join("into");
            times += beside(&world, mischief, || {
                let links = if round % 2 == 1 { LinkChoice::Follow } else { LinkChoice::Keep };
                let selection = Selection { links, ..Selection::default() };
                let _ = world.download(&selection, &into, options(round));
            });
            let leaked = leaks(&world.src);
            assert!(leaked.is_empty(), "{what}, round {round}: {leaked:?}");
            world.assert_same_outside(&before, what);
            cases += 1;
        }
    }
    println!("{cases} races, names exchanged {times} times, nothing outside read");
    assert!(times > 10 * cases, "{times} exchanges in {cases} cases are too few for a race");
}
