//! Sets file metadata: permissions and modification time, and owner, extended attributes and access control
//! lists if the receiver permits them. Metadata that cannot be set is noted; the file still succeeds. Also
//! directories without write permission.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_wire::control::{Extras, Keep, Ownership, Preserve, Xattr};
use rustix::fs::{AtFlags, FsWord, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::accounts::{Accounts, euid, is_member, is_root};
use crate::budget::slot_bytes;
use crate::entries::Attributes;
use crate::fault::show;
use crate::identity::FileId;
use crate::receive::place::{DirEntry, Place};
use crate::root::split;
use crate::storage::{Mtime, chownat, fchmod, fstat, fstatfs, futimens, modified_at, openat, utimensat};
use crate::xattrs::{CAPABILITY, Space, XattrTarget};

/// Permission bits that a received file may have: no set-user-ID, set-group-ID or sticky bit, because those
/// would grant the receiving user's privileges to a program that someone else chose.
pub(crate) const FILE_BITS: u32 = 0o0777;

/// Permission bits of a received directory. Set-group-ID (group of new files) and sticky grant no privileges.
pub(crate) const DIRECTORY_BITS: u32 = 0o3777;

pub(crate) const ALL_BITS: u32 = 0o7777;

/// Returns the permissions for a file that has `current`, if the sender requests `expected` and may set the bits
/// `granted`. Bits beyond `granted` are never added, and kept only if the sender has them too.
pub(crate) fn mode_for(current: u32, expected: u32, granted: u32) -> u32 {
    expected & (granted | current) & ALL_BITS
}

pub(crate) fn set_mode(fd: impl AsFd, expected: u32, granted: u32) -> Result<(), Errno> {
    let current = mode_of(&fstat(&fd)?);
    let mode = mode_for(current, expected, granted);
    if mode == current { Ok(()) } else { fchmod(fd, Mode::from_raw_mode(mode)) }
}

pub(crate) fn correct_time(fd: impl AsFd, expected: Mtime) -> Result<(), Errno> {
    if Mtime::of(&fstat(&fd)?) == expected {
        return Ok(());
    }
    match futimens(&fd, &modified_at(expected)) {
        Err(Errno::BADF) => set_on_path(fd, expected),
        done => done,
    }
}

/// Sets the modification time of a file or link opened with `O_PATH`. Links have no permissions.
pub(crate) fn set_on_path(path: impl AsFd, expected: Mtime) -> Result<(), Errno> {
    match utimensat(path, "", &modified_at(expected), AtFlags::EMPTY_PATH) {
        // Some file systems store no times of links, and kernels before 5.8 accept only a name.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        done => done,
    }
}

#[expect(clippy::unnecessary_cast, reason = "the field differs between architectures")]
pub(crate) fn mode_of(existing: &Stat) -> u32 {
    existing.st_mode as u32 & ALL_BITS
}

/// Whether a file has these permissions, and no bits outside [`FILE_BITS`] that `mode` lacks.
pub(crate) fn has_mode(existing: &Stat, mode: u32) -> bool {
    mode_for(mode_of(existing), mode, FILE_BITS) == mode_of(existing)
}

/// Whether a file's modification time equals `expected`, perhaps rounded down by the file system: to 100 ns (NTFS,
/// SMB), 1 us, 10 ms (exFAT) or 1 s.
pub(crate) fn same_time(existing: &Stat, expected: Mtime) -> bool {
    let existing = Mtime::of(existing);
    let is_rounded = |to| existing.nanos == expected.nanos - expected.nanos % to;
    existing.secs == expected.secs && [1, 100, 1_000, 10_000_000, 1_000_000_000].into_iter().any(is_rounded)
}

/// Extras by entry, without values that are not permitted. Consecutive entries with equal extras share them.
#[derive(Default)]
pub(crate) struct ExtrasMap {
    by_entry: HashMap<u32, Arc<Extras>>,
    last: Option<Arc<Extras>>,
}

impl ExtrasMap {
    /// Returns the bytes of memory used.
    pub(crate) fn insert(&mut self, entry: u32, extras: Extras) -> u64 {
        let mut bytes = slot_bytes::<(u32, Arc<Extras>)>();
        if self.last.as_deref() != Some(&extras) {
            bytes += bytes_of(&extras);
            self.last = Some(Arc::new(extras));
        }
        self.by_entry.extend(self.last.clone().map(|shared| (entry, shared)));
        bytes
    }

    pub(crate) fn get(&self, entry: u32) -> Option<Arc<Extras>> {
        self.by_entry.get(&entry).cloned()
    }
}

fn bytes_of(extras: &Extras) -> u64 {
    /// Minimum size of an allocation.
    const MIN_ALLOCATION: usize = 32;
    let names = extras.owner.iter().flat_map(|owner| [&owner.user_name, &owner.group_name]).flatten();
    let attributes = extras.xattrs.iter().chain(&extras.acls).flatten();
    let name_bytes: usize = names.map(|name| name.len() + MIN_ALLOCATION).sum();
    let attribute_bytes: usize =
        attributes.map(|xattr| xattr.bytes() + 2 * MIN_ALLOCATION + size_of::<Xattr>()).sum();
    (size_of::<Extras>() + 2 * MIN_ALLOCATION + name_bytes + attribute_bytes) as u64
}

pub(crate) struct Metadata {
    pub(crate) attributes: Attributes,
    pub(crate) extras: Option<Arc<Extras>>,
    /// Permission bits that a sender may set on an entry of this kind.
    pub(crate) bits: u32,
}

/// Messages about metadata that could not be set.
pub(crate) type MetadataFailures = Vec<String>;

pub(crate) struct MetadataWriter {
    permit: Preserve,
    accounts: Accounts,
}

impl MetadataWriter {
    pub(crate) fn new(permit: Preserve) -> Self {
        Self { permit, accounts: Accounts::default() }
    }

    /// Returns the part of an entry's extras to store. Values that are not permitted are dropped; of a list
    /// that is not permitted at all, one name stays as a sign that it was not empty.
    pub(crate) fn permitted(&self, extras: &Extras) -> Extras {
        let permitted_list = |list: List| {
            let (all, keep, _) = self.look_up(list, extras);
            let is_permitted = |name: &[u8]| keep == Keep::Preserve && self.permits(list, name);
            let value =
                |xattr: &Xattr| if is_permitted(&xattr.name) { xattr.value.clone() } else { Vec::new() };
            let most = if keep == Keep::Preserve { usize::MAX } else { 1 };
            let permitted_list =
                all?.iter().map(|xattr| Xattr { name: xattr.name.clone(), value: value(xattr) });
            Some(permitted_list.take(most).collect())
        };
        let (xattrs, acls) = (permitted_list(List::Xattrs), permitted_list(List::Acls));
        Extras { owner: extras.owner.clone(), xattrs, acls, left_out: extras.left_out }
    }

    /// Sets all metadata of an open file or directory that differs, the modification time last and in any case.
    pub(crate) fn apply(&self, fd: BorrowedFd<'_>, expected: &Metadata) -> Result<MetadataFailures, Errno> {
        let applied = self.apply_but_time(fd, expected);
        correct_time(fd, expected.attributes.mtime)?;
        applied
    }

    pub(crate) fn apply_but_time(
        &self,
        fd: BorrowedFd<'_>,
        expected: &Metadata,
    ) -> Result<MetadataFailures, Errno> {
        let mode = expected.attributes.mode;
        let Some(extras) = &expected.extras else {
            set_mode(fd, mode, expected.bits)?;
            return Ok(MetadataFailures::new());
        };
        let mut extras_writer = self.extras_writer(fd, extras);
        // First, because changing the owner clears set-user-ID bits and capabilities.
        let owned = extras_writer.set_owner()?;
        extras_writer.set_list(List::Xattrs);
        set_mode(fd, mode, if owned { ALL_BITS } else { expected.bits })?;
        // After the mode, because the access control list contains the group's permissions.
        extras_writer.set_list(List::Acls);
        Ok(extras_writer.failures)
    }

    pub(crate) fn would_change(&self, fd: BorrowedFd<'_>, expected: &Metadata) -> bool {
        let Ok(current) = fstat(fd) else { return false };
        let mut extras_writer = expected.extras.as_ref().map(|extras| self.extras_writer(fd, extras));
        let owner = extras_writer.as_mut().and_then(|extras_writer| extras_writer.expected_owner(&current));
        let owner_differs = owner.is_some_and(|(user, group)| {
            current.st_uid != user && is_root() || current.st_gid != group && is_member(group)
        });
        let bits = if owner.is_some() && is_root() { ALL_BITS } else { expected.bits };
        let mode = mode_of(&current);
        let mode_differs = mode_for(mode, expected.attributes.mode, bits) != mode;
        let list_differs = |list| {
            let found = extras_writer.as_ref().and_then(|extras_writer| extras_writer.differs(list));
            found.is_some_and(|found| !found.remove.is_empty() || !found.set.is_empty())
        };
        owner_differs || mode_differs || list_differs(List::Xattrs) || list_differs(List::Acls)
    }

    /// Sets owner and extended attributes of a symbolic link opened with `O_PATH`. Links have no permissions.
    pub(crate) fn apply_to_link(&self, link: BorrowedFd<'_>, extras: &Extras) -> MetadataFailures {
        let mut extras_writer = self.extras_writer(link, extras);
        if extras_writer.set_owner().is_err() {
            extras_writer.failures.push("the owner cannot be set".to_owned());
        }
        extras_writer.set_list(List::Xattrs);
        extras_writer.failures
    }

    fn extras_writer<'a>(&'a self, fd: BorrowedFd<'a>, extras: &'a Extras) -> ExtrasWriter<'a> {
        let text = || format!("{} extended attributes could not be read or are too long", extras.left_out);
        let failures = (extras.left_out > 0).then(text).into_iter().collect();
        ExtrasWriter { writer: self, fd, extras, failures }
    }

    /// Returns a list as sent, whether it is to be preserved, and its name for messages.
    fn look_up<'e>(&self, list: List, extras: &'e Extras) -> (Option<&'e [Xattr]>, Keep, &'static str) {
        match list {
            List::Xattrs => (extras.xattrs.as_deref(), self.permit.xattrs, "extended attributes"),
            List::Acls => (extras.acls.as_deref(), self.permit.acls, "access control lists"),
        }
    }

    /// Whether an attribute may be set. Capabilities and security labels grant privileges as set-user-ID bits
    /// do, and need the same permission.
    fn permits(&self, list: List, name: &[u8]) -> bool {
        match (list, Space::of(name)) {
            (List::Acls, space) => space == Space::Acl,
            (List::Xattrs, Space::User) => true,
            (List::Xattrs, Space::Trusted) => is_root(),
            (List::Xattrs, Space::Security) => is_root() && self.permit.owner != Ownership::Receiver,
            (List::Xattrs, Space::Acl | Space::Other) => false,
        }
    }
}

