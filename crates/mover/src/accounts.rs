//! Names and IDs of users and groups on this machine, from any source of its name service
//! (`nsswitch.conf(5)`).

use std::collections::HashMap;
use std::hash::Hash;

use nix::unistd::{Group, User};
use parking_lot::Mutex;
use rustix::process::{getegid, geteuid, getgroups};

/// Maximum number of cached answers: a directory service is not queried twice for a name, and names invented
/// by a peer cannot exhaust memory.
const MAX_CACHED: usize = 10_000;

#[derive(Debug, Default)]
struct LookupCache<K, V>(Mutex<HashMap<K, Option<V>>>);

impl<K: Eq + Hash, V: Clone> LookupCache<K, V> {
    fn get(&self, key: K, look_up: impl FnOnce() -> Option<V>) -> Option<V> {
        let mut cache = self.0.lock();
        if cache.len() >= MAX_CACHED && !cache.contains_key(&key) {
            cache.clear();
        }
        cache.entry(key).or_insert_with(look_up).clone()
    }
}

/// Cached lookups of users and groups. If the name service fails, a name or ID is unknown.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    user_names: LookupCache<u32, Vec<u8>>,
    group_names: LookupCache<u32, Vec<u8>>,
    users: LookupCache<Vec<u8>, u32>,
    groups: LookupCache<Vec<u8>, u32>,
}

impl Accounts {
    pub(crate) fn user_name(&self, number: u32) -> Option<Vec<u8>> {
        self.user_names.get(number, || Some(User::from_uid(number.into()).ok()??.name.into_bytes()))
    }

    pub(crate) fn group_name(&self, number: u32) -> Option<Vec<u8>> {
        self.group_names.get(number, || Some(Group::from_gid(number.into()).ok()??.name.into_bytes()))
    }

    /// Returns the local ID of the user `name`, or `fallback`, its ID on the peer, if the name is unknown.
    pub(crate) fn user(&self, name: Option<&[u8]>, fallback: u32) -> u32 {
        let look_up = |name| Some(User::from_name(std::str::from_utf8(name).ok()?).ok()??.uid.as_raw());
        name.and_then(|name| self.users.get(name.to_vec(), || look_up(name))).unwrap_or(fallback)
    }

    /// Returns the local ID of the group `name`, or `fallback`, its ID on the peer, if the name is unknown.
    pub(crate) fn group(&self, name: Option<&[u8]>, fallback: u32) -> u32 {
        let look_up = |name| Some(Group::from_name(std::str::from_utf8(name).ok()?).ok()??.gid.as_raw());
        name.and_then(|name| self.groups.get(name.to_vec(), || look_up(name))).unwrap_or(fallback)
    }
}

pub(crate) fn euid() -> u32 {
    geteuid().as_raw()
}

pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether this process may set the group of its files to `group`.
pub(crate) fn is_member(group: u32) -> bool {
    let is = |of: rustix::process::Gid| of.as_raw() == group;
    is_root() || is(getegid()) || getgroups().is_ok_and(|groups| groups.into_iter().any(is))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_map_to_ids_and_unknown_ones_keep_the_number() {
        let accounts = Accounts::default();
        assert_eq!(accounts.user_name(0).as_deref(), Some(&b"root"[..]));
        assert_eq!(accounts.group_name(0).as_deref(), Some(&b"root"[..]));
        for _ in 0..2 {
            assert_eq!((accounts.user(Some(b"root"), 7), accounts.group(Some(b"root"), 7)), (0, 0));
            assert_eq!(accounts.user(Some(b"nobody of this name"), 7), 7);
            assert_eq!((accounts.user(Some(b"\xff"), 7), accounts.group(Some(b"a\0b"), 7)), (7, 7));
            assert_eq!((accounts.user(None, 7), accounts.group(None, 7)), (7, 7));
        }
    }

    #[test]
    fn lookups_are_cached_and_the_cache_is_bounded() {
        let (cache, mut lookups) = (LookupCache::default(), 0);
        for number in [1, 1, 2] {
            cache.get(number, || {
                lookups += 1;
                None::<u32>
            });
        }
        assert_eq!(lookups, 2);
        for number in 0..3 * MAX_CACHED {
            cache.get(number, || Some(5));
        }
        assert!(cache.0.lock().len() <= MAX_CACHED);
    }
}
