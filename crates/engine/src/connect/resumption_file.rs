//! Files with the state for resuming without a handshake.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use haul_proto::connection::{ResumptionError, SavedResumption};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::clock::unix_micros;
use crate::secret_file::{no_file, write_secret_file};

/// Error code for opening a symbolic link with `O_NOFOLLOW`.
const LINK: i32 = Errno::LOOP.raw_os_error();
const MAX_LEN: u64 = 256 << 10;

/// A file with resumption state that only its owner can read; locked against other programs while in use.
#[derive(Clone, Debug)]
pub struct ResumptionFile {
    path: PathBuf,
}

impl ResumptionFile {
    /// Names the file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: &io::Error) -> ResumptionError {
        ResumptionError::File { path: self.path.clone(), reason: error.to_string() }
    }

    /// Writes the state, replacing any earlier one.
    ///
    /// # Errors
    /// [`ResumptionError::File`].
    pub fn save(&self, saved: &SavedResumption) -> Result<(), ResumptionError> {
        let lock = match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            open => open.map(Some),
        };
        let written = lock.and_then(|_lock| write_secret_file(&self.path, saved.to_text().as_bytes()));
        written.map_err(|error| self.failed(&error))
    }

    /// Reads the state; opens no connection.
    ///
    /// # Errors
    /// [`ResumptionError::File`] if the file cannot be read; [`ResumptionError::Damaged`].
    pub(super) fn peek(&self) -> Result<SavedResumption, ResumptionError> {
        let mut file = self.open().map_err(|error| self.failed(&error))?;
        self.read(&mut file)
    }

    /// Takes the state for one connection: its new epoch is on the disk before this returns, and is used
    /// once.
    ///
    /// # Errors
    /// [`ResumptionError::File`] if the file cannot be read or written; [`ResumptionError::Damaged`].
    pub(super) fn take(&self) -> Result<SavedResumption, ResumptionError> {
        let mut file = self.open().map_err(|error| self.failed(&error))?;
        let mut saved = self.read(&mut file)?;
        saved.next_epoch(unix_micros());
        // The lock is held until the new file has the name.
        let text = saved.to_text();
        write_secret_file(&self.path, text.as_bytes()).map_err(|error| self.failed(&error))?;
        Ok(saved)
    }

    fn read(&self, file: &mut File) -> Result<SavedResumption, ResumptionError> {
        let mut text = Zeroizing::new(String::with_capacity(
            file.metadata().map_or(0, |file| file.len().min(MAX_LEN) as usize),
        ));
        let read = Read::by_ref(file).take(MAX_LEN).read_to_string(&mut text);
        read.map_err(|error| self.failed(&error))?;
        SavedResumption::from_text(&text)
    }

    /// Opens and locks the file that has the name, which may be replaced while this waits for the lock.
    fn open(&self) -> io::Result<File> {
        loop {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
            let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
            let file = opened
                .map_err(|error| if error.raw_os_error() == Some(LINK) { no_file(true) } else { error })?;
            let locked = file.metadata()?;
            if !locked.is_file() {
                return Err(no_file(false));
            }
            flock(&file, FlockOperation::LockExclusive)?;
            let named = fs::symlink_metadata(&self.path)?;
            if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) {
                return Ok(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use haul_base::Span;
    use haul_proto::connection::ResumptionSecret;
    use haul_wire::control::Cipher;

    use super::*;

    fn saved() -> SavedResumption {
        SavedResumption {
            server: "[2001:db8::7]:2640".parse().unwrap(),
            fingerprint: [3; 32],
            identity: 7,
            secret: ResumptionSecret([9; 32].into()),
            cipher: Cipher::ChaCha20Poly1305,
            round_trip: Span::from_millis(20),
            last_epoch: u64::MAX - 5,
            recipe: "name = \"x\"\n\n[seal]\n".to_owned(),
        }
    }

    #[test]
    fn a_resumption_file_is_private_and_each_use_has_its_own_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::new(directory.path().join("resumption"));
        assert!(matches!(file.take(), Err(ResumptionError::File { .. })));
        file.save(&SavedResumption { last_epoch: 0, ..saved() }).unwrap();
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut epochs: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| file.take().unwrap().last_epoch)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        epochs.sort_unstable();
        epochs.dedup();
        assert_eq!(epochs.len(), 4);
        fs::write(file.path(), "something else").unwrap();
        assert!(matches!(file.take(), Err(ResumptionError::Damaged(_))));
    }

    #[test]
    fn a_readable_resumption_file_becomes_private_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("resumption"), directory.path().join("link"));
        let file = ResumptionFile::new(&path);
        file.save(&SavedResumption { last_epoch: 0, ..saved() }).unwrap();
        let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
        let open = || fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        open();
        let before = path.metadata().unwrap().ino();
        file.take().unwrap();
        assert_eq!(mode(), 0o600);
        assert_ne!(path.metadata().unwrap().ino(), before, "it is replaced, not written over");
        open();
        file.save(&saved()).unwrap();
        assert_eq!(mode(), 0o600);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let linked = ResumptionFile::new(&link);
        for refused in [linked.take().map(drop), linked.peek().map(drop), linked.save(&saved())] {
            assert!(refused.unwrap_err().to_string().contains("symbolic link"));
        }
        assert!(link.is_symlink());
    }
}
