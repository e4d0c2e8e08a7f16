//! Generated files for the demo: large to empty, in nested directories; equal for equal seeds.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use haul_base::{Bytes, Rng};

use crate::fault::{self, Fault, FaultCode};
use crate::signals::Cancel;

const BLOCK: usize = 1 << 20;
/// Parents before children; the first stays empty.
const DIRECTORIES: [&str; 4] = ["empty", "runs", "runs/2026", "runs/2026/november"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSet {
    /// Relative paths and sizes, in the order of creation.
    pub files: Vec<(PathBuf, Bytes)>,
    seed: u64,
}

impl FileSet {
    pub(super) fn plan(size: Bytes, files: u32, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let sizes = sizes(size.0, u64::from(files.max(1)), &mut rng);
        let place = |(number, &size): (usize, &u64)| {
            // The first, largest file is at the top, the others anywhere but in the empty directory.
            let at = if number == 0 { 0 } else { rng.below(DIRECTORIES.len() as u64) as usize };
            let parent = Path::new(if at == 0 { "" } else { DIRECTORIES[at] });
            (parent.join(name(number, size)), Bytes(size))
        };
        Self { files: sizes.iter().enumerate().map(place).collect(), seed }
    }

    pub(super) fn total(&self) -> Bytes {
        Bytes(self.files.iter().map(|(_, size)| size.0).sum())
    }

    /// Writes the set and a symbolic link to its first file below `root`, which must exist.
    pub(super) fn write(&self, root: &Path, cancel: &Cancel) -> Result<(), Fault> {
        self.try_write(root, cancel).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => Fault::new(FaultCode::Interrupted, "interrupted", ""),
            _ => fault::io(format!("cannot write the demo's files to {}", root.display()), &e),
        })
    }

    fn try_write(&self, root: &Path, cancel: &Cancel) -> io::Result<()> {
        for directory in DIRECTORIES {
            fs::create_dir_all(root.join(directory))?;
        }
        let mut block = vec![0; BLOCK];
        for (number, (path, size)) in self.files.iter().enumerate() {
            let mut rng = Rng::from_seed(self.seed ^ (number as u64 + 1).rotate_left(32));
            let mut file = File::create(root.join(path))?;
            let mut left = size.0;
            while left > 0 {
                if cancel.is_requested() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let part = &mut block[..left.min(BLOCK as u64) as usize];
                rng.fill(part);
                file.write_all(part)?;
                left -= part.len() as u64;
            }
        }
        std::os::unix::fs::symlink(&self.files[0].0, root.join("latest"))
    }
}

/// Half the bytes in the first file (all, if there are fewer than three), most of the rest in every twelfth
/// of the others, none in the last.
fn sizes(total: u64, files: u64, rng: &mut Rng) -> Vec<u64> {
    let big = if files < 3 { total } else { total / 2 };
    let weight = |number: u64| (1 + rng.below(1_000)) * if number.is_multiple_of(12) { 48 } else { 1 };
    let weights: Vec<u64> = (0..files.saturating_sub(2)).map(weight).collect();
    let mut sizes = vec![big];
    sizes.extend(split_in_proportion(total - big, &weights));
    sizes.extend((files > 1).then_some(0));
    sizes
}

/// Splits `total` in proportion to the weights, without a remainder.
fn split_in_proportion(total: u64, weights: &[u64]) -> impl Iterator<Item = u64> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let mut before = 0;
    let ends = weights.iter().scan(0, move |upto: &mut u128, &weight| {
        *upto += u128::from(weight);
        Some((u128::from(total) * *upto / sum) as u64)
    });
    ends.map(move |end| end - std::mem::replace(&mut before, end))
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

    fn set_of(size: u64, files: u32) -> FileSet {
        FileSet::plan(Bytes(size), files, 1)
    }

    #[test]
    fn the_default_set_has_files_of_all_sizes() {
        let set = set_of(256_000_000, 64);
        assert_eq!((set.files.len(), set.total()), (64, Bytes(256_000_000)));
        assert_eq!(set.files[0].1, Bytes(128_000_000));
        let count =
            |range: std::ops::Range<u64>| set.files.iter().filter(|(_, s)| range.contains(&s.0)).count();
        assert_eq!(count(0..1), 1);
        assert!(count(1_000_000..100_000_000) >= 5);
        assert!(count(1..1_000_000) >= 20);
        assert!(set.files.iter().any(|(path, _)| path.starts_with("runs/2026/november")));
    }

    #[test]
    fn equal_seeds_write_equal_trees() {
        let set = set_of(3_000_000, 20);
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        set.write(a.path(), &Cancel::default()).unwrap();
        set_of(3_000_000, 20).write(b.path(), &Cancel::default()).unwrap();
        for (path, size) in &set.files {
            let bytes = fs::read(a.path().join(path)).unwrap();
            assert_eq!(bytes.len() as u64, size.0);
            assert!(bytes == fs::read(b.path().join(path)).unwrap());
        }
        assert!(a.path().join("empty").read_dir().unwrap().next().is_none());
        assert_eq!(fs::read(a.path().join("latest")).unwrap().len(), 1_500_000);
        let other = FileSet::plan(Bytes(3_000_000), 20, 2);
        assert_ne!(set, other);
    }

    #[test]
    fn the_fault_names_a_directory_that_cannot_be_written() {
        let fault = set_of(10, 1).write(Path::new("/dev/null/dir"), &Cancel::default());
        let fault = fault.unwrap_err();
        assert!(fault.message.contains("/dev/null/dir"), "{fault}");
    }

    #[test]
    fn writing_stops_when_cancelled() {
        let (dir, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
        cancel.request();
        let fault = set_of(10, 1).write(dir.path(), &cancel).unwrap_err();
        assert_eq!(fault.code, FaultCode::Interrupted);
    }

    proptest! {
        #[test]
        fn sizes_and_counts_are_as_asked(size in 0u64..1 << 40, files in 1u32..200, seed: u64) {
            let set = FileSet::plan(Bytes(size), files, seed);
            prop_assert_eq!(set.total(), Bytes(size));
            prop_assert_eq!(set.files.len(), files as usize);
            let mut paths: Vec<_> = set.files.iter().map(|(path, _)| path).collect();
            paths.sort();
            paths.dedup();
            prop_assert_eq!(paths.len(), files as usize);
        }
    }
}