#[derive(Clone, Copy)]
enum List {
    Xattrs,
    Acls,
}

/// Attributes to remove and to set on a file, and those that may not be set.
struct Difference<'w> {
    remove: Vec<Vec<u8>>,
    set: Vec<&'w Xattr>,
    refused: Vec<&'w Xattr>,
}

/// Sets the extra metadata of one open file.
struct ExtrasWriter<'a> {
    writer: &'a MetadataWriter,
    fd: BorrowedFd<'a>,
    extras: &'a Extras,
    failures: MetadataFailures,
}

impl<'a> ExtrasWriter<'a> {
    /// Returns the user and group to set, if permitted. Otherwise adds a note if the owner differs.
    fn expected_owner(&mut self, current: &Stat) -> Option<(u32, u32)> {
        let (owner, MetadataWriter { permit, accounts }) = (self.extras.owner.as_ref()?, self.writer);
        let (user, group) = match permit.owner {
            Ownership::Numbers => (owner.user, owner.group),
            _ => (
                accounts.user(owner.user_name.as_deref(), owner.user),
                accounts.group(owner.group_name.as_deref(), owner.group),
            ),
        };
        if permit.owner != Ownership::Receiver {
            return Some((user, group));
        }
        if (current.st_uid, current.st_gid) != (user, group) {
            self.failures.push(format!("the receiver does not permit the owner {user}:{group}"));
        }
        None
    }

