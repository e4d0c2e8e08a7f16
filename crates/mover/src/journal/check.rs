//! Invariants of the journal's format, for fuzz targets and tests, as in `haul_wire::check`.

use crate::journal::record::{HEADER_LEN, Log, header, is_local};

/// ID of the journals created here.
const ID: u32 = 0x6861_756c;

/// Checks the reader of journals. Of arbitrary bytes the first says how the others are used: as a whole
/// journal, or as the payloads of records that have right checks.
///
/// Reading never panics; it keeps a beginning of the file, which reads back to the same, as does every part
/// of it; and no file claims bytes behind its end or lies outside of the directory. True if a record was
/// read.
///
/// # Panics
/// If a rule is broken.
pub fn journal(bytes: &[u8]) -> bool {
    let Some((&how, rest)) = bytes.split_first() else { return false };
    let journal = if how.is_multiple_of(2) { rest.to_vec() } else { seal(ID, rest) };
    let Ok(read) = Log::read(ID, &journal[..]) else { return false };
    holds(&journal, &read);
    read.end > HEADER_LEN
}

/// Returns the journal `id` of payloads, each preceded by its length (u8), as records with valid checks.
pub fn seal(id: u32, mut payloads: &[u8]) -> Vec<u8> {
    let (mut journal, log) = (header(id).to_vec(), Log::new(id));
    while let Some((&len, rest)) = payloads.split_first() {
        let (payload, rest) = rest.split_at(rest.len().min(len.into()));
        log.seal(0, payload, &mut journal);
        payloads = rest;
    }
    journal
}

fn holds(journal: &[u8], read: &Log) {
    let good = usize::try_from(read.end).expect("it lies in memory");
    assert!(good <= journal.len(), "more was read than there is");
    let again = Log::read(ID, &journal[..good]).expect("its header was good");
    assert_eq!(&again, read, "the good part reads differently alone");
    if let Some(shorter) = good.checked_sub(1) {
        let cut = Log::read(ID, &journal[..shorter]).expect("a beginning of the header is good too");
        assert!(cut.end < read.end, "a record was read that is not whole");
    }
    assert!(read.state.directories.iter().all(|path| path.is_empty() || is_local(path)));
    for noted in read.state.files.values() {
        assert!(is_local(&noted.identity.path), "a path leads out");
        assert!(noted.written.iter().all(|range| range.end <= noted.identity.size), "claims too much");
    }
}
