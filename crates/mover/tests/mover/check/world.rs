//! The files inside and outside of the root of a checked job.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::write;

/// ID of the journal left in a root.
pub(super) const JOURNAL: u32 = 0x6861_756c;
/// Numbers of the temporary files left with it.
const PARTS: u32 = 4;

fn part_name(number: u32) -> String {
    format!(".haul-{JOURNAL:08x}-{number}.part")
}

/// A root that a job may use, and files outside of it.
pub(super) struct World {
    pub(super) root: PathBuf,
    pub(super) outside: PathBuf,
}

impl World {
    /// Creates a root that only has links leading outside.
    pub(super) fn new(directory: &Path) -> Self {
        let [root, outside] = ["root", "outside"].map(|name| directory.join(name));
        let made = fs::create_dir(&root)
            .and_then(|()| fs::create_dir_all(outside.join("d")))
            .and_then(|()| symlink("../outside", root.join("out")))
            .and_then(|()| symlink("../outside/f", root.join("l")));
        made.expect("the directory is empty");
        for name in ["f", "d/f"] {
            write(&outside.join(name), b"12345");
        }
        for number in 0..PARTS {
            write(&outside.join(part_name(number)), b"12345");
        }
        Self { root, outside }
    }

    /// Adds files to the root, and a hard link to a file outside.
    pub(super) fn occupy(&self) {
        fs::create_dir(self.root.join("d")).expect("the root can be written");
        write(&self.root.join("f"), b"12345");
        write(&self.root.join("d/f"), &vec![7; 100_000]);
        fs::hard_link(self.outside.join("f"), self.root.join("h")).expect("it is the same file system");
    }

    /// Adds a journal to the root, with temporary files there and in a subdirectory.
    pub(super) fn leave(&self, journal: &[u8]) {
        fs::create_dir(self.root.join("d")).expect("the root can be written");
        write(&self.root.join(format!(".haul-{JOURNAL:08x}.journal")), journal);
        for number in 0..PARTS {
            for parent in ["", "d"] {
                write(&self.root.join(parent).join(part_name(number)), b"12345");
            }
        }
    }
}

/// Observable state of a name: inode, mode, modification time, contents or target.
type Seen = (u64, u32, (i64, i64), Vec<u8>);

/// Returns the state of a directory and of everything below it.
pub(super) fn tree(directory: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut seen, mut open) = (BTreeMap::new(), vec![directory.to_path_buf()]);
    while let Some(path) = open.pop() {
        let meta = path.symlink_metadata().expect("it is not removed concurrently");
        let contents = if meta.is_dir() {
            let listed = fs::read_dir(&path).expect("it can be listed");
            open.extend(listed.map(|entry| entry.expect("it can be listed").path()));
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).expect("it is a link").as_os_str().as_bytes().to_vec()
        } else {
            fs::read(&path).expect("it can be read")
        };
        let modified = (meta.mtime(), meta.mtime_nsec());
        seen.insert(path, (meta.ino(), meta.mode(), modified, contents));
    }
    seen
}
