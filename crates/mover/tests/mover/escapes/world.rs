//! A root exported by a server, and files outside of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use haul_mover::{ReceiveOptions, Root, SendLimits, receive_files, send_files};
use haul_wire::control::{Fault, FaultCode, Layout, Preserve, Selection};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

use crate::harness::{Ends, Pump, bytes, link_pair, names_below};
use crate::trees::{contents, set_mode, set_mtime};

/// Contents that no transfer may read or change.
pub(crate) const SECRET: &[u8] = b"SECRET: what is outside is nobody's business";

/// Modification time of the set's files.
const THEN: i64 = 1_600_000_000;

/// Size of the set's large file in bytes.
pub(crate) const LARGE: usize = 3 << 20;

pub(crate) struct World {
    _dir: tempfile::TempDir,
    /// The sender's directory.
    pub(crate) src: PathBuf,
    /// The server's root.
    pub(crate) root: PathBuf,
    pub(crate) outside: PathBuf,
}

/// Observable state of a name: inode, size, mode, owner, modification time, an attribute, contents.
pub(crate) type Seen = (u64, u64, u32, (u32, u32), (i64, i64), Vec<u8>, blake3::Hash);

fn file(path: &Path, bytes: &[u8], mode: u32) {
    fs::write(path, bytes).unwrap();
    set_mode(path, mode);
    set_mtime(path, THEN, 5);
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [src, root, outside] = ["src", "root", "outside"].map(|name| dir.path().join(name));
        for directory in [src.join("d/sub"), root.clone(), outside.join("d/sub")] {
            fs::create_dir_all(directory).unwrap();
        }
        for (name, mode) in [("f", 0o644), ("d/f", 0o640), ("d/sub/f", 0o604)] {
            file(&src.join(name), b"12345", mode);
            file(&outside.join(name), SECRET, 0o600);
        }
        file(&src.join("large"), &contents(LARGE, 7), 0o600);
        fs::hard_link(src.join("f"), src.join("h")).unwrap();
        symlink("f", src.join("l")).unwrap();
        // Of the same size, time and contents as a file of the set, but not of its mode.
        file(&outside.join("equal"), b"12345", 0o600);
        symlink("f", outside.join("l")).unwrap();
        // The beginning of a file of the set.
        file(&outside.join("beginning"), &contents(LARGE, 7)[..2 << 20], 0o600);
        let world = Self { _dir: dir, src, root, outside };
        for at in [world.src.join("f"), world.outside.join("f"), world.outside.join("equal")] {
            let value = at.as_os_str().as_encoded_bytes();
            // Without support for attributes, none can be lost.
            let _ = lsetxattr(&at, "user.at", value, XattrFlags::empty());
        }
        world
    }

    /// Returns the state of everything outside.
    pub(crate) fn outside(&self) -> BTreeMap<PathBuf, Seen> {
        let mut names = names_below(&self.outside);
        names.push(self.outside.clone());
        names.into_iter().map(|path| (path.clone(), seen(&path))).collect()
    }

    /// Asserts that nothing outside was changed, created or removed.
    pub(crate) fn assert_same_outside(&self, before: &BTreeMap<PathBuf, Seen>, case: &str) {
        let after = self.outside();
        let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
        for name in names {
            assert_eq!(after.get(name), before.get(name), "{}: {case}", name.display());
        }
    }

    pub(crate) fn root(&self) -> Root {
        Root::beneath(&self.root).unwrap()
    }

    /// Sends the contents of `src` from a correct sender to `destination` below the root.
    pub(crate) fn upload(
        &self,
        destination: &[u8],
        options: ReceiveOptions,
        pump: &Pump<'_>,
    ) -> Result<Ends, Fault> {
        let (a, b) = link_pair();
        let receive = receive_files(destination, &self.root(), Layout::Into, b, options)?;
        let limits = SendLimits { preserve: Preserve::ALL, ..SendLimits::default() };
        let sources = vec![[&bytes(&self.src)[..], b"/."].concat()];
        let send = send_files(sources, Root::Anywhere, &Selection::default(), a, limits)?;
        Ok(join(send, receive, pump))
    }

    /// Sends the contents of the root from the server to `destination`, which belongs to the client.
    pub(crate) fn download(
        &self,
        selection: &Selection,
        destination: &Path,
        options: ReceiveOptions,
    ) -> Result<Ends, Fault> {
        let (a, b) = link_pair();
        let receive = receive_files(&bytes(destination), &Root::Anywhere, Layout::Into, b, options)?;
        let send = send_files(vec![b".".to_vec()], self.root(), selection, a, SendLimits::default())?;
        Ok(join(send, receive, &Pump::default()))
    }

    /// Interrupts a job after this many bytes, within the large file: leaves its journal and that file's
    /// temporary file in the root.
    pub(crate) fn cut_off(&self, after: u64, options: ReceiveOptions) -> (PathBuf, PathBuf) {
        let pump = Pump { stop_after: Some(after), loss: 0.0, ..Pump::default() };
        let ends = self.upload(b"", options, &pump).unwrap();
        assert!(ends.received.is_err());
        let ending_in = |suffix: &str| {
            let names = names_below(&self.root).into_iter();
            names.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect::<Vec<_>>()
        };
        let (journals, parts) = (ending_in(".journal"), ending_in(".part"));
        let [journal] = &journals[..] else { panic!("{journals:?}") };
        let large = parts.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
        (journal.clone(), large.clone())
    }
}

fn join(mut send: haul_mover::SendJob, mut receive: haul_mover::ReceiveJob, pump: &Pump<'_>) -> Ends {
    let over = || send.handle.is_finished() || receive.handle.is_finished();
    pump.run(&mut *send.source, &mut *receive.sink, &over);
    if pump.stop_after.is_some() {
        send.handle.abort(Fault::new(FaultCode::Interrupted, "stopped by hand", ""));
    }
    Ends { sent: send.handle.join(), received: receive.handle.join() }
}

fn seen(path: &Path) -> Seen {
    let meta = path.symlink_metadata().unwrap();
    let contents = match meta.file_type() {
        kind if kind.is_symlink() => bytes(&fs::read_link(path).unwrap()),
        kind if kind.is_file() => fs::read(path).unwrap(),
        _ => Vec::new(),
    };
    let mut attribute = vec![0; 4096];
    let len = lgetxattr(path, "user.at", &mut attribute[..]).unwrap_or(0);
    attribute.truncate(len);
    let owner = (meta.uid(), meta.gid());
    let hash = blake3::hash(&contents);
    (meta.ino(), meta.size(), meta.mode(), owner, (meta.mtime(), meta.mtime_nsec()), attribute, hash)
}

/// Whether any file below a directory has the contents from outside.
pub(crate) fn leaks(directory: &Path) -> Vec<PathBuf> {
    let is_leak = |path: &PathBuf| {
        path.symlink_metadata().is_ok_and(|meta| meta.is_file())
            && fs::read(path).is_ok_and(|bytes| bytes.windows(6).any(|window| window == &SECRET[..6]))
    };
    names_below(directory).into_iter().filter(is_leak).collect()
}
