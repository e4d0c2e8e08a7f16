//! Names and numbers of this machine's users and groups, from `/etc/passwd` and `/etc/group`. Accounts of
//! directory services have numbers only.

use std::collections::HashMap;
use std::fs;

use rustix::process::{getegid, geteuid, getgroups};

/// The accounts of one file.
#[derive(Debug, Default)]
struct Names {
    by_number: HashMap<u32, Vec<u8>>,
    by_name: HashMap<Vec<u8>, u32>,
}

impl Names {
    /// Reads lines `name:password:number:...`; others are passed over (`passwd(5)`, `group(5)`).
    fn parse(text: &[u8]) -> Self {
        let mut names = Self::default();
        for line in text.split(|&b| b == b'\n') {
            let mut fields = line.split(|&b| b == b':');
            let (name, number) = (fields.next().unwrap_or_default(), fields.nth(1));
            let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
            let (Some(number), false) = (number, name.is_empty()) else { continue };
            names.by_number.entry(number).or_insert_with(|| name.to_vec());
            names.by_name.entry(name.to_vec()).or_insert(number);
        }
        names
    }

    fn read(path: &str) -> Self {
        Self::parse(&fs::read(path).unwrap_or_default())
    }

    /// The number of the name that is known here, or else the number that it has elsewhere.
    fn number(&self, name: Option<&[u8]>, elsewhere: u32) -> u32 {
        name.and_then(|name| self.by_name.get(name).copied()).unwrap_or(elsewhere)
    }
}

/// Users and groups.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    users: Names,
    groups: Names,
}

impl Accounts {
    pub(crate) fn read() -> Self {
        Self { users: Names::read("/etc/passwd"), groups: Names::read("/etc/group") }
    }

    pub(crate) fn user_name(&self, number: u32) -> Option<Vec<u8>> {
        self.users.by_number.get(&number).cloned()
    }

    pub(crate) fn group_name(&self, number: u32) -> Option<Vec<u8>> {
        self.groups.by_number.get(&number).cloned()
    }

    pub(crate) fn user(&self, name: Option<&[u8]>, elsewhere: u32) -> u32 {
        self.users.number(name, elsewhere)
    }

    pub(crate) fn group(&self, name: Option<&[u8]>, elsewhere: u32) -> u32 {
        self.groups.number(name, elsewhere)
    }
}

/// Whether this process may do what only the system's administrator may.
pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether this process may give its files to a group.
pub(crate) fn is_member(group: u32) -> bool {
    let is = |of: rustix::process::Gid| of.as_raw() == group;
    is_root() || is(getegid()) || getgroups().is_ok_and(|groups| groups.into_iter().any(is))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_where_they_are_known_and_numbers_elsewhere() {
        let names = Names::parse(b"root:x:0:0:::\n\nbroken\nbad:x:y:\nann:x:1001:5\nalias:x:1001:5\n");
        assert_eq!(names.number(Some(b"ann"), 7), 1001);
        assert_eq!(names.number(Some(b"nobody here"), 7), 7);
        assert_eq!(names.number(None, 7), 7);
        assert_eq!(names.by_number.get(&1001).map(Vec::as_slice), Some(&b"ann"[..]));
        assert_eq!(names.by_name.len(), 3);
    }
}
