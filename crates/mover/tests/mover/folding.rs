//! Destinations on which two names of the set are one, because they fold case or normalise. The file received
//! under the first name stays, and the second name fails.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use haul_mover::faults::Disk;
use haul_mover::{MoveReport, ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Durability, Equal, FaultCode, Layout, ReceivePolicy, Selection};

use crate::harness::{Ends, Pair, Pump, assert_no_parts, bytes, link_pair, options};
use crate::trees::{contents, set_mtime};

/// Case, and `é` as one character and as two.
const PAIRS: [(&str, &str); 3] = [("README", "readme"), ("caf\u{e9}", "cafe\u{301}"), ("\u{c9}", "e\u{301}")];

/// A case-insensitive disk that normalises.
fn folding() -> Disk {
    Disk::folding()
}

/// An empty source and an empty destination.
fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&dst).unwrap();
    (dir, src, dst)
}

/// Writes a file whose contents and age follow from `salt`.
fn write(path: &Path, size: usize, salt: u64) {
    fs::write(path, contents(size, salt)).unwrap();
    set_mtime(path, 1_000_000_000 + salt.cast_signed(), 0);
}

/// Writes two files of the same size whose names the destination folds into one, and a third file.
fn write_pair(src: &Path, (one, two): (&str, &str), size: usize) {
    for (salt, name) in [(1, one), (2, two), (3, "bystander")] {
        write(&src.join(name), size, salt);
    }
}

fn copy(src: &Path, dst: &Path, options: ReceiveOptions) -> Ends {
    let (a, b) = link_pair();
    let receive = folding().run(|| receive_files(&bytes(dst), &Root::Anywhere, Layout::Into, b, options));
    let sources = vec![[&bytes(src)[..], b"/."].concat()];
    let send = send_files(sources, Root::Anywhere, &Selection::default(), a, SendLimits::default()).unwrap();
    Pair { send, receive: receive.unwrap() }.run(&Pump::default())
}

fn names(directory: &Path) -> BTreeSet<String> {
    let name = |item: std::io::Result<fs::DirEntry>| item.unwrap().file_name().into_string().unwrap();
    fs::read_dir(directory).unwrap().map(name).collect()
}

/// Asserts what both sides report of a set in which names failed, all because of another name of the set.
fn refused(ends: Ends) -> (MoveReport, BTreeSet<String>) {
    let report = ends.sent.unwrap();
    assert_eq!(report, ends.received.unwrap());
    assert_eq!(report.exit_code(), 3);
    let mut failed = BTreeSet::new();
    for (path, fault) in report.failures.named() {
        let path = String::from_utf8(path.clone()).unwrap();
        assert_eq!(fault.code, FaultCode::Io, "{fault}");
        assert!(fault.message.contains("is the same name at the destination as another entry"), "{fault}");
        assert!(fault.message.contains(&format!("`{path}`")), "{fault} is about {path}");
        assert!(fault.hint.contains("rename one of the two"), "{}", fault.hint);
        failed.insert(path);
    }
    (report, failed)
}

/// Asserts that one of two names failed; returns the other one.
fn one_of(ends: Ends, (one, two): (&'static str, &'static str)) -> (MoveReport, &'static str) {
    let (report, failed) = refused(ends);
    assert_eq!(failed.len(), 1, "{failed:?}");
    let other = if failed.contains(one) { two } else { one };
    assert!(failed.contains(one) || failed.contains(two), "{failed:?}");
    (report, other)
}

/// Asserts that one file of a pair exists, with the contents of the name that did not fail.
fn assert_one(src: &Path, dst: &Path, name_there: &str, good: &str) {
    assert_eq!(names(dst), BTreeSet::from([name_there.to_owned(), "bystander".to_owned()]));
    for (from, to) in [(good, name_there), ("bystander", "bystander")] {
        let equal = fs::read(src.join(from)).unwrap() == fs::read(dst.join(to)).unwrap();
        assert!(equal, "{to} does not have the contents of {from}");
    }
    assert_no_parts(dst);
}

#[test]
fn the_second_of_two_names_fails_and_the_first_file_stays() {
    for pair in PAIRS {
        for size in [1, 3000, 3 << 20] {
            for durability in [Durability::Cached, Durability::AtEnd, Durability::Synced] {
                let (_dir, src, dst) = places();
                write_pair(&src, pair, size);
                let options = ReceiveOptions { durability, ..options() };
                let (report, good) = one_of(copy(&src, &dst, options), pair);
                assert_eq!((report.files, report.failures.count()), (2, 1));
                assert_one(&src, &dst, good, good);
            }
        }
    }
}

