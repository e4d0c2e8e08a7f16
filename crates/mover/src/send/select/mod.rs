//! Selection of entries to send: a [`Selection`] compiled for the walk.

pub(super) mod ignores;
pub(super) mod pattern;

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use haul_wire::control::{
    Fault, FaultCode, FileSystems, IgnoreFiles, LinkChoice, RelPath, Rule, Selection, Verdict,
};
use pattern::{BadPattern, Pattern};
use rustix::fs::FileType;

use crate::fault::show;
use crate::root::split;

#[derive(Debug)]
pub(crate) struct Chooser {
    rules: Rules,
    pub(crate) listed: Option<ListedPaths>,
    pub(crate) ignore_files: IgnoreFiles,
    pub(crate) links: LinkChoice,
    pub(crate) file_systems: FileSystems,
    /// Permitted sizes of regular files in bytes.
    pub(crate) sizes: RangeInclusive<u64>,
}

impl Chooser {
    /// Compiles a selection. Fails for an invalid pattern, and for a list of paths without exactly one source
    /// that they are relative to.
    pub(crate) fn new(selection: &Selection, sources: usize) -> Result<Self, Fault> {
        if selection.paths.is_some() && sources != 1 {
            return Err(Fault::new(
                FaultCode::Usage,
                format!("a list of paths needs one source that they are relative to, not {sources}"),
                "name the directory that holds them as the only source",
            ));
        }
        Ok(Self {
            rules: Rules::new(&selection.rules)?,
            listed: selection.paths.as_deref().map(ListedPaths::all),
            ignore_files: selection.ignore_files,
            links: selection.links,
            file_systems: selection.file_systems,
            sizes: selection.min_bytes.unwrap_or(0)..=selection.max_bytes.unwrap_or(u64::MAX),
        })
    }

    pub(crate) fn includes(&self, path: &[u8], is_directory: bool) -> bool {
        self.rules.verdict(path, is_directory) == Verdict::Include
    }
}

/// Checks that a selection is valid for this number of sources.
///
/// # Errors
/// Those of [`send_files`](super::send_files) for the selection.
pub fn check_selection(selection: &Selection, sources: usize) -> Result<(), Fault> {
    Chooser::new(selection, sources).map(|_| ())
}

/// Ordered rules; the first match decides. Literal names and paths are looked up in hash tables, since there
/// may be thousands.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: Vec<(Verdict, Pattern)>,
    /// Indices of the rules for a literal last component or path, which begins with a slash, ascending.
    literal: HashMap<Vec<u8>, Vec<u32>>,
    wildcards: Vec<u32>,
}

impl Rules {
    pub(crate) fn new(rules: &[Rule]) -> Result<Self, Fault> {
        let mut compiled = Self::default();
        for Rule { verdict, pattern } in rules {
            for pattern in Pattern::compile(pattern).map_err(|why| pattern_fault(pattern, why))? {
                let numbers = match pattern.literal() {
                    Some(literal) => compiled.literal.entry(literal.to_vec()).or_default(),
                    None => &mut compiled.wildcards,
                };
                numbers.push(compiled.all.len() as u32);
                compiled.all.push((*verdict, pattern));
            }
        }
        Ok(compiled)
    }

    pub(crate) fn verdict(&self, path: &[u8], is_directory: bool) -> Verdict {
        if self.all.is_empty() {
            return Verdict::Include;
        }
        let rooted_path = [b"/", path].concat();
        let applies = |&number: &u32| self.all[number as usize].1.applies_to(is_directory);
        let first = |key: &[u8]| self.literal.get(key)?.iter().copied().find(applies);
        let literal = [split(path).1, &rooted_path].into_iter().filter_map(first).min();
        let earlier =
            self.wildcards.iter().copied().take_while(|&number| literal.is_none_or(|at| number < at));
        let wild = earlier.into_iter().find(|&n| self.all[n as usize].1.matches(&rooted_path, is_directory));
        wild.or(literal).map_or(Verdict::Include, |number| self.all[number as usize].0)
    }
}

fn pattern_fault(pattern: &[u8], why: BadPattern) -> Fault {
    let message = format!("the pattern `{}` cannot be used: {why}", show(pattern));
    Fault::new(FaultCode::Usage, message, "patterns are those of rsync; `haul cp --help` has examples")
}

