//! Typed parameters: the parameters of a micro-protocol or a control law form a struct, declared once with
//! [`configuration!`](crate::configuration).

use super::parameters::{Configuration, ParameterKind, ParameterSpec};
use super::part::Part;

impl<C: Configuration> From<C> for Part {
    fn from(configuration: C) -> Self {
        Self::from(C::NAME).with(&configuration)
    }
}

impl Part {
    /// Adds the parameters that differ from their defaults; used to add a control law's to the micro-protocol
    /// that runs it.
    #[must_use]
    pub fn with<C: Configuration>(mut self, configuration: &C) -> Self {
        let differs = |(now, default): &(_, _)| now != default;
        let both = configuration.texts().into_iter().zip(C::default().texts());
        let given = both.filter(differs).map(|(now, _)| now);
        self.parameters.extend(given.map(|(name, text)| (name.to_owned(), text)));
        self
    }
}

/// Concatenates lists of parameters, for [`configuration!`](crate::configuration).
#[doc(hidden)]
pub const fn joined<const N: usize>(lists: &[&[ParameterSpec]]) -> [ParameterSpec; N] {
    let mut all = [ParameterSpec { name: "", kind: ParameterKind::Flag, default: "", help: "" }; N];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            all[at] = lists[list][i];
            (i, at) = (i + 1, at + 1);
        }
        list += 1;
    }
    all
}