    /// Sets the owner through a file descriptor, which may be `O_PATH`. Returns true if the owner is right
    /// and this process is root: then set-user-ID bits may grant that user's privileges.
    fn set_owner(&mut self) -> Result<bool, Errno> {
        let current = fstat(self.fd)?;
        let Some((user, group)) = self.expected_owner(&current) else { return Ok(false) };
        let set = |user, group| chownat(self.fd, "", user, group, AtFlags::EMPTY_PATH).is_ok();
        let user_done = current.st_uid == user || set(Some(Uid::from_raw(user)), None);
        let group_done = current.st_gid == group || is_member(group) && set(None, Some(Gid::from_raw(group)));
        if !user_done {
            self.failures.push(format!("the owner cannot be set to user {user}"));
        }
        if !group_done {
            self.failures.push(format!("the owner cannot be set to group {group}"));
        }
        Ok(user_done && group_done && is_root())
    }

    fn set_list(&mut self, list: List) {
        let (expected, _, name) = self.writer.look_up(list, self.extras);
        if let Some(difference) = self.differs(list) {
            self.apply_difference(&difference);
        } else if expected.is_some_and(|expected| !expected.is_empty()) {
            self.failures.push(format!("the receiver does not permit {name}"));
        }
    }

    /// Compares a file's attributes with a list. `None` if the list was not sent or is not permitted.
    fn differs(&self, list: List) -> Option<Difference<'a>> {
        let (expected, keep, _) = self.writer.look_up(list, self.extras);
        let expected = expected.filter(|_| keep == Keep::Preserve)?;
        let xattr_target = XattrTarget::new(self.fd);
        let existing = xattr_target.list().unwrap_or_default();
        let permits = |xattr: &&Xattr| self.writer.permits(list, &xattr.name);
        let has = |xattr: &Xattr| {
            existing.contains(&xattr.name)
                && xattr_target.get(&xattr.name).is_ok_and(|value| value == xattr.value)
        };
        let is_kept =
            |name: &[u8]| expected.iter().any(|xattr| xattr.name == name && (permits(&xattr) || has(xattr)));
        // Labels set by the system stay. A capability that the source lacks is removed in any case.
        let may_be_removed = |name: &[u8]| match list {
            List::Xattrs if name == CAPABILITY => true,
            _ => self.writer.permits(list, name) && Space::of(name) != Space::Security,
        };
        let remove = existing.iter().filter(|name| may_be_removed(name) && !is_kept(name)).cloned().collect();
        let (permitted, refused): (Vec<_>, Vec<_>) = expected.iter().partition(permits);
        let set = permitted.into_iter().filter(|xattr| !has(xattr)).collect();
        Some(Difference { remove, set, refused })
    }

    fn apply_difference(&mut self, difference: &Difference<'_>) {
        let (fd, xattr_target) = (self.fd, XattrTarget::new(self.fd));
        let mut note = |name: &[u8], done: Result<(), Errno>| {
            if let Err(errno) = done {
                let why = std::io::Error::from(errno);
                self.failures.push(format!("the attribute {} cannot be set: {why}", show(name)));
            }
        };
        for name in &difference.remove {
            note(name, with_write_permission(fd, || xattr_target.remove(name)));
        }
        for xattr in &difference.refused {
            note(&xattr.name, Err(Errno::PERM));
        }
        for xattr in &difference.set {
            note(&xattr.name, with_write_permission(fd, || xattr_target.set(&xattr.name, &xattr.value)));
        }
    }
}