/// The listed paths below one directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedPaths {
    /// All listed paths, distinct and sorted so that those of one directory are adjacent.
    paths: Arc<[RelPath]>,
    range: Range<usize>,
    /// Length of the directory's path including the trailing `/`.
    skip: usize,
}

/// A name in a directory.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) bytes: Vec<u8>,
    /// Type from the listing; [`FileType::Unknown`] if it needs a `stat`.
    pub(crate) kind: FileType,
    /// Whether the name itself is requested, and not only something below it.
    pub(crate) listed: bool,
    /// Requested part of a directory; `None`: all of it.
    pub(crate) below: Option<ListedPaths>,
}

/// Sort key of a path that orders it by components: NUL, which no path contains, replaces the slash.
fn key(path: &RelPath) -> impl Iterator<Item = u8> {
    path.as_bytes().iter().map(|&b| if b == b'/' { 0 } else { b })
}

impl ListedPaths {
    /// Returns the share of the source that `paths` are relative to.
    pub(crate) fn all(paths: &[RelPath]) -> Self {
        let mut paths = paths.to_vec();
        paths.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        paths.dedup();
        Self { range: 0..paths.len(), paths: paths.into(), skip: 0 }
    }

    /// Returns the names in the directory, in byte order.
    pub(crate) fn children(&self) -> Vec<Name> {
        let mut children = Vec::new();
        let mut rest = self.range.clone();
        while let Some(first) = self.paths[rest.clone()].first() {
            let tail = &first.as_bytes()[self.skip..];
            let name = tail.split(|&b| b == b'/').next().unwrap_or_default();
            let end = self.skip + name.len();
            let same = |path: &RelPath| {
                let path = path.as_bytes();
                path.get(self.skip..end) == Some(name) && matches!(path.get(end), None | Some(b'/'))
            };
            let count = self.paths[rest.clone()].partition_point(same);
            let listed = tail.len() == name.len();
            let range = rest.start + usize::from(listed)..rest.start + count;
            let below = Some(Self { paths: self.paths.clone(), range, skip: end + 1 });
            children.push(Name { bytes: name.to_vec(), kind: FileType::Unknown, listed, below });
            rest.start += count;
        }
        children
    }

