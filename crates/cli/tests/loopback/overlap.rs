//! A directory is never copied into itself, and `--delete` never removes a source, whatever names lead to
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

use crate::serving::until;
use crate::support::{Server, exits, haul, lossy};

/// Directories `p/q/r` with a file in each, and `other` names of `p`.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in ["p/f", "p/q/f", "p/q/r/f", "p/q/r/deep/f", "p/q/extra/g"] {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        fs::write(dir.path().join(path), path).unwrap();
    }
    symlink("p", dir.path().join("other")).unwrap();
    dir
}

/// The names below `root`, without those that another process removes meanwhile.
fn names(root: &Path) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![root.to_path_buf()]);
    while let Some(at) = open.pop() {
        for item in there(fs::read_dir(&at)).into_iter().flatten() {
            let Some(path) = there(item).map(|item| item.path()) else { continue };
            let Some(metadata) = there(path.symlink_metadata()) else { continue };
            if metadata.is_dir() {
                open.push(path.clone());
            }
            found.insert(lossy(path.strip_prefix(root).unwrap().as_os_str().as_encoded_bytes()));
        }
    }
    found
}

/// `None` if the name does not exist.
#[track_caller]
fn there<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        result => Some(result.unwrap()),
    }
}

fn cp(dir: &Path, words: &[&str]) -> Output {
    haul().args(["cp", "-q"]).args(words).current_dir(dir).output().unwrap()
}

#[track_caller]
fn refused(dir: &Path, words: &[&str], why: &str) {
    let before = names(dir);
    for dry in [&[][..], &["--dry-run"]] {
        let output = cp(dir, &[dry, words].concat());
        exits(&output, 2);
        assert!(lossy(&output.stderr).contains(why), "{words:?}: {}", lossy(&output.stderr));
        // After the client is refused, the server removes the directories that it created.
        until(&format!("{words:?} does not leave {before:?}"), || names(dir) == before);
    }
}

#[test]
fn a_source_inside_the_destination_is_not_deleted() {
    let dir = tree();
    let why = "--delete would remove it";
    for (from, to) in [
        ("p/q/r/.", "p/q"),
        ("p/q/r/.", "p"),
        ("other/q/r/.", "p/q"),
        ("p/q/r/.", "other/q/"),
        ("p/q/r/deep/.", "p/q/."),
    ] {
        refused(dir.path(), &["--delete", from, to], why);
    }
    // Entries that are part of the set are not deleted.
    exits(&cp(dir.path(), &["--dry-run", "--delete", "p/q/r/f", "p/q/extra/.", "p/q/r/deep/.."]), 0);
    refused(dir.path(), &["--delete", "p/q/r/f", "p/q/extra/.", "p"], why);
    // The copied directory would replace the one that contains the source.
    fs::create_dir_all(dir.path().join("p/p")).unwrap();
    refused(dir.path(), &["--delete", "p/p", "."], why);
    // The same with a local server, in both directions.
    let server = Server::start(dir.path(), &[]);
    refused(dir.path(), &["--delete", "p/q/r/.", &server.at("p/q")], why);
    refused(dir.path(), &["--delete", &server.at("p/q/r/."), "p/q"], why);
    // A filter rule protects the source.
    exits(&cp(dir.path(), &["--delete", "--exclude", "/r", "p/q/r/.", "p/q"]), 0);
    assert!(dir.path().join("p/q/r/deep/f").exists() && dir.path().join("p/q/deep/f").exists());
    assert!(!dir.path().join("p/q/extra").exists());
    // A destination beside the source is allowed.
    exits(&cp(dir.path(), &["--delete", "p/q/r", "p"]), 0);
    exits(&cp(dir.path(), &["--delete", "p/q/r/.", "p/copy"]), 0);
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = tree();
    let why = "cannot be copied into itself";
    for (from, to) in [
        ("p", "p/new"),
        ("p", "p"),
        ("p/.", "p/new"),
        ("p/.", "p/q"),
        ("p/.", "p"),
        ("p", "p/q/r/new"),
        ("other/", "p/q"),
        ("p/.", "other/q/new"),
        ("p/q", "p"),
        ("p/q/r", "p/q/r/deep"),
        (".", "p"),
    ] {
        refused(dir.path(), &[from, to], why);
    }
    for to in ["p/q/r/new", "p/q/r"] {
        refused(dir.path(), &["--gitignore", "p/.", to], why);
    }
    fs::write(dir.path().join("p/q/.gitignore"), "/r/new\n").unwrap();
    for to in ["p/q/r/new", "p/q/r/new/", "p/q/r/new/deeper"] {
        exits(&cp(dir.path(), &["--gitignore", "p/.", to]), 0);
    }
    assert!(!names(&dir.path().join("p/q/r/new")).contains("q/r/new"));
    fs::remove_dir_all(dir.path().join("p/q/r/new")).unwrap();
    fs::remove_file(dir.path().join("p/q/.gitignore")).unwrap();
    let server = Server::start(dir.path(), &[]);
    refused(dir.path(), &["p/.", &server.at("p/q/new")], why);
    refused(dir.path(), &["p", &server.at("p/new")], why);
    refused(dir.path(), &[&server.at("p/."), "p/q/new"], why);
    // An excluded destination is not part of the source.
    for _ in 0..2 {
        exits(&cp(dir.path(), &["--delete", "--exclude", "/backup", "p/.", "p/backup"]), 0);
        exits(&cp(dir.path(), &["--exclude", "/p/named", "--exclude", "/p/backup", "p", "p/named"]), 0);
    }
    let backup = names(&dir.path().join("p/backup"));
    assert!(backup.contains("q/r/deep/f") && !backup.contains("backup"), "{backup:?}");
    assert!(!names(&dir.path().join("p/named")).contains("named"));
    // A file contains no destination, and a list of paths is finite.
    exits(&cp(dir.path(), &["p/f", "p"]), 0);
    fs::write(dir.path().join("list"), "f\n").unwrap();
    exits(&cp(dir.path(), &["--files-from", "list", "p/.", "p/listed"]), 0);
}

#[test]
fn following_links_does_not_enter_the_destination() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("s")).unwrap();
    fs::create_dir_all(at("d")).unwrap();
    fs::write(at("s/f"), "f").unwrap();
    symlink("../d", at("s/link")).unwrap();
    for to in ["d/new", "d/new", "d/."] {
        let output = cp(dir.path(), &["-L", "s", to]);
        exits(&output, 3);
        assert!(
            lossy(&output.stderr).contains("is the destination itself"),
            "{to}: {}",
            lossy(&output.stderr)
        );
    }
    assert!(at("d/new/f").exists() && !at("d/new/link").exists());
}
