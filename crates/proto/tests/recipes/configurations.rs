//! Typed parameters of every micro-protocol and of every law: values written are read back, and tables, help
//! texts and checks come from the same declaration.

use haul_proto::config::*;
use haul_proto::{laws, micro};
use haul_stack::{Configuration, ParameterKind, ParameterSpec, Parameters, Part, Recipe};

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
fn read<C: Configuration>(settings: &[(&str, &str)]) -> C {
    let read_from = |recipe: &Recipe| recipe.configuration::<C>().unwrap().unwrap();
    let typed = read_from(&Recipe::new("x").with(Part::new(C::NAME, settings)));
    let part = Part::from(typed.clone());
    let found: Vec<_> = part.parameters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(found, settings.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let recipe = Recipe::parse(&Recipe::new("x").with(part).to_toml()).unwrap();
    assert_eq!(read_from(&recipe), typed);
    assert_eq!(Parameters::check(&recipe.parts[0], C::PARAMETERS, "").unwrap().read::<C>(), typed);
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
    let settings = [("controller", "cubic"), ("ecn", "true"), ("decrease", "0.5")];
    assert_eq!(part, Part::new("rate_control", &settings));
    let recipe = Recipe::new("x").with(part);
    let RateControlConfig { controller, ecn, .. } = recipe.configuration().unwrap().unwrap();
    assert_eq!((controller.as_str(), ecn), ("cubic", true));
}

#[test]
fn a_change_sets_only_named_parameters() {
    let mut recipe = Recipe::parse("[rate_control]\nrate = \"1000kbit\"\nbeta = 0.5\n").unwrap();
    recipe.change(|law: &mut RateControlConfig| law.max_batch = 8).unwrap();
    let settings = [("rate", "1000kbit"), ("beta", "0.5"), ("max_batch", "8")];
    assert_eq!(recipe.parts[0], Part::new("rate_control", &settings));
    let error = recipe.change(|object: &mut ObjectConfig| object.disk = DiskAccess::Chunk).unwrap_err();
    assert!(error.to_string().contains("`object` is not a parameter"), "{error}");
    recipe.put(RateControlConfig::default());
    assert_eq!(recipe.parts, [Part::from("rate_control")]);
}
