//! Replacement for a fuzzer in ordinary tests: a target's stored corpus, and seeded inputs.

use std::fs;
use std::path::{Path, PathBuf};

use haul_base::Rng;

const SEED: u64 = 0x6861_756c;
/// Number of valid inputs stored when the environment has `HAUL_WRITE_CORPUS`.
const KEPT: u32 = 8;

/// Runs `check` on the stored corpus of a target, and on `rounds` generated inputs: valid, damaged and random
/// ones in turn.
///
/// # Panics
/// If there is no corpus, or if `check` returns true (accepted) for fewer than a quarter of the inputs, or
/// for all of them.
pub fn drive(
    target: &str,
    rounds: u32,
    mut valid: impl FnMut(&mut Rng) -> Vec<u8>,
    check: impl Fn(&[u8]) -> bool,
) {
    println!("{target}: seed {SEED:#x}");
    let mut rng = Rng::from_seed(SEED);
    let mut accepted = 0;
    for round in 0..rounds {
        let mut bytes = valid(&mut rng);
        keep(target, round, &bytes);
        match round % 4 {
            0 => {}
            3 => {
                bytes.resize(rng.below(150) as usize, 0);
                rng.fill(&mut bytes);
            }
            _ => (0..=rng.below(4)).for_each(|_| damage(&mut bytes, &mut rng)),
        }
        accepted += u32::from(check(&bytes));
    }
    println!("{target}: {accepted} of {rounds} accepted");
    assert!(accepted > rounds / 4 && accepted < rounds, "{target}: {accepted} of {rounds} accepted");
    replay(target, check);
}

/// Runs `check` on the stored corpus of a target.
///
/// # Panics
/// If there is no corpus.
pub fn replay(target: &str, check: impl Fn(&[u8]) -> bool) {
    let listed = fs::read_dir(corpus(target)).expect("each target has a corpus in the repository");
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {target} is empty");
    for path in paths {
        println!("{}", path.display());
        check(&fs::read(&path).expect("it can be read"));
    }
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Rewrites the corpus of a target when the environment has `HAUL_WRITE_CORPUS`.
fn keep(target: &str, round: u32, bytes: &[u8]) {
    if round >= KEPT || std::env::var_os("HAUL_WRITE_CORPUS").is_none() {
        return;
    }
    let directory = corpus(target);
    fs::create_dir_all(&directory).expect("the corpus can be written");
    fs::write(directory.join(format!("seed-{round}")), bytes).expect("the corpus can be written");
}

/// Damages the bytes at one position.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    match rng.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u64() as u8),
        2 => {
            let tail = bytes[at..].to_vec();
            bytes.extend(tail);
        }
        _ if at == bytes.len() => {}
        3 => bytes[at] ^= 1 << rng.below(8),
        4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'.'][rng.below(7) as usize],
        _ => drop(bytes.remove(at)),
    }
}
