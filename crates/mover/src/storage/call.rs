//! Kinds of file system calls.

/// Kind of a file system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(feature = "faults"), expect(unreachable_pub, reason = "only tests see it"))]
pub enum Call {
    /// `openat`, `openat2`, `dup`.
    Open,
    /// `fstat`, `fstatat`, `fstatfs`, `faccessat`, `readlinkat`, `getxattr`, `listxattr`.
    Stat,
    /// Lists the names in a directory.
    List,
    /// `lseek` for holes.
    Seek,
    /// `pread` of at most this many bytes.
    Read(usize),
    /// `write`, `pwrite`, `copy_file_range` of at most this many bytes.
    Write(usize),
    /// `fallocate`, `ftruncate`.
    Size,
    /// `mkdirat`, `symlinkat`, `linkat`.
    Make,
    /// `renameat`.
    Rename,
    /// `unlinkat`.
    Remove,
    /// `fchmod`, `fchownat`, `utimensat`, `setxattr`, `removexattr`.
    Attributes,
    /// `fsync`, `fdatasync`, `syncfs`.
    Sync,
    /// `flock`.
    Lock,
}
