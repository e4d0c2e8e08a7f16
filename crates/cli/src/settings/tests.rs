use haul_base::{Bytes, Rate, Span};
use haul_wire::control::BenchLimit;
use proptest::prelude::*;

use super::*;
use crate::fault::FaultCode;

fn set(key: &str, value: &str) -> Setting {
    Setting { origin: Origin::Flag("set".to_owned()), key: key.to_owned(), value: value.to_owned() }
}

fn build(settings: &[Setting]) -> Result<Settings, Fault> {
    Settings::build(&Preset::default_preset(), settings)
}

#[test]
fn every_shipped_preset_is_complete_and_has_a_description() {
    for preset in Preset::shipped() {
        let table: Table = preset.text.parse().unwrap();
        for (key, _) in PARAMETERS {
            assert!(table.contains_key(key), "{} lacks {key}", preset.name);
        }
        assert!(!preset.description().is_empty());
        preset.settings().unwrap();
    }
}

#[test]
fn later_settings_win_and_record_their_origin() {
    let settings = [set("chunk", "1MB"), set("chunk", "2MB"), set("offload", "off")];
    let recipe = build(&settings).unwrap();
    assert_eq!((stack(&recipe).text("object", "chunk").as_deref(), recipe.offload), (Some("2MB"), false));
    let rows = recipe.rows(&Preset::default_preset(), &settings);
    let row = |key: &str| rows.iter().find(|row| row.key == key).unwrap().clone();
    assert_eq!(row("set.chunk").origin, "flag --set");
    assert_eq!(row("set.rate").origin, "preset default");
    assert_eq!(row("set.rate").value.as_deref(), Some("unlimited"));
}

#[test]
fn unknown_parameters_are_reported_with_the_nearest_match() {
    let failure = build(&[set("chnuk", "1MB")]).unwrap_err();
    assert_eq!(failure.code, FaultCode::Usage);
    assert!(failure.message.contains("`chnuk` (did you mean `chunk`?)"), "{failure}");
    assert!(failure.hint.contains("socket_buffer"), "{failure}");
}

#[test]
fn values_out_of_range_or_without_unit_are_refused() {
    for (key, value) in [
        ("chunk", "1"),
        ("chunk", "1B"),
        ("feedback_interval", "5s"),
        ("rate", "100"),
        ("rate", "1001Tbit"),
        ("offload", "maybe"),
        ("crypto", "rot13"),
        ("controller", "warp"),
        ("offload", ""),
        // Above the largest accepted socket buffer.
        ("socket_buffer", "257MiB"),
    ] {
        let failure = build(&[set(key, value)]).unwrap_err();
        assert!(failure.message.starts_with(&format!("flag --set: {key} = ")), "{failure}");
    }
}

#[test]
fn the_fixed_controller_needs_a_rate() {
    let preset = Preset::find("fixed").unwrap();
    assert!(Settings::build(&preset, &[]).is_err());
    assert!(Settings::collect(&preset, &[]).is_ok());
    let recipe = Settings::build(&preset, &[set("rate", "800Mbit")]).unwrap();
    assert_eq!(recipe.rate(), Some(Rate::from_mbps(800)));
}

#[test]
fn an_unknown_law_in_a_rule_lists_the_laws() {
    let failure = build(&[set("rate_control.switch", "loss > 5% -> warp")]).unwrap_err();
    assert!(failure.message.contains("there is no controller `warp`"), "{failure}");
    assert!(
        failure.hint.contains("CONDITION -> LAW") && failure.hint.contains("ledbat_plus_plus"),
        "{failure}"
    );
}

#[test]
fn recipe_files_are_loaded_and_their_errors_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, "rate = '1Gbit'\ncipher = 'none'\noffload = false\n").unwrap();
    let preset = Preset::find(path.to_str().unwrap()).unwrap();
    assert_eq!(preset.name, "mine");
    let settings = Settings::build(&preset, &[]).unwrap();
    assert_eq!((settings.crypto, settings.offload), (Some(Cipher::None), false));

    std::fs::write(&path, "chunk = 7\n").unwrap();
    let preset = Preset::find(path.to_str().unwrap()).unwrap();
    assert!(Settings::build(&preset, &[]).unwrap_err().message.contains("mine.toml: chunk = \"7\""));
    assert!(Preset::find("fixd").unwrap_err().message.contains("did you mean `fixed`?"));
    assert!(Preset::find("./nothing.toml").is_err());
}

fn stack(settings: &Settings) -> &haulage::Recipe {
    &settings.recipe
}

#[test]
fn a_recipe_of_micro_protocols_determines_the_session() {
    let preset = Preset::find("fobs").unwrap();
    let recipe = Settings::build(&preset, &[]).unwrap();
    let interval = stack(&recipe).text("bitmap_ack", "interval");
    let found = (recipe.controller(), recipe.rate(), interval.as_deref());
    assert_eq!(found, ("fixed", Some(Rate::from_mbps(900)), Some("10ms")));
    assert!(stack(&recipe).same_stack(stack(&Settings::build(&preset, &[]).unwrap())));
    let base = build(&[]).unwrap();
    let window = stack(&base).text("retransmit", "window");
    assert_eq!((&*stack(&base).name, window.as_deref()), ("default", Some("400000")));
}

