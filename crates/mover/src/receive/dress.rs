//! Gives files what was asked for beside contents and name: permissions and time, and owner, extended
//! attributes and access control lists if the person who receives permits them. What cannot be set is noted;
//! the file counts all the same.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use haul_wire::control::{Action, Equal, Extras, Keep, Owner, Ownership, Preserve, Xattr};
use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;

use crate::accounts::{Accounts, is_member, is_root};
use crate::entries::Attributes;
use crate::receive::attributes::{DIRECTORY_BITS, FILE_BITS, set_time};
use crate::receive::place::Existing;
use crate::receive::shared::Shared;
use crate::storage::{chownat, fchmod, fchown, fstat, statat};
use crate::xattrs::{Bearer, Space};

/// All bits that `chmod` takes.
const ALL_BITS: u32 = 0o7777;

/// The extras of entries. Neighbours that have the same share them.
#[derive(Default)]
pub(crate) struct ExtrasMap {
    of: HashMap<u32, Arc<Extras>>,
    last: Option<Arc<Extras>>,
}

impl ExtrasMap {
    pub(crate) fn insert(&mut self, entry: u32, extras: &Extras) {
        let shared = match &self.last {
            Some(last) if **last == *extras => last.clone(),
            _ => Arc::new(extras.clone()),
        };
        self.last = Some(shared.clone());
        self.of.insert(entry, shared);
    }

    pub(crate) fn get(&self, entry: u32) -> Option<Arc<Extras>> {
        self.of.get(&entry).cloned()
    }
}

/// What could not be done, for people.
pub(crate) type Undone = Vec<String>;

/// Sets what is permitted.
pub(crate) struct Dresser {
    permit: Preserve,
    accounts: OnceLock<Accounts>,
}

impl Dresser {
    pub(crate) fn new(permit: Preserve) -> Self {
        Self { permit, accounts: OnceLock::new() }
    }

    /// Sets everything of an open file or directory; the time last.
    pub(crate) fn dress(
        &self,
        fd: BorrowedFd<'_>,
        attributes: Attributes,
        extras: Option<&Extras>,
        kind: FileType,
    ) -> Result<Undone, Errno> {
        let undone = self.dress_but_time(fd, attributes, extras, kind)?;
        set_time(fd, attributes)?;
        Ok(undone)
    }

    /// As [`Dresser::dress`], for a file that has its time already.
    pub(crate) fn dress_but_time(
        &self,
        fd: BorrowedFd<'_>,
        attributes: Attributes,
        extras: Option<&Extras>,
        kind: FileType,
    ) -> Result<Undone, Errno> {
        let usual = if kind == FileType::Directory { DIRECTORY_BITS } else { FILE_BITS };
        let Some(extras) = extras else {
            fchmod(fd, Mode::from_raw_mode(attributes.mode & usual))?;
            return Ok(Undone::new());
        };
        let mut undone = left_out(extras);
        // Changing the owner takes away set-user-ID bits and capabilities, so it comes first.
        let owned = self.set_owner(fd, extras, &mut undone)?;
        let bearer = Bearer::Open(fd);
        self.set_xattrs(&bearer, extras, &mut undone);
        let bits = if owned { ALL_BITS } else { usual };
        fchmod(fd, Mode::from_raw_mode(attributes.mode & bits))?;
        // The list holds the permissions of the group, so it comes after them.
        self.set_acls(&bearer, extras, &mut undone);
        Ok(undone)
    }

    /// Whether [`Dresser::dress_but_time`] would change anything of a regular file.
    pub(crate) fn would_change(
        &self,
        fd: BorrowedFd<'_>,
        attributes: Attributes,
        extras: Option<&Extras>,
    ) -> bool {
        let Ok(now) = fstat(fd) else { return false };
        let owner = extras.and_then(|extras| self.wanted_owner(extras, || Ok(now), &mut Undone::new()));
        let other_owner = owner.is_some_and(|(user, group)| {
            now.st_uid != user && is_root() || now.st_gid != group && is_member(group)
        });
        let bits = if owner.is_some() && is_root() { ALL_BITS } else { FILE_BITS };
        let other_bits = (now.st_mode ^ attributes.mode) & bits != 0;
        other_owner || other_bits || extras.is_some_and(|extras| self.other_xattrs(fd, extras))
    }

    fn other_xattrs(&self, fd: BorrowedFd<'_>, extras: &Extras) -> bool {
        let bearer = Bearer::Open(fd);
        let differ = |keep, wanted: &Option<Vec<Xattr>>, permits: &dyn Fn(&[u8]) -> bool| {
            let wanted = wanted.as_ref().filter(|_| keep == Keep::Preserve);
            wanted.is_some_and(|wanted| Difference::of(&bearer, wanted, permits).is_any())
        };
        differ(self.permit.xattrs, &extras.xattrs, &|name| self.permits(name))
            || differ(self.permit.acls, &extras.acls, &is_acl)
    }

