//! Runs the check of the fuzz target on seeded inputs: valid, damaged and random.

use haul_base::Rng;

use super::*;
use crate::journal::check;
use crate::journal::record::{Record, header};

const ITERATIONS: u32 = 20_000;
const SEED: u64 = 0x6861_756c;

/// Payloads of some records, either as a journal or in the encoding of the check.
fn input(rng: &mut Rng) -> Vec<u8> {
    let paths = ["a", "b/c", "b", "..", "/x"];
    let complete = rng.chance(0.5);
    let (codec, mut journal, mut payloads) =
        (Log::new(SEED as u32), header(SEED as u32).to_vec(), Vec::new());
    for _ in 0..=rng.below(8) {
        let (path, number) = (paths[rng.below(paths.len() as u64) as usize], rng.below(3) as u32);
        let identity = identity(path, rng.below(1 << 40));
        let record = match rng.below(6) {
            0 => Record::Directory(path.as_bytes().into()),
            1 | 2 => Record::File { number, identity },
            3 => Record::Removed { number },
            _ => Record::Wrote { number, start: rng.below(1 << 39), len: rng.below(1 << 20) },
        };
        codec.encode(0, &record, &mut journal);
        let payload = postcard::to_allocvec(&record).unwrap();
        payloads.push(payload.len() as u8);
        payloads.extend(payload);
    }
    if complete { [&[0], &journal[..]].concat() } else { [&[1], &payloads[..]].concat() }
}

#[test]
fn the_journal_checks_hold_for_seeded_inputs() {
    haul_testing::fuzz::drive("journal", ITERATIONS, input, check::journal);
}
