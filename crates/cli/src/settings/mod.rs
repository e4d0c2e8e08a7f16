//! Typed recipe parameters of sessions, and presets.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use haul_base::{Bytes, Rate, Span, UnitError, nearest, suggestion};
use haul_engine::{SOCKET_BUFFER, ceiling, offer};
use haul_proto::connection::{CHOSEN_BY_SERVER, set_parameter};
use haul_proto::{check_object_recipe, law, law_names};
use haul_wire::control::{BenchLimit, Cipher, Settings as WireSettings};
use haulage::RecipeError;
use toml::{Table, Value};

use crate::config::{ConfigRow, Origin, Setting, parse_bool, scalar};
use crate::fault::{self, Fault};
use crate::text_file::{text_of, toml_problem};

/// Maximum tag length of all ciphers, in bytes: the cipher is not known yet.
pub(crate) const TAG_LEN: usize = 16;

/// Returns the ciphers that a client offers: `only` this one, or all that encrypt, the fastest here first.
pub(crate) fn ciphers(only: Option<Cipher>) -> Vec<Cipher> {
    use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    match only {
        Some(cipher) => vec![cipher],
        None if has_aes() => vec![Aes128Gcm, Aes256Gcm, ChaCha20Poly1305],
        None => vec![ChaCha20Poly1305, Aes128Gcm, Aes256Gcm],
    }
}

/// Whether the processor has AES and GCM instructions; without them `ChaCha20` is faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

const RECIPES: &str = "`haul presets` lists the recipes with the commands that take them (`haul pipe` takes all) and the \
                      control laws with their parameters; `haul presets NAME` prints a recipe to start from";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    /// The only cipher permitted, possibly [`Cipher::None`]; without one, all that encrypt are.
    pub crypto: Option<Cipher>,
    /// Whether the kernel segments and coalesces datagrams (GSO and GRO).
    pub offload: bool,
    pub socket_buffer: Bytes,
    /// The recipe, named after the preset.
    pub recipe: haulage::Recipe,
}

impl Settings {
    /// Starts from a preset and applies settings in order.
    pub(crate) fn build(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let built = Self::collect(preset, settings)?;
        // Builds the stack once, so that errors are reported before anything starts.
        let problem = |error| fault::usage(format!("preset {}: {error}", built.recipe.name), hint(&error));
        check_object_recipe(&built.recipe, TAG_LEN).map_err(problem)?;
        Ok(built)
    }

    /// Like [`Settings::build`], without checking that the stack can be built.
    pub(crate) fn collect(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let mut collected = preset.settings()?;
        collected.set_all(settings)?;
        Ok(collected)
    }

    fn set_all(&mut self, settings: &[Setting]) -> Result<(), Fault> {
        apply(settings, |set| self.set(&set.origin, session_key(&set.key), &set.value))
    }

