//! Files in `/proc` and `/sys` that are read repeatedly.

use std::io;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};

/// Bytes read of a file. The first line of `/proc/stat` and both lines of a pressure file are shorter.
const READ: usize = 256;

/// Error of opening sensors.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// An existing file cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Path of the file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An open file.
pub(crate) struct Source {
    file: OwnedFd,
    buffer: Vec<u8>,
}

impl Source {
    /// Returns `None` if the kernel has no such file, or does not let this process read it.
    pub(crate) fn open(path: &str) -> Result<Option<Self>, SensorError> {
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(Some(Self { file, buffer: vec![0; READ] })),
            // Pressure is disabled on some kernels (EOPNOTSUPP); sandboxes hide files with the other errors.
            Err(
                Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP | Errno::NXIO,
            ) => Ok(None),
            Err(error) => Err(SensorError::Open { path: path.to_owned(), source: error.into() }),
        }
    }

    /// Parses the beginning of the file; `None` if it cannot be read or parsed.
    pub(crate) fn read<T>(&mut self, parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let len = pread(&self.file, &mut self.buffer, 0).ok()?;
        parse(&self.buffer[..len])
    }

    /// Parses the whole file, which the kernel may return page by page.
    pub(crate) fn read_complete<T>(&mut self, parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let mut len = 0;
        loop {
            match pread(&self.file, &mut self.buffer[len..], len as u64).ok()? {
                0 => return parse(&self.buffer[..len]),
                read => len += read,
            }
            if len == self.buffer.len() {
                self.buffer.resize(2 * len, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kernel_files_are_none_and_unreadable_ones_are_errors() {
        assert!(Source::open("/proc/no-such-file").unwrap().is_none());
        assert!(Source::open("/proc/version/no-such-file").unwrap().is_none());
        let error = Source::open(&"/proc/self/cwd/\u{1}".repeat(300));
        assert!(error.is_err_and(|error| error.to_string().starts_with("cannot open /proc/self/cwd")));
    }

    #[test]
    fn a_long_file_is_read_to_its_end() {
        let contents = || std::fs::read("/proc/kallsyms").unwrap();
        let mut source = Source::open("/proc/kallsyms").unwrap().expect("each Linux has it");
        assert!(contents().len() > 1 << 16);
        for _ in 0..2 {
            // Another program may load a module between two samples.
            let mut is_complete = || source.read_complete(|text| Some(text == contents())).unwrap();
            assert!((0..10).any(|_| is_complete()));
        }
    }

    #[test]
    fn a_file_is_read_anew_each_time() {
        let mut uptime = Source::open("/proc/uptime").unwrap().expect("each Linux has it");
        let mut read = || uptime.read(|text| String::from_utf8(text.to_vec()).ok()).unwrap();
        let first = read();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_ne!(read(), first);
        assert!(uptime.read(|_| None::<u32>).is_none());
    }
}
