//! Typed parameters of every micro-protocol and of every law: values written are read back, and tables, help
//! texts and checks come from the same declaration.

use haul_proto::config::*;
use haul_proto::{laws, micro};
use haul_stack::{Configuration, ParameterKind, ParameterSpec, Part, Recipe, Registration, Registry};

/// A value other than the default.
fn other(spec: &ParameterSpec) -> String {
    let first_other = |texts: &[String]| texts.iter().find(|text| *text != spec.default).cloned().unwrap();
    match spec.kind {
        ParameterKind::Rate => "7Mbit".to_owned(),
        ParameterKind::Bytes => "3MiB".to_owned(),
        ParameterKind::Span => "1234us".to_owned(),
        ParameterKind::RateIn(least, most) => first_other(&[least.exact(), most.exact()]),
        ParameterKind::BytesIn(least, most) => first_other(&[least.exact(), most.exact()]),
        ParameterKind::SpanIn(least, most) => first_other(&[least.exact(), most.exact()]),
        ParameterKind::Integer(least, most) => first_other(&[least.to_string(), most.to_string()]),
        ParameterKind::Number(least, most) => first_other(&[least.to_string(), most.to_string()]),
        ParameterKind::Flag => first_other(&["true".to_owned(), "false".to_owned()]),
        ParameterKind::Choice(words) => first_other(&[words[0].to_owned(), words[1].to_owned()]),
        ParameterKind::Text => "a \"text\"\n".to_owned(),
    }
}

/// Converts text to the type and back by way of TOML, checked twice.
fn read<C: Configuration>(given: &[(&str, &str)]) -> C {
    let mut registry = Registry::empty();
    registry.register(Registration::of::<C>(1, "has these parameters", |_, _| Err(String::new())));
    let mut recipe = Recipe::new("x").with(C::NAME);
    for (name, text) in given {
        registry.set(&mut recipe, &format!("{}.{name}", C::NAME), text).unwrap();
    }
    let typed: C = recipe.configuration().unwrap();
    let written = Recipe::new("x").with(typed.clone());
    assert_eq!(written, recipe);
    let read = registry.parse(&written.to_toml()).unwrap();
    assert_eq!(read, written);
    assert_eq!(read.parts[0].complete(C::PARAMETERS).unwrap().read::<C>(), typed);
    typed
}

fn survives<C: Configuration>() -> (&'static str, &'static [ParameterSpec]) {
    assert_eq!(read::<C>(&[]), C::default());
    let values: Vec<_> = C::PARAMETERS.iter().map(|spec| (spec.name, other(spec))).collect();
    let texts: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for settings in &texts {
        assert_ne!(read::<C>(&[*settings]), C::default(), "{settings:?}");
    }
    read::<C>(&texts);
    (C::NAME, C::PARAMETERS)
}

macro_rules! survive {
    ($($name:ident)*) => { [$(survives::<$name>()),*] };
}

#[test]
fn typed_parameters_are_complete_and_round_trip_through_text() {
    let protocols = survive!(FixedSizeConfig SequencedSegmentConfig FixedRateConfig RetransmitConfig PositiveAckConfig
        CumulativeAckConfig NegativeAckConfig SelectiveTransferConfig PacingConfig RateStatsConfig InOrderConfig
        PriorityConfig DeadlineConfig StatisticsConfig StreamsConfig FecConfig ObjectConfig BitmapAckConfig
        ReceiverReportConfig RateControlConfig LivenessConfig);
    let registry = micro::registry();
    let registered = registry.iter().map(|known| (known.name, known.parameters));
    let with_parameters: Vec<_> = registered.filter(|known| !known.1.is_empty()).collect();
    assert_eq!(with_parameters, protocols);
    let typed_laws = survive!(BbrConfig HighspeedConfig RapidPlusConfig AsynchConfig ProactiveConfig StopAndGoConfig
        NonAggressiveConfig StateBasedConfig RenoConfig ScalableConfig TfrcConfig FastConfig CubicConfig UdtConfig
        SabulConfig GtpConfig LedbatPlusPlusConfig);
    let registered = laws().into_iter().map(|law| (law.name, law.parameters));
    let with_parameters: Vec<_> = registered.filter(|known| !known.1.is_empty()).collect();
    assert_eq!(with_parameters, typed_laws);
}

#[test]
fn a_law_and_rate_control_share_one_table() {
    let cubic = CubicConfig { decrease: 0.5, ..CubicConfig::default() };
    let part = RateControlConfig { ecn: true, ..RateControlConfig::default() }.with_law(&cubic);
    let text = "[rate_control]\ncontroller = \"cubic\"\necn = true\ndecrease = 0.5\n";
    assert_eq!(micro::registry().parse(text).unwrap().parts[0], part);
    let recipe = Recipe::new("x").with(part);
    let RateControlConfig { controller, ecn, .. } = recipe.configuration().unwrap();
    assert_eq!((controller.as_str(), ecn), ("cubic", true));
}

#[test]
fn a_change_sets_only_named_parameters() {
    let text = "[rate_control]\ncontroller = \"cubic\"\nrate = \"1000kbit\"\ndecrease = 0.5\n";
    let mut recipe = micro::registry().parse(text).unwrap();
    recipe.change(|law: &mut RateControlConfig| law.max_batch = 8).unwrap();
    let found: Vec<_> = recipe.parts[0].parameters.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(found, ["controller=cubic", "rate=1Mbit", "decrease=0.5", "max_batch=8"]);
    let error = recipe.change(|object: &mut ObjectConfig| object.disk = DiskAccess::Chunk).unwrap_err();
    assert!(error.to_string().contains("`object` is not a parameter"), "{error}");
    recipe.put(RateControlConfig::default());
    assert_eq!(recipe.parts, [Part::from("rate_control")]);
}
