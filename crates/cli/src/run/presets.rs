//! `haul presets`: the recipes that have a name.

use serde_json::{Value, json};

use crate::args::PresetsArgs;
use crate::fault::Fault;
use crate::output::out;
use crate::settings::{Preset, PresetSource};

/// Lists the presets, or prints one. Gives the exit code.
///
/// # Errors
/// That there is none of this name, or no such file.
pub(crate) fn presets(args: &PresetsArgs, as_object: bool) -> Result<u8, Fault> {
    let Some(name) = &args.name else {
        list(as_object);
        return Ok(0);
    };
    let preset = Preset::find(name)?;
    if let PresetSource::File(path) = &preset.source {
        tracing::info!("recipe file {}", path.display());
    }
    if as_object {
        let mut told = told(&preset);
        told["text"] = json!(preset.text);
        out(&object("preset", &told));
    } else {
        out(preset.text.trim_end());
    }
    Ok(0)
}

fn list(as_object: bool) {
    let all = Preset::all();
    if as_object {
        let all: Vec<_> = all.iter().map(told).collect();
        return out(&object("presets", &json!(all)));
    }
    for preset in all {
        let commands = commands(&preset).join(", ");
        out(&format!("{:<10} {} (haul {commands})", preset.name, preset.description()));
    }
}

fn object(key: &str, content: &Value) -> String {
    json!({ "schema": 1, "ok": true, key: content, "error": null }).to_string()
}

fn told(preset: &Preset) -> Value {
    json!({ "name": preset.name, "summary": preset.description(), "commands": commands(preset) })
}

/// The commands that take it.
fn commands(preset: &Preset) -> &'static [&'static str] {
    if preset.carries_messages() { &["pipe"] } else { &["cp", "bench", "demo", "pipe"] }
}