    /// Returns every session parameter, and those of micro-protocols that `settings` name, with its value and
    /// origin: the last of `settings` that set it, or the preset.
    pub(crate) fn rows<'s>(&self, preset: &Preset, settings: &'s [Setting]) -> Vec<ConfigRow> {
        let find = |key: &'s str| find_parameter(key).map_or(key, |(known, _)| known);
        let is_fixed = self.recipe.has("fixed_rate");
        let name = |set: &'s Setting| match session_key(&set.key) {
            "fixed_rate.rate" if is_fixed => "rate",
            key => find(key),
        };
        let of_parts: BTreeSet<&str> = settings.iter().map(name).filter(|name| name.contains('.')).collect();
        let row = |key| {
            let set = settings.iter().rfind(|set| name(set) == key).map(|set| set.origin.clone());
            let origin = set.unwrap_or_else(|| preset.origin()).to_string();
            ConfigRow { key: format!("set.{key}"), value: self.shown(key), origin }
        };
        PARAMETERS.map(|(key, _)| key).into_iter().chain(of_parts).map(row).collect()
    }

    /// Returns the maximum rate, if any; with the law `fixed`, the rate itself.
    pub(crate) fn rate(&self) -> Option<Rate> {
        ceiling(&self.recipe)
    }

    pub(crate) fn controller(&self) -> &'static str {
        law(&self.in_recipe("controller").unwrap_or_default()).map_or("", |law| law.name)
    }

    /// Returns the settings that a client requests, as sent.
    pub(crate) fn to_wire(&self, bench_limit: BenchLimit) -> WireSettings {
        WireSettings {
            recipe: Some(offer(&self.recipe)),
            offload: self.offload,
            socket_buffer: Some(self.socket_buffer.0),
            bench_limit,
        }
    }

    /// Returns the value of a parameter in the recipe, or its default; `None` without the micro-protocol.
    fn in_recipe(&self, key: &str) -> Option<String> {
        let is_fixed = key == "rate" && self.recipe.has("fixed_rate");
        let name = if is_fixed { "fixed_rate.rate" } else { name_in_recipe(key) };
        let (part, parameter) = name.split_once('.').filter(|(part, _)| self.recipe.has(part))?;
        let registry = haulage::registry();
        let spec = || registry.get(part)?.parameters.iter().find(|spec| spec.name == parameter);
        self.recipe.text(part, parameter).or_else(|| Some(spec()?.default.to_owned()))
    }

    /// Sets the parameter `key`, or with a dot one of a micro-protocol, to the value from `origin`.
    fn set(&mut self, origin: &Origin, key: &str, value: &str) -> Result<(), Fault> {
        if key.contains('.') {
            let set = haulage::registry().set(&mut self.recipe, key, value);
            return set.map_err(|error| fault::usage(format!("{origin}: {error}"), RECIPES));
        }
        let (key, help) = find_parameter(key)
            .map_err(|unknown| Fault { message: format!("{origin}: {}", unknown.message), ..unknown })?;
        self.set_value(key, value.trim()).map_err(|problem| {
            let laws = if key == "controller" { law_names().join(", ") } else { String::new() };
            fault::usage(format!("{origin}: {key} = {value:?}: {problem}"), format!("{key} is {help}{laws}"))
        })
    }

    /// Sets one of [`PARAMETERS`].
    fn set_value(&mut self, key: &str, value: &str) -> Result<(), String> {
        let in_recipe = match key {
            "controller" => one_of(value, &law_names(), |law| law)?.to_owned(),
            "rate" if value == "unlimited" => value.to_owned(),
            "rate" => within(value, [Rate::from_bps(1), Rate::from_mbps(1_000_000_000)])?.exact(),
            "chunk" => within(value, [Bytes(64 << 10), Bytes(4 << 30)])?.exact(),
            "feedback_interval" => within(value, [Span::from_micros(100), Span::from_secs(1)])?.exact(),
            key => return self.set_of_session(key, value),
        };
        // A recipe without the parameter is refused later, with a better message.
        let _ = set_parameter(&mut self.recipe, name_in_recipe(key), &in_recipe);
        Ok(())
    }

    /// Sets one of [`PARAMETERS`] that is not in the recipe.
    fn set_of_session(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "crypto" => self.crypto = one_of(value, &CRYPTO, crypto_name)?,
            "socket_buffer" => self.socket_buffer = within(value, SOCKET_BUFFER)?,
            _ => self.offload = parse_bool(value).filter(|_| !value.is_empty()).ok_or("write on or off")?,
        }
        Ok(())
    }

    /// Returns the value of a parameter, in the form of `--set`.
    fn shown(&self, key: &str) -> Option<String> {
        match key {
            "crypto" => Some(crypto_name(self.crypto).to_owned()),
            "offload" => Some(if self.offload { "on" } else { "off" }.to_owned()),
            "socket_buffer" => Some(self.socket_buffer.exact()),
            _ => self.in_recipe(key),
        }
    }
}

/// Parameters of sessions: their names in recipes and for `--set`, and their help.
const PARAMETERS: [(&str, &str); 7] = [
    // `Settings::set` appends the names of the laws.
    ("controller", "the rate control law: "),
    ("rate", "a maximum rate such as 800Mbit, up to 1000Tbit, or unlimited"),
    ("chunk", "the size of the chunks that the object is divided into, 64KiB to 4GiB"),
    ("feedback_interval", "the interval of the receiver's reports, 100us to 1s"),
    ("crypto", "auto, aes-128-gcm, aes-256-gcm, chacha20-poly1305 or none"),
    ("offload", "whether the kernel segments and coalesces datagrams: on or off"),
    ("socket_buffer", "the socket buffer size to request from the kernel, 64KiB to 256MiB"),
];