    /// Sets the owner and attributes of a symbolic link, which has no permissions.
    pub(crate) fn dress_link(&self, directory: impl AsFd, name: &[u8], extras: &Extras) -> Undone {
        let mut undone = left_out(extras);
        if let Some((user, group)) = self.wanted_owner(extras, || stat_link(&directory, name), &mut undone) {
            let (user, group) = (is_root().then_some(user), is_member(group).then_some(group));
            let done = chownat(
                directory.as_fd(),
                name,
                user.map(Uid::from_raw),
                group.map(Gid::from_raw),
                AtFlags::SYMLINK_NOFOLLOW,
            );
            if user.is_none() || group.is_none() || done.is_err() {
                undone.push("the owner cannot be set".to_owned());
            }
        }
        self.set_xattrs(&Bearer::named(directory.as_fd(), name), extras, &mut undone);
        undone
    }

    /// The user and group to set, if that is permitted; noted if it is not and would change anything.
    fn wanted_owner(
        &self,
        extras: &Extras,
        now: impl FnOnce() -> Result<Stat, Errno>,
        undone: &mut Undone,
    ) -> Option<(u32, u32)> {
        let (user, group) = self.numbers(extras.owner.as_ref()?);
        if self.permit.owner != Ownership::Receiver {
            return Some((user, group));
        }
        if now().is_ok_and(|now| (now.st_uid, now.st_gid) != (user, group)) {
            undone.push(format!("the receiver does not permit the owner {user}:{group}"));
        }
        None
    }

    fn numbers(&self, owner: &Owner) -> (u32, u32) {
        if self.permit.owner == Ownership::Numbers {
            return (owner.user, owner.group);
        }
        let accounts = self.accounts.get_or_init(Accounts::default);
        let user = accounts.user(owner.user_name.as_deref(), owner.user);
        (user, accounts.group(owner.group_name.as_deref(), owner.group))
    }

    /// True: it belongs to whom it should, by the power of the administrator, and may lend that user's rights.
    fn set_owner(&self, fd: BorrowedFd<'_>, extras: &Extras, undone: &mut Undone) -> Result<bool, Errno> {
        let Some((user, group)) = self.wanted_owner(extras, || fstat(fd), undone) else { return Ok(false) };
        let now = fstat(fd)?;
        let is_new_user = now.st_uid != user;
        let is_new_group = now.st_gid != group;
        let user_done = !is_new_user || fchown(fd, Some(Uid::from_raw(user)), None).is_ok();
        let may = !is_new_group || is_member(group);
        let group_done = may && (!is_new_group || fchown(fd, None, Some(Gid::from_raw(group))).is_ok());
        if !user_done {
            undone.push(format!("the owner cannot be set to user {user}"));
        }
        if !group_done {
            undone.push(format!("the owner cannot be set to group {group}"));
        }
        Ok(user_done && group_done && is_root())
    }

    fn set_xattrs(&self, bearer: &Bearer<'_>, extras: &Extras, undone: &mut Undone) {
        match (self.permit.xattrs, &extras.xattrs) {
            (Keep::Preserve, Some(wanted)) => make_equal(bearer, wanted, |name| self.permits(name), undone),
            (Keep::Drop, Some(wanted)) => refused("extended attributes", wanted, undone),
            (_, None) => {}
        }
    }

    fn set_acls(&self, bearer: &Bearer<'_>, extras: &Extras, undone: &mut Undone) {
        match (self.permit.acls, &extras.acls) {
            (Keep::Preserve, Some(wanted)) => make_equal(bearer, wanted, is_acl, undone),
            (Keep::Drop, Some(wanted)) => refused("access control lists", wanted, undone),
            (_, None) => {}
        }
    }

    /// Capabilities and labels lend rights as set-user-ID bits do, and need the same permission.
    fn permits(&self, name: &[u8]) -> bool {
        match Space::of(name) {
            Space::User => true,
            Space::Trusted => is_root(),
            Space::Security => is_root() && self.permit.owner != Ownership::Receiver,
            Space::Acl | Space::Other => false,
        }
    }
}