/// Changes an attribute. If the owner lacks the required write permission (xattr(7)), grants it temporarily.
fn with_write_permission(fd: BorrowedFd<'_>, change: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let done = change();
    if done != Err(Errno::ACCESS) {
        return done;
    }
    let mode = Mode::from_raw_mode(fstat(fd)?.st_mode);
    if mode.contains(Mode::WUSR) || fchmod(fd, mode | Mode::WUSR).is_err() {
        return done;
    }
    let changed = change();
    fchmod(fd, mode)?;
    changed
}

const OWNER_RWX: u32 = 0o700;

/// Seconds since the epoch that all file systems can represent: 1980 (FAT) to 2038.
const PORTABLE_SECONDS: std::ops::Range<i64> = 315_619_200..2_147_483_648;

/// Coarsest timestamp resolution of a file system in use: FAT's 2 seconds.
const COARSE_SECONDS: u64 = 2;

impl Place {
    /// Runs `make` in an entry's directory. If permissions are missing, relaxes them for the job where the
    /// user owns the directory, and tries again.
    pub(crate) fn with_access<T>(
        &self,
        dirent: &DirEntry<'_>,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        // The set may not contain the permissions of the destination itself.
        let is_in_set = || !dirent.parent().is_empty() || self.is_included.load(Ordering::Acquire);
        let relax_permissions = || self.relax_permissions(dirent.parent(), &dirent.directory).is_ok();
        match make() {
            Err(Errno::ACCESS) if is_in_set() && relax_permissions() => make(),
            done => done,
        }
    }

