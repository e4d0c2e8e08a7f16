//! What two ends agree on before a session begins: the client offers ciphers, settings and a recipe, the server chooses
//! among them, and both build their data path from that.

use haul_base::{Bytes, Rate, Span};
use haul_stack::{Recipe, RecipeError};
use haul_wire::control::{Accept, BenchLimit, Cipher, Fault, FaultCode, Hello, RecipeOffer, Settings};

use super::protection::tag_len;
use crate::config::{BitmapAckConfig, ObjectConfig, RateControlConfig};
use crate::presets::preset;
use crate::{check_object_recipe, micro};

/// Bytes of the tag of a packet: which cipher it will be is not known yet, and none has a longer one.
const TAG_LEN: usize = 16;
/// What is wrong with a recipe of messages here.
const MESSAGES: &str =
    "it carries no object, and a stream of bytes is one; a recipe of messages is for `Connection`";

/// What a client says of the recipe that it wants a session to run.
pub fn offer(recipe: &Recipe) -> RecipeOffer {
    RecipeOffer { text: recipe.to_toml(), versions: micro::registry().versions(recipe) }
}

/// Microseconds between two reports that a peer may ask for, least and most.
const FEEDBACK_INTERVAL_US: (u32, u32) = (100, 1_000_000);

/// The recipe that a session with these settings runs: the one that they name, or `bulk`, with what else they say.
fn session_recipe(settings: &Settings) -> Result<Recipe, RecipeError> {
    let recipe = match &settings.recipe {
        Some(offer) => Recipe::parse(&offer.text),
        None => preset("bulk").unwrap_or_else(|| Ok(Recipe::default())),
    };
    Ok(with_settings(recipe?, settings))
}

/// The recipe of a session with the settings that are in force at last.
pub fn with_settings(mut recipe: Recipe, settings: &Settings) -> Recipe {
    let (least, most) = FEEDBACK_INTERVAL_US;
    let interval = Span::from_micros(settings.feedback_interval_us.clamp(least, most).into());
    // What is missing or wrong is said by the check, in better words.
    let _ = recipe.change(|object: &mut ObjectConfig| object.chunk = Bytes(settings.chunk_bytes.max(1)));
    let _ = recipe.change(|reports: &mut BitmapAckConfig| reports.interval = interval);
    let _ = recipe.change(|law: &mut RateControlConfig| {
        law.controller.clone_from(&settings.controller);
        law.rate = settings.rate_bps.map_or(Rate::MAX, Rate::from_bps);
    });
    recipe
}

/// The recipe, if this end can run a session by it.
fn checked(recipe: Recipe, cipher: Cipher) -> Result<Recipe, RecipeError> {
    check_object_recipe(&recipe, tag_len(cipher))?;
    Ok(recipe)
}

/// The recipe of a session with the settings that this client offers.
///
/// # Errors
/// If this end cannot run it.
pub fn client_recipe(settings: &Settings, cipher: Cipher) -> Result<Recipe, RecipeError> {
    checked(session_recipe(settings)?, cipher)
}

/// The recipe of a session with the settings that a client offers.
///
/// # Errors
/// If this end cannot run it.
pub fn server_recipe(settings: &Settings, cipher: Cipher) -> Result<Recipe, RecipeError> {
    let versions = settings.recipe.as_ref().map_or(&[][..], |offer| &offer.versions);
    let recipe = session_recipe(settings)?;
    micro::registry().check_versions(versions)?;
    checked(recipe, cipher)
}

/// What a client is told about a recipe that cannot be used here.
pub fn refusal(error: &RecipeError) -> Fault {
    let code = match error {
        RecipeError::NotPermitted(reason) => {
            let message = format!("the server does not permit this recipe: {reason}");
            return Fault::new(FaultCode::NotPermitted, message, "");
        }
        RecipeError::PolicyPanicked(words) => {
            let message = format!("the server's own check of recipes has panicked: {words}");
            return Fault::new(FaultCode::Internal, message, "mend the server's program");
        }
        RecipeError::Version { .. } => FaultCode::VersionMismatch,
        _ => FaultCode::Usage,
    };
    Fault::new(
        code,
        format!("the server cannot use the recipe: {error}"),
        "use a recipe whose micro-protocols both sides have, in the same version",
    )
}

