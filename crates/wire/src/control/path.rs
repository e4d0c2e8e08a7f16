use std::fmt;

use haul_base::printable_bytes;
use serde::{Deserialize, Serialize};

/// Maximum length of a path component in bytes (`NAME_MAX` of Linux).
pub const MAX_COMPONENT: usize = 255;
/// Maximum length of a path in bytes: three times `PATH_MAX` of Linux, which limits single system calls, not
/// trees.
pub const MAX_PATH: usize = 12_288;

/// A relative path that cannot leave the directory below which it is used, provided that no symbolic link on
/// the way is followed.
///
/// It is not empty, is at most [`MAX_PATH`] bytes long, has no NUL byte, does not start or end with `/`, and
/// each of its components is 1 to [`MAX_COMPONENT`] bytes long and neither `.` nor `..`. Deserialising checks
/// the same rules. Bytes need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct RelPath(Vec<u8>);

/// Why bytes are not a [`RelPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is empty.
    #[error("the path is empty")]
    Empty,
    /// The path starts with `/`.
    #[error("the path is absolute; a path relative to the root of the transfer is needed")]
    Absolute,
    /// The path has an empty component: `//`, or `/` at the end.
    #[error("the path has an empty component")]
    EmptyComponent,
    /// The path has a component `.` or `..`.
    #[error("the path has a component '.' or '..'")]
    DotComponent,
    /// The path has a NUL byte.
    #[error("the path has a NUL byte")]
    Nul,
    /// A single component has a `/`.
    #[error("the name has a '/'")]
    Separator,
    /// A component is longer than [`MAX_COMPONENT`].
    #[error("a component of the path has more than {MAX_COMPONENT} bytes")]
    ComponentTooLong,
    /// The path is longer than [`MAX_PATH`].
    #[error("the path has more than {MAX_PATH} bytes")]
    TooLong,
}

impl RelPath {
    /// Creates a path from `bytes` if they obey the rules of the type.
    ///
    /// # Errors
    /// The rule that the bytes violate.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let bytes = bytes.into();
        check(&bytes)?;
        Ok(Self(bytes))
    }

    /// Returns this path with one more component.
    ///
    /// # Errors
    /// [`PathError::Separator`] if the component has a `/`; otherwise as [`RelPath::new`].
    pub fn join(&self, component: &[u8]) -> Result<Self, PathError> {
        if component.contains(&b'/') {
            return Err(PathError::Separator);
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + component.len());
        bytes.extend_from_slice(&self.0);
        bytes.push(b'/');
        bytes.extend_from_slice(component);
        Self::new(bytes)
    }

    /// Returns the path as bytes, with components separated by `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Converts the path to bytes, with components separated by `/`.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Iterates over the components from the outermost; there is at least one.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/')
    }

    /// Returns the last component.
    pub fn file_name(&self) -> &[u8] {
        let start = self.0.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        &self.0[start..]
    }

    /// Returns the path without its last component; `None` if there is only one.
    pub fn parent(&self) -> Option<Self> {
        let slash = self.0.iter().rposition(|&b| b == b'/')?;
        Some(Self(self.0[..slash].to_vec()))
    }

    /// Returns the path for the operating system. Still relative.
    #[cfg(unix)]
    pub fn as_path(&self) -> &std::path::Path {
        use std::os::unix::ffi::OsStrExt as _;
        std::path::Path::new(std::ffi::OsStr::from_bytes(&self.0))
    }
}

fn check(bytes: &[u8]) -> Result<(), PathError> {
    if bytes.is_empty() {
        return Err(PathError::Empty);
    }
    if bytes.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if bytes[0] == b'/' {
        return Err(PathError::Absolute);
    }
    bytes.split(|&b| b == b'/').try_for_each(check_component)
}

fn check_component(component: &[u8]) -> Result<(), PathError> {
    match component {
        [] => Err(PathError::EmptyComponent),
        b"." | b".." => Err(PathError::DotComponent),
        c if c.len() > MAX_COMPONENT => Err(PathError::ComponentTooLong),
        c if c.contains(&0) => Err(PathError::Nul),
        _ => Ok(()),
    }
}

impl TryFrom<Vec<u8>> for RelPath {
    type Error = PathError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, PathError> {
        Self::new(bytes)
    }
}

impl From<RelPath> for Vec<u8> {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

/// For users: invalid UTF-8 and terminal control characters are escaped.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable_bytes(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_refuses_its_kind_of_path() {
        let long = [b'x'; MAX_COMPONENT + 1];
        let deep = b"x/".repeat(MAX_PATH / 2).into_iter().chain(*b"x").collect::<Vec<_>>();
        let refused: [(&[u8], PathError); 14] = [
            (b"", PathError::Empty),
            (b"/", PathError::Absolute),
            (b"/etc/passwd", PathError::Absolute),
            (b"//", PathError::Absolute),
            (b"a//b", PathError::EmptyComponent),
            (b"a/", PathError::EmptyComponent),
            (b".", PathError::DotComponent),
            (b"..", PathError::DotComponent),
            (b"../a", PathError::DotComponent),
            (b"a/../b", PathError::DotComponent),
            (b"a/.", PathError::DotComponent),
            (b"a\0b", PathError::Nul),
            (&long, PathError::ComponentTooLong),
            (&deep, PathError::TooLong),
        ];
        for (bytes, error) in refused {
            assert_eq!(RelPath::new(bytes), Err(error), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn unusual_names_are_accepted() {
        for bytes in [&b"..."[..], b"..a", b"a..", b".hidden/-rf", b"a b\n", b"\xff\xfe", b"\\..\\", b"~"] {
            assert_eq!(RelPath::new(bytes).unwrap().as_bytes(), bytes);
        }
        assert!(RelPath::new([b'x'; MAX_COMPONENT]).is_ok());
    }

    #[test]
    fn paths_are_split_and_joined() {
        let path = RelPath::new(*b"a/bc/d").unwrap();
        assert_eq!(path.components().collect::<Vec<_>>(), [&b"a"[..], b"bc", b"d"]);
        assert_eq!(path.file_name(), b"d");
        let parent = path.parent().unwrap();
        assert_eq!(parent.as_bytes(), b"a/bc");
        assert_eq!(parent.join(b"d").unwrap(), path);
        assert_eq!(RelPath::new(*b"a").unwrap().parent(), None);
    }

    #[test]
    fn a_joined_component_cannot_smuggle_others() {
        let path = RelPath::new(*b"a").unwrap();
        assert_eq!(path.join(b"b/c"), Err(PathError::Separator));
        assert_eq!(path.join(b".."), Err(PathError::DotComponent));
        assert_eq!(path.join(b""), Err(PathError::EmptyComponent));
    }

    #[test]
    fn deserialising_checks_the_same_rules() {
        assert!(postcard::from_bytes::<RelPath>(b"\x03a/b").is_ok());
        assert!(postcard::from_bytes::<RelPath>(b"\x02..").is_err());
        assert!(postcard::from_bytes::<RelPath>(b"\x02/a").is_err());
    }

    #[test]
    fn a_path_is_shown_without_control_characters() {
        assert_eq!(RelPath::new(*b"a\x1b[2J\xff").unwrap().to_string(), r"a\x1b[2J\xff");
    }
}