impl Shared {
    /// Gives a file that stays what it should have beside its contents, if that differs and we may.
    pub(crate) fn correct(&self, entry: u32, path: &[u8], there: &Existing, attributes: Attributes) {
        let extras = self.book().extras.get(entry);
        let is_same_time = self.has_time(there, attributes);
        if extras.is_none() && there.has_mode(attributes.mode) && is_same_time {
            return;
        }
        let Some(file) = self.place.open_final(path) else { return };
        let (fd, kind) = (file.as_fd(), FileType::RegularFile);
        let is_said = self.narrates()
            && (!is_same_time || self.dresser.would_change(fd, attributes, extras.as_deref()));
        let dressed = if is_same_time {
            self.dresser.dress_but_time(fd, attributes, extras.as_deref(), kind)
        } else {
            self.dresser.dress(fd, attributes, extras.as_deref(), kind)
        };
        // Not our file: its contents are right all the same.
        let Ok(undone) = dressed else { return };
        self.note(path, undone);
        if is_said {
            // A link that is broken ends the job elsewhere.
            let _ = self.narrate(path, Action::Adjust);
        }
    }

    /// What [`Shared::correct`] would do.
    pub(crate) fn would_correct(&self, entry: u32, path: &[u8], there: &Existing) -> Action {
        let book = self.book();
        let (attributes, extras) = (book.table.attributes(entry), book.extras.get(entry));
        drop(book);
        let is_same_time = self.has_time(there, attributes);
        let differs = match extras {
            None => !is_same_time || !there.has_mode(attributes.mode),
            Some(extras) => {
                let would_change =
                    |file: File| self.dresser.would_change(file.as_fd(), attributes, Some(&extras));
                !is_same_time || self.place.open_final(path).is_some_and(would_change)
            }
        };
        if differs { Action::Adjust } else { Action::Keep }
    }

    /// Whether it has the same time as far as the file system can tell: where that counts, the decision is made already.
    fn has_time(&self, there: &Existing, attributes: Attributes) -> bool {
        there.same_time(attributes) || self.manners.equal == Equal::SizeAndTime
    }
}

fn stat_link(directory: impl AsFd, name: &[u8]) -> Result<Stat, Errno> {
    statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

fn refused(what: &str, wanted: &[Xattr], undone: &mut Undone) {
    if !wanted.is_empty() {
        undone.push(format!("the receiver does not permit {what}"));
    }
}

fn left_out(extras: &Extras) -> Undone {
    let text = || format!("{} extended attributes could not be read or are too long", extras.left_out);
    (extras.left_out > 0).then(text).into_iter().collect()
}

fn is_acl(name: &[u8]) -> bool {
    Space::of(name) == Space::Acl
}

/// What has to be done so that somebody bears the attributes that are wanted.
struct Difference<'w> {
    remove: Vec<Vec<u8>>,
    set: Vec<&'w Xattr>,
    refused: Vec<&'w Xattr>,
}

impl<'w> Difference<'w> {
    fn of(bearer: &Bearer<'_>, wanted: &'w [Xattr], permits: impl Fn(&[u8]) -> bool) -> Self {
        let there = bearer.list().unwrap_or_default();
        let (permitted, refused): (Vec<_>, Vec<_>) = wanted.iter().partition(|xattr| permits(&xattr.name));
        let has = |xattr: &Xattr| {
            there.contains(&xattr.name) && bearer.get(&xattr.name).is_ok_and(|value| value == xattr.value)
        };
        let set = permitted.into_iter().filter(|xattr| !has(xattr)).collect();
        let is_wanted = |name: &[u8]| wanted.iter().any(|xattr| xattr.name == name);
        // Labels that the system itself gives stay.
        let goes = |name: &[u8]| permits(name) && !is_wanted(name) && Space::of(name) != Space::Security;
        let remove = there.iter().filter(|name| goes(name)).cloned().collect();
        Self { remove, set, refused }
    }

    fn is_any(&self) -> bool {
        !self.remove.is_empty() || !self.set.is_empty()
    }
}

/// Sets attributes that differ, and removes those that are too many.
fn make_equal(bearer: &Bearer<'_>, wanted: &[Xattr], permits: impl Fn(&[u8]) -> bool, undone: &mut Undone) {
    let mut note = |name: &[u8], done: Result<(), Errno>| {
        if let Err(errno) = done {
            let why = std::io::Error::from(errno);
            undone.push(format!("the attribute {} cannot be set: {why}", crate::fault::show(name)));
        }
    };
    let difference = Difference::of(bearer, wanted, permits);
    for name in &difference.remove {
        note(name, bearer.remove(name));
    }
    for xattr in difference.refused {
        note(&xattr.name, Err(Errno::PERM));
    }
    for xattr in difference.set {
        note(&xattr.name, bearer.set(&xattr.name, &xattr.value));
    }
}
