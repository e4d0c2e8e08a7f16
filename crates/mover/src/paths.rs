//! Paths as bytes, with `/` between their components.

/// The directory that a path lies in (empty: the base) and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&b| b == b'/');
    slash.map_or((&[], path), |at| (&path[..at], &path[at + 1..]))
}

/// A name in a directory; nothing is in front of what is in the base.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}
