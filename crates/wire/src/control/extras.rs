//! What is kept of a file beside contents, permissions and time, if a person asked for it.

use serde::{Deserialize, Serialize};

/// Longest name of an extended attribute in bytes (`XATTR_NAME_MAX` of Linux).
pub const MAX_XATTR_NAME: usize = 255;
/// Longest value of an extended attribute in bytes (`XATTR_SIZE_MAX` of Linux).
pub const MAX_XATTR_VALUE: usize = 64 << 10;
/// Names and values of one entry's extended attributes and ACLs together, in bytes.
pub const MAX_EXTRAS: usize = 256 << 10;
/// Longest name of a user or group in bytes.
pub const MAX_ACCOUNT_NAME: usize = 255;
/// Notes in a [`Notes`] at most; the others are counted.
pub const MAX_NOTES: usize = 20;

/// What of files travels beside contents, names, permissions and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preserve {
    /// What happens to files with several names.
    pub hard_links: HardLinks,
    /// Whose the files are at the destination.
    pub owner: Ownership,
    /// What happens to extended attributes.
    pub xattrs: Keep,
    /// What happens to access control lists.
    pub acls: Keep,
}

impl Preserve {
    /// Everything that can be preserved.
    pub const ALL: Self = Self {
        hard_links: HardLinks::Keep,
        owner: Ownership::Names,
        xattrs: Keep::Preserve,
        acls: Keep::Preserve,
    };

    /// Whether entries have [`Extras`].
    pub fn has_extras(&self) -> bool {
        self.owner != Ownership::Receiver || self.xattrs == Keep::Preserve || self.acls == Keep::Preserve
    }
}

/// What happens to files with several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HardLinks {
    /// The names that are in the set stay names of one file.
    #[default]
    Keep,
    /// Each name becomes a file of its own.
    Copy,
}

/// Whose the files are at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Ownership {
    /// The receiving user's.
    #[default]
    Receiver,
    /// Those of the users and groups that have the same names there, or else the same numbers.
    Names,
    /// Those of the same numbers.
    Numbers,
}

/// Whether something is preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Keep {
    /// It stays behind.
    #[default]
    Drop,
    /// It travels.
    Preserve,
}

/// What was asked for beside contents, permissions and time.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Extras {
    /// The owner; `None` if not requested.
    pub owner: Option<Owner>,
    /// Extended attributes, in byte order of their names; `None` if not requested.
    pub xattrs: Option<Vec<Xattr>>,
    /// Access control lists, as the extended attributes `system.posix_acl_*` hold them; `None` if not requested.
    pub acls: Option<Vec<Xattr>>,
    /// How many extended attributes could not be read, or were more than [`MAX_EXTRAS`].
    pub left_out: u32,
}

/// Whose a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Number of the user.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
    /// The user's name, if it has one and names count.
    pub user_name: Option<Vec<u8>>,
    /// The group's name, if it has one and names count.
    pub group_name: Option<Vec<u8>>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// Its name with the name space, for example `user.comment`.
    pub name: Vec<u8>,
    /// The value, uninterpreted bytes.
    pub value: Vec<u8>,
}

impl Xattr {
    /// Bytes of name and value.
    pub fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }

    fn is_valid(&self) -> bool {
        let name = &self.name;
        (1..=MAX_XATTR_NAME).contains(&name.len())
            && !name.contains(&0)
            && self.value.len() <= MAX_XATTR_VALUE
    }
}

impl Extras {
    /// Whether everything is within its bounds.
    pub(super) fn is_valid(&self) -> bool {
        let names = self.owner.iter().flat_map(|owner| [&owner.user_name, &owner.group_name]).flatten();
        let mut all = self.xattrs.iter().chain(&self.acls).flatten();
        let bytes: usize = all.clone().map(Xattr::bytes).sum();
        bytes <= MAX_EXTRAS
            && all.all(Xattr::is_valid)
            && names.into_iter().all(|name| (1..=MAX_ACCOUNT_NAME).contains(&name.len()))
    }
}

/// What could not be preserved although it was asked for, and what was left alone at the destination. Files are where
/// they belong all the same.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notes {
    /// How many there are.
    pub count: u64,
    /// The first [`MAX_NOTES`], for people.
    pub first: Vec<String>,
}

impl Notes {
    /// Counts one.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < MAX_NOTES {
            self.first.push(text());
        }
    }
}
