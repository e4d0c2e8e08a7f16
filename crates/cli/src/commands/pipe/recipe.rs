//! The recipe of a pipe: a preset with settings, for a byte stream or for messages.

use std::sync::Arc;

use haulage::Recipe;
use haulage::config::{FixedRateConfig, RateControlConfig};

use crate::config::Setting;
use crate::fault::{self, Fault};
use crate::settings::{Preset, Settings, TAG_LEN, apply, name_in_recipe, session_key};

const OTHER_PRESET: &str = "leave it out, or use another --preset; `haul presets NAME` prints a recipe";

pub(crate) fn choose(preset: &Preset, settings: &[Setting]) -> Result<Settings, Fault> {
    if !preset.carries_messages() {
        return Settings::build(preset, settings);
    }
    let is_of_part = |setting: &&Setting| session_key(&setting.key).contains('.');
    let (of_parts, of_session): (Vec<&Setting>, Vec<&Setting>) = settings.iter().partition(is_of_part);
    let of_session: Vec<Setting> = of_session.into_iter().cloned().collect();
    let session = Settings::collect(preset, &of_session)?;
    let mut recipe = with_law(session.recipe.clone(), &of_session);
    // A reliable pipe delivers in order.
    if recipe.has("retransmit") && recipe.has("positive_ack") && !recipe.has("in_order") {
        recipe = recipe.with("in_order");
    }
    apply(of_session.iter().chain(of_parts), |setting| set(&mut recipe, setting))?;
    let compiled = Arc::new(haulage::registry()).compile(&recipe, TAG_LEN);
    compiled.map_err(|error| fault::usage(format!("preset {}: {error}", preset.name), OTHER_PRESET))?;
    Ok(Settings { recipe, ..session })
}

/// Replaces a fixed rate by the control law that was typed, if any; the rate becomes its ceiling.
fn with_law(recipe: Recipe, of_session: &[Setting]) -> Recipe {
    let names_law = |set: &&Setting| set.origin.is_typed() && session_key(&set.key) == "controller";
    let Some(law) = of_session.iter().rfind(names_law) else { return recipe };
    let Some(FixedRateConfig { rate, .. }) = recipe.configuration() else { return recipe };
    let recipe = recipe.without("fixed_rate");
    let recipe = if recipe.has("receiver_report") { recipe } else { recipe.with("receiver_report") };
    let controller = law.value.clone();
    recipe.with(RateControlConfig { controller, rate, ..RateControlConfig::default() })
}

/// Sets a parameter of the recipe. One that the recipe does not have is rejected if it was typed; from
/// another source it is for other commands and presets, and ignored.
fn set(recipe: &mut Recipe, setting: &Setting) -> Result<(), Fault> {
    let Setting { origin, key, value } = setting;
    let key = match session_key(key) {
        "crypto" | "cipher" => return Ok(()),
        "rate" if !recipe.has("rate_control") => "fixed_rate.rate",
        key => name_in_recipe(key),
    };
    match key.split_once('.') {
        Some((part, _)) if recipe.has(part) => haulage::registry().set(recipe, key, value).map_err(fault::of),
        _ if !origin.is_typed() => Ok(()),
        Some(("rate_control", _)) => Err(fault::usage(
            format!("{origin}: {} has no control law, so {key} does not apply", recipe.name),
            "give --controller NAME too",
        )),
        _ => Err(fault::usage(
            format!("{origin}: {key} does not apply to the messages of {}", recipe.name),
            OTHER_PRESET,
        )),
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;

    use super::*;
    use crate::config::Origin;

    fn setting(origin: Origin, (key, value): (&str, &str)) -> Setting {
        Setting { origin, key: key.to_owned(), value: value.to_owned() }
    }

    fn choose_with(preset: &str, values: &[(&str, &str)]) -> Result<Recipe, Fault> {
        let set = |&value| setting(Origin::Flag("set".to_owned()), value);
        let settings: Vec<Setting> = values.iter().map(set).collect();
        choose(&Preset::find(preset)?, &settings).map(|chosen| chosen.recipe)
    }

    #[test]
    fn every_preset_carries_bytes_or_messages_and_accepts_a_rate() {
        let rate = [("rate", "7000000bit")];
        for name in ["default", "fixed", "bulk", "fobs", "fobs-classifier", "rbudp", "rapid+", "proactive"] {
            let recipe = choose_with(name, &rate).unwrap();
            assert_eq!((recipe.name.as_str(), recipe.has("object")), (name, true));
            assert_eq!(
                recipe.text("rate_control", "rate").unwrap().parse(),
                Ok(Rate::from_mbps(7)),
                "{name}"
            );
            haul_proto::check_object_recipe(&recipe, 16).unwrap();
        }
        for name in ["viz", "msg", "sensor"] {
            let recipe = choose_with(name, &rate).unwrap();
            assert_eq!(recipe.text("fixed_rate", "rate").as_deref(), Some("7Mbit"), "{name}");
        }
        let streams = choose_with("streams", &rate).unwrap();
        assert_eq!(streams.text("rate_control", "rate").as_deref(), Some("7Mbit"));
        let fixed = choose_with("fixed", &rate).unwrap();
        assert_eq!(fixed.text("rate_control", "controller").as_deref(), Some("fixed"));
        let error = choose_with("fixed", &[]).expect_err("a fixed rate has to be given");
        assert!(error.message.contains("rate"), "{error}");
        assert!(choose_with("blk", &[]).unwrap_err().message.contains("bulk"));
    }

    #[test]
    fn byte_and_message_presets_accept_a_law_and_its_parameters() {
        for name in ["bulk", "streams", "msg", "viz", "sensor"] {
            let values = [("controller", "reno"), ("rate_control.diagnosis", "signature"), ("rate", "9Mbit")];
            let recipe = choose_with(name, &values).unwrap();
            let law = |parameter| recipe.text("rate_control", parameter).unwrap();
            assert_eq!([law("controller"), law("rate")], ["reno", "9Mbit"], "{name}");
            assert_eq!(law("diagnosis"), "signature", "{name}");
            assert!(!recipe.has("fixed_rate"), "{name}");
        }
        let viz = choose_with("viz", &[("controller", "bbr")]).unwrap();
        assert_eq!(
            viz.text("rate_control", "rate").as_deref(),
            Some("100Mbit"),
            "the rate becomes the ceiling"
        );
        let msg = choose_with("msg", &[("fixed_size.max_message", "1KiB")]).unwrap();
        assert_eq!(msg.text("fixed_size", "max_message").as_deref(), Some("1KiB"));
    }

    #[test]
    fn settings_without_effect_are_refused_only_on_the_command_line() {
        for (value, hint) in [
            (("chunk", "1MB"), "another --preset"),
            (("offload", "off"), "another --preset"),
            (("rate_control.diagnosis", "off"), "--controller"),
            (("witness.depth", "1"), "another --preset"),
        ] {
            let error = choose_with("msg", &[value]).unwrap_err();
            assert!(error.message.contains("msg") && error.hint.contains(hint), "{error}");
            let elsewhere = [setting(Origin::Environment("HAUL_SET".to_owned()), value)];
            choose(&Preset::find("msg").unwrap(), &elsewhere).unwrap();
        }
        assert!(choose_with("msg", &[("controller", "renault")]).unwrap_err().message.contains("renault"));
        assert!(choose_with("msg", &[("nonsense", "1")]).unwrap_err().message.contains("nonsense"));
    }
}
