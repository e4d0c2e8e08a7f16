//! Which entries are names of one file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::send::walk::Identity;

/// The files that have names left which were not met yet.
#[derive(Default)]
pub(crate) struct Names {
    /// The entry that is the file, and how many of its names are still to come.
    open: HashMap<Identity, (u32, u64)>,
}

impl Names {
    /// The entry that is this file already. If there is none, `entry` is the file; of its `names` at most the
    /// others are still to come.
    pub(crate) fn first(&mut self, identity: Identity, names: u64, entry: u32) -> Option<u32> {
        match self.open.entry(identity) {
            Entry::Vacant(vacant) => {
                vacant.insert((entry, names.saturating_sub(1)));
                None
            }
            Entry::Occupied(mut known) => {
                let (first, left) = known.get_mut();
                let first = *first;
                *left -= 1;
                if *left == 0 {
                    known.remove();
                }
                Some(first)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{AtFlags, CWD, statat};

    use super::*;

    #[test]
    fn a_file_is_forgotten_with_its_last_name() {
        let identity = Identity::of(&statat(CWD, ".", AtFlags::empty()).unwrap());
        let mut names = Names::default();
        assert_eq!(names.first(identity, 3, 7), None);
        assert_eq!(names.first(identity, 3, 8), Some(7));
        assert_eq!(names.first(identity, 3, 9), Some(7));
        assert!(names.open.is_empty());
    }
}
