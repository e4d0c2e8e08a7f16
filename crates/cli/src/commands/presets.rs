//! `haul presets`: the named recipes.

use serde_json::{Value, json};

use crate::fault::Fault;
use crate::output::{out, out_fields, out_verbatim};
use crate::settings::Preset;

/// Width of the name column: the longest name is `ledbat_plus_plus`.
const WIDTH: usize = 16;

pub(crate) fn run(name: Option<&str>, as_object: bool) -> Result<u8, Fault> {
    let Some(name) = name else {
        list(as_object);
        return Ok(0);
    };
    let preset = Preset::find(name)?;
    if let Some(path) = &preset.file {
        tracing::info!("recipe file {}", path.display());
    }
    if as_object {
        let mut object = preset_object(&preset);
        object["text"] = json!(preset.text);
        out_fields(json!({ "preset": object }), None);
    } else {
        out_verbatim(preset.text.trim_end());
    }
    Ok(0)
}

fn list(as_object: bool) {
    let all = Preset::all();
    if as_object {
        let all: Vec<_> = all.iter().map(preset_object).collect();
        let laws: Vec<_> = haul_proto::laws().into_iter().map(law_line).collect();
        return out_fields(json!({ "presets": all, "controllers": laws }), None);
    }
    for preset in all {
        let commands = commands(&preset).join(", ");
        out(format_args!("{:<WIDTH$} {} (haul {commands})", preset.name, preset.description()));
    }
    out("");
    out("controllers, for --controller:");
    for law in haul_proto::laws() {
        out(format_args!("{:<WIDTH$} {}", law.name, law.summary));
        for haul_proto::ParameterSpec { name, kind, default, help, .. } in law.parameters {
            out(format_args!("{:<WIDTH$} --set rate_control.{name}={default}: {help} ({kind})", ""));
        }
    }
}

fn law_line(law: &haul_proto::LawRegistration) -> Value {
    let parameter = |known: &haul_proto::ParameterSpec| {
        let values = known.kind.to_string();
        json!({ "name": known.name, "values": values, "default": known.default, "help": known.help })
    };
    json!({
        "name": law.name, "version": law.version, "summary": law.summary, "source": law.source,
        "parameters": law.parameters.iter().map(parameter).collect::<Vec<_>>(),
    })
}

fn preset_object(preset: &Preset) -> Value {
    json!({ "name": preset.name, "summary": preset.description(), "commands": commands(preset) })
}

fn commands(preset: &Preset) -> &'static [&'static str] {
    if preset.carries_messages() { &["pipe"] } else { &["cp", "bench", "demo", "pipe"] }
}
