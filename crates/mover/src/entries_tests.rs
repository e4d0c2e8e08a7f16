use haul_wire::control::{ByteRange, RelPath};

use super::*;

fn entry(path: &[u8], kind: EntryKind) -> Entry {
    let path = RelPath::new(path.to_vec()).unwrap();
    Entry { path, kind, mode: 0o644, mtime_secs: 0, mtime_nanos: 0, extras: None }
}

fn file(path: &str, size: u64) -> Entry {
    entry(path.as_bytes(), EntryKind::File { size, holes: vec![] })
}

fn dir(path: &str) -> Entry {
    entry(path.as_bytes(), EntryKind::Directory)
}

fn link(path: &str) -> Entry {
    entry(path.as_bytes(), EntryKind::Symlink { target: b"/etc".to_vec() })
}

fn code(table: &mut EntryTable, entry: &Entry) -> Option<FaultCode> {
    table.push(entry).unwrap().map(|fault| fault.code)
}

#[test]
fn paths_are_rebuilt_from_their_components() {
    let mut table = EntryTable::default();
    for e in [dir("a"), dir("a/b"), file("a/b/c", 3), file("top", 0), link("a/l")] {
        assert_eq!(code(&mut table, &e), None);
    }
    let paths: Vec<_> = (0..table.len()).map(|i| table.path(i)).collect();
    assert_eq!(paths, [&b"a"[..], b"a/b", b"a/b/c", b"top", b"a/l"]);
    assert_eq!(table.target(4), b"/etc");
    assert_eq!(table.target(2), b"");
}

#[test]
fn conflicting_entries_are_refused_individually() {
    let mut table = EntryTable::default();
    for e in [dir("d"), file("f", 5), link("l")] {
        assert_eq!(code(&mut table, &e), None);
    }
    assert_eq!(code(&mut table, &file("l/x", 1)), Some(FaultCode::PathEscape));
    assert_eq!(code(&mut table, &file("f/x", 1)), Some(FaultCode::NotADirectory));
    assert_eq!(code(&mut table, &file("none/x", 1)), Some(FaultCode::Internal));
    assert_eq!(code(&mut table, &file("f", 1)), Some(FaultCode::Usage));
    assert_eq!(code(&mut table, &link("d")), Some(FaultCode::Usage));
    assert_eq!(code(&mut table, &dir("f")), Some(FaultCode::Usage));
    // A directory may be announced by two sources; a file may not.
    assert_eq!(code(&mut table, &dir("d")), None);
    assert_eq!(code(&mut table, &file("d/x", 1)), None);
    assert_eq!(code(&mut table, &dir("d")), None);
    assert_eq!(code(&mut table, &file("d/x", 1)), Some(FaultCode::Usage));
    assert_eq!(table.path(3), b"l/x");
    assert_eq!(table.state(3), EntryState::Failed);
}

#[test]
fn the_stream_length_excludes_holes() {
    let mut table = EntryTable::default();
    table.push(&file("a", 10)).unwrap();
    let holes = vec![ByteRange { start: 0, len: 7 }];
    table.push(&entry(b"b", EntryKind::File { size: 10, holes })).unwrap();
    assert_eq!(table.bytes, 13);
    assert_eq!((table.size(1), table.stream_len(1), table.stream_len(0)), (10, 3, 10));
    assert!(table.shape(1).is_sparse() && !table.shape(0).is_sparse());
}

#[test]
fn a_million_entries_stay_compact() {
    let mut table = EntryTable::default();
    for d in 0..1000 {
        table.push(&dir(&format!("directory-{d:04}"))).unwrap();
        for f in 0..1000 {
            table.push(&file(&format!("directory-{d:04}/some-file-name-{f:05}"), 1)).unwrap();
        }
    }
    let heap = table.records.capacity() * size_of::<Record>()
        + table.names.capacity()
        + table.digests.capacity() * 32
        // A hash table stores one control byte per slot.
        + table.by_name.capacity() * 8 / 7 * (size_of::<u32>() + 1);
    let per_entry = heap / table.len() as usize;
    assert!(per_entry <= 200, "{per_entry} bytes per entry");
}
