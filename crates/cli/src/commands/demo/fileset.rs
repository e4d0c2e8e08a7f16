//! Generated files for the demo: large to empty, in nested directories; equal for equal seeds.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use haul_base::{Bytes, Rng};

use crate::fault::{self, Fault};
use crate::signals::Cancel;

const BLOCK: usize = 1 << 20;
/// Parents before children; the first stays empty.
const DIRECTORIES: [&str; 4] = ["empty", "runs", "runs/2026", "runs/2026/november"];

/// Returns the relative paths and sizes of the files, in the order of creation.
pub(super) fn plan(size: Bytes, files: u32, seed: u64) -> Vec<(PathBuf, Bytes)> {
    let mut rng = Rng::from_seed(seed);
    let sizes = sizes(size.0, u64::from(files.max(1)), &mut rng);
    let place = |(number, &size): (usize, &u64)| {
        // The first, largest file is at the top, the others anywhere but in the empty directory.
        let at = if number == 0 { 0 } else { rng.below(DIRECTORIES.len() as u64) as usize };
        let parent = Path::new(if at == 0 { "" } else { DIRECTORIES[at] });
        (parent.join(name(number, size)), Bytes(size))
    };
    sizes.iter().enumerate().map(place).collect()
}

/// Writes planned files and a symbolic link to the first one below `root`, which is created if missing.
pub(super) fn write(
    files: &[(PathBuf, Bytes)],
    seed: u64,
    root: &Path,
    cancel: &Cancel,
) -> Result<(), Fault> {
    let failed = |e: io::Error| fault::io(format!("cannot write the demo's files to {}", root.display()), &e);
    for directory in DIRECTORIES {
        fs::create_dir_all(root.join(directory)).map_err(failed)?;
    }
    let mut block = vec![0; BLOCK];
    for (number, (path, size)) in files.iter().enumerate() {
        let mut rng = Rng::from_seed(seed ^ (number as u64 + 1).rotate_left(32));
        let mut file = File::create(root.join(path)).map_err(failed)?;
        let mut remaining = size.0;
        while remaining > 0 {
            cancel.check("")?;
            let part = &mut block[..remaining.min(BLOCK as u64) as usize];
            rng.fill(part);
            file.write_all(part).map_err(failed)?;
            remaining -= part.len() as u64;
        }
    }
    symlink(&files[0].0, root.join("latest")).map_err(failed)
}

/// Half the bytes in the first file (all, if there are fewer than three), most of the rest in every twelfth
/// of the others, none in the last.
fn sizes(total: u64, files: u64, rng: &mut Rng) -> Vec<u64> {
    let big = if files < 3 { total } else { total / 2 };
    let weight = |number: u64| (1 + rng.below(1_000)) * if number.is_multiple_of(12) { 48 } else { 1 };
    let weights: Vec<u64> = (0..files.saturating_sub(2)).map(weight).collect();
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let share = |&weight: &u64| (u128::from(total - big) * u128::from(weight) / sum) as u64;
    let mut sizes = vec![big];
    sizes.extend(weights.iter().map(share));
    let remainder = total - sizes.iter().sum::<u64>();
    sizes[weights.len()] += remainder;
    sizes.extend((files > 1).then_some(0));
    sizes
}

fn name(number: usize, size: u64) -> String {
    let kind = match (number, size) {
        (0, _) => "volume.dat",
        (_, 0) => "empty.log",
        (_, 1_000_000..) => "field.h5",
        // Names that careless tools mishandle.
        _ if number.is_multiple_of(7) => "note with spaces.txt",
        _ if number.is_multiple_of(11) => "größe.csv",
        _ => "point.json",
    };
    format!("{number:04}-{kind}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::FaultCode;

    fn set_of(size: u64, files: u32) -> Vec<(PathBuf, Bytes)> {
        plan(Bytes(size), files, 1)
    }

    fn total(set: &[(PathBuf, Bytes)]) -> u64 {
        set.iter().map(|(_, size)| size.0).sum()
    }

    #[test]
    fn the_default_set_has_files_of_all_sizes() {
        let set = set_of(256_000_000, 64);
        assert_eq!((set.len(), total(&set)), (64, 256_000_000));
        assert_eq!(set[0].1, Bytes(128_000_000));
        let count = |range: std::ops::Range<u64>| set.iter().filter(|(_, s)| range.contains(&s.0)).count();
        assert_eq!(count(0..1), 1);
        assert!(count(1_000_000..100_000_000) >= 5);
        assert!(count(1..1_000_000) >= 20);
        assert!(set.iter().any(|(path, _)| path.starts_with("runs/2026/november")));
    }

    #[test]
    fn equal_seeds_write_equal_trees() {
        let set = set_of(3_000_000, 20);
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(&set, 1, a.path(), &Cancel::default()).unwrap();
        write(&set_of(3_000_000, 20), 1, b.path(), &Cancel::default()).unwrap();
        for (path, size) in &set {
            let bytes = fs::read(a.path().join(path)).unwrap();
            assert_eq!(bytes.len() as u64, size.0);
            assert!(bytes == fs::read(b.path().join(path)).unwrap());
        }
        assert!(a.path().join("empty").read_dir().unwrap().next().is_none());
        assert_eq!(fs::read(a.path().join("latest")).unwrap().len(), 1_500_000);
        let other = plan(Bytes(3_000_000), 20, 2);
        assert_ne!(set, other);
    }

    #[test]
    fn the_fault_names_a_directory_that_cannot_be_written() {
        let fault = write(&set_of(10, 1), 1, Path::new("/dev/null/dir"), &Cancel::default());
        let fault = fault.unwrap_err();
        assert!(fault.message.contains("/dev/null/dir"), "{fault}");
    }

    #[test]
    fn writing_stops_when_cancelled() {
        let (dir, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
        cancel.request();
        let fault = write(&set_of(10, 1), 1, dir.path(), &cancel).unwrap_err();
        assert_eq!(fault.code, FaultCode::Interrupted);
    }

    proptest! {
        #[test]
        fn sizes_and_counts_are_as_requested(size in 0u64..1 << 40, files in 1u32..200, seed: u64) {
            let set = plan(Bytes(size), files, seed);
            prop_assert_eq!(total(&set), size);
            prop_assert_eq!(set.len(), files as usize);
            let mut paths: Vec<_> = set.iter().map(|(path, _)| path).collect();
            paths.sort();
            paths.dedup();
            prop_assert_eq!(paths.len(), files as usize);
        }
    }
}