#[test]
fn both_names_of_a_parameter_mean_the_same() {
    for key in ["rate", "rate_control.rate"] {
        let recipe = Settings::build(&Preset::find("rbudp").unwrap(), &[set(key, "150Mbit")]).unwrap();
        assert_eq!(recipe.rate(), Some(Rate::from_mbps(150)), "{key}");
        assert_eq!(stack(&recipe).text("rate_control", "rate").as_deref(), Some("150Mbit"), "{key}");
        assert_eq!(build(&[set(key, "150Mbit")]).unwrap().rate(), Some(Rate::from_mbps(150)), "{key}");
    }
    let preset = Preset::find("rbudp").unwrap();
    let recipe = Settings::build(&preset, &[set("chunk", "1MB"), set("retransmit.window", "5000")]).unwrap();
    assert_eq!(stack(&recipe).text("object", "chunk").as_deref(), Some("1MB"));
    assert_eq!(stack(&recipe).text("retransmit", "window").as_deref(), Some("5000"));
}

#[test]
fn recipes_that_cannot_carry_files_are_refused_with_the_reason() {
    for name in ["viz", "msg", "sensor"] {
        let failure = Settings::build(&Preset::find(name).unwrap(), &[]).unwrap_err();
        assert_eq!(failure.code, FaultCode::Usage);
        assert!(failure.message.contains(name) && failure.message.contains("needs object"), "{failure}");
        assert!(failure.hint.contains("haul pipe"), "{failure}");
    }
    let fobs = Preset::find("fobs").unwrap();
    for (settings, word) in [
        (set("warp.speed", "9"), "`warp.speed`"),
        (set("retransmit.speed", "9"), "`speed`"),
        (set("retransmit.window", "0"), "`retransmit.window = 0`"),
        (set("rate", "unlimited"), "needs a rate"),
    ] {
        let failure = Settings::build(&fobs, &[settings]).unwrap_err();
        assert!(failure.code == FaultCode::Usage && failure.message.contains(word), "{failure}");
    }
}

#[test]
fn parameters_of_micro_protocols_and_of_laws_can_be_set_on_any_preset() {
    let recipe = build(&[set("retransmit.window", "5000"), set("rate_control.cause_aware", "true")]).unwrap();
    assert_eq!(stack(&recipe).text("retransmit", "window").as_deref(), Some("5000"));
    assert_eq!(stack(&recipe).text("rate_control", "controller").as_deref(), Some("bbr"));
    for (key, value, word) in [
        ("rate_control.no_such", "1", "has no parameter `no_such`"),
        ("rate_control.cause_aware", "perhaps", "true or false"),
        ("rate", "0Mbit", "above zero"),
        ("rate", "0", "above zero"),
    ] {
        let failure = build(&[set(key, value)]).unwrap_err();
        assert!(failure.message.contains(word), "{failure}");
    }
}

#[test]
fn another_law_drops_the_parameters_of_the_presets_law() {
    let build = |settings: &[Setting]| Settings::build(&Preset::find("proactive").unwrap(), settings);
    let recipe = build(&[set("rate_control.low_window", "50"), set("controller", "highspeed")]).unwrap();
    assert_eq!(stack(&recipe).text("rate_control", "predictor"), None);
    assert_eq!(stack(&recipe).text("rate_control", "low_window").as_deref(), Some("50"));
    let replaced = ["rate_control.low_window", "controller"].map(|key| {
        let value = if key == "controller" { "highspeed" } else { "50" };
        set(key, value)
    });
    for weaker in [replaced.clone(), {
        let [a, b] = replaced;
        [b, a]
    }] {
        let recipe = build(&[&weaker[..], &[set("controller", "proactive")]].concat()).unwrap();
        assert_eq!(recipe.controller(), "proactive");
    }
    let recipe = build(&[set("controller", "proactive")]).unwrap();
    assert_eq!(stack(&recipe).text("rate_control", "predictor").as_deref(), Some("read_delay"));
    let failure =
        build(&[set("controller", "highspeed"), set("rate_control.predictor", "gaps")]).unwrap_err();
    assert!(failure.message.contains("has no parameter `predictor`"), "{failure}");
}

#[test]
fn a_file_may_name_micro_protocols() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let find = || Preset::find(path.to_str().unwrap()).unwrap();
    std::fs::write(&path, Preset::find("rbudp").unwrap().text).unwrap();
    let recipe = Settings::build(&find(), &[]).unwrap();
    assert_eq!(stack(&recipe).name, "mine");
    std::fs::write(&path, "[object]\nchunk = '7B'\n").unwrap();
    assert!(Settings::build(&find(), &[]).unwrap_err().message.contains("mine.toml: chunk = \"7B\""));
    std::fs::write(&path, "[object]\nchunk = '7'\n").unwrap();
    let failure = Settings::build(&find(), &[]).unwrap_err();
    assert!(failure.message.contains("mine.toml: line 2: `object.chunk = 7`: "), "{failure}");
    std::fs::write(&path, "[object]\n[seal]\n").unwrap();
    assert!(Settings::build(&find(), &[]).unwrap_err().message.contains("needs liveness"));
    std::fs::write(&path, "[object\n").unwrap();
    assert!(Settings::build(&find(), &[]).unwrap_err().message.contains("mine.toml"));
}

