//! The digest of a whole set.

use crate::entries::{EntryTable, Kind, State};

/// Separates this use of BLAKE3 from every other (BLAKE3 paper, section 2.3, key derivation mode).
const CONTEXT: &str = "haulage 2025 digest of a file set v1";

/// BLAKE3 over every entry that did not fail, in entry order: length of the path (u32 little-endian), path,
/// kind (`f`, `d`, `l`, `h` for another name of a file, or `k` for a file that was kept), size in bytes (u64 little-endian; of a link: of its
/// target, or of the file's path), and then the BLAKE3 of the file's stream, or the link's target, or the path of the file, or nothing. A file with holes has
/// kind `s`, and behind its BLAKE3 for each stretch with data where it begins in the stream and in the file (u64
/// little-endian). Modes and times are not part of it.
pub(crate) fn set_digest(table: &EntryTable) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for index in (0..table.len()).filter(|&i| table.state(i) != State::Failed) {
        let path = table.path(index);
        let shape = table.shape(index);
        let linked = match table.kind(index) {
            Kind::HardLink(file) => table.path(file),
            _ => Vec::new(),
        };
        let (kind, size, contents): (u8, u64, &[u8]) = match table.kind(index) {
            Kind::File(_) if table.state(index) == State::Kept => (b'k', table.size(index), &[]),
            Kind::File(_) if shape.is_sparse() => {
                (b's', table.size(index), table.digest(index).map_or(&[], |d| &d[..]))
            }
            Kind::File(_) => (b'f', table.size(index), table.digest(index).map_or(&[], |d| &d[..])),
            Kind::Directory => (b'd', 0, &[]),
            Kind::Symlink => (b'l', table.target(index).len() as u64, table.target(index)),
            Kind::HardLink(_) => (b'h', linked.len() as u64, &linked),
            Kind::Unread => continue,
        };
        hasher.update(&(path.len() as u32).to_le_bytes());
        hasher.update(&path);
        hasher.update(&[kind]);
        hasher.update(&size.to_le_bytes());
        hasher.update(contents);
        if kind == b's' {
            for (stream, file) in shape.data() {
                hasher.update(&stream.to_le_bytes()).update(&file.to_le_bytes());
            }
        }
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use haul_wire::control::{Entry, EntryKind, RelPath};

    use super::*;

    fn table(name: &str, size: u64, digest: u8) -> EntryTable {
        let path = RelPath::new(name.as_bytes().to_vec()).unwrap();
        let kind = EntryKind::File { size, holes: vec![] };
        let mut table = EntryTable::default();
        table.push(&Entry { path, kind, mode: 0, mtime_secs: 0, mtime_nanos: 0, extras: None }).unwrap();
        table.set_digest(0, [digest; 32]);
        table
    }

    #[test]
    fn name_size_and_contents_all_count_and_failures_do_not() {
        let base = set_digest(&table("a", 1, 1));
        assert_eq!(base, set_digest(&table("a", 1, 1)));
        assert_ne!(base, set_digest(&table("b", 1, 1)));
        assert_ne!(base, set_digest(&table("a", 2, 1)));
        assert_ne!(base, set_digest(&table("a", 1, 2)));
        let mut failed = table("a", 1, 1);
        failed.set_state(0, State::Failed);
        assert_eq!(set_digest(&failed), set_digest(&EntryTable::default()));
    }
}