const CRYPTO: [Option<Cipher>; 5] = [
    None,
    Some(Cipher::Aes128Gcm),
    Some(Cipher::Aes256Gcm),
    Some(Cipher::ChaCha20Poly1305),
    Some(Cipher::None),
];

fn crypto_name(crypto: Option<Cipher>) -> &'static str {
    crypto.map_or("auto", Cipher::as_str)
}

/// Parameters of micro-protocols with their short names in sessions.
pub(crate) const IN_RECIPE: [(&str, &str); 4] = {
    let [chunk, interval, controller, rate] = CHOSEN_BY_SERVER;
    [(chunk, "chunk"), (interval, "feedback_interval"), (controller, "controller"), (rate, "rate")]
};

pub(crate) fn name_in_recipe(key: &str) -> &str {
    IN_RECIPE.iter().find(|known| known.1 == key).map_or(key, |known| known.0)
}

/// Returns the short name of a parameter, or `key` if it has none.
pub(crate) fn session_key(key: &str) -> &str {
    IN_RECIPE.iter().find(|known| known.0 == key).map_or(key, |known| known.1)
}

pub(crate) fn parameter_names() -> String {
    PARAMETERS.map(|(key, _)| key).join(", ")
}

/// Returns the name and the help of the parameter `key` (`cipher` is an alias of `crypto`).
fn find_parameter(key: &str) -> Result<(&'static str, &'static str), Fault> {
    let normalised = if key == "cipher" { "crypto".to_owned() } else { key.replace('-', "_") };
    PARAMETERS.into_iter().find(|(known, _)| *known == normalised).ok_or_else(|| {
        let near = suggestion(key, PARAMETERS.into_iter().map(|(known, _)| known));
        fault::usage(
            format!("there is no recipe parameter `{key}`{near}"),
            format!("the parameters are {}", parameter_names()),
        )
    })
}

fn one_of<T: Copy>(value: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let names: Vec<&str> = all.iter().map(|&item| name(item)).collect();
    all.iter().copied().find(|&item| name(item) == value).ok_or_else(|| match nearest(value, names.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write one of {}", names.join(", ")),
    })
}

fn within<T>(value: &str, [low, high]: [T; 2]) -> Result<T, String>
where
    T: std::str::FromStr<Err = UnitError> + PartialOrd + std::fmt::Display,
{
    let parsed: T = value.parse().map_err(|error: UnitError| error.to_string())?;
    if (low..=high).contains(&parsed) { Ok(parsed) } else { Err(format!("{parsed} is out of range")) }
}

/// Shipped presets that only set parameters; those of micro-protocols are [`haulage::PRESETS`].
const SHIPPED: [(&str, &str); 2] = [
    ("default", include_str!("../../presets/default.toml")),
    ("fixed", include_str!("../../presets/fixed.toml")),
];

#[derive(Debug, Clone)]
pub(crate) struct Preset {
    /// Name of a shipped preset, or the file's name without `.toml`.
    pub name: String,
    /// Recipe file; `None` if compiled in.
    pub file: Option<PathBuf>,
    pub text: String,
}

impl Preset {
    #[cfg(test)]
    pub(crate) fn default_preset() -> Self {
        Self::compiled_in(&SHIPPED[0])
    }

    /// Returns all compiled-in presets that only set parameters.
    #[cfg(test)]
    pub(crate) fn shipped() -> Vec<Self> {
        SHIPPED.iter().map(Self::compiled_in).collect()
    }

    pub(crate) fn all() -> Vec<Self> {
        SHIPPED.iter().chain(haulage::PRESETS).map(Self::compiled_in).collect()
    }

    fn compiled_in(&(name, text): &(&str, &str)) -> Self {
        Self { name: name.to_owned(), file: None, text: text.to_owned() }
    }

