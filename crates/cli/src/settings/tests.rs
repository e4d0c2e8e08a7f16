use proptest::prelude::*;

use super::*;
use crate::args::Assignment;
use crate::fault::FaultCode;

fn set(key: &str, value: &str) -> Setting {
    let assignment = Assignment { key: key.to_owned(), value: value.to_owned() };
    Setting { origin: Origin::Flag("set".to_owned()), assignment }
}

fn build(settings: &[Setting]) -> Result<Recipe, Fault> {
    Recipe::build(&Preset::default_preset(), settings)
}

#[test]
fn every_shipped_preset_is_complete_and_describes_itself() {
    for preset in Preset::shipped() {
        let table: toml::Table = preset.text.parse().unwrap();
        for parameter in PARAMETERS {
            assert!(table.contains_key(parameter.key), "{} lacks {}", preset.name, parameter.key);
        }
        assert!(!preset.description().is_empty());
        preset.settings().unwrap();
    }
}

#[test]
fn later_settings_beat_earlier_ones_and_leave_their_origin() {
    let recipe = build(&[set("chunk", "1MB"), set("chunk", "2MB"), set("offload", "off")]).unwrap();
    assert_eq!(recipe.settings.chunk, Bytes(2_000_000));
    assert!(!recipe.settings.offload);
    let rows = recipe.rows();
    let row = |key: &str| rows.iter().find(|row| row.key == key).unwrap().clone();
    assert_eq!(row("set.chunk").origin, "flag --set");
    assert_eq!(row("set.rate").origin, "preset default");
    assert_eq!(row("set.rate").value.as_deref(), Some("unlimited"));
}

#[test]
fn unknown_parameters_are_named_with_the_nearest() {
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
        ("offload", "maybe"),
        ("crypto", "rot13"),
        ("controller", "cubic"),
        ("offload", ""),
    ] {
        let failure = build(&[set(key, value)]).unwrap_err();
        assert!(failure.message.starts_with(&format!("flag --set: {key} = ")), "{failure}");
    }
}

#[test]
fn the_fixed_controller_needs_a_rate() {
    let preset = Preset::find("fixed").unwrap();
    assert!(Recipe::build(&preset, &[]).is_err());
    assert!(Recipe::collect(&preset, &[]).is_ok());
    let recipe = Recipe::build(&preset, &[set("rate", "800Mbit")]).unwrap();
    assert_eq!(recipe.settings.rate, Some(Rate::from_mbps(800)));
}

#[test]
fn recipe_files_load_and_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, "rate = '1Gbit'\ncipher = 'none'\noffload = false\n").unwrap();
    let preset = Preset::find(path.to_str().unwrap()).unwrap();
    assert_eq!(preset.name, "mine");
    let settings = Recipe::build(&preset, &[]).unwrap().settings;
    assert_eq!((settings.crypto, settings.offload), (Crypto::None, false));

    std::fs::write(&path, "chunk = 7\n").unwrap();
    let preset = Preset::find(path.to_str().unwrap()).unwrap();
    assert!(Recipe::build(&preset, &[]).unwrap_err().message.contains("mine.toml: chunk = \"7\""));
    assert!(Preset::find("fixd").unwrap_err().message.contains("did you mean `fixed`?"));
    assert!(Preset::find("./nothing.toml").is_err());
}

proptest! {
    #[test]
    fn what_is_shown_can_be_set_again(
        mbit in 1u64..100_000, chunk in (64u64 << 10)..(4 << 30), micros in 100u64..1_000_000,
    ) {
        let mut settings = Preset::default_preset().settings().unwrap();
        settings.rate = Some(Rate::from_mbps(mbit));
        settings.chunk = Bytes(chunk);
        settings.feedback_interval = Span::from_micros(micros);
        let mut again = Preset::default_preset().settings().unwrap();
        for parameter in PARAMETERS {
            parameter.set(&mut again, &parameter.show(&settings)).unwrap();
        }
        prop_assert_eq!(again, settings);
    }

    #[test]
    fn no_value_panics(index in 0usize..PARAMETERS.len(), value in ".{0,20}") {
        let mut settings = Preset::default_preset().settings().unwrap();
        let _ = PARAMETERS[index].set(&mut settings, &value);
    }
}