/// Declares the parameters of a micro-protocol or a control law as a struct, a [`Configuration`]. The default
/// is written as in a recipe; the last text is the help text, used as the field's documentation and in
/// tables. `in` gives a type an inclusive range. `..` includes the parameters of another such struct. A field
/// whose default is a name is declared by [`parameter!`](crate::parameter) under that name.
///
/// ```
/// use haul_base::{Rate, Span};
/// use haul_stack::{Part, choice, configuration};
///
/// choice! {
///     /// When it speaks.
///     pub enum Tone { Always = "always", Never = "never" }
/// }
///
/// configuration! {
///     /// Parameters of `whistle`.
///     pub struct WhistleConfig: "whistle" {
///         rate: Rate = "unlimited", "bits per second";
///         every: Span in (Span::from_millis(1), Span::from_secs(1)) = "50ms", "time between two";
///         tone: Tone = "always", "when it speaks";
///     }
/// }
///
/// let part = Part::from(WhistleConfig { tone: Tone::Never, ..Default::default() });
/// assert_eq!(part, Part::new("whistle", &[("tone", "never")]));
/// ```
#[macro_export]
macro_rules! configuration {
    ($(#[$meta:meta])* $vis:vis struct $struct:ident: $part:literal {
        $(..$inner:ident: $group:ident;)*
        $($name:ident: $type:ident $(in ($least:expr, $most:expr))? = $default:tt $(, $help:literal)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $struct {
            $(#[doc = concat!("Those of [`", stringify!($group), "`].")] pub $inner: $group,)*
            $(#[doc = $crate::parameter!(@help $default $(, $help)?)] pub $name: $type,)*
        }

        impl Default for $struct {
            fn default() -> Self {
                $crate::Parameters::default_of()
            }
        }

        impl $crate::Configuration for $struct {
            const NAME: &'static str = $part;
            const PARAMETERS: &'static [$crate::ParameterSpec] = {
                const OWN: &[$crate::ParameterSpec] = &[$(
                    $crate::parameter!(@spec $name: $type $(in ($least, $most))? = $default $(, $help)?),
                )*];
                const ALL: [
                    $crate::ParameterSpec;
                    OWN.len() $(+ <$group as $crate::Configuration>::PARAMETERS.len())*
                ] = $crate::joined(&[$(<$group as $crate::Configuration>::PARAMETERS,)* OWN]);
                &ALL
            };

            fn read(parameters: &$crate::Parameters) -> Self {
                Self {
                    $($inner: parameters.read(),)*
                    $($name: parameters.value(stringify!($name)),)*
                }
            }

            fn texts(&self) -> Vec<(&'static str, String)> {
                let mut texts = Vec::with_capacity(Self::PARAMETERS.len());
                $(texts.extend($crate::Configuration::texts(&self.$inner));)*
                texts.extend([$((stringify!($name), $crate::ParameterType::text(&self.$name)),)*]);
                texts
            }
        }
    };
}

/// Declares one parameter that several [`configuration!`](crate::configuration)s share, as a macro of its
/// name. Import the macro there, and write `name: Type = name;`.
#[macro_export]
macro_rules! parameter {
    (@help $shared:ident) => { $shared!(help) };
    (@help $default:literal, $help:literal) => { $help };
    (@spec $name:ident: $type:ident = $shared:ident) => { $shared!(spec) };
    (@spec $name:ident: $type:ident $(in ($least:expr, $most:expr))? = $default:literal, $help:literal) => {
        $crate::ParameterSpec {
            name: stringify!($name),
            kind: $crate::parameter!(@kind $type $(, $least, $most)?),
            default: $default,
            help: $help,
        }
    };
    (@kind $type:ident) => { <$type as $crate::ParameterType>::KIND };
    (@kind Rate, $least:expr, $most:expr) => { $crate::ParameterKind::RateIn($least, $most) };
    (@kind Bytes, $least:expr, $most:expr) => { $crate::ParameterKind::BytesIn($least, $most) };
    (@kind Span, $least:expr, $most:expr) => { $crate::ParameterKind::SpanIn($least, $most) };
    (@kind f64, $least:expr, $most:expr) => { $crate::ParameterKind::Number($least, $most) };
    (@kind $integer:ident, $least:expr, $most:expr) => { $crate::ParameterKind::Integer($least, $most) };
    ($vis:vis $name:ident: $type:ident $(in ($least:expr, $most:expr))? = $default:literal, $help:literal) => {
        macro_rules! $name {
            (help) => { $help };
            (spec) => {
                $crate::parameter!(@spec $name: $type $(in ($least, $most))? = $default, $help)
            };
        }
        $vis use $name;
    };
}

/// Declares an enum as a type of parameters, with the word for each variant in recipes.
#[macro_export]
macro_rules! choice {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $enum {$(
            $(#[$doc])*
            #[doc = concat!("\n\nIn recipes: `", $word, "`.")]
            $variant,
        )+}

        impl $crate::ParameterType for $enum {
            const KIND: $crate::ParameterKind = $crate::ParameterKind::Choice(&[$($word),+]);

            fn of(value: &$crate::ParameterValue) -> Option<Self> {
                match value {
                    $crate::ParameterValue::Choice(at) => [$(Self::$variant),+].get(*at).copied(),
                    _ => None,
                }
            }

            fn text(&self) -> String {
                let word = match self { $(Self::$variant => $word),+ };
                word.to_owned()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Rate};

    use super::*;
    use crate::Recipe;

    choice! {
        enum Tone { Low = "low", High = "high" }
    }

    mod shared {
        crate::parameter!(pub(super) volume: u8 in (1, 11) = "3", "how loud");
    }
    use shared::volume;

    configuration! {
        struct Inner: "inner" {
            rate: Rate = "unlimited", "a rate";
            flag: bool = "true", "a flag";
        }
    }

    configuration! {
        struct Outer: "outer" {
            ..inner: Inner;
            size: Bytes in (Bytes(1), Bytes(1 << 20)) = "4KiB", "a size";
            volume: u8 = volume;
            tone: Tone = "low", "which";
            share: f64 in (0.0, 1.0) = "0.25", "a share";
            text: String = "", "any text";
        }
    }

    #[test]
    fn one_declaration_generates_the_struct_its_defaults_and_the_table() {
        let names: Vec<_> = Outer::PARAMETERS.iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["rate", "flag", "size", "volume", "tone", "share", "text"]);
        let volume = ParameterSpec {
            name: "volume",
            kind: ParameterKind::Integer(1, 11),
            default: "3",
            help: "how loud",
        };
        assert_eq!(Outer::PARAMETERS[3], volume);
        assert_eq!(Outer::PARAMETERS[4].kind, ParameterKind::Choice(&["low", "high"]));
        let inner = Inner { rate: Rate::MAX, flag: true };
        let (size, text) = (Bytes(4_096), String::new());
        assert_eq!(Outer::default(), Outer { inner, size, volume: 3, tone: Tone::Low, share: 0.25, text });
    }

    #[test]
    fn a_part_lists_differences_and_round_trips() {
        let inner = Inner { rate: Rate::from_mbps(3), flag: false };
        let typed = Outer { inner, tone: Tone::High, text: "\"a\"\n".to_owned(), ..Outer::default() };
        let recipe = Recipe::new("x").with("other").with(typed.clone());
        let given = [("rate", "3Mbit"), ("flag", "false"), ("tone", "high"), ("text", "\"a\"\n")];
        assert_eq!(recipe.parts[1], Part::new("outer", &given));
        let read = Recipe::parse(&recipe.to_toml()).unwrap();
        assert_eq!(read.configuration(), Ok(Some(typed)));
        assert_eq!(read.configuration::<Inner>(), Ok(None));
    }

    #[test]
    fn keys_of_another_reader_are_accepted_and_wrong_values_refused() {
        let recipe = Recipe::parse("[inner]\nflag = false\nbeta = 0.5\n").unwrap();
        let read = Inner { flag: false, ..Inner::default() };
        assert_eq!(recipe.configuration(), Ok(Some(read)));
        let recipe = Recipe::parse("[inner]\nflag = 3\n").unwrap();
        let error = recipe.configuration::<Inner>().unwrap_err().to_string();
        assert_eq!(error, "line 2: `inner.flag = 3`: write true or false");
    }
}
