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
    let Some((&mode, rest)) = bytes.split_first() else { return false };
    let journal = if mode.is_multiple_of(2) { rest.to_vec() } else { seal(ID, rest) };
    let Ok(read) = Log::read(ID, &journal[..]) else { return false };
    check_prefixes(&journal, &read);
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

fn check_prefixes(journal: &[u8], read: &Log) {
    let valid_len = usize::try_from(read.end).expect("it lies in memory");
    assert!(valid_len <= journal.len(), "more was read than there is");
    let reread = Log::read(ID, &journal[..valid_len]).expect("its header was good");
    assert_eq!(&reread, read, "the good part reads differently alone");
    if let Some(shorter) = valid_len.checked_sub(1) {
        let truncated = Log::read(ID, &journal[..shorter]).expect("a beginning of the header is good too");
        assert!(truncated.end < read.end, "a record was read that is not whole");
    }
    assert!(read.state.directories.iter().all(|path| path.is_empty() || is_local(path)));
    for record in read.state.files.values() {
        assert!(is_local(&record.identity.path), "a path leads out");
        assert!(record.written.iter().all(|range| range.end <= record.identity.size), "claims too much");
    }
}
