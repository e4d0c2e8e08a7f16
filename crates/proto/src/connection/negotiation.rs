//! Negotiation before a session: the client offers ciphers, settings and a recipe, the server chooses among
//! them, and both build their data path accordingly.

use haul_base::Rate;
use haul_stack::{Recipe, RecipeError};
use haul_wire::control::{Accept, Cipher, Fault, FaultCode, Hello, RecipeOffer, Settings};

use super::protection::tag_len;
use crate::micro::config::RateControlConfig;
use crate::presets::preset;
use crate::{check_object_recipe, law, micro};

/// Tag length assumed while the cipher is not known yet; no cipher has a longer tag.
const TAG_LEN: usize = 16;
const CONTROLLER: &str = "rate_control.controller";
/// Error for a recipe for messages where an object is required.
const MESSAGES: &str =
    "it does not carry an object, which a byte stream needs; use recipes of messages with `Connection`";

/// Returns the offer of a recipe that a client sends for a session.
pub fn offer(recipe: &Recipe) -> RecipeOffer {
    RecipeOffer { text: recipe.to_toml(), versions: micro::registry().versions(recipe) }
}

/// Parameters of the client's recipe that the server may choose.
pub const CHOSEN_BY_SERVER: [&str; 4] =
    ["object.chunk", "bitmap_ack.interval", CONTROLLER, "rate_control.rate"];

/// Copies the values of these parameters from `other` to a recipe; names are as `rate_control.rate`.
/// If the control law changes, the parameters of the old one are removed.
pub fn take_parameters(recipe: &mut Recipe, names: &[&str], other: &Recipe) {
    let controller = |recipe: &Recipe| recipe.configuration().map(|law: RateControlConfig| law.controller);
    for &name in names {
        let (part, parameter) = name.split_once('.').unwrap_or_default();
        let mut given = other.part(part).into_iter().flat_map(|part| &part.parameters);
        let Some((parameter, value)) = given.find(|(known, _)| *known == parameter) else { continue };
        let before = controller(recipe).filter(|_| name == CONTROLLER);
        let dropped = before.filter(|law| Some(law) != controller(other).as_ref());
        for spec in dropped.and_then(|name| law(&name).ok()).iter().flat_map(|law| law.parameters) {
            recipe.unset("rate_control", spec.name);
        }
        // If the micro-protocol is missing, the later check has a better error message.
        if let Some(part) = recipe.part_mut(part) {
            part.put(parameter, value.clone());
        }
    }
}

/// Sets a parameter to the value of a text, as [`take_parameters`] does.
///
/// # Errors
/// As [`Registry::set`](haul_stack::Registry::set).
pub fn set_parameter(recipe: &mut Recipe, name: &str, text: &str) -> Result<(), RecipeError> {
    let mut changed = recipe.clone();
    micro::registry().set(&mut changed, name, text)?;
    take_parameters(recipe, &[name], &changed);
    Ok(())
}

/// Returns the rate ceiling in the recipe of an object; `None` if there is none.
pub fn ceiling(recipe: &Recipe) -> Option<Rate> {
    let law: RateControlConfig = recipe.configuration()?;
    (law.rate < Rate::MAX).then_some(law.rate)
}

/// Returns the recipe of a session with these settings: the one in them, or `bulk`.
///
/// # Errors
/// If this end cannot run it.
pub fn session_recipe(settings: &Settings, cipher: Cipher) -> Result<Recipe, RecipeError> {
    let recipe = named_recipe(settings)?;
    check_object_recipe(&recipe, tag_len(cipher))?;
    Ok(recipe)
}

fn named_recipe(settings: &Settings) -> Result<Recipe, RecipeError> {
    match &settings.recipe {
        Some(offer) => micro::registry().parse(&offer.text),
        None => preset("bulk").unwrap_or_else(|| Ok(Recipe::default())),
    }
}

/// Returns the recipe of a session with the settings offered by a client.
///
/// # Errors
/// If this end cannot run it, or has other versions of its micro-protocols.
pub fn server_recipe(settings: &Settings, cipher: Cipher) -> Result<Recipe, RecipeError> {
    let versions = settings.recipe.as_ref().map_or(&[][..], |offer| &offer.versions);
    micro::registry().check_versions(versions)?;
    session_recipe(settings, cipher)
}

/// Returns the fault sent to a client whose recipe cannot be used here.
pub fn refusal(error: &RecipeError) -> Fault {
    let unusable = |code| Fault::new(code, format!("the server cannot use the recipe: {error}"), "");
    match error {
        RecipeError::NotPermitted(reason) => {
            let message = format!("the server does not permit this recipe: {reason}");
            Fault::new(FaultCode::NotPermitted, message, "")
        }
        RecipeError::PolicyPanicked(words) => {
            let message = format!("the server's check of recipes panicked: {words}");
            Fault::new(FaultCode::Internal, message, "")
        }
        RecipeError::Version { .. } => unusable(FaultCode::VersionMismatch),
        _ => unusable(FaultCode::Usage),
    }
}

