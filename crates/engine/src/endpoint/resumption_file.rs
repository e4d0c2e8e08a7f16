//! What lets a client come back without a handshake, in memory and in a file.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use haul_proto::connection::{ENCRYPTED, ResumptionSecret};
use data_encoding::BASE64URL_NOPAD;
use haul_base::Span;
use haul_stack::Recipe;
use haul_wire::control::Cipher;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::secret_file::{no_file, write_secret_file};

/// How the system refuses to open a symbolic link.
const LINK: i32 = Errno::LOOP.raw_os_error();
const FIRST_LINE: &str = "haulage resumption 1: keep it secret";
/// No file is longer.
const LONGEST: u64 = 256 << 10;
/// Names and values of all fields but the recipe take less.
const MOST_BESIDE_RECIPE: usize = 512;

/// Why resumption state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumptionError {
    /// The file cannot be read or written.
    #[error("the file {} cannot be used: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It holds no resumption state, or was damaged.
    #[error("this is no resumption state, or a damaged one: {0}")]
    Damaged(&'static str),
    /// Its recipe does not build here.
    #[error("the recipe that was saved cannot be used here: {0}")]
    Recipe(String),
}

/// What lets a client come back to a server that knows it. It holds a secret.
#[derive(derive_more::Debug, Clone, PartialEq, Eq)]
#[debug("SavedResumption({server}, {identity})")]
pub struct SavedResumption {
    pub(crate) server: SocketAddr,
    pub(crate) identity: u32,
    pub(crate) secret: ResumptionSecret,
    pub(crate) cipher: Cipher,
    pub(crate) round_trip: Span,
    /// Epoch of the latest connection.
    pub(crate) last_epoch: u64,
    /// The recipe, TOML.
    pub(crate) recipe: String,
}

impl SavedResumption {
    /// The server's address.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The recipe that was agreed on.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn recipe(&self) -> Result<Recipe, ResumptionError> {
        Recipe::parse(&self.recipe).map_err(|error| ResumptionError::Recipe(error.to_string()))
    }

    /// The epoch of a new connection: higher than every one before it, whatever the clock says.
    pub(super) fn next_epoch(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        self.last_epoch = now.max(self.last_epoch.saturating_add(1));
        self.last_epoch
    }

    fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(BASE64URL_NOPAD.encode(self.secret.0.as_bytes()));
        let cipher = self.cipher.as_str();
        let micros = self.round_trip.as_micros();
        // Allocated once: a string that grows leaves copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(MOST_BESIDE_RECIPE + self.recipe.len()));
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{FIRST_LINE}\nserver {}\nidentity {}\nsecret {}\ncipher {cipher}\nround_trip_us {micros}\nlast_epoch {}\nrecipe\n{}",
            self.server, self.identity, *secret, self.last_epoch, self.recipe
        );
        text
    }

    fn from_text(text: &str) -> Result<Self, ResumptionError> {
        let (head, recipe) =
            text.split_once("\nrecipe\n").ok_or(ResumptionError::Damaged("it has no recipe"))?;
        let mut lines = head.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(ResumptionError::Damaged("its first line is another"));
        }
        // One after the other, each with its name in front.
        let mut field = |name: &'static str| {
            let field = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            field.ok_or(ResumptionError::Damaged(name))
        };
        let server = parsed(field("server")?, "server")?;
        let identity = parsed(field("identity")?, "identity")?;
        let secret = BASE64URL_NOPAD.decode(field("secret")?.as_bytes()).ok().map(Zeroizing::new);
        let secret = secret.and_then(|secret| <[u8; 32]>::try_from(secret.as_slice()).ok());
        let cipher = cipher(field("cipher")?).ok_or(ResumptionError::Damaged("cipher"))?;
        let micros: u32 = parsed(field("round_trip_us")?, "a number")?;
        let last_epoch = parsed(field("last_epoch")?, "a number")?;
        Ok(Self {
            server,
            identity,
            secret: ResumptionSecret(secret.ok_or(ResumptionError::Damaged("secret"))?.into()),
            cipher,
            round_trip: Span::from_micros(u64::from(micros)),
            last_epoch,
            recipe: recipe.to_owned(),
        })
    }
}

fn parsed<T: FromStr>(text: &str, what: &'static str) -> Result<T, ResumptionError> {
    text.parse().map_err(|_| ResumptionError::Damaged(what))
}

