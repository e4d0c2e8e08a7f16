//! Where a file has no bytes.

use std::os::fd::AsFd;

use haul_wire::control::{MAX_HOLES, Stretch};
use rustix::fs::{Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::storage::{openat, seek};

/// Holes below this many bytes are taken for data: a hole less is one system call less on the other side.
const WORTH_IT: u64 = 4096;

/// The holes of a file that has fewer blocks than bytes, in order; none if the file system cannot tell.
pub(crate) fn holes(directory: impl AsFd, name: &[u8], stat: &Stat) -> Vec<Stretch> {
    let size = stat.st_size as u64;
    let allocated = (stat.st_blocks as u64).saturating_mul(512);
    if allocated >= size {
        return Vec::new();
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let found = openat(directory, name, flags, Mode::empty()).and_then(|file| find(&file, size));
    // Without them, zeros travel.
    largest(found.unwrap_or_default())
}

fn find(file: &impl AsFd, size: u64) -> Result<Vec<Stretch>, Errno> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // No data from here on.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        if data - at >= WORTH_IT.min(size) && data > at {
            holes.push(Stretch { start: at, len: data - at });
        }
        if data >= size {
            break;
        }
        at = seek(file, SeekFrom::Hole(data))?.max(data + 1);
    }
    Ok(holes)
}

/// As many as an entry may have.
fn largest(mut holes: Vec<Stretch>) -> Vec<Stretch> {
    if holes.len() > MAX_HOLES {
        holes.sort_unstable_by_key(|hole| std::cmp::Reverse(hole.len));
        holes.truncate(MAX_HOLES);
        holes.sort_unstable_by_key(|hole| hole.start);
    }
    holes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn holes_are_found_or_taken_for_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[1; 8192], 4 << 20).unwrap();
        let directory = OwnedFd::from(File::open(dir.path()).unwrap());
        let stat = rustix::fs::fstat(&file).unwrap();
        let holes = holes(&directory, b"sparse", &stat);
        assert!(Stretch::in_order(&holes, 10 << 20));
        let in_data = |hole: &Stretch| hole.start < (4 << 20) + 8192 && hole.start + hole.len > 4 << 20;
        assert!(!holes.iter().any(in_data), "{holes:?}");
        if (stat.st_blocks as u64) * 512 < 10 << 20 {
            assert!(!holes.is_empty());
        }
    }

    #[test]
    fn too_many_holes_leave_the_largest() {
        let all =
            (0..MAX_HOLES as u64 + 10).map(|i| Stretch { start: i * 1000, len: if i < 10 { 1 } else { 2 } });
        let kept = largest(all.collect());
        assert_eq!(kept.len(), MAX_HOLES);
        assert_eq!(kept[0].start, 10_000);
    }
}
