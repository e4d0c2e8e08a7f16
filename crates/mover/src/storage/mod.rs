//! File system calls with the names of `rustix::fs`. Calls interrupted by a signal are repeated (signal(7)),
//! and with the feature `faults` a test decides the outcome of each call. Jobs access files only through
//! here, except for advice to the kernel and the reading of journals and of files with patterns.

pub mod faults;

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RawDir, RawDirEntry,
    RenameFlags, ResolveFlags, SeekFrom, Stat, StatFs, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use rustix::{fs, io};
use serde::{Deserialize, Serialize};

pub(crate) use faults::{Call, Inherited, effective_restrictions};
use faults::{decide, with_spelling};

pub(crate) const LIST_BUFFER: usize = 64 << 10;

/// Most bytes per `copy_file_range` call.
const COPY: u64 = 64 << 20;

/// Most bytes per read and write where `copy_file_range` is unavailable.
const COPY_BUFFER: u64 = 1 << 20;

/// Makes a call, and repeats it if a signal interrupts it.
#[inline]
pub(crate) fn repeat<T>(call: Call, mut real: impl FnMut() -> Result<T>) -> Result<T> {
    io::retry_on_intr(|| decide(call).and_then(|_| real()))
}

/// As [`repeat`], for a name in a directory.
fn named<T>(
    call: Call,
    directory: impl AsFd,
    name: impl Arg,
    mut real: impl FnMut(BorrowedFd<'_>, &CStr) -> Result<T>,
) -> Result<T> {
    let at = directory.as_fd();
    name.into_with_c_str(|name| repeat(call, || with_spelling(at, name, |name| real(at, name))))
}

/// The calls of `rustix::fs` on a file descriptor.
macro_rules! on_open {
    ($($call:ident: $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(crate) fn $name(fd: impl AsFd, $($argument: $type),*) -> Result<$result> {
            repeat(Call::$call, || fs::$name(fd.as_fd(), $($argument),*))
        }
    )*};
}

on_open! {
    Stat: fstat() -> Stat;
    Stat: fstatfs() -> StatFs;
    Seek: seek(to: SeekFrom) -> u64;
    Size: fallocate(flags: FallocateFlags, offset: u64, len: u64) -> ();
    Size: ftruncate(len: u64) -> ();
    Attributes: futimens(times: &Timestamps) -> ();
    Sync: fsync() -> ();
    Sync: fdatasync() -> ();
    Sync: syncfs() -> ();
    Lock: flock(operation: FlockOperation) -> ();
}

macro_rules! on_name {
    ($($call:ident: $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(crate) fn $name(directory: impl AsFd, name: impl Arg, $($argument: $type),*) -> Result<$result> {
            named(Call::$call, directory, name, |at, name| fs::$name(at, name, $($argument),*))
        }
    )*};
}

on_name! {
    Open: openat(flags: OFlags, mode: Mode) -> OwnedFd;
    Open: openat2(flags: OFlags, mode: Mode, resolve: ResolveFlags) -> OwnedFd;
    Stat: statat(flags: AtFlags) -> Stat;
    Stat: accessat(access: Access, flags: AtFlags) -> ();
    Make: mkdirat(mode: Mode) -> ();
    Remove: unlinkat(flags: AtFlags) -> ();
    Attributes: chownat(user: Option<Uid>, group: Option<Gid>, flags: AtFlags) -> ();
    Attributes: utimensat(times: &Timestamps, flags: AtFlags) -> ();
}

/// Opens a name. Adds `O_CLOEXEC`.
pub(crate) fn open_in(directory: impl AsFd, name: impl Arg, flags: OFlags) -> Result<OwnedFd> {
    openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Creates a file with mode 0600 at an unused name. Adds `O_CLOEXEC`.
pub(crate) fn create_in(directory: impl AsFd, name: impl Arg, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

pub(crate) fn dup(fd: impl AsFd) -> Result<OwnedFd> {
    repeat(Call::Open, || io::fcntl_dupfd_cloexec(fd.as_fd(), 0))
}

pub(crate) fn lstatat(directory: impl AsFd, name: impl Arg) -> Result<Stat> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

pub(crate) fn lstatat_if_any(directory: impl AsFd, name: impl Arg) -> Result<Option<Stat>> {
    match lstatat(directory, name) {
        Err(Errno::NOENT) => Ok(None),
        done => done.map(Some),
    }
}

pub(crate) fn readlinkat(directory: impl AsFd, name: impl Arg) -> Result<Vec<u8>> {
    named(Call::Stat, directory, name, |at, name| {
        fs::readlinkat(at, name, Vec::new()).map(std::ffi::CString::into_bytes)
    })
}

pub(crate) fn names(directory: impl AsFd) -> Result<Vec<Vec<u8>>> {
    Ok(list(directory)?.into_iter().map(|(name, _)| name).collect())
}

/// Lists a directory, without `.` and `..`, in no particular order; a type may be unknown.
pub(crate) fn list(directory: impl AsFd) -> Result<Vec<(Vec<u8>, FileType)>> {
    // Opened again, because others may read the same open directory at the same time.
    let readable = open_in(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let (mut found, mut buffer) = (Vec::new(), vec![MaybeUninit::uninit(); LIST_BUFFER]);
    let take = |item: &RawDirEntry<'_>| found.push((item.file_name().to_bytes().to_vec(), item.file_type()));
    list_each(readable, &mut buffer, take)?;
    Ok(found)
}

/// Passes the names in a directory to `take`, without `.` and `..`. Like [`list`], for many directories with
/// one buffer.
pub(crate) fn list_each(
    directory: impl AsFd,
    buffer: &mut [MaybeUninit<u8>],
    mut take: impl FnMut(&RawDirEntry<'_>),
) -> Result<()> {
    let mut names = RawDir::new(directory.as_fd(), buffer);
    loop {
        let decision = if names.is_buffer_empty() { decide(Call::List).map(drop) } else { Ok(()) };
        match decision.map(|()| names.next()).transpose() {
            None => return Ok(()),
            Some(item) => match item.and_then(|item| item) {
                Ok(item) if matches!(item.file_name().to_bytes(), b"." | b"..") => {}
                Ok(item) => take(&item),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            },
        }
    }
}

/// Reads some bytes; returns 0 at the end of the file.
pub(crate) fn read_at(fd: impl AsFd, into: &mut [u8], offset: u64) -> Result<usize> {
    repeat(Call::Read(into.len()), || io::pread(fd.as_fd(), &mut *into, offset))
}

/// Fills `into`; an early end of the file is an I/O error.
pub(crate) fn read_exact_at(fd: impl AsFd, mut into: &mut [u8], mut offset: u64) -> Result<()> {
    while !into.is_empty() {
        match read_at(fd.as_fd(), into, offset)? {
            0 => return Err(Errno::IO),
            got => {
                into = &mut into[got..];
                offset += got as u64;
            }
        }
    }
    Ok(())
}

pub(crate) fn write_all_at(fd: impl AsFd, bytes: &[u8], mut offset: u64) -> Result<()> {
    write_with(bytes, |bytes| {
        let done = io::pwrite(fd.as_fd(), bytes, offset)?;
        offset += done as u64;
        Ok(done)
    })
}

/// Writes all bytes to a file that is open for appending.
pub(crate) fn write_all(fd: impl AsFd, bytes: &[u8]) -> Result<()> {
    write_with(bytes, |bytes| io::write(fd.as_fd(), bytes))
}

fn write_with(mut bytes: &[u8], mut real: impl FnMut(&[u8]) -> Result<usize>) -> Result<()> {
    while !bytes.is_empty() {
        match decide(Call::Write(bytes.len())).and_then(|max| real(&bytes[..max.min(bytes.len())])) {
            Ok(0) => return Err(Errno::IO),
            Ok(done) => bytes = &bytes[done..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Copies up to `most` bytes from the beginning of a file to another one; returns their number. The kernel
/// may share the blocks (`copy_file_range(2)`). If it cannot copy, at any offset, this reads and writes.
pub(crate) fn copy(from: impl AsFd, to: impl AsFd, most: u64) -> Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let (mut done, mut buffer) = (0, Vec::new());
    while done < most {
        let by_kernel = buffer.is_empty();
        let copied = if by_kernel {
            let len = (most - done).min(COPY) as usize;
            let (mut start, mut end) = (done, done);
            decide(Call::Write(len))
                .and_then(|now| fs::copy_file_range(from, Some(&mut start), to, Some(&mut end), now.min(len)))
        } else {
            let into = &mut buffer[..(most - done).min(COPY_BUFFER) as usize];
            read_at(from, into, done).and_then(|got| write_all_at(to, &into[..got], done).map(|()| got))
        };
        match copied {
            // Some file systems return 0 for nonempty files (std::io::copy handles this too).
            Ok(0) if by_kernel && done == 0 => buffer.resize(COPY_BUFFER as usize, 0),
            Ok(0) => break,
            Ok(copied) => done += copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) if by_kernel => {
                buffer.resize(COPY_BUFFER as usize, 0);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

pub(crate) fn symlinkat(target: impl Arg, directory: impl AsFd, name: impl Arg) -> Result<()> {
    target.into_with_c_str(|target| {
        named(Call::Make, directory, name, |at, name| fs::symlinkat(target, at, name))
    })
}

/// Creates a hard link. Does not follow symbolic links.
pub(crate) fn linkat(from: impl AsFd, old: impl Arg, directory: impl AsFd, name: impl Arg) -> Result<()> {
    old.into_with_c_str(|old| {
        named(Call::Make, directory, name, |at, name| {
            fs::linkat(from.as_fd(), old, at, name, AtFlags::empty())
        })
    })
}

pub(crate) fn rename_in(directory: impl AsFd, from: impl Arg, to: impl Arg, how: RenameFlags) -> Result<()> {
    from.into_with_c_str(|from| {
        named(Call::Rename, directory, to, |at, to| fs::renameat_with(at, from, at, to, how))
    })
}

/// Removes a temporary file or journal. The directory keeps its time, which another job may have set by now.
pub(crate) fn unlink_temporary(directory: impl AsFd, name: impl Arg) -> Result<()> {
    let before = fstat(&directory);
    unlinkat(&directory, name, AtFlags::empty())?;
    if let Ok(stat) = before {
        // A directory of another user gets a new time.
        let _ = utimensat(&directory, ".", &modified_at(Mtime::of(&stat)), AtFlags::empty());
    }
    Ok(())
}

/// Modification time, in seconds since 1970. The order of the fields is part of the journal's format.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Mtime {
    pub(crate) secs: i64,
    pub(crate) nanos: u32,
}

impl Mtime {
    #[expect(clippy::useless_conversion, reason = "fields differ between architectures")]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { secs: stat.st_mtime.into(), nanos: stat.st_mtime_nsec as u32 }
    }
}

/// Returns timestamps that set the modification time and keep the access time.
pub(crate) fn modified_at(Mtime { secs, nanos }: Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: secs, tv_nsec: nanos.into() },
    }
}

/// Sets the mode, also through an `O_PATH` descriptor of an unreadable file.
pub(crate) fn fchmod(fd: impl AsFd, mode: Mode) -> Result<()> {
    repeat(Call::Attributes, || match fs::fchmod(fd.as_fd(), mode) {
        Err(Errno::BADF) => fs::chmod(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), mode),
        done => done,
    })
}