/// What a client is told that wants no encryption from a server that does not permit that.
pub const ENCRYPTION_REQUIRED: &str = "the server does not permit sessions without encryption";

/// The first of the client's ciphers that the server permits; none at all only if the client wants nothing
/// else and the server permits it.
///
/// # Errors
/// What the client is told.
pub fn choose_cipher(wanted: &[Cipher], permitted: &[Cipher], permit_none: bool) -> Result<Cipher, Fault> {
    let only_none = !wanted.is_empty() && wanted.iter().all(|&c| c == Cipher::None);
    if only_none && permit_none {
        return Ok(Cipher::None);
    }
    if only_none {
        return Err(Fault::new(FaultCode::NotPermitted, ENCRYPTION_REQUIRED, ""));
    }
    let chosen = wanted.iter().find(|&&c| c != Cipher::None && permitted.contains(&c));
    chosen.copied().ok_or_else(|| {
        let names = |list: &[Cipher]| list.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("the server permits none of the ciphers {}", names(wanted));
        Fault::new(FaultCode::NotPermitted, message, format!("choose one of {}", names(permitted)))
    })
}

/// How a server's answer does not keep to what was offered to it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotOffered {
    /// It chose another cipher.
    #[error("the server chose the cipher {0}, which was not offered")]
    Cipher(Cipher),
    /// It accepted something else than was asked for.
    #[error("it accepted {0}")]
    Other(&'static str),
    /// The recipe does not work with the settings that it chose.
    #[error("{0}")]
    Recipe(#[from] RecipeError),
}

/// The server must keep to the ciphers of `hello`, and be at the other end of the same TLS connection, that of
/// `session`.
///
/// # Errors
/// How it does not.
pub fn check_accept(accept: &Accept, hello: &Hello, session: u32) -> Result<(), NotOffered> {
    let offered = &hello.ciphers;
    let without_need = accept.cipher == Cipher::None && offered.iter().any(|&c| c != Cipher::None);
    if !offered.contains(&accept.cipher) || without_need {
        return Err(NotOffered::Cipher(accept.cipher));
    }
    if accept.session != session {
        return Err(NotOffered::Other("another session than this one"));
    }
    Ok(())
}

/// A server may lower the ceiling of the rate and refuse a recipe; it cannot raise the ceiling or choose another
/// recipe. Gives the recipe with the settings that it has chosen.
///
/// # Errors
/// How it does not keep to that.
pub fn agreed_recipe(accept: &Accept, asked: &Settings, recipe: Recipe) -> Result<Recipe, NotOffered> {
    let is_higher = |ceiling: u64| accept.settings.rate_bps.is_none_or(|chosen| chosen > ceiling);
    if asked.rate_bps.is_some_and(is_higher) {
        return Err(NotOffered::Other("a higher rate than the one that was asked for"));
    }
    if accept.settings.recipe != asked.recipe {
        return Err(NotOffered::Other("another recipe than the one that was asked for"));
    }
    Ok(checked(with_settings(recipe, &accept.settings), accept.cipher)?)
}

/// Settings for requests that have none of their own.
pub fn default_settings() -> Settings {
    Settings {
        chunk_bytes: 100_000_000,
        controller: "bbr".to_owned(),
        rate_bps: None,
        offload: true,
        feedback_interval_us: 2_000,
        bench_limit: BenchLimit::Unlimited,
        recipe: None,
        extra: Vec::new(),
    }
}

/// The settings of a session that runs this recipe of an object, whose ceiling is `rate` if there is one.
///
/// # Errors
/// If the recipe does not carry an object, or cannot be used.
pub fn settings_for(recipe: &Recipe, rate: Option<Rate>) -> Result<Settings, RecipeError> {
    if !recipe.has("object") {
        let message = MESSAGES.to_owned();
        return Err(RecipeError::Unbuildable { protocol: recipe.name.clone(), message });
    }
    // The session's own check sees what the settings put in the place of nonsense.
    check_object_recipe(recipe, TAG_LEN)?;
    let mut settings = default_settings();
    take(recipe, &mut settings)?;
    settings.recipe = Some(offer(recipe));
    let ceiling = |rate: Rate| (rate != Rate::MAX).then(|| rate.as_bps());
    settings.rate_bps = rate.map_or(settings.rate_bps, ceiling);
    Ok(settings)
}

/// What a session's settings say too holds for its recipe: they say the same.
fn take(recipe: &Recipe, settings: &mut Settings) -> Result<(), RecipeError> {
    if let Some(ObjectConfig { chunk, .. }) = recipe.configuration()? {
        settings.chunk_bytes = chunk.0;
    }
    if let Some(BitmapAckConfig { interval, .. }) = recipe.configuration()? {
        settings.feedback_interval_us = u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
    }
    if let Some(RateControlConfig { controller, rate, .. }) = recipe.configuration()? {
        settings.controller = controller;
        settings.rate_bps = (rate < Rate::MAX).then(|| rate.as_bps());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    #[test]
    fn the_clients_order_decides_among_what_is_permitted() {
        let wanted = [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm];
        assert_eq!(choose_cipher(&wanted, &ALL, false), Ok(Cipher::ChaCha20Poly1305));
        assert_eq!(choose_cipher(&wanted, &[Cipher::Aes128Gcm], false), Ok(Cipher::Aes128Gcm));
        let fault = choose_cipher(&wanted, &[Cipher::Aes256Gcm], true).unwrap_err();
        assert_eq!(fault.code, FaultCode::NotPermitted);
        assert!(fault.hint.contains("aes-256-gcm"), "{fault}");
    }

    #[test]
    fn no_encryption_needs_both_sides_to_want_it_and_nothing_else() {
        assert_eq!(choose_cipher(&[Cipher::None], &ALL, true), Ok(Cipher::None));
        let mixed = [Cipher::None, Cipher::Aes256Gcm];
        assert_eq!(choose_cipher(&mixed, &ALL, true), Ok(Cipher::Aes256Gcm));
        let fault = choose_cipher(&[Cipher::None], &ALL, false).unwrap_err();
        assert_eq!((fault.code, &*fault.message), (FaultCode::NotPermitted, ENCRYPTION_REQUIRED));
        assert!(choose_cipher(&[], &ALL, true).is_err());
        assert!(choose_cipher(&mixed, &[], true).is_err());
    }

    fn shipped(name: &str) -> Recipe {
        preset(name).unwrap().unwrap()
    }

    #[test]
    fn what_the_recipe_says_is_what_the_session_runs_by() {
        let of = |name: &str, rate: Option<Rate>| settings_for(&shipped(name), rate).unwrap();
        let fobs = of("fobs", None);
        assert_eq!((fobs.controller.as_str(), fobs.rate_bps), ("fixed", Some(900_000_000)));
        assert_eq!((fobs.feedback_interval_us, fobs.chunk_bytes), (10_000, 100_000_000));
        assert_eq!(of("rbudp", Some(Rate::from_mbps(5))).rate_bps, Some(5_000_000));
        assert_eq!(of("rbudp", Some(Rate::MAX)).rate_bps, None, "it reads `unlimited`");
        let bulk = of("bulk", None);
        assert_eq!((bulk.controller.as_str(), bulk.rate_bps), ("bbr", None));
    }

    #[test]
    fn a_recipe_of_messages_is_refused_by_its_name_and_nonsense_by_its_place() {
        let error = settings_for(&shipped("viz"), None).unwrap_err().to_string();
        assert!(error.contains("viz: it carries no object"), "{error}");
        let mut wrong = shipped("bulk");
        wrong.set("bitmap_ack.interval", "soon").ok();
        wrong.set("object.chunk", "much").unwrap();
        let error = settings_for(&wrong, None).unwrap_err().to_string();
        assert!(error.contains("object.chunk") || error.contains("bitmap_ack.interval"), "{error}");
    }
}
