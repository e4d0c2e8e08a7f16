//! State with which a client reconnects without a handshake: what both ends keep, and what the client saves.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use haul_base::Span;
use haul_stack::{CompiledStack, Recipe, Registry};
use haul_wire::control::Cipher;
use zeroize::Zeroizing;

use super::protection::{ENCRYPTED, ResumptionSecret};
use super::role::Role;

const FIRST_LINE: &str = "haulage resumption 3: keep it secret";
/// Names and values of all fields but the recipe take less.
const MAX_BESIDE_RECIPE: usize = 512;

/// State kept by both ends, to open connections without another handshake.
#[derive(Clone, Debug)]
pub struct ResumptionState {
    /// This end's role in its connections.
    pub role: Role,
    /// Identifies the client at its server.
    pub identity: u32,
    /// Secret from which all keys are derived.
    pub secret: ResumptionSecret,
    /// Cipher of the packets.
    pub cipher: Cipher,
    /// Stack of the connections.
    pub compiled: Arc<CompiledStack>,
    /// Initial estimate of the round-trip time.
    pub round_trip: Span,
}

/// Why resumption state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResumptionError {
    /// The file cannot be read or written.
    #[error("the file {} cannot be used: {reason}", path.display())]
    File {
        /// The file of the resumption state.
        path: PathBuf,
        /// The system's error message.
        reason: String,
    },
    /// No file was named.
    #[error("no resumption file was given")]
    NoFile,
    /// The file does not contain resumption state, or is damaged.
    #[error("the resumption state is invalid or damaged: {0}")]
    Damaged(&'static str),
    /// The client's options do not list the cipher.
    #[error("the resumption state is for the cipher {0}, which the options do not list")]
    Cipher(Cipher),
    /// Its recipe does not build here.
    #[error("the recipe that was saved cannot be used here: {0}")]
    Recipe(String),
}

/// Saved state with which a client reconnects to a server that knows it. Contains a secret.
#[derive(derive_more::Debug, Clone, PartialEq, Eq)]
#[debug("SavedResumption({server}, {identity})")]
pub struct SavedResumption {
    /// The server's address.
    pub server: SocketAddr,
    /// SHA-256 of the server's certificate, as in its URL.
    pub fingerprint: [u8; 32],
    /// Identifies the client at the server.
    pub identity: u32,
    /// Secret from which all keys are derived.
    pub secret: ResumptionSecret,
    /// Cipher of the packets.
    pub cipher: Cipher,
    /// Initial estimate of the round-trip time.
    pub round_trip: Span,
    /// Epoch of the latest connection.
    pub last_epoch: u64,
    /// The recipe as TOML.
    pub recipe: String,
}

impl SavedResumption {
    /// Returns the negotiated recipe.
    ///
    /// # Errors
    /// If it is damaged, or `registry` lacks something that it names.
    pub fn recipe(&self, registry: &Registry) -> Result<Recipe, ResumptionError> {
        registry.parse(&self.recipe).map_err(|error| ResumptionError::Recipe(error.to_string()))
    }

    /// Returns the epoch of a new connection: higher than every earlier one, whatever the clock shows. `now`
    /// is in microseconds since 1970.
    pub fn next_epoch(&mut self, now: u64) -> u64 {
        self.last_epoch = now.max(self.last_epoch.saturating_add(1));
        self.last_epoch
    }

    /// Returns the text to be saved.
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(BASE64URL_NOPAD.encode(self.secret.0.as_bytes()));
        let (cipher, fingerprint) = (self.cipher.as_str(), BASE64URL_NOPAD.encode(&self.fingerprint));
        let micros = self.round_trip.as_micros();
        // Allocated once: a string that grows leaves copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(MAX_BESIDE_RECIPE + self.recipe.len()));
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{FIRST_LINE}\nserver {}\ncertificate {fingerprint}\nidentity {}\nsecret {}\ncipher {cipher}\nround_trip_us {micros}\nlast_epoch {}\nrecipe {}\n{}",
            self.server,
            self.identity,
            *secret,
            self.last_epoch,
            digest(&self.recipe),
            self.recipe
        );
        text
    }

    /// Parses a saved text.
    ///
    /// # Errors
    /// [`ResumptionError::Damaged`].
    pub fn from_text(text: &str) -> Result<Self, ResumptionError> {
        let split =
            text.split_once("\nrecipe ").and_then(|(head, rest)| Some((head, rest.split_once('\n')?)));
        let (head, (sum, recipe)) = split.ok_or(ResumptionError::Damaged("it has no recipe"))?;
        let mut lines = head.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(ResumptionError::Damaged("its first line is another"));
        }
        // The fields in order, each prefixed with its name.
        let mut field = |name: &'static str| {
            let field = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            field.ok_or(ResumptionError::Damaged(name))
        };
        let server = parsed(field("server")?, "server")?;
        let fingerprint = *bytes(field("certificate")?, "certificate")?;
        let identity = parsed(field("identity")?, "identity")?;
        let secret = bytes(field("secret")?, "secret")?;
        let cipher = cipher(field("cipher")?).ok_or(ResumptionError::Damaged("cipher"))?;
        let micros: u32 = parsed(field("round_trip_us")?, "a number")?;
        let last_epoch = parsed(field("last_epoch")?, "a number")?;
        if sum != digest(recipe) {
            return Err(ResumptionError::Damaged("recipe"));
        }
        Ok(Self {
            server,
            fingerprint,
            identity,
            secret: ResumptionSecret((*secret).into()),
            cipher,
            round_trip: Span::from_micros(u64::from(micros)),
            last_epoch,
            recipe: recipe.to_owned(),
        })
    }
}

/// Hash of a recipe's text, which detects a truncated text: with different recipes the two ends would misread
/// each other's packets.
fn digest(recipe: &str) -> String {
    blake3::hash(recipe.as_bytes()).to_hex().to_string()
}

fn bytes(text: &str, what: &'static str) -> Result<Zeroizing<[u8; 32]>, ResumptionError> {
    let decoded = BASE64URL_NOPAD.decode(text.as_bytes()).ok().map(Zeroizing::new);
    let bytes = decoded.and_then(|bytes| <[u8; 32]>::try_from(bytes.as_slice()).ok());
    bytes.map(Zeroizing::new).ok_or(ResumptionError::Damaged(what))
}

fn parsed<T: FromStr>(text: &str, what: &'static str) -> Result<T, ResumptionError> {
    text.parse().map_err(|_| ResumptionError::Damaged(what))
}

fn cipher(name: &str) -> Option<Cipher> {
    ENCRYPTED.into_iter().chain([Cipher::None]).find(|cipher| cipher.as_str() == name)
}

#[cfg(test)]
mod tests {
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
    fn a_resumption_state_round_trips_and_its_debug_output_hides_secrets() {
        let text = saved().to_text();
        assert_eq!(SavedResumption::from_text(&text), Ok(saved()));
        assert!(!format!("{:?}", saved()).contains("CQkJ"));
        for cut in 0..text.len() {
            assert!(SavedResumption::from_text(&text[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn epochs_increase_for_any_clock() {
        let mut saved = saved();
        assert_eq!(saved.next_epoch(7), u64::MAX - 4);
        saved.last_epoch = 0;
        assert_eq!([saved.next_epoch(5), saved.next_epoch(5), saved.next_epoch(9)], [5, 6, 9]);
    }
}
