//! What a preset says of how stdin is carried.

use haul_base::Bytes;
use haul_wire::control::Fault;
use haulage::{Error, Options, Recipe};

use crate::args::{Assignment, PipeArgs};
use crate::commands::pipe::stdio::Framing;
use crate::config::{Origin, Setting};
use crate::fault;
use crate::settings::{Preset, Recipe as Chosen, Settings};
use crate::transfer::wire;

/// Size of viz messages where nothing else is said: one fits into a packet on every path.
const VIZ_FRAME: Bytes = Bytes(1_000);

/// How stdin is carried: as bytes or as messages.
pub(crate) enum Carrier {
    /// As a stream of bytes, by a recipe of an object.
    Bytes(Recipe, Box<Options>),
    /// In messages.
    Messages(Recipe),
}

impl Carrier {
    /// What the preset that was asked for says, with `--rate`.
    pub(crate) fn choose(args: &PipeArgs, options: &Options) -> Result<Self, Fault> {
        let preset = Preset::find(args.preset.as_deref().unwrap_or("bulk"))?;
        let rate = args.rate.map(|rate| format!("{}bit", rate.as_bps()));
        let assignment = rate.clone().map(|value| Assignment { key: "rate".to_owned(), value });
        let given =
            assignment.map(|assignment| Setting { origin: Origin::Flag("rate".to_owned()), assignment });
        let collected = Chosen::collect(&preset, given.as_slice())?.settings;
        match collected.stack {
            Some(recipe) if !recipe.has("object") => in_messages(recipe, rate.as_deref()),
            _ => in_bytes(&Chosen::build(&preset, given.as_slice())?.settings, options),
        }
    }
}

fn in_bytes(settings: &Settings, options: &Options) -> Result<Carrier, Fault> {
    let options = Options {
        ciphers: wire::ciphers(settings.crypto),
        offload: settings.offload,
        socket_buffer: Some(settings.socket_buffer),
        ..options.clone()
    };
    Ok(Carrier::Bytes(settings.object_recipe()?, Box::new(options)))
}

fn in_messages(mut recipe: Recipe, rate: Option<&str>) -> Result<Carrier, Fault> {
    // What goes into a pipe comes out in order.
    if recipe.has("retransmit") && recipe.has("positive_ack") && !recipe.has("in_order") {
        recipe = recipe.with("in_order");
    }
    if let Some(rate) = rate {
        let key = if recipe.has("rate_control") { "rate_control.rate" } else { "fixed_rate.rate" };
        recipe.set(key, rate).map_err(Error::from)?;
    }
    Ok(Carrier::Messages(recipe))
}

/// Where messages end, by `--frame` or as the recipe suggests, and none is longer than the recipe carries.
pub(crate) fn framing(frame: Option<Bytes>, recipe: &Recipe) -> Result<Framing, Fault> {
    let most = longest_message(recipe);
    match frame {
        Some(size) if size > most => Err(fault::usage(
            format!("--frame {size} is longer than the messages of {} may be ({most})", recipe.name),
            format!("--frame {most} or less; a recipe file can raise fixed_size.max_message"),
        )),
        Some(size) => check_frame(Some(size)).map(|()| Framing::Frames(size.0 as usize)),
        None if recipe.has("retransmit") => Ok(Framing::Lines(most.0 as usize)),
        None => Ok(Framing::Frames(VIZ_FRAME.min(most).0 as usize)),
    }
}

/// Messages of no bytes would never end.
pub(crate) fn check_frame(frame: Option<Bytes>) -> Result<(), Fault> {
    match frame {
        Some(Bytes(0)) => Err(fault::usage(
            "--frame 0B: a message has at least one byte",
            "give a size such as 1200B, or leave --frame out for lines",
        )),
        _ => Ok(()),
    }
}

/// The longest message that a recipe carries.
fn longest_message(recipe: &Recipe) -> Bytes {
    let (part, parameter) = ("fixed_size", "max_message");
    let registry = haulage::registry();
    let spec = registry.get(part).and_then(|known| known.parameters.iter().find(|p| p.name == parameter));
    let text = recipe.get(part, parameter).or(spec.map(|spec| spec.default));
    // A recipe that is wrong is refused by whoever runs it, in better words.
    text.and_then(|text| text.parse().ok()).filter(|&Bytes(size)| size > 0).unwrap_or(Bytes(u64::MAX))
}

#[cfg(test)]
mod tests {
    use haul_base::Rate;

    use super::*;

    fn choose(preset: &str, rate: Option<Rate>) -> Result<Carrier, Fault> {
        let args = PipeArgs { preset: Some(preset.to_owned()), rate, ..PipeArgs::default() };
        Carrier::choose(&args, &Options::default())
    }

    #[test]
    fn every_preset_is_bytes_or_messages_and_takes_a_rate() {
        let rate = Some(Rate::from_mbps(7));
        for name in ["default", "fixed", "bulk", "fobs", "fobs-classifier", "rbudp", "rapid+", "proactive"] {
            let Carrier::Bytes(recipe, _) = choose(name, rate).unwrap() else { panic!("{name}") };
            assert_eq!(recipe.name, name);
            assert_eq!(recipe.get("rate_control", "rate").unwrap().parse(), Ok(Rate::from_mbps(7)), "{name}");
            haul_proto::check_object_recipe(&recipe, 16).unwrap();
        }
        for name in ["viz", "msg", "sensor"] {
            let Carrier::Messages(recipe) = choose(name, rate).unwrap() else { panic!("{name}") };
            assert_eq!(recipe.get("fixed_rate", "rate"), Some("7000000bit"), "{name}");
        }
        let Carrier::Bytes(fixed, _) = choose("fixed", rate).unwrap() else { panic!() };
        assert_eq!(fixed.get("rate_control", "controller"), Some("fixed"));
        let error = choose("fixed", None).err().expect("a fixed rate has to be given");
        assert!(error.message.contains("rate"), "{error}");
        assert!(choose("blk", None).err().unwrap().message.contains("bulk"));
    }

    #[test]
    fn no_message_is_longer_than_its_recipe_carries() {
        let (msg, sensor) = (haulage::preset("msg").unwrap(), haulage::preset("sensor").unwrap());
        assert_eq!(framing(None, &msg), Ok(Framing::Lines(65_536)));
        assert_eq!(framing(None, &sensor), Ok(Framing::Lines(1_024)));
        assert_eq!(framing(Some(Bytes(1_024)), &sensor), Ok(Framing::Frames(1_024)));
        let error = framing(Some(Bytes(1_025)), &sensor).unwrap_err();
        assert!(error.message.contains("sensor") && error.hint.contains("max_message"), "{error}");
        assert!(framing(Some(Bytes(0)), &sensor).unwrap_err().message.contains("at least one byte"));
        let viz = haulage::preset("viz").unwrap();
        assert_eq!(framing(None, &viz), Ok(Framing::Frames(1_000)));
    }
}