    /// Returns the shipped preset of this name, or the recipe file if the text contains a `/` or ends in
    /// `.toml`.
    pub(crate) fn find(name_or_file: &str) -> Result<Self, Fault> {
        let path = Path::new(name_or_file);
        if name_or_file.contains('/') || path.extension().is_some_and(|end| end == "toml") {
            let hint = "a recipe is TOML; `haul presets NAME` prints one to start from";
            let text = text_of(path, File::open(path), hint)?;
            let name = path.file_stem().map_or_else(|| "recipe".into(), |stem| stem.to_string_lossy());
            return Ok(Self { name: name.into_owned(), file: Some(path.to_owned()), text });
        }
        let all = Self::all();
        all.iter().find(|preset| preset.name == name_or_file).cloned().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|preset| &*preset.name).collect();
            let near = suggestion(name_or_file, names.iter().copied());
            let names = names.join(", ");
            fault::usage(
                format!("there is no preset `{name_or_file}`{near}"),
                format!("the presets are {names}; write ./{name_or_file} for a recipe file"),
            )
        })
    }

    pub(crate) fn description(&self) -> String {
        let table = self.table();
        let line = table.get("description").or_else(|| table.get("summary"));
        line.and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Whether it is a recipe for messages; all others carry files, memory and byte streams.
    pub(crate) fn carries_messages(&self) -> bool {
        let table = self.table();
        table.values().any(Value::is_table) && !table.contains_key("object")
    }

    fn table(&self) -> Table {
        self.text.parse().unwrap_or_default()
    }

    fn origin(&self) -> Origin {
        let file = self.file.as_ref().map(|path| path.display().to_string());
        Origin::Preset(file.unwrap_or_else(|| self.name.clone()))
    }

    /// Returns the values. A recipe with tables replaces the whole recipe; one of session parameters changes
    /// those of `bulk`, which has the values of the default preset.
    pub(crate) fn settings(&self) -> Result<Settings, Fault> {
        let mut settings = Settings {
            crypto: None,
            offload: true,
            socket_buffer: Bytes(64 << 20),
            recipe: haulage::preset("bulk").map_err(fault::of)?,
        };
        let origin = self.origin();
        let table: Table =
            self.text.parse().map_err(|error| self.problem(&toml_problem(&self.text, &error)))?;
        if table.values().any(Value::is_table) {
            // Without its law, the law's parameters would be reported as unknown.
            let law_name = table.get("rate_control").and_then(|part| part.get("controller")?.as_str());
            if let Some(name) = law_name.filter(|name| law(name).is_err()) {
                settings.set(&origin, "controller", name)?;
            }
            let recipe = haulage::registry().parse(&self.text);
            let recipe = recipe.map_err(|e| fault::usage(format!("{origin}: {e}"), RECIPES))?;
            settings.recipe = recipe.clone();
            // Checks the parameters that have short names.
            for (of_part, key) in IN_RECIPE {
                let value =
                    of_part.split_once('.').and_then(|(part, parameter)| recipe.text(part, parameter));
                value.map_or(Ok(()), |value| settings.set(&origin, key, &value))?;
            }
        } else {
            let values = table.iter().filter(|(key, _)| *key != "description").map(|(key, value)| {
                let text = scalar(value);
                let text = text.ok_or_else(|| self.problem(&format!("{key} must be a single value")))?;
                Ok(Setting { origin: origin.clone(), key: key.clone(), value: text })
            });
            settings.set_all(&values.collect::<Result<Vec<_>, Fault>>()?)?;
        }
        settings.recipe.name.clone_from(&self.name);
        Ok(settings)
    }

    fn problem(&self, words: &str) -> Fault {
        fault::usage(
            format!("{}: {words}", self.origin()),
            format!("a recipe is TOML with the keys {}", parameter_names()),
        )
    }
}

/// Applies settings in order, with `set`. A parameter of a law may precede the setting that names the law.
pub(crate) fn apply<'s>(
    settings: impl IntoIterator<Item = &'s Setting>,
    mut set: impl FnMut(&Setting) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut failed = Vec::new();
    for setting in settings {
        failed.push(setting);
        failed.retain(|setting| set(setting).is_err());
    }
    failed.first().map_or(Ok(()), |setting| set(setting))
}

fn hint(error: &RecipeError) -> String {
    match error {
        RecipeError::Unbuildable { protocol, message }
            if protocol == "rate_control" && message.starts_with("switch") =>
        {
            let laws = law_names().join(", ");
            format!("a rule is `CONDITION -> LAW`, as in `loss > 5% -> tfrc`; the laws are {laws}")
        }
        _ => RECIPES.to_owned(),
    }
}

#[cfg(test)]
mod tests;
