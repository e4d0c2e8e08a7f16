//! What this job has put in place or kept, so that a destination that takes two names of the set for one, for
//! want of case or by normalising, does not lose the first to the second.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use haul_wire::control::FaultCode;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::entries::IdentityHash;
use crate::fault::IoFault;
use crate::identity::FileId;
use crate::storage::lstatat;

/// Whether something may be there under another name as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names {
    /// A file without further hard links.
    One,
    /// A file with several; or a directory, to which sources and mounts may lead in more than one way.
    Several,
}

impl Names {
    pub(crate) fn of(stat: &Stat) -> Self {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink > 1 { Self::Several } else { Self::One }
    }
}

/// Files by the hash of their identity: 8 bytes each, and a false hit costs a look into a directory.
#[derive(Default)]
pub(crate) struct Installed {
    files: Mutex<HashSet<u64, IdentityHash>>,
    hasher: RandomState,
}

impl Installed {
    /// The job has put this file in place, or keeps it. False: it has done so before.
    pub(crate) fn add(&self, id: FileId) -> bool {
        let key = self.hasher.hash_one(id);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    fn has(&self, id: FileId) -> bool {
        let key = self.hasher.hash_one(id);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// Whether what is found under `name` is this job's own work under another name. `names` lists the
    /// directory: what has several names is there under each of them, and then this is no collision. What has a single
    /// name may be listed under this one all the same, if it had it before the job came with the other and the directory
    /// `folds` names; else the job's file has gone, and another one has its number.
    pub(crate) fn collides(
        &self,
        (id, many): (FileId, Names),
        name: &[u8],
        names: impl FnOnce() -> Result<Vec<Vec<u8>>, Errno>,
        folds: impl FnOnce() -> bool,
    ) -> bool {
        let is_listed = |names: Vec<Vec<u8>>| names.iter().any(|there| there == name);
        self.has(id) && names().is_ok_and(|names| !is_listed(names) || (many == Names::One && folds()))
    }
}

/// Whether a directory also finds what is there under `name` when it is asked with the other case. What it takes for
/// one beyond ASCII cannot be tried, and is taken for granted.
pub(crate) fn folds(directory: &OwnedFd, name: &[u8], id: FileId) -> bool {
    let swap = |byte: &u8| {
        if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() }
    };
    let other: Vec<u8> = name.iter().map(swap).collect();
    let found = || lstatat(directory, &other).is_ok_and(|stat| FileId::of(&stat) == id);
    !name.is_ascii() || (other != name && found())
}

/// What an entry fails with whose name the destination does not tell from another one of the set.
pub(crate) fn collision(path: &[u8]) -> IoFault {
    let what = "is the same name at the destination as another one of the set";
    let hint = "its file system does not tell upper from lower case or kinds of accents; rename one of both";
    IoFault::entry(FaultCode::Io, path, what, hint)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn a_second_name_of_an_own_file_is_a_collision_unless_it_is_really_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("readme"), "x").unwrap();
        fs::write(dir.path().join("other"), "x").unwrap();
        let id = |name| FileId::of(&lstatat(CWD, dir.path().join(name)).unwrap());
        let own = Installed::default();
        assert!(own.add(id("readme")));
        assert!(!own.add(id("readme")));
        // A file system without case finds `readme` when it is asked for `README`, and lists `readme` only.
        let lists = |names: &[&str]| {
            let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            move || Ok(names)
        };
        let (both, lower) = (["readme", "README"], ["readme", "other"]);
        let collides = |at, name: &str, many, names: &[&str], folds| {
            own.collides((id(at), many), name.as_bytes(), lists(names), || folds)
        };
        assert!(collides("readme", "README", Names::Several, &lower, true));
        assert!(!collides("readme", "README", Names::Several, &both, true));
        assert!(!collides("other", "OTHER", Names::Several, &lower, true), "not of this job");
        // `README` came first and took the place of `readme`, which is what it is still called.
        assert!(collides("readme", "readme", Names::One, &lower, true));
        assert!(!collides("other", "other", Names::One, &lower, true), "not of this job");
        // The file has gone, and another one has its number.
        assert!(!collides("readme", "readme", Names::One, &lower, false));
        let directory = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        assert!(crate::storage::names(&directory).unwrap().contains(&b"readme".to_vec()));
        assert!(!folds(&directory, b"readme", id("readme")), "this file system has case");
    }
}
