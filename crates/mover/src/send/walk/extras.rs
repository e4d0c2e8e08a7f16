//! Reads what was asked for beside contents, permissions and time.

use std::os::fd::{AsFd, BorrowedFd};

use haul_wire::control::{Entry, EntryKind, Extras, Keep, MAX_EXTRAS, Owner, Ownership, Preserve, Xattr};
use rustix::fs::Stat;

use crate::accounts::{Accounts, is_root};
use crate::xattrs::{Bearer, Space};

/// Adds [`Extras`] to entries.
pub(crate) struct Preserver {
    preserve: Preserve,
    /// Names are looked up if they are to be sent.
    accounts: Option<Accounts>,
}

impl Preserver {
    /// `None` if nobody asked for anything.
    pub(crate) fn new(preserve: Preserve) -> Option<Self> {
        let accounts = (preserve.owner == Ownership::Names).then(Accounts::default);
        preserve.has_extras().then_some(Self { preserve, accounts })
    }

    /// Adds to an entry what `name` in `directory` has; `.` is the directory itself.
    pub(crate) fn add(&self, entry: &mut Entry, directory: impl AsFd, name: &[u8], stat: &Stat) {
        if !matches!(entry.kind, EntryKind::Failed(_)) {
            entry.extras = Some(Box::new(self.extras(directory.as_fd(), name, stat)));
        }
    }

    fn extras(&self, directory: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Extras {
        let owner = (self.preserve.owner != Ownership::Receiver).then(|| Owner {
            user: stat.st_uid,
            group: stat.st_gid,
            user_name: self.accounts.as_ref().and_then(|a| a.user_name(stat.st_uid)),
            group_name: self.accounts.as_ref().and_then(|a| a.group_name(stat.st_gid)),
        });
        let wanted = |keep, list: Vec<Xattr>| (keep == Keep::Preserve).then_some(list);
        let (xattrs, acls, left_out) = self.attributes(&Bearer::named(directory, name));
        let xattrs = wanted(self.preserve.xattrs, xattrs);
        Extras { owner, xattrs, acls: wanted(self.preserve.acls, acls), left_out }
    }

    /// Attributes and ACLs, and how many could not be read or were too many.
    fn attributes(&self, bearer: &Bearer<'_>) -> (Vec<Xattr>, Vec<Xattr>, u32) {
        let (mut xattrs, mut acls, mut left_out, mut room) = (Vec::new(), Vec::new(), 0, MAX_EXTRAS);
        if (self.preserve.xattrs, self.preserve.acls) == (Keep::Drop, Keep::Drop) {
            return (xattrs, acls, left_out);
        }
        let Ok(mut names) = bearer.list() else { return (xattrs, acls, 1) };
        names.sort_unstable();
        for name in names {
            let list = match Space::of(&name) {
                Space::User if self.preserve.xattrs == Keep::Preserve => &mut xattrs,
                Space::Trusted | Space::Security if self.preserve.xattrs == Keep::Preserve && is_root() => {
                    &mut xattrs
                }
                Space::Acl if self.preserve.acls == Keep::Preserve => &mut acls,
                _ => continue,
            };
            let read = bearer.get(&name).ok().map(|value| Xattr { name, value });
            match read.filter(|xattr| xattr.bytes() <= room) {
                Some(xattr) => {
                    room -= xattr.bytes();
                    list.push(xattr);
                }
                None => left_out += 1,
            }
        }
        (xattrs, acls, left_out)
    }
}
