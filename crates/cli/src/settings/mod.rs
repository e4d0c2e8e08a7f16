//! Typed recipe parameters of sessions, and presets.

mod presets;

use haul_base::{Bytes, Rate, Span, UnitError, nearest, suggestion};
use haul_engine::{SOCKET_BUFFER, ceiling, offer};
use haul_proto::connection::{CHOSEN_BY_SERVER, set_parameter};
use haul_proto::{law, law_names};
use haul_wire::control::{BenchLimit, Cipher, Settings as WireSettings};

use crate::config::{Origin, truth};
use crate::fault::{self, Fault};

pub(crate) use presets::Preset;

/// Maximum tag length of all ciphers, in bytes: the cipher is not known yet.
pub(crate) const TAG_LEN: usize = 16;

/// Returns the ciphers that a client offers: `only` this one, or all that encrypt, the fastest on this
/// machine first.
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

#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Returns the maximum rate, if any; with the law `fixed`, the rate itself.
    pub(crate) fn rate(&self) -> Option<Rate> {
        ceiling(&self.recipe)
    }

    pub(crate) fn controller(&self) -> &'static str {
        law(&self.in_recipe("controller")).map_or("", |law| law.name)
    }

    /// Returns the settings that a client requests, as sent.
    pub(crate) fn asked(&self, bench_limit: BenchLimit) -> WireSettings {
        WireSettings {
            recipe: Some(offer(&self.recipe)),
            offload: self.offload,
            socket_buffer: Some(self.socket_buffer.0),
            bench_limit,
        }
    }

    /// Returns the value of a parameter in the recipe, or its default.
    fn in_recipe(&self, key: &str) -> String {
        let (part, parameter) = name_in_recipe(key).split_once('.').unwrap_or_default();
        let registry = haulage::registry();
        let spec = || registry.get(part)?.parameters.iter().find(|spec| spec.name == parameter);
        let value = self.recipe.get(part, parameter).or_else(|| spec().map(|spec| spec.default));
        value.unwrap_or_default().to_owned()
    }

    fn set_in_recipe(&mut self, key: &str, value: Result<String, String>) -> Result<(), String> {
        set_parameter(&mut self.recipe, name_in_recipe(key), &value?);
        Ok(())
    }

    /// Sets the parameter `key`, or with a dot one of a micro-protocol, to the value from `origin`.
    fn set(&mut self, origin: &Origin, key: &str, value: &str) -> Result<(), Fault> {
        if key.contains('.') {
            let set = self.recipe.set(key, value);
            return set.map_err(|error| fault::usage(format!("{origin}: {error}"), RECIPES));
        }
        let parameter = Parameter::find(key)
            .map_err(|unknown| Fault { message: format!("{origin}: {}", unknown.message), ..unknown })?;
        (parameter.set)(self, value.trim()).map_err(|problem| {
            fault::usage(
                format!("{origin}: {} = {value:?}: {problem}", parameter.key),
                format!("{} is {}", parameter.key, (parameter.help)()),
            )
        })
    }
}

struct Parameter {
    /// Name in recipes and for `--set`.
    key: &'static str,
    help: fn() -> String,
    set: fn(&mut Settings, &str) -> Result<(), String>,
    /// Returns the value in the form of `--set`.
    show: fn(&Settings) -> String,
}

const PARAMETERS: &[Parameter] = &[
    Parameter {
        key: "controller",
        help: || format!("the rate control law: {}", law_names().join(", ")),
        set: |s, v| s.set_in_recipe("controller", one_of(v, &law_names(), |law| law).map(str::to_owned)),
        show: |s| s.in_recipe("controller"),
    },
    Parameter {
        key: "rate",
        help: || "a maximum rate such as 800Mbit, up to 1000Tbit, or unlimited".to_owned(),
        set: |s, v| {
            let limits = [Rate::from_bps(1), Rate::from_mbps(1_000_000_000)];
            let unlimited = (v == "unlimited").then(|| Ok(v.to_owned()));
            s.set_in_recipe("rate", unlimited.unwrap_or_else(|| within(v, limits).map(Rate::exact)))
        },
        show: |s| s.in_recipe("rate"),
    },
    Parameter {
        key: "chunk",
        help: || "the size of the chunks that the object is divided into, 64KiB to 4GiB".to_owned(),
        set: |s, v| s.set_in_recipe("chunk", within(v, [Bytes(64 << 10), Bytes(4 << 30)]).map(Bytes::exact)),
        show: |s| s.in_recipe("chunk"),
    },
    Parameter {
        key: "feedback_interval",
        help: || "the interval of the receiver's reports, 100us to 1s".to_owned(),
        set: |s, v| {
            let limits = [Span::from_micros(100), Span::from_secs(1)];
            s.set_in_recipe("feedback_interval", within(v, limits).map(Span::exact))
        },
        show: |s| s.in_recipe("feedback_interval"),
    },
    Parameter {
        key: "crypto",
        help: || "auto, aes-128-gcm, aes-256-gcm, chacha20-poly1305 or none".to_owned(),
        set: |s, v| one_of(v, &CRYPTO, crypto_name).map(|crypto| s.crypto = crypto),
        show: |s| crypto_name(s.crypto).to_owned(),
    },
    Parameter {
        key: "offload",
        help: || "whether the kernel segments and coalesces datagrams: on or off".to_owned(),
        set: |s, v| {
            s.offload = truth(v).filter(|_| !v.is_empty()).ok_or("write on or off")?;
            Ok(())
        },
        show: |s| if s.offload { "on" } else { "off" }.to_owned(),
    },
    Parameter {
        key: "socket_buffer",
        help: || "the socket buffer size to request from the kernel, 64KiB to 256MiB".to_owned(),
        set: |s, v| within(v, SOCKET_BUFFER).map(|size| s.socket_buffer = size),
        show: |s| s.socket_buffer.exact(),
    },
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

fn name_in_recipe(key: &str) -> &'static str {
    IN_RECIPE.iter().find(|known| known.1 == key).map_or("", |known| known.0)
}

/// Returns the short name of a parameter, or `key` if it has none.
pub(crate) fn session_key(key: &str) -> &str {
    IN_RECIPE.iter().find(|known| known.0 == key).map_or(key, |known| known.1)
}

pub(crate) fn parameter_names() -> String {
    PARAMETERS.iter().map(|p| p.key).collect::<Vec<_>>().join(", ")
}

impl Parameter {
    /// Finds the parameter `key` (`cipher` is an alias of `crypto`).
    fn find(key: &str) -> Result<&'static Self, Fault> {
        let wanted = match key {
            "cipher" => "crypto".to_owned(),
            key => key.replace('-', "_"),
        };
        PARAMETERS.iter().find(|p| p.key == wanted).ok_or_else(|| {
            let near = suggestion(key, PARAMETERS.iter().map(|p| p.key));
            fault::usage(
                format!("there is no recipe parameter `{key}`{near}"),
                format!("the parameters are {}", parameter_names()),
            )
        })
    }
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

#[cfg(test)]
mod tests;
