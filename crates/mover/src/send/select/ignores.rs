//! Ignore files found during the walk: `.gitignore` and `.ignore`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use haul_wire::control::{Fault, FaultCode};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags};

use crate::fault::path_fault;
use crate::root::join;
use crate::storage::{fstat, kind_of, open_in};

/// Names of ignore files, in order of precedence.
pub(crate) const NAMES: [&[u8]; 2] = [b".ignore", b".gitignore"];

/// Maximum size of an ignore file in bytes.
const LONGEST: u64 = 1 << 20;

/// The ignore files of a directory and its ancestors within the walk.
#[derive(Debug)]
pub(crate) struct Ignores {
    /// Length of the directory's path with its trailing slash, to strip from paths.
    skip: usize,
    files: [Option<Gitignore>; 2],
    above: Option<Arc<Ignores>>,
}

/// Adds the ignore files of the directory `path` to those of its ancestors. `names` are those of [`NAMES`]
/// that exist in it. Fails if one of them is unusable, because more would be sent than it permits.
pub(crate) fn enter(
    above: Option<Arc<Ignores>>,
    directory: impl AsFd,
    path: &[u8],
    names: &[&[u8]],
) -> Result<Option<Arc<Ignores>>, (Vec<u8>, Fault)> {
    if names.is_empty() {
        return Ok(above);
    }
    let mut files = [None, None];
    for (name, slot) in NAMES.into_iter().zip(&mut files).filter(|(name, _)| names.contains(name)) {
        let at = join(path, name);
        *slot = read(directory.as_fd(), name).map_err(|why| (at.clone(), unusable(&at, &why)))?;
    }
    let skip = if path.is_empty() { 0 } else { path.len() + 1 };
    Ok(Some(Arc::new(Ignores { skip, files, above })))
}

fn unusable(path: &[u8], why: &str) -> Fault {
    let what = format!("{why}, so nothing in its directory is sent");
    path_fault(FaultCode::Unreadable, path, &what, "correct the file, or do not use --gitignore")
}

/// Reads the patterns of a file; `None` if it is not a regular file. Lines that git does not understand and
/// lines that are not UTF-8 are ignored, as in git.
fn read(directory: impl AsFd, name: &[u8]) -> Result<Option<Gitignore>, String> {
    let opened = match open_in(directory, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK) {
        Ok(opened) => opened,
        // Git does not follow links here either.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(format!("cannot be read ({})", std::io::Error::from(errno))),
    };
    let stat = fstat(&opened).map_err(|e| format!("cannot be read ({e})"))?;
    if kind_of(&stat) != FileType::RegularFile {
        return Ok(None);
    }
    let mut text = Vec::new();
    let got = File::from(opened).take(LONGEST + 1).read_to_end(&mut text);
    if got.map_err(|e| format!("cannot be read ({e})"))? as u64 > LONGEST {
        return Err(format!("has more than {LONGEST} bytes"));
    }
    compile(&text).map(Some)
}

fn compile(text: &[u8]) -> Result<Gitignore, String> {
    let mut builder = GitignoreBuilder::new(".");
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for line in text.split(|&b| b == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        // Invalid lines are ignored.
        let _ = builder.add_line(None, &escape_braces(line));
    }
    builder.build().map_err(|e| format!("has patterns that are too large ({e})"))
}

/// Escapes braces outside of brackets: they stand for themselves in git, and for alternatives in the builder.
fn escape_braces(line: &str) -> String {
    let (mut escaped, mut class_end, mut is_escaped) = (String::new(), 0, false);
    for (at, c) in line.char_indices() {
        let is_special = at >= class_end && !is_escaped;
        if is_special && c == '[' {
            // A `]` that comes first is one of the characters.
            let first = at + if line[at + 1..].starts_with(['!', '^']) { 2 } else { 1 };
            let end = line[first..].char_indices().skip(1).find(|&(_, c)| c == ']');
            class_end = end.map_or(at, |(len, _)| first + len);
        } else if is_special && matches!(c, '{' | '}') {
            escaped.push('\\');
        }
        is_escaped = is_special && c == '\\';
        escaped.push(c);
    }
    escaped
}

impl Ignores {
    /// Whether a path is ignored. A `.ignore` takes precedence over every `.gitignore`, and the nearest file
    /// over those above.
    pub(crate) fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        for kind in 0..NAMES.len() {
            let mut level = Some(self);
            while let Some(Self { skip, files, above }) = level {
                let below = Path::new(OsStr::from_bytes(&path[*skip..]));
                match files[kind].as_ref().map(|file| file.matched(below, is_directory)) {
                    Some(Match::Ignore(_)) => return true,
                    Some(Match::Whitelist(_)) => return false,
                    Some(Match::None) | None => level = above.as_deref(),
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(path: &[u8], files: [Option<&[u8]>; 2], above: Option<Arc<Ignores>>) -> Arc<Ignores> {
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let files = files.map(|text| text.map(|text| compile(text).unwrap()));
        Arc::new(Ignores { skip, files, above })
    }

    #[test]
    fn the_nearest_ignore_file_wins_and_ignore_beats_gitignore() {
        let top = level(b"", [None, Some(b"*.log\n/only-here\nbuild/\n")], None);
        assert!(top.ignores(b"a.log", false) && top.ignores(b"d/a.log", false));
        assert!(top.ignores(b"only-here", false) && !top.ignores(b"d/only-here", false));
        assert!(top.ignores(b"d/build", true) && !top.ignores(b"d/build", false));
        let below = level(b"d", [None, Some(b"!a.log\n/x\n")], Some(top.clone()));
        assert!(!below.ignores(b"d/a.log", false) && below.ignores(b"d/b.log", false));
        assert!(below.ignores(b"d/x", false));
        let both = level(b"d", [Some(b"a.log\n"), Some(b"!*.log\n")], Some(top));
        assert!(both.ignores(b"d/a.log", false) && !both.ignores(b"d/b.log", false));
    }

    #[test]
    fn lines_that_are_not_patterns_are_skipped() {
        let odd = level(b"", [None, Some(b"\xef\xbb\xbfa\r\n# c\n\n\xff*\n{bad\n[z-a]\n\\!b\nc\\ \n")], None);
        assert!(odd.ignores(b"a", false) && odd.ignores(b"!b", false) && odd.ignores(b"c ", false));
        assert!(!odd.ignores(b"# c", false) && !odd.ignores(b"\xffx", false));
    }

    #[test]
    fn braces_stand_for_themselves() {
        let excludes = |line: &str, path: &str| {
            level(b"", [None, Some(line.as_bytes())], None).ignores(path.as_bytes(), path.ends_with('}'))
        };
        for (line, path) in [
            ("{arch}", "{arch}"),
            ("/{arch}/", "{arch}"),
            ("{bad", "x/{bad"),
            ("bad}", "bad}"),
            ("*.{o,a}", "x.{o,a}"),
            ("\\{a\\}", "{a}"),
            ("\\\\{a", "\\{a"),
            ("[é{]x{", "{x{"),
            ("[]{]x{", "]x{"),
            ("[^]{]x{", "ax{"),
            ("[{-}]x", "|x"),
            ("[{", "[{"),
        ] {
            assert!(excludes(line, path), "{line} {path}");
        }
        for (line, path) in [("{arch}", "arch"), ("*.{o,a}", "x.o"), ("[{]x", "\\x"), ("[^]{]x", "{x")] {
            assert!(!excludes(line, path), "{line} {path}");
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_matched() {
        assert!(level(b"", [None, Some(b"*.o\n")], None).ignores(b"d\xfe/\xff.o", false));
    }
}