/// Message to a client that wants no encryption if the server does not permit that.
pub const ENCRYPTION_REQUIRED: &str = "the server does not permit sessions without encryption";

/// Returns the first of the client's ciphers that the server permits; no encryption only if the client offers
/// nothing else and the server permits it.
///
/// # Errors
/// The fault to send to the client.
pub fn choose_cipher(offered: &[Cipher], permitted: &[Cipher], permit_none: bool) -> Result<Cipher, Fault> {
    let only_none = !offered.is_empty() && offered.iter().all(|&c| c == Cipher::None);
    if only_none && permit_none {
        return Ok(Cipher::None);
    }
    if only_none {
        return Err(Fault::new(FaultCode::NotPermitted, ENCRYPTION_REQUIRED, ""));
    }
    let chosen = offered.iter().find(|&&c| c != Cipher::None && permitted.contains(&c));
    chosen.copied().ok_or_else(|| {
        let names = |list: &[Cipher]| list.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", ");
        let message =
            format!("the server permits none of the ciphers {}, only {}", names(offered), names(permitted));
        Fault::new(FaultCode::NotPermitted, message, "")
    })
}

/// A server's answer that deviates from the client's offer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotOffered {
    /// The server chose another cipher.
    #[error("the server chose the cipher {0}, which was not offered")]
    Cipher(Cipher),
    /// The server accepted something else than requested.
    #[error("it accepted {0}")]
    Other(&'static str),
    /// The recipe does not work with the server's choices.
    #[error("{0}")]
    Recipe(#[from] RecipeError),
}

/// Checks that the server chose one of the ciphers of `hello`, and that it is the peer of the same TLS
/// connection, the one of `session`.
///
/// # Errors
/// The deviation.
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

/// Returns the requested recipe with the server's choices. A server may choose the parameters in
/// [`CHOSEN_BY_SERVER`] and refuse a recipe, but not raise the rate ceiling or choose another recipe.
///
/// # Errors
/// The deviation.
pub fn agreed_recipe(accept: &Accept, mut recipe: Recipe) -> Result<Recipe, NotOffered> {
    let asked = ceiling(&recipe);
    let theirs = named_recipe(&accept.settings)?;
    take_parameters(&mut recipe, &CHOSEN_BY_SERVER, &theirs);
    if !recipe.same_stack(&theirs) {
        return Err(NotOffered::Other("another recipe than the requested one"));
    }
    let is_higher = |asked: Rate| ceiling(&recipe).is_none_or(|chosen| chosen > asked);
    if asked.is_some_and(is_higher) {
        return Err(NotOffered::Other("a higher rate than the requested one"));
    }
    check_object_recipe(&recipe, tag_len(accept.cipher))?;
    Ok(recipe)
}

/// Returns the settings of a session that runs this recipe of an object, with the ceiling `rate` if given.
///
/// # Errors
/// If the recipe does not carry an object, or cannot be used.
pub fn settings_for(recipe: &Recipe, rate: Option<Rate>) -> Result<Settings, RecipeError> {
    let mut recipe = recipe.clone();
    if !recipe.has("object") {
        let message = MESSAGES.to_owned();
        return Err(RecipeError::Unbuildable { protocol: recipe.name, message });
    }
    if let Some(rate) = rate {
        recipe.change(|law: &mut RateControlConfig| law.rate = rate)?;
    }
    check_object_recipe(&recipe, TAG_LEN)?;
    Ok(Settings { recipe: Some(offer(&recipe)), ..Settings::default() })
}

#[cfg(test)]
mod tests {
    use haul_base::Bytes;

    use super::*;
    use crate::micro::config::ObjectConfig;

    const ALL: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    #[test]
    fn the_clients_order_decides_among_permitted_ciphers() {
        let wanted = [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm];
        assert_eq!(choose_cipher(&wanted, &ALL, false), Ok(Cipher::ChaCha20Poly1305));
        assert_eq!(choose_cipher(&wanted, &[Cipher::Aes128Gcm], false), Ok(Cipher::Aes128Gcm));
        let fault = choose_cipher(&wanted, &[Cipher::Aes256Gcm], true).unwrap_err();
        assert_eq!(fault.code, FaultCode::NotPermitted);
        assert!(fault.message.ends_with(", only aes-256-gcm"), "{fault}");
    }

    #[test]
    fn no_encryption_requires_only_the_consent_of_both_sides() {
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
    fn a_given_rate_overrides_the_recipes() {
        let of = |name: &str, rate: Option<Rate>| {
            let settings = settings_for(&shipped(name), rate).unwrap();
            ceiling(&session_recipe(&settings, Cipher::Aes128Gcm).unwrap())
        };
        assert_eq!(of("fobs", None), Some(Rate::from_mbps(900)));
        assert_eq!(of("rbudp", Some(Rate::from_mbps(5))), Some(Rate::from_mbps(5)));
        assert_eq!((of("bulk", None), of("bulk", Some(Rate::MAX))), (None, None));
        let error = settings_for(&shipped("fobs"), Some(Rate::MAX)).unwrap_err();
        assert!(error.to_string().contains("needs a rate"), "{error}");
    }

    /// The client's recipe, the server's answer changed by `change`, and the recipe that both run.
    fn answered(asked: &Recipe, change: impl FnOnce(&mut Recipe)) -> Result<Recipe, String> {
        let mut theirs = asked.clone();
        change(&mut theirs);
        answered_with(asked, offer(&theirs))
    }

    fn answered_with(asked: &Recipe, theirs: RecipeOffer) -> Result<Recipe, String> {
        let settings = Settings { recipe: Some(theirs), ..Settings::default() };
        let (cipher, server) = (Cipher::Aes128Gcm, String::new());
        let accept = Accept { session: 1, cipher, udp_port: 1, server, settings };
        agreed_recipe(&accept, asked.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_chooses_some_parameters_and_nothing_else() {
        let asked = shipped("proactive");
        let set = |name, value| move |recipe: &mut Recipe| set_parameter(recipe, name, value).unwrap();
        assert_eq!(answered(&asked, |_| {}), Ok(asked.clone()));
        for (name, value) in
            [("object.chunk", "1MB"), ("bitmap_ack.interval", "7ms"), ("rate_control.rate", "1Mbit")]
        {
            let mut wanted = asked.clone();
            set(name, value)(&mut wanted);
            assert_eq!(answered(&asked, set(name, value)), Ok(wanted), "{name}");
        }
        // Its law has parameters of its own.
        let classifier = shipped("fobs-classifier");
        let limited = answered(&classifier, set("rate_control.rate", "1Gbit")).unwrap();
        assert_eq!(ceiling(&limited), Some(Rate::from_mbps(1_000)));
        let other_law = |recipe: &mut Recipe| {
            let reno = RateControlConfig { controller: "reno".to_owned(), ..RateControlConfig::default() };
            let law = Recipe::new("").with(reno);
            take_parameters(recipe, &CHOSEN_BY_SERVER, &law);
        };
        let agreed = answered(&asked, other_law).unwrap();
        assert_eq!(
            (agreed.text("rate_control", "controller").as_deref(), &agreed.name),
            (Some("reno"), &asked.name)
        );
        assert!(agreed.text("rate_control", "predictor").is_none(), "it is of the law before");
        let renamed = answered(&asked, |recipe| recipe.name = "\x1b[2J".to_owned()).unwrap();
        assert_eq!(renamed.name, asked.name);
        for (name, value, wrong) in [
            ("retransmit.window", "77", "another recipe"),
            ("rate_control.rate", "unlimited", "a higher rate"),
            ("rate_control.rate", "1000Tbit", "a higher rate"),
            ("rate_control.controller", "warp", "no controller `warp`"),
        ] {
            let error = answered(&asked, set(name, value)).unwrap_err();
            assert!(error.contains(wrong), "{name}: {error}");
        }
        let mut theirs = offer(&asked);
        theirs.text = theirs.text.replace("\"100MB\"", "\"much\"");
        let error = answered_with(&asked, theirs).unwrap_err();
        assert!(error.contains("object.chunk = much"), "{error}");
        let error = answered(&asked, |recipe| *recipe = shipped("rbudp")).unwrap_err();
        assert!(error.contains("another recipe"), "{error}");
    }

    #[test]
    fn message_recipes_are_refused_by_name_and_garbage_by_position() {
        let error = settings_for(&shipped("viz"), None).unwrap_err().to_string();
        assert!(error.contains("viz: it does not carry an object"), "{error}");
        let mut wrong = shipped("bulk");
        wrong.change(|object: &mut ObjectConfig| object.chunk = Bytes(0)).unwrap();
        let error = settings_for(&wrong, None).unwrap_err().to_string();
        assert!(error.contains("`object.chunk = 0B`"), "{error}");
        let chunk = "[object]\nchunk = \"much\"\n".to_owned();
        let recipe = Some(RecipeOffer { text: chunk, versions: Vec::new() });
        let settings = Settings { recipe, ..Settings::default() };
        let error = session_recipe(&settings, Cipher::Aes128Gcm).unwrap_err().to_string();
        assert!(error.starts_with("line 2: `object.chunk = much`"), "{error}");
    }
}
