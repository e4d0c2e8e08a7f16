//! Typed parameters: the parameters of a micro-protocol or a control law form a struct, declared once with
//! [`configuration!`](crate::configuration).

use super::parameters::{ParameterKind, ParameterSpec, ParameterType, ParameterValue};
use super::part::Part;

/// The parameters of a micro-protocol or a control law. Implemented by
/// [`configuration!`](crate::configuration).
pub trait Configuration: Clone + std::fmt::Debug + Default + PartialEq {
    /// Name of the micro-protocol or the law.
    const NAME: &'static str;
    /// The parameters, for recipes, help texts and tables.
    const PARAMETERS: &'static [ParameterSpec];

    /// Reads the explicit parameters; the others have their defaults. Ignores those of something else.
    fn read(part: &Part) -> Self;

    /// Returns all parameters.
    fn values(&self) -> Vec<(&'static str, ParameterValue)>;
}

/// Returns the parameters of `after` that differ from those of `before`.
fn differences<C: Configuration>(
    before: &C,
    after: &C,
) -> impl Iterator<Item = (&'static str, ParameterValue)> + use<C> {
    let both = after.values().into_iter().zip(before.values());
    both.filter(|(after, before)| after != before).map(|(after, _)| after)
}

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
        self.parameters.extend(differences(&C::default(), configuration));
        self
    }

    /// Returns the parameters, typed; see [`Configuration::read`].
    pub fn read<C: Configuration>(&self) -> C {
        C::read(self)
    }

    /// Returns the parameters that `change` changes, with their new values.
    pub fn changes<C: Configuration>(
        &self,
        change: impl FnOnce(&mut C),
    ) -> Vec<(&'static str, ParameterValue)> {
        let before: C = self.read();
        let mut after = before.clone();
        change(&mut after);
        differences(&before, &after).collect()
    }
}

/// Returns a default, for [`configuration!`](crate::configuration).
///
/// # Panics
/// If it is not a valid value.
#[doc(hidden)]
pub fn default_of<T: ParameterType>(spec: &ParameterSpec) -> T {
    T::of(&spec.default_value()).expect("the specification has this type")
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
/// assert_eq!(part.value("tone"), Some(Tone::Never));
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
                Self {
                    $($inner: Default::default(),)*
                    $($name: $crate::default_of(
                        &$crate::parameter!(@spec $name: $type $(in ($least, $most))? = $default $(, $help)?)
                    ),)*
                }
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

            fn read(part: &$crate::Part) -> Self {
                let default = Self::default();
                Self {
                    $($inner: part.read(),)*
                    $($name: part.value(stringify!($name)).unwrap_or(default.$name),)*
                }
            }

            fn values(&self) -> Vec<(&'static str, $crate::ParameterValue)> {
                let mut values = Vec::with_capacity(Self::PARAMETERS.len());
                $(values.extend($crate::Configuration::values(&self.$inner));)*
                values.extend([$((stringify!($name), $crate::ParameterType::value(&self.$name)),)*]);
                values
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
                    $($crate::ParameterValue::Choice($word) => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn value(&self) -> $crate::ParameterValue {
                $crate::ParameterValue::Choice(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Rate};

    use super::*;
    use crate::{Build, Recipe, Registration, Registry};

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

    fn registry() -> Registry {
        let mut registry = Registry::empty();
        let build: Build = |_, _| Err("not needed".to_owned());
        registry.register(Registration::of::<Outer>(1, "has parameters", build));
        registry.register(Registration {
            further: |part| if part.value("flag") == Some(false) { BETA } else { &[] },
            ..Registration::of::<Inner>(1, "has further parameters without its flag", build)
        });
        registry
    }

    const BETA: &[ParameterSpec] = &[ParameterSpec {
        name: "beta",
        kind: ParameterKind::Number(0.0, 1.0),
        default: "1",
        help: "a share",
    }];

    #[test]
    fn a_part_lists_differences_and_round_trips() {
        let inner = Inner { rate: Rate::from_mbps(3), flag: false };
        let typed = Outer { inner, tone: Tone::High, text: "\"a\"\n".to_owned(), ..Outer::default() };
        let recipe = Recipe::new("x").with("inner").with(typed.clone());
        let given = [("rate", "3Mbit"), ("flag", "false"), ("tone", "high"), ("text", "\"a\"\n")];
        let written: Vec<_> = recipe.parts[1].parameters.iter().map(|(n, v)| (*n, v.to_string())).collect();
        assert_eq!(written, given.map(|(name, text)| (name, text.to_owned())));
        let read = registry().parse(&recipe.to_toml()).unwrap();
        assert_eq!((read.configuration(), &read), (Some(typed), &recipe));
        assert_eq!(read.without("inner").configuration::<Inner>(), None);
    }

    #[test]
    fn further_parameters_depend_on_own_ones_in_any_order() {
        for text in ["[inner]\nflag = false\nbeta = 0.5\n", "[inner]\nbeta = 0.5\nflag = false\n"] {
            let recipe = registry().parse(text).unwrap();
            let read = Inner { flag: false, ..Inner::default() };
            assert_eq!(
                (recipe.configuration(), recipe.text("inner", "beta")),
                (Some(read), Some("0.5".into()))
            );
        }
        let refused = |text| registry().parse(text).unwrap_err().to_string();
        assert_eq!(refused("[inner]\nflag = 3\n"), "line 2: `inner.flag = 3`: write true or false");
        let unknown = "line 2: `inner` has no parameter `beta`; it has: rate, flag";
        assert_eq!(refused("[inner]\nbeta = 0.5\n"), unknown);
    }

    #[test]
    fn values_of_another_type_or_out_of_range_are_refused() {
        let complete = |part: Part| part.complete(Outer::PARAMETERS).unwrap_err().to_string();
        let large = Outer { volume: 12, ..Outer::default() };
        assert_eq!(complete(large.into()), "`outer.volume = 12`: write a whole number from 1 to 11");
        let mut part = Part::from("outer");
        part.put("size", true.value());
        assert!(complete(part.clone()).starts_with("`outer.size = true`: write a size from "));
        assert_eq!(part.read::<Outer>(), Outer::default());
    }
}