    /// Grants the owner of a directory all permissions for the duration of the job. Fails if the owner has
    /// them already, because the error then has another cause, or if another user owns the directory.
    pub(crate) fn relax_permissions(&self, local: &[u8], directory: &OwnedFd) -> Result<(), Errno> {
        let existing = fstat(directory)?;
        let mode = mode_of(&existing);
        if mode & OWNER_RWX == OWNER_RWX {
            return Err(Errno::ACCESS);
        }
        fchmod(directory, Mode::from_raw_mode(mode | OWNER_RWX)).map_err(|_| Errno::ACCESS)?;
        self.relaxed_permissions.lock().entry(local.to_vec()).or_insert((FileId::of(&existing), mode));
        Ok(())
    }

    /// Whether [`Place::relax_permissions`] would succeed for this directory, or for the parent that hides it.
    pub(crate) fn could_relax_permissions(&self, local: &[u8]) -> bool {
        let mut at = local;
        loop {
            match self.directory(at) {
                Ok(directory) => return fstat(&directory).is_ok_and(|stat| stat.st_uid == euid()),
                Err(Errno::ACCESS) if !at.is_empty() => at = split(at).0,
                Err(_) => return false,
            }
        }
    }

    /// Restores the permissions of directories that did not get their final ones, deepest first.
    pub(crate) fn restore_permissions(&self) {
        let mut all: Vec<_> = std::mem::take(&mut *self.relaxed_permissions.lock()).into_iter().collect();
        all.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        for (path, (id, mode)) in all {
            if let Ok(directory) = self.directory(&path)
                && fstat(&directory).is_ok_and(|stat| FileId::of(&stat) == id)
            {
                // Best effort: the user owned the directory when its permissions were relaxed.
                let _ = fchmod(&directory, Mode::from_raw_mode(mode));
            }
        }
    }

    /// Whether the file system would store the time `expected` as the existing file's different time. Tested
    /// with a temporary file only if the two are at most 2 s apart or `expected` is outside 1980 to 2038.
    pub(crate) fn stores_time_as(&self, path: &[u8], existing: &Stat, expected: Attributes) -> bool {
        let is_near = Mtime::of(existing).secs.abs_diff(expected.mtime.secs) <= COARSE_SECONDS;
        if !is_near && PORTABLE_SECONDS.contains(&expected.mtime.secs) {
            return false;
        }
        let stored = self.dir_entry(path).ok().and_then(|dirent| stored_time(&dirent, expected.mtime).ok());
        stored == Some(Mtime::of(existing))
    }
}

/// Returns a time as the file system stores it, tested with an unnamed file (`O_TMPFILE`).
fn stored_time(dirent: &DirEntry<'_>, expected: Mtime) -> Result<Mtime, Errno> {
    /// FAT, which has no unnamed files (statfs(2)).
    const MSDOS_SUPER_MAGIC: FsWord = 0x4d44;
    if fstatfs(&dirent.directory)?.f_type == MSDOS_SUPER_MAGIC {
        return Ok(Mtime { secs: expected.secs & !1, nanos: 0 });
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dirent.directory.as_fd(), ".", flags, Mode::RUSR | Mode::WUSR)?;
    futimens(&file, &modified_at(expected))?;
    Ok(Mtime::of(&fstat(&file)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_if_rounded_to_a_resolution() {
        let mut stat = fstat(tempfile::tempfile().unwrap()).unwrap();
        let mut same = |secs, nanos| {
            (stat.st_mtime, stat.st_mtime_nsec) = (secs, nanos);
            same_time(&stat, Mtime { secs: 5, nanos: 987_654_321 })
        };
        for nanos in [987_654_321, 987_654_300, 987_654_000, 980_000_000, 0] {
            assert!(same(5, nanos) && !same(4, nanos), "{nanos}");
        }
        for nanos in [987_654_320, 987_654_400, 987_000_000, 990_000_000, 1] {
            assert!(!same(5, nanos), "{nanos}");
        }
    }
}