proptest! {
    #[test]
    fn shown_values_can_be_set_again(
        mbit in 1u64..100_000, chunk in (64u64 << 10)..(4 << 30), micros in 100u64..1_000_000,
    ) {
        let mut settings = Preset::default_preset().settings().unwrap();
        let values = [Rate::from_mbps(mbit).exact(), Bytes(chunk).exact(), Span::from_micros(micros).exact()];
        for (key, value) in ["rate", "chunk", "feedback_interval"].iter().zip(&values) {
            settings.set_value(key, value).unwrap();
        }
        let mut reparsed = Preset::default_preset().settings().unwrap();
        for (key, _) in PARAMETERS {
            reparsed.set_value(key, &settings.shown(key).unwrap()).unwrap();
        }
        prop_assert_eq!(reparsed, settings);
    }

    #[test]
    fn no_value_panics(index in 0usize..PARAMETERS.len(), value in ".{0,20}") {
        let mut settings = Preset::default_preset().settings().unwrap();
        let _ = settings.set_value(PARAMETERS[index].0, &value);
    }
}

#[test]
fn settings_reach_the_peer_unchanged() {
    let settings = [set("rate", "5Mbit"), set("feedback_interval", "3ms"), set("socket_buffer", "1MiB")];
    let received = build(&settings).unwrap().to_wire(BenchLimit::Bytes(7));
    let recipe = haulage::registry().parse(&received.recipe.unwrap().text).unwrap();
    let law = |parameter| recipe.text("rate_control", parameter);
    assert_eq!((law("rate").as_deref(), law("controller").as_deref()), (Some("5Mbit"), Some("bbr")));
    assert_eq!(recipe.text("bitmap_ack", "interval").as_deref(), Some("3ms"));
    assert_eq!(recipe.text("object", "chunk").as_deref(), Some("100MB"));
    assert_eq!((received.offload, received.socket_buffer), (true, Some(1 << 20)));
    assert_eq!(received.bench_limit, BenchLimit::Bytes(7));
}

#[test]
fn the_transport_settings_of_a_preset_are_offered() {
    let ours = Settings::build(&Preset::find("rbudp").unwrap(), &[]).unwrap();
    let received = ours.to_wire(BenchLimit::Unlimited);
    let offered = haulage::registry().parse(&received.recipe.unwrap().text).unwrap();
    let law = |parameter| offered.text("rate_control", parameter);
    assert_eq!((&*offered.name, law("controller").as_deref()), ("rbudp", Some("fixed")));
    assert_eq!(law("rate").as_deref(), Some("900Mbit"));
    let ours = build(&[set("chunk", "1MB")]).unwrap();
    let received = ours.to_wire(BenchLimit::Unlimited);
    let offered = haulage::registry().parse(&received.recipe.unwrap().text).unwrap();
    assert_eq!((&*offered.name, offered.text("object", "chunk").as_deref()), ("default", Some("1MB")));
}

#[test]
fn cipher_none_is_offered_only_when_requested() {
    assert!(!ciphers(None).contains(&Cipher::None));
    assert_eq!(ciphers(Some(Cipher::None)), [Cipher::None]);
    assert_eq!(ciphers(None).len(), 3);
}

#[test]
fn a_row_is_shown_for_each_parameter_and_has_no_value_that_the_recipe_lacks() {
    let row = |preset: &str, settings: &[Setting], key: &str| {
        let preset = Preset::find(preset).unwrap();
        let chosen = crate::commands::pipe::settings(&preset, settings).unwrap();
        let rows = chosen.rows(&preset, settings);
        let found: Vec<_> = rows.into_iter().filter(|row| row.key == key).collect();
        assert_eq!(found.len(), 1, "{key}");
        (found[0].value.clone(), found[0].origin.clone())
    };
    let rate = [set("rate", "50Mbit")];
    assert_eq!(row("viz", &rate, "set.rate"), (Some("50Mbit".into()), "flag --set".into()));
    let fixed_rate = [set("fixed_rate.rate", "5Mbit")];
    assert_eq!(row("viz", &fixed_rate, "set.rate"), (Some("5Mbit".into()), "flag --set".into()));
    assert_eq!(row("viz", &rate, "set.controller"), (None, "preset viz".into()));
    assert_eq!(row("viz", &rate, "set.chunk").0, None);
    let window = [set("retransmit.window", "5000"), set("retransmit.window", "1000")];
    let shown = (Some("1000".into()), "flag --set".into());
    assert_eq!(row("bulk", &window, "set.retransmit.window"), shown);
    assert_eq!(row("bulk", &[set("rate_control.rate", "5Mbit")], "set.rate").0.as_deref(), Some("5Mbit"));
}
