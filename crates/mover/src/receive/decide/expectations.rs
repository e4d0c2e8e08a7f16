//! What the receiving side knows of the set beforehand, and what it therefore does not believe.

use std::collections::BTreeSet;
use std::sync::Arc;

use haul_wire::control::{Extent, IgnoreFiles, RelPath, Rule, Selection};

use crate::root::{Root, copies_content};

/// What this side has asked a sender for; what does not follow from it is refused or not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectations {
    /// The names that entries may begin with; `None`: any, because what is in a directory was asked for.
    tops: Option<Arc<BTreeSet<Vec<u8>>>>,
    pub(crate) rules: Arc<[Rule]>,
    pub(crate) ignore_files: IgnoreFiles,
    pub(crate) extent: Extent,
}

impl Expectations {
    /// These sources, as [`send_files`](crate::send_files) names them.
    pub fn new(sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let name = |source: &Vec<u8>| Root::Anywhere.split(source).name;
        let tops = match &selection.paths {
            // Of one source alone.
            Some(paths) if content => Some(paths.iter().map(|path| top(path).to_vec()).collect()),
            _ if content => None,
            _ => Some(sources.iter().map(name).collect()),
        };
        let extent = if content { Extent::Destination } else { Extent::Directories };
        let ignore_files = selection.ignore_files;
        Self { tops: tops.map(Arc::new), rules: selection.rules.clone().into(), ignore_files, extent }
    }

    /// Whether an entry with this path can be part of it.
    pub(crate) fn covers(&self, path: &RelPath) -> bool {
        self.tops.as_ref().is_none_or(|tops| tops.contains(top(path)))
    }
}

fn top(path: &RelPath) -> &[u8] {
    path.components().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sources: &[&str], paths: Option<&[&str]>) -> Expectations {
        let sources: Vec<Vec<u8>> = sources.iter().map(|source| source.as_bytes().to_vec()).collect();
        let path = |path: &&str| RelPath::new(path.as_bytes()).unwrap();
        let paths = paths.map(|paths| paths.iter().map(path).collect());
        Expectations::new(&sources, &Selection { paths, ..Selection::default() })
    }

    #[test]
    fn names_follow_from_the_sources() {
        let covers = |asked: &Expectations, path: &str| asked.covers(&RelPath::new(path.as_bytes()).unwrap());
        let two = asked(&["a/b/", "/c"], None);
        assert!(covers(&two, "b") && covers(&two, "b/x") && covers(&two, "c") && !covers(&two, "a"));
        assert_eq!(two.extent, Extent::Directories);
        let content = asked(&["a", "b/."], None);
        assert!(covers(&content, "anything") && content.extent == Extent::Destination);
        assert!(covers(&asked(&[""], None), "anything"));
        let listed = asked(&["b/."], Some(&["x/y", "z"]));
        assert!(
            covers(&listed, "x") && covers(&listed, "x/y") && covers(&listed, "z") && !covers(&listed, "y")
        );
        assert!(covers(&asked(&["b"], Some(&["x"])), "b/x"));
    }
}
