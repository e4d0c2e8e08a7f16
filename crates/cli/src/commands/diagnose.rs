//! `haul diagnose`: why the packets of a signature were lost.

use std::fs;
use std::io::Read;
use std::path::Path;

use haul_diagnosis::{Diagnosis, Metric, Model, Sample, Signature, Words, read_signatures};
use serde_json::{Value, json};

use crate::args::DiagnoseArgs;
use crate::fault::{self, Fault, shown};
use crate::output::{Lines, out, out_json, tell};

/// The exit code if some files could be read and others not.
const SOME_FAILED: u8 = 3;

const SYMBOLS: &str = "1 is a packet that arrived, 0 one that was lost, in the order in which they left";

/// The text of a file; `-` is stdin.
fn text_of(file: &Path) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut bytes).map(|_| ())
    } else {
        fs::read(file).map(|read| bytes = read)
    };
    read.map_err(|error| fault::io(format_args!("cannot read {}", file.display()), &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let message = format!("{}: byte {} is no text", file.display(), error.utf8_error().valid_up_to() + 1);
        fault::usage(message, "a signature file has 0 and 1 as text; `haul diagnose --help` says more")
    })
}

/// The signatures of the windows in the trace of a transfer, each in the line of its event; other lines are empty.
fn of_trace(file: &Path, text: &str) -> Result<String, Fault> {
    let signature = |(number, line): (usize, &str)| {
        let event: Value = serde_json::from_str(line).map_err(|error| {
            let message = format!("{}: line {}: {error}", file.display(), number + 1);
            fault::usage(message, "a trace is what --events writes: one JSON object a line")
        })?;
        let windows = event.get("signature").filter(|_| event["event"] == "window");
        Ok(windows.and_then(Value::as_str).unwrap_or_default().to_owned() + "\n")
    };
    text.lines().enumerate().map(signature).collect()
}

/// The windows of a signature file or a trace, which may be none, and the text of their signatures.
pub(crate) fn signatures_of(file: &Path) -> Result<(Vec<Signature>, String), Fault> {
    let mut text = text_of(file)?;
    if text.starts_with('{') {
        text = of_trace(file, &text)?;
    }
    let windows = read_signatures(&text)
        .map_err(|error| fault::usage(format!("{}: {error}", file.display()), SYMBOLS))?;
    Ok((windows, text))
}

fn model_of(file: Option<&Path>) -> Result<Model, Fault> {
    let Some(file) = file else { return Ok(Model::shipped().clone()) };
    Model::read(&text_of(file)?).map_err(|error| {
        let message = format!("{}: {}", file.display(), error.to_string().trim_end());
        fault::usage(message, "`haul train` writes models; without --model the shipped one is used")
    })
}

fn metric(diagnosis: &Diagnosis) -> &'static str {
    match diagnosis.metric {
        Some(Metric::Complexity) => "complexity",
        Some(Metric::SuccessProportion) => "success_proportion",
        None => "none",
    }
}

fn line(name: &str, sample: &Sample, diagnosis: &Diagnosis) -> String {
    let lost = format!("{} of {} packets lost", sample.lost, sample.packets);
    match diagnosis.metric {
        None => format!("{name}: {lost}: nothing can be told from a loss rate of {:.6}", sample.loss_rate()),
        Some(_) => format!(
            "{name}: {lost}: {} (receiver host {:.2} %, congestion {:.2} %, by {})",
            diagnosis.cause().name().replace('_', " "),
            diagnosis.p_host * 100.0,
            diagnosis.p_network() * 100.0,
            metric(diagnosis).replace('_', " ")
        ),
    }
}

fn diagnose_file(file: &Path, model: &Model, words: &mut Words, as_object: bool) -> Result<(), Fault> {
    let (windows, _) = signatures_of(file)?;
    if windows.is_empty() {
        return Err(fault::usage(format!("{}: there is no packet in it", file.display()), SYMBOLS));
    }
    let one = windows.len() == 1;
    for (number, signature) in windows.iter().enumerate() {
        let sample = Sample::of(signature, words);
        let diagnosis = model.classify(&sample);
        if as_object {
            let object = json!({
                "file": file.display().to_string(),
                "window": number,
                "packets": sample.packets,
                "lost": sample.lost,
                "loss_rate": sample.loss_rate(),
                "complexity": sample.complexity,
                "success_proportion": sample.success_proportion,
                "metric": metric(&diagnosis),
                "p_host": diagnosis.p_host,
                "p_network": diagnosis.p_network(),
                "verdict": diagnosis.cause().name(),
            });
            out_json(&object.to_string());
        } else {
            let name = file.display();
            let name = if one { name.to_string() } else { format!("{name}, window {number}") };
            out(Lines::from(line(&name, &sample, &diagnosis)));
        }
    }
    Ok(())
}

/// Says of each window of each file why its packets were lost. A file that cannot be read does not keep the others from being
/// diagnosed. Gives the exit code.
pub(crate) fn run(args: &DiagnoseArgs, as_object: bool) -> Result<u8, Fault> {
    let model = model_of(args.model.as_deref())?;
    let mut words = Words::of_length(model.word_length).expect("a model was checked when it was read");
    let mut failed = Vec::new();
    for file in &args.files {
        failed.extend(diagnose_file(file, &model, &mut words, as_object).err());
    }
    let last = if failed.len() == args.files.len() { failed.pop() } else { None };
    for fault in &failed {
        tell(shown(fault));
    }
    let code = if failed.is_empty() { 0 } else { SOME_FAILED };
    last.map_or(Ok(code), Err)
}
