//! Optional file attributes beside contents, permissions and time.

use serde::{Deserialize, Serialize};

/// Maximum length of an extended attribute's name in bytes (`XATTR_NAME_MAX` of Linux).
pub const MAX_XATTR_NAME: usize = 255;
/// Maximum length of an extended attribute's value in bytes (`XATTR_SIZE_MAX` of Linux).
pub const MAX_XATTR_VALUE: usize = 64 << 10;
/// Maximum length of all names and values of an entry's extended attributes and ACLs in bytes.
pub const MAX_EXTRAS: usize = 256 << 10;
/// Maximum length of a user or group name in bytes.
pub const MAX_ACCOUNT_NAME: usize = 255;
/// Maximum number of texts in [`Notes`]; further ones are only counted.
pub const MAX_NOTES: usize = 20;

/// Which file attributes are transferred beside contents, names, permissions and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preserve {
    /// How files with several names are transferred.
    pub hard_links: HardLinks,
    /// Owner of the files at the destination.
    pub owner: Ownership,
    /// Whether extended attributes are preserved.
    pub xattrs: Keep,
    /// Whether access control lists are preserved.
    pub acls: Keep,
}

impl Preserve {
    /// Preserves everything possible.
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

/// How files with several names are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HardLinks {
    /// Names in the set remain names of one file.
    #[default]
    Keep,
    /// Each name becomes a separate file.
    Copy,
}

/// Owner of the files at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Ownership {
    /// The receiving user.
    #[default]
    Receiver,
    /// The users and groups with the same names, or else with the same IDs.
    Names,
    /// The users and groups with the same IDs.
    Numbers,
}

/// Whether an attribute is preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Keep {
    /// It is not transferred.
    #[default]
    Drop,
    /// It is transferred.
    Preserve,
}

/// Requested attributes beside contents, permissions and time.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Extras {
    /// Owner; `None` if not requested.
    pub owner: Option<Owner>,
    /// Extended attributes, in byte order of their names; `None` if not requested.
    pub xattrs: Option<Vec<Xattr>>,
    /// Access control lists, as in the extended attributes `system.posix_acl_*`; `None` if not requested.
    pub acls: Option<Vec<Xattr>>,
    /// Number of extended attributes that could not be read or exceeded [`MAX_EXTRAS`].
    pub left_out: u32,
}

/// Owner of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User ID.
    pub user: u32,
    /// Group ID.
    pub group: u32,
    /// User name, if it has one and names are used.
    pub user_name: Option<Vec<u8>>,
    /// Group name, if it has one and names are used.
    pub group_name: Option<Vec<u8>>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// Name with its namespace, for example `user.comment`.
    pub name: Vec<u8>,
    /// Value: uninterpreted bytes.
    pub value: Vec<u8>,
}

impl Xattr {
    /// Returns the length of name and value in bytes.
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
    /// Whether everything is within its limits.
    pub(super) fn is_valid(&self) -> bool {
        let names = self.owner.iter().flat_map(|owner| [&owner.user_name, &owner.group_name]).flatten();
        let mut all = self.xattrs.iter().chain(&self.acls).flatten();
        let bytes: usize = all.clone().map(Xattr::bytes).sum();
        bytes <= MAX_EXTRAS
            && all.all(Xattr::is_valid)
            && names.into_iter().all(|name| (1..=MAX_ACCOUNT_NAME).contains(&name.len()))
    }
}

/// Requested attributes that could not be preserved, and names left alone at the destination. The files
/// themselves were transferred.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notes {
    /// Number of notes.
    pub count: u64,
    /// Texts of the first [`MAX_NOTES`], for users.
    pub first: Vec<String>,
}

impl Notes {
    /// Adds a note.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < MAX_NOTES {
            self.first.push(text());
        }
    }
}
