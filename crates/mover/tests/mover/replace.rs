//! An existing file of another kind is replaced by an entry if names may be removed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use haul_wire::control::{Extraneous, FaultCode, Growth, Layout, ReceivePolicy, RunMode};

use crate::harness::assert_no_parts;
use crate::receive_policy::{DELETE, SyncResult, content, places, sync};
use crate::trees::contents;

fn mirror(src: &Path, dst: &Path, receive_policy: ReceivePolicy) -> SyncResult {
    sync(&[content(src)], dst, Layout::Into, receive_policy, Growth::Refuse)
}

/// Creates a destination with a name of another kind for each kind of entry, among them a link to `outside`.
fn crossed(dir: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let (src, dst) = places(dir);
    fs::hard_link(src.join("a"), src.join("z")).unwrap();
    for name in ["p", "empty"] {
        fs::write(src.join(name), name.repeat(usize::from(name == "p"))).unwrap();
    }
    for name in ["linked", "file"] {
        fs::create_dir(src.join(name)).unwrap();
        fs::write(src.join(name).join("x"), name).unwrap();
    }
    for (salt, path) in ["a/1", "a/deep/2", "empty/3", "link/4", "z/5"].into_iter().enumerate() {
        fs::create_dir_all(dst.join(path).parent().unwrap()).unwrap();
        fs::write(dst.join(path), contents(100, salt as u64)).unwrap();
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, dst.join("p"), 0o600.into()).unwrap();
    fs::create_dir(dir.join("outside")).unwrap();
    fs::write(dir.join("outside/x"), "outside").unwrap();
    symlink(dir.join("outside"), dst.join("linked")).unwrap();
    fs::write(dst.join("file"), "in the way").unwrap();
    (src, dst)
}

const REMOVED: [&str; 12] = [
    "delete a",
    "delete a/1",
    "delete a/deep",
    "delete a/deep/2",
    "delete empty",
    "delete empty/3",
    "delete file",
    "delete link",
    "delete link/4",
    "delete linked",
    "delete p",
    "delete z",
];

#[test]
fn a_run_matches_its_dry_run() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = crossed(dir.path());
    let deletions = |result: &SyncResult| -> Vec<String> {
        result.lines().into_iter().filter(|line| line.starts_with("delete")).collect()
    };
    let expected: Vec<&str> = REMOVED.into_iter().chain(["delete z/5"]).collect();
    let dry_run = mirror(&src, &dst, ReceivePolicy { run: RunMode::ListChanges, ..DELETE });
    assert_eq!((deletions(&dry_run), dry_run.ends.clean().removal.removed), (text(&expected), 13));
    for line in
        ["send a 3000", "send p 1", "send empty 0", "mkdir file", "send linked/x 6", "link link", "link z"]
    {
        assert!(dry_run.lines().contains(&line.to_owned()), "{line}: {:?}", dry_run.lines());
    }
    assert!(dst.join("a/deep/2").exists() && fs::read(dst.join("file")).unwrap() == b"in the way");
    let result = mirror(&src, &dst, DELETE);
    assert_eq!((deletions(&result), result.ends.clean().removal.removed), (text(&expected), 13));
    assert_eq!(fs::read(dst.join("a")).unwrap(), fs::read(src.join("a")).unwrap());
    assert_eq!(fs::metadata(dst.join("z")).unwrap().ino(), fs::metadata(dst.join("a")).unwrap().ino());
    assert_eq!(fs::read_link(dst.join("link")).unwrap(), Path::new("a"));
    assert_eq!(
        (fs::read(dst.join("p")).unwrap(), fs::read(dst.join("empty")).unwrap()),
        (b"p".to_vec(), vec![])
    );
    assert_eq!(
        (fs::read(dst.join("file/x")).unwrap(), fs::read(dst.join("linked/x")).unwrap()),
        (b"file".to_vec(), b"linked".to_vec())
    );
    assert!(!dst.join("linked").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read(dir.path().join("outside/x")).unwrap(), b"outside");
    assert_no_parts(&dst);
    assert!(deletions(&mirror(&src, &dst, DELETE)).is_empty());
}

fn text(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|&line| line.to_owned()).collect()
}

#[test]
fn without_the_option_everything_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = crossed(dir.path());
    let report = mirror(&src, &dst, ReceivePolicy::default()).ends.received.unwrap();
    // Including the contents of the two directories that could not be created.
    assert_eq!((report.failures.count(), report.removal.removed), (9, 0));
    assert!(dst.join("a/deep/2").exists() && dst.join("linked").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read(dst.join("file")).unwrap(), b"in the way");
}

#[test]
fn no_more_than_the_limit_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = crossed(dir.path());
    let most = |most| ReceivePolicy { extraneous: Extraneous::DeleteAtMost(most), ..DELETE };
    let report = mirror(&src, &dst, most(12)).ends.received.unwrap();
    // The file and the link blocked directories; nothing else is removed, as not all of it may be.
    assert_eq!((report.removal.removed, report.exit_code()), (2, 3));
    assert!(report.removal.fault.unwrap().message.contains("more than the 12 permitted"));
    assert!(dst.join("a/deep/2").exists() && dst.join("z/5").exists());
    let report = mirror(&src, &dst, most(1)).ends.received.unwrap();
    assert_eq!(report.removal.removed, 0);
    assert_eq!(mirror(&src, &dst, most(11)).ends.clean().removal.removed, 11);
    assert_no_parts(&dst);
}

/// Returns the reports of a dry run and of the run after it. The dry run leaves the destination unchanged.
fn both(sources: &[Vec<u8>], dst: &Path, receive_policy: ReceivePolicy) -> [SyncResult; 2] {
    [RunMode::ListChanges, RunMode::Verbose]
        .map(|run| sync(sources, dst, Layout::Into, ReceivePolicy { run, ..receive_policy }, Growth::Refuse))
}

/// Asserts that a run did what the dry run before it reported.
fn assert_same([dry_run, actual]: &[SyncResult; 2], what: &str) {
    let [planned, moved] = [dry_run, actual].map(|result| result.ends.received.as_ref().unwrap());
    assert_eq!(dry_run.lines(), actual.lines(), "{what}");
    let named = |report: &haul_mover::MoveReport| {
        let mut named = report.failures.named().to_vec();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named
    };
    assert_eq!(named(planned), named(moved), "{what}");
    assert_eq!((&planned.removal, planned.files), (&moved.removal, moved.files), "{what}");
    assert_eq!(planned.exit_code(), moved.exit_code(), "{what}");
}

#[test]
fn a_dry_run_reports_entries_that_would_be_blocked() {
    for most in [11, 2, 1] {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = crossed(dir.path());
        let policy = ReceivePolicy { extraneous: Extraneous::DeleteAtMost(most), ..DELETE };
        assert_same(&both(&[content(&src)], &dst, policy), &format!("at most {most}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = crossed(dir.path());
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("p"), "another").unwrap();
    assert_same(&both(&[content(&src), content(&other)], &dst, DELETE), "not everything arrives");
}

#[test]
fn a_directory_is_kept_if_not_everything_arrived() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = crossed(dir.path());
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("p"), "another").unwrap();
    let result = sync(&[content(&src), content(&other)], &dst, Layout::Into, DELETE, Growth::Refuse);
    let report = result.ends.received.unwrap();
    assert_eq!((report.removal.removed, report.exit_code()), (2, 3));
    assert!(
        report
            .failures
            .named()
            .iter()
            .any(|(path, fault)| path == b"a" && fault.code == FaultCode::IsADirectory)
    );
    assert!(dst.join("a/deep/2").exists() && dst.join("link/4").exists());
}
