//! A list of the paths that are wanted, as the directories of a walk ask for it.

use std::ops::Range;

use haul_wire::control::RelPath;

/// Paths relative to the source, each once, those of one directory next to each other.
#[derive(Debug)]
pub(crate) struct Listed {
    paths: Vec<RelPath>,
}

/// A directory's share of the list: paths that begin with the directory's and go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    range: Range<usize>,
    /// Bytes of the directory's path with the `/` behind it.
    skip: usize,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Child {
    pub(crate) name: Vec<u8>,
    /// Whether it was asked for, or is only on the way to what was.
    pub(crate) listed: bool,
    pub(crate) below: Share,
}

/// Components in byte order, one behind the other: NUL, which no path has, stands for the slash.
fn key(path: &RelPath) -> impl Iterator<Item = u8> {
    path.as_bytes().iter().map(|&b| if b == b'/' { 0 } else { b })
}

impl Listed {
    pub(crate) fn new(paths: &[RelPath]) -> Self {
        let mut paths = paths.to_vec();
        paths.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        paths.dedup();
        Self { paths }
    }

    /// The share of the source itself.
    pub(crate) fn all(&self) -> Share {
        Share { range: 0..self.paths.len(), skip: 0 }
    }

    /// The names in a directory, in byte order.
    pub(crate) fn children(&self, share: &Share) -> Vec<Child> {
        let mut children = Vec::new();
        let mut rest = share.range.clone();
        while let Some(first) = self.paths[rest.clone()].first() {
            let tail = &first.as_bytes()[share.skip..];
            let name = tail.split(|&b| b == b'/').next().unwrap_or_default();
            let end = share.skip + name.len();
            let same = |path: &RelPath| {
                let path = path.as_bytes();
                path.get(share.skip..end) == Some(name) && matches!(path.get(end), None | Some(b'/'))
            };
            let count = self.paths[rest.clone()].partition_point(same);
            let listed = tail.len() == name.len();
            let below = Share { range: rest.start + usize::from(listed)..rest.start + count, skip: end + 1 };
            children.push(Child { name: name.to_vec(), listed, below });
            rest.start += count;
        }
        children
    }

    /// The paths of a share, below the directory.
    pub(crate) fn tails(&self, share: &Share) -> impl Iterator<Item = &[u8]> {
        self.paths[share.range.clone()].iter().map(|path| &path.as_bytes()[share.skip..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(paths: &[&str]) -> Listed {
        let paths: Vec<RelPath> = paths.iter().map(|p| RelPath::new(p.as_bytes()).unwrap()).collect();
        Listed::new(&paths)
    }

    /// All listed paths, found by going down.
    fn walk(wanted: &Listed, share: &Share, at: &[u8], found: &mut Vec<Vec<u8>>) {
        for child in wanted.children(share) {
            let path = if at.is_empty() { child.name.clone() } else { [at, &child.name].join(&b'/') };
            if child.listed {
                found.push(path.clone());
            }
            walk(wanted, &child.below, &path, found);
        }
    }

    #[test]
    fn directories_on_the_way_are_there_and_not_listed() {
        let wanted = wanted(&["b/c/d", "a", "b-x", "b/c", "b!", "a"]);
        let top = wanted.children(&wanted.all());
        let names: Vec<_> = top.iter().map(|c| (&c.name[..], c.listed)).collect();
        assert_eq!(names, [(&b"a"[..], true), (b"b", false), (b"b!", true), (b"b-x", true)]);
        let below_b = wanted.children(&top[1].below);
        assert_eq!((&below_b[0].name[..], below_b[0].listed, below_b.len()), (&b"c"[..], true, 1));
        assert_eq!(wanted.tails(&top[1].below).collect::<Vec<_>>(), [&b"c"[..], b"c/d"]);
        assert_eq!(wanted.children(&top[0].below), []);
    }

    proptest! {
        #[test]
        fn going_down_finds_each_path_once(paths in prop::collection::vec("[ab!/\u{fc}]{1,6}", 0..20)) {
            let mut paths: Vec<RelPath> =
                paths.into_iter().filter_map(|p| RelPath::new(p.into_bytes()).ok()).collect();
            let wanted = Listed::new(&paths);
            let mut found = Vec::new();
            walk(&wanted, &wanted.all(), b"", &mut found);
            found.sort();
            paths.sort();
            paths.dedup();
            let paths: Vec<Vec<u8>> = paths.into_iter().map(RelPath::into_bytes).collect();
            prop_assert_eq!(found, paths);
        }
    }
}
