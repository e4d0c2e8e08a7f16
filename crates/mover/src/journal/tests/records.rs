//! Reading a damaged or truncated journal yields a prefix of the records that were written.

use proptest::prelude::*;

use super::*;
use crate::journal::record::{HEADER_LEN, JobState, Record, header};

fn file(number: u32, path: &str, size: u64) -> Record {
    let identity = FileIdentity {
        path: path.into(),
        size,
        mtime: Mtime { secs: i64::MIN, nanos: 999_999_999 },
        shape: [number as u8; 32],
    };
    Record::File { number, identity }
}

fn any_record() -> impl Strategy<Value = Record> {
    let number = 0u32..4;
    let path = "[a-c]{1,3}(/[a-c]{1,3}){0,2}";
    prop_oneof![
        path.prop_map(|path| Record::Directory(path.into_bytes())),
        (number.clone(), path, 0u64..1000).prop_map(|(n, p, s)| file(n, &p, s)),
        (number.clone(), 0u64..900, 0u64..300).prop_map(|(number, start, len)| Record::Wrote {
            number,
            start,
            len
        }),
        number.prop_map(|number| Record::Removed { number }),
    ]
}

/// The journal of these records, with its length and state after each of them. Skips records that are invalid
/// at their position, because they would end the reading.
fn encode_all(id: u32, records: &[Record]) -> (Vec<u8>, Vec<(usize, JobState)>) {
    let (codec, mut bytes, mut state) = (Log::new(id), header(id).to_vec(), JobState::default());
    let mut steps = vec![(bytes.len(), state.clone())];
    for record in records {
        if state.apply(record.clone()) {
            codec.encode(0, record, &mut bytes);
            steps.push((bytes.len(), state.clone()));
        }
    }
    (bytes, steps)
}

/// The state after the last record that ends at or before `len`.
fn step_before(steps: &[(usize, JobState)], len: usize) -> &(usize, JobState) {
    steps.iter().rev().find(|(end, _)| *end <= len).unwrap()
}

proptest! {
    #[test]
    fn a_truncated_journal_yields_the_records_before_the_cut(
        records in prop::collection::vec(any_record(), 0..12),
        id: u32,
    ) {
        let (bytes, steps) = encode_all(id, &records);
        for cut in 0..=bytes.len() {
            let read = Log::read(id, &bytes[..cut]).unwrap();
            if cut < HEADER_LEN as usize {
                prop_assert_eq!((read.end, read.state), (0, JobState::default()));
            } else {
                let (end, state) = step_before(&steps, cut);
                prop_assert_eq!((read.end, &read.state), (*end as u64, state));
            }
        }
    }

    #[test]
    fn reading_stops_before_a_record_with_a_flipped_bit(
        records in prop::collection::vec(any_record(), 1..8),
        id: u32,
        bit in 0u8..8,
    ) {
        let (bytes, steps) = encode_all(id, &records);
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            match Log::read(id, &bytes[..]) {
                Err(_) => prop_assert!(at < HEADER_LEN as usize),
                Ok(read) => {
                    let (end, state) = step_before(&steps, at);
                    prop_assert_eq!((read.end, &read.state), (*end as u64, state));
                }
            }
        }
    }

    #[test]
    fn records_of_another_journal_or_position_are_not_read(
        records in prop::collection::vec(any_record(), 1..8),
    ) {
        let (mut bytes, steps) = encode_all(1, &records);
        bytes[..HEADER_LEN as usize].copy_from_slice(&header(2));
        prop_assert_eq!(Log::read(2, &bytes[..]).unwrap().state, JobState::default());
        if let [_, (first, state), (second, _), ..] = &steps[..] {
            let (bytes, _) = encode_all(1, &records);
            let moved = [&bytes[..*first], &bytes[*second..], &bytes[*first..*second]].concat();
            let read = Log::read(1, &moved[..]).unwrap();
            let last = *second == bytes.len();
            prop_assert!(last || read.state == *state, "{:?}", read);
        }
    }

    #[test]
    fn arbitrary_bytes_yield_an_empty_state(tail in prop::collection::vec(any::<u8>(), 0..200), complete in any::<bool>()) {
        let bytes = if complete { [&header(9)[..], &tail].concat() } else { tail };
        if let Ok(read) = Log::read(9, &bytes[..]) {
            prop_assert!(read.end <= bytes.len() as u64);
            prop_assert_eq!(read.state, JobState::default());
        }
    }
}

/// A header and one record, with a valid checksum.
fn one(record: &Record) -> Vec<u8> {
    let mut bytes = header(1).to_vec();
    Log::new(1).encode(0, record, &mut bytes);
    bytes
}

#[test]
fn records_with_escaping_paths_or_excess_ranges_are_rejected() {
    for path in ["..", "a/../..", "/etc", "a//b", "a/", "./a", "a\0b"] {
        let directory = one(&Record::Directory(path.as_bytes().into()));
        assert_eq!(Log::read(1, &directory[..]).unwrap().end, HEADER_LEN, "{path}");
        let identity = identity(path, 5);
        assert_eq!(
            Log::read(1, &one(&Record::File { number: 1, identity })[..]).unwrap().end,
            HEADER_LEN,
            "{path}"
        );
    }
    let mut bytes = one(&Record::File { number: 1, identity: identity("a", 10) });
    let good = bytes.len() as u64;
    for (start, len) in [(5, 6), (11, 0), (u64::MAX, 1), (0, u64::MAX)] {
        bytes.truncate(good as usize);
        Log::new(1).encode(0, &Record::Wrote { number: 1, start, len }, &mut bytes);
        assert_eq!(Log::read(1, &bytes[..]).unwrap().end, good, "{start}, {len}");
    }
}

/// Later versions must be able to read the format: this journal must stay readable.
#[test]
fn the_file_format_matches_version_1() {
    let mut bytes = header(0x1234_abcd).to_vec();
    let codec = Log::new(0x1234_abcd);
    codec.encode(0, &Record::Directory(b"d".into()), &mut bytes);
    codec.encode(0, &Record::File { number: 300, identity: identity("d/f", 4096) }, &mut bytes);
    codec.encode(0, &Record::Wrote { number: 300, start: 5, len: 1000 }, &mut bytes);
    codec.encode(0, &Record::Removed { number: 300 }, &mut bytes);
    let hex = |from: usize| u8::from_str_radix(&WRITTEN_BY_VERSION_1[from..from + 2], 16).unwrap();
    let expected: Vec<u8> = (0..WRITTEN_BY_VERSION_1.len()).step_by(2).map(hex).collect();
    assert_eq!(bytes, expected);
}

const WRITTEN_BY_VERSION_1: &str = concat!(
    "4841554c4a524e4c0100cdab3412030000008b0170983f6e4aa90001642b0000007099cae8bc5cb7",
    "1e01ac0203642f6680200d0503030303030303030303030303030303030303030303030303030303",
    "0303030306000000a3bc2a92b12303a702ac0205e807030000004b9ffded3da8c14a03ac02",
);
