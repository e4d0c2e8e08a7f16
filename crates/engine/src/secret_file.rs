//! Files that only their owner can read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file that only its owner can read, and syncs it. Atomically replaces an existing regular file,
/// whatever its mode; a symbolic link or any other kind of file is neither followed nor replaced.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the name is taken by a non-regular file; otherwise the system's error.
pub fn write_secret_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => return Err(no_file(there.is_symlink())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(io::ErrorKind::InvalidInput.into()),
    };
    // Open it now: whoever waits for the file may remove the directory as soon as the file exists.
    let opened = File::open(directory)?;
    // Created with mode 0600 under a new name, and removed on failure.
    let mut file = tempfile::Builder::new().prefix(".haul-secret-").tempfile_in(directory)?;
    file.write_all(contents)?;
    file.as_file().sync_data()?;
    file.persist(path)?;
    opened.sync_all()
}

/// Error for a name that cannot be used for a secret.
pub(crate) fn no_file(is_link: bool) -> io::Error {
    let what = if is_link { "it is a symbolic link" } else { "it is no regular file" };
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_secret_files_directory_can_be_removed_once_it_appears() {
        for _ in 0..300 {
            let place = tempfile::tempdir().unwrap();
            let (path, is_over) = (place.path().join("url"), AtomicBool::new(false));
            let written = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !path.exists() && !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    fs::remove_dir_all(place.path()).unwrap();
                });
                let written = write_secret_file(&path, b"secret");
                is_over.store(true, Ordering::Relaxed);
                written
            });
            written.unwrap();
        }
    }

    #[test]
    fn a_secret_file_is_private_and_replaces_files_atomically() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "old and readable, and longer").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let mut held = File::open(&path).unwrap();
        write_secret_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            io::read_to_string(&mut held).unwrap(),
            "old and readable, and longer",
            "it is another file"
        );
        assert_eq!(place.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_are_replaced_and_no_links_followed() {
        let place = tempfile::tempdir().unwrap();
        let (target, link) = (place.path().join("target"), place.path().join("link"));
        fs::write(&target, "untouched").unwrap();
        symlink(&target, &link).unwrap();
        assert!(write_secret_file(&link, b"x").unwrap_err().to_string().contains("symbolic link"));
        assert!(link.is_symlink() && fs::read(&target).unwrap() == b"untouched");
        assert!(write_secret_file(place.path(), b"x").is_err());
        assert!(
            write_secret_file(Path::new("/dev/null"), b"x").unwrap_err().to_string().contains("no regular")
        );
        assert!(write_secret_file(Path::new("/"), b"x").is_err());
        assert_eq!(place.path().read_dir().unwrap().count(), 2);
    }
}