fn cipher(name: &str) -> Option<Cipher> {
    ENCRYPTED.into_iter().chain([Cipher::None]).find(|cipher| cipher.as_str() == name)
}

/// Resumption state in a file that only its owner can read. Programs that use it at once take turns.
#[derive(Clone, Debug)]
pub struct ResumptionFile {
    path: PathBuf,
}

impl ResumptionFile {
    /// The file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: &io::Error) -> ResumptionError {
        ResumptionError::File { path: self.path.clone(), reason: error.to_string() }
    }

    /// Writes the state, in the place of an earlier one.
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

    /// The state, to be looked at: no connection begins.
    ///
    /// # Errors
    /// [`ResumptionError::File`] if there is none; [`ResumptionError::Damaged`].
    pub fn look(&self) -> Result<SavedResumption, ResumptionError> {
        let mut file = self.open().map_err(|error| self.failed(&error))?;
        self.read(&mut file)
    }

    /// Takes the state for one connection: the epoch that it gives is on the disk before anything is sent, and no
    /// other program gets the same.
    ///
    /// # Errors
    /// [`ResumptionError::File`] if there is none; [`ResumptionError::Damaged`].
    pub(super) fn take(&self) -> Result<SavedResumption, ResumptionError> {
        let mut file = self.open().map_err(|error| self.failed(&error))?;
        let mut saved = self.read(&mut file)?;
        saved.next_epoch();
        // The lock is held until the new file has the name.
        let text = saved.to_text();
        write_secret_file(&self.path, text.as_bytes()).map_err(|error| self.failed(&error))?;
        Ok(saved)
    }

    fn read(&self, file: &mut File) -> Result<SavedResumption, ResumptionError> {
        let mut text = Zeroizing::new(String::with_capacity(
            file.metadata().map_or(0, |file| file.len().min(LONGEST) as usize),
        ));
        let read = Read::by_ref(file).take(LONGEST).read_to_string(&mut text);
        read.map_err(|error| self.failed(&error))?;
        SavedResumption::from_text(&text)
    }

    /// The file that has the name, locked: another program may have replaced the one that this one has waited for.
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

    use super::*;

    fn saved() -> SavedResumption {
        SavedResumption {
            server: "[2001:db8::7]:2640".parse().unwrap(),
            identity: 7,
            secret: ResumptionSecret([9; 32].into()),
            cipher: Cipher::ChaCha20Poly1305,
            round_trip: Span::from_millis(20),
            last_epoch: u64::MAX - 5,
            recipe: "name = \"x\"\n\n[seal]\n".to_owned(),
        }
    }

    #[test]
    fn a_resumption_state_reads_back_as_it_was_written_and_shows_no_secret() {
        let text = saved().to_text();
        assert_eq!(SavedResumption::from_text(&text), Ok(saved()));
        assert!(!format!("{:?}", saved()).contains("CQkJ"));
        for cut in 0..text.len() - saved().recipe.len() {
            assert!(SavedResumption::from_text(&text[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn epochs_rise_whatever_the_clock_says() {
        let mut saved = saved();
        assert_eq!(saved.next_epoch(), u64::MAX - 4);
        saved.last_epoch = 0;
        let first = saved.next_epoch();
        assert!(first > 1_600_000_000_000_000 && saved.next_epoch() > first);
    }

    #[test]
    fn a_file_is_its_owners_and_every_taking_has_an_epoch_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::new(directory.path().join("resumption"));
        assert!(matches!(file.take(), Err(ResumptionError::File { .. })));
        file.save(&SavedResumption { last_epoch: 0, ..saved() }).unwrap();
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut epochs: Vec<_> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(|| file.take().unwrap().last_epoch)).collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        epochs.sort_unstable();
        epochs.dedup();
        assert_eq!(epochs.len(), 4);
        fs::write(file.path(), "something else").unwrap();
        assert!(matches!(file.take(), Err(ResumptionError::Damaged(_))));
    }

    #[test]
    fn a_resumption_file_that_others_could_read_becomes_private_and_no_link_is_followed() {
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
        for refused in [linked.take().map(drop), linked.look().map(drop), linked.save(&saved())] {
            assert!(refused.unwrap_err().to_string().contains("symbolic link"));
        }
        assert!(link.is_symlink());
    }
}