#[test]
fn the_second_name_fails_again_if_the_first_exists() {
    let repeated = |src: &Path, dst: &Path, equal| {
        copy(src, dst, ReceiveOptions::with_policy(1, ReceivePolicy { equal, ..receive_policy() }))
    };
    for pair in PAIRS {
        for equal in [Equal::SizeAndTime, Equal::Contents] {
            let (_dir, src, dst) = places();
            write_pair(&src, pair, 3000);
            let (_, first) = one_of(copy(&src, &dst, options()), pair);
            let (_, good) = one_of(repeated(&src, &dst, equal), pair);
            assert_one(&src, &dst, first, good);
        }
        // The two have equal size and time: the existing file is kept.
        let (_dir, src, dst) = places();
        write_pair(&src, pair, 3000);
        for name in [pair.0, pair.1] {
            set_mtime(&src.join(name), 1_000_000_000, 0);
        }
        let (_, first) = one_of(copy(&src, &dst, options()), pair);
        let (report, _) = one_of(repeated(&src, &dst, Equal::SizeAndTime), pair);
        assert_eq!((report.kept, report.files), (2, 0));
        assert_one(&src, &dst, first, first);
    }
}

fn receive_policy() -> ReceivePolicy {
    ReceivePolicy { durability: Durability::Cached, ..ReceivePolicy::default() }
}

#[test]
fn neither_name_overwrites_the_other_where_one_existed_before() {
    for (one, two) in PAIRS {
        for before in [one, two] {
            // The existing file is old, or is the file that the set has under that name.
            for salt in [9, if before == one { 1 } else { 2 }] {
                for equal in [Equal::SizeAndTime, Equal::Contents, Equal::Nothing] {
                    let (_dir, src, dst) = places();
                    write_pair(&src, (one, two), 3000);
                    write(&dst.join(before), if salt == 9 { 2000 } else { 3000 }, salt);
                    let options = ReceiveOptions::with_policy(1, ReceivePolicy { equal, ..receive_policy() });
                    let ends = copy(&src, &dst, options);
                    let what = format!("{before} was there, salt {salt}, {equal:?}");
                    let (report, good) = one_of(ends, (one, two));
                    assert_eq!(report.failures.count(), 1, "{what}");
                    // A file system keeps the original spelling of a name.
                    assert_one(&src, &dst, before, good);
                }
            }
        }
    }
}

#[test]
fn directories_and_links_with_an_equal_name_do_not_replace_the_first() {
    let (_dir, src, dst) = places();
    for name in ["Docs", "docs"] {
        fs::create_dir(src.join(name)).unwrap();
        write(&src.join(name).join("inside"), 100, name.len() as u64 + u64::from(name.as_bytes()[0]));
        write(&src.join(name).join(format!("only in {name}")), 100, 5);
    }
    symlink("to one", src.join("Link")).unwrap();
    symlink("to another", src.join("link")).unwrap();
    write(&src.join("Mixed"), 100, 7);
    symlink("nowhere", src.join("mixed")).unwrap();
    let ends = copy(&src, &dst, options());
    let report = ends.sent.as_ref().unwrap();
    assert_eq!(report, ends.received.as_ref().unwrap());
    let failed: BTreeSet<&str> =
        report.failures.named().iter().map(|(path, _)| std::str::from_utf8(path).unwrap()).collect();
    // Names are in byte order, files before links; the contents of a directory fail with it.
    assert_eq!(failed, BTreeSet::from(["docs", "docs/inside", "docs/only in docs", "link", "mixed"]));
    assert_eq!(report.exit_code(), 3);
    assert_eq!(names(&dst), BTreeSet::from(["Docs", "Link", "Mixed"].map(str::to_owned)));
    assert_eq!(names(&dst.join("Docs")), BTreeSet::from(["inside", "only in Docs"].map(str::to_owned)));
    assert!(fs::read(src.join("Docs/inside")).unwrap() == fs::read(dst.join("Docs/inside")).unwrap());
    assert!(fs::read(src.join("Mixed")).unwrap() == fs::read(dst.join("Mixed")).unwrap());
    assert_eq!(fs::read_link(dst.join("Link")).unwrap(), Path::new("to one"));
    assert_no_parts(&dst);
}

#[test]
fn existing_hard_links_are_not_considered_equal_names() {
    let (_dir, src, dst) = places();
    write(&src.join("a"), 3000, 1);
    write(&src.join("b"), 3000, 2);
    // `a` is kept, and `b` is replaced although it is the same file there.
    write(&dst.join("a"), 3000, 1);
    fs::hard_link(dst.join("a"), dst.join("b")).unwrap();
    fs::write(src.join("b"), contents(2000, 2)).unwrap();
    let ends = copy(&src, &dst, options());
    assert_eq!((ends.clean().kept, ends.clean().files), (1, 1));
    for name in ["a", "b"] {
        assert!(fs::read(src.join(name)).unwrap() == fs::read(dst.join(name)).unwrap(), "{name}");
    }
}