    /// Returns the paths relative to the directory.
    pub(crate) fn tails(&self) -> impl Iterator<Item = &[u8]> {
        self.paths[self.range.clone()].iter().map(|path| &path.as_bytes()[self.skip..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(list: &[(Verdict, &str)]) -> Vec<Rule> {
        list.iter().map(|(verdict, p)| Rule { verdict: *verdict, pattern: p.as_bytes().to_vec() }).collect()
    }

    fn chooser(list: &[(Verdict, &str)]) -> Chooser {
        Chooser::new(&Selection { rules: rules(list), ..Selection::default() }, 1).unwrap()
    }

    use Verdict::{Exclude, Include};

    #[test]
    fn the_first_rule_that_matches_decides() {
        let some = chooser(&[(Include, "*/"), (Include, "*.c"), (Exclude, "*")]);
        assert!(
            some.includes(b"d", true) && some.includes(b"d/a.c", false) && !some.includes(b"d/a.o", false)
        );
        let other = chooser(&[(Exclude, "a.c"), (Include, "/d/a.c"), (Exclude, "*.c")]);
        assert!(
            !other.includes(b"d/a.c", false) && !other.includes(b"b.c", false) && other.includes(b"x", false)
        );
        let early = chooser(&[(Include, "/d/a.c"), (Exclude, "a.c")]);
        assert!(early.includes(b"d/a.c", false) && !early.includes(b"e/a.c", false));
        assert!(chooser(&[]).includes(b"anything", false));
        let directories = chooser(&[(Exclude, "x/"), (Include, "x"), (Exclude, "*")]);
        assert!(directories.includes(b"x", false) && !directories.includes(b"x", true));
    }

    #[test]
    fn size_limits_are_inclusive_and_exact_to_the_byte() {
        let selection = Selection { min_bytes: Some(10), max_bytes: Some(20), ..Selection::default() };
        let chooser = Chooser::new(&selection, 1).unwrap();
        let accepted: Vec<u64> = (0..30).filter(|&n| chooser.sizes.contains(&n)).collect();
        assert_eq!((accepted[0], accepted.len()), (10, 11));
        assert!(Chooser::new(&Selection::default(), 1).unwrap().sizes.contains(&u64::MAX));
    }

    #[test]
    fn an_invalid_selection_is_a_usage_fault() {
        let bad = check_selection(
            &Selection { rules: rules(&[(Exclude, "ok"), (Exclude, "[x")]), ..Selection::default() },
            1,
        )
        .unwrap_err();
        assert_eq!(bad.code, FaultCode::Usage);
        assert!(bad.message.contains("`[x`") && bad.message.contains("has no ']'"), "{}", bad.message);
        let listed = Selection { paths: Some(Vec::new()), ..Selection::default() };
        assert_eq!(check_selection(&listed, 2).unwrap_err().code, FaultCode::Usage);
        assert!(check_selection(&listed, 1).is_ok());
    }

    proptest! {
        #[test]
        fn rule_lookup_agrees_with_trying_the_rules_in_order(
            list in prop::collection::vec((any::<bool>(), "[ab]{1,2}|/[ab](/[ab])?|[ab*]{1,3}|[ab]/"), 0..8),
            path in "[ab]{1,2}(/[ab]{1,2}){0,2}", is_directory: bool,
        ) {
            let list: Vec<(Verdict, &str)> =
                list.iter().map(|(keep, p)| (if *keep { Include } else { Exclude }, &p[..])).collect();
            let one_by_one = list.iter().find(|(_, pattern)| {
                let compiled = Pattern::compile(pattern.as_bytes()).unwrap();
                compiled.iter().any(|p| p.matches(format!("/{path}").as_bytes(), is_directory))
            });
            let expected = one_by_one.is_none_or(|(verdict, _)| *verdict == Include);
            prop_assert_eq!(chooser(&list).includes(path.as_bytes(), is_directory), expected);
        }
    }
}

#[cfg(test)]
mod listed_tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(paths: &[&str]) -> ListedPaths {
        let paths: Vec<RelPath> = paths.iter().map(|p| RelPath::new(p.as_bytes()).unwrap()).collect();
        ListedPaths::all(&paths)
    }

    /// Collects all listed paths by recursive descent.
    fn walk(share: &ListedPaths, at: &[u8], found: &mut Vec<Vec<u8>>) {
        for child in share.children() {
            let path = if at.is_empty() { child.bytes.clone() } else { [at, &child.bytes].join(&b'/') };
            if child.listed {
                found.push(path.clone());
            }
            walk(child.below.as_ref().unwrap(), &path, found);
        }
    }

    #[test]
    fn parent_directories_are_present_but_not_listed() {
        let listed = listed(&["b/c/d", "a", "b-x", "b/c", "b!", "a"]);
        let top = listed.children();
        let names: Vec<_> = top.iter().map(|c| (&c.bytes[..], c.listed)).collect();
        assert_eq!(names, [(&b"a"[..], true), (b"b", false), (b"b!", true), (b"b-x", true)]);
        let below = |index: usize| top[index].below.as_ref().unwrap();
        let below_b = below(1).children();
        assert_eq!((&below_b[0].bytes[..], below_b[0].listed, below_b.len()), (&b"c"[..], true, 1));
        assert_eq!(below(1).tails().collect::<Vec<_>>(), [&b"c"[..], b"c/d"]);
        assert_eq!(below(0).children(), []);
    }

    proptest! {
        #[test]
        fn descending_finds_each_listed_path_once(paths in prop::collection::vec("[ab!/\u{fc}]{1,6}", 0..20)) {
            let mut paths: Vec<RelPath> =
                paths.into_iter().filter_map(|p| RelPath::new(p.into_bytes()).ok()).collect();
            let listed = ListedPaths::all(&paths);
            let mut found = Vec::new();
            walk(&listed, b"", &mut found);
            found.sort();
            paths.sort();
            paths.dedup();
            let paths: Vec<Vec<u8>> = paths.into_iter().map(RelPath::into_bytes).collect();
            prop_assert_eq!(found, paths);
        }
    }
}
