//! Invariants of the journal's format for fuzz targets and tests, like `haul_wire::check`.

use crate::journal::record::{HEADER_LEN, Log, header, is_local};

const ID: u32 = 0x6861_756c;

/// Reads a journal made of arbitrary bytes: if the first is even, the others are the journal, otherwise the
/// payloads of valid records. Returns true if a record was read.
///
/// # Panics
/// If the valid part reads differently alone, an incomplete record is accepted, or a file claims bytes beyond
/// its end or lies outside of the directory.
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
