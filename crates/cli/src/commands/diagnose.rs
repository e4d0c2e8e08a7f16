//! `haul diagnose`: says why the packets of a signature were lost.

use std::path::{Path, PathBuf};
use std::{fs, io};

use haul_diagnosis::{Diagnosis, Joined, Metric, Model, Sample, Signature, Words, read_signatures};
use haul_mover::SOME_FAILED;
use serde_json::{Value, json};

use crate::fault::{self, Fault};
use crate::output::{Lines, count, eprint_lines, error_lines, grouped, out, out_json};
use crate::text_file::{text_of, wrong};

const SYMBOLS: &str = "write 1 for each packet that arrived and 0 for each that was lost, in sending order";

/// Returns the windows in a transfer's trace, and their signatures as text, each on the line of its event.
fn trace_signatures(file: &Path, text: &str) -> Result<(Vec<Signature>, String), Fault> {
    let (mut windows, mut signatures) = (Vec::new(), String::new());
    for (number, line) in text.lines().enumerate() {
        let event: Value = serde_json::from_str(line).map_err(|error| {
            let (words, place) = (error.to_string(), (number + 1, error.column().max(1)));
            // Drops serde's position: its line number is always 1.
            let problem = words.rsplit_once(" at line ").map_or(&*words, |(problem, _)| problem);
            wrong(file, place, problem, "a trace is written by --events: one JSON object per line")
        })?;
        let signature = event.get("signature").filter(|_| event["event"] == "window");
        let signature = signature.and_then(Value::as_str).unwrap_or_default();
        windows.extend(read_signatures(signature).map_err(|error| {
            let before = line.find(signature).map_or(0, |at| line[..at].chars().count());
            wrong(file, (number + 1, before + error.column), &error.problem, SYMBOLS)
        })?);
        signatures.extend([signature, "\n"]);
    }
    Ok((windows, signatures))
}

/// Returns the windows, possibly none, of a signature file or a trace (`-` is stdin), and their text.
pub(crate) fn signatures_of(file: &Path) -> Result<(Vec<Signature>, String), Fault> {
    let hint = "a signature file contains 0 and 1 as text; see `haul diagnose --help`";
    let text = if file.as_os_str() == "-" {
        text_of(file, Ok(io::stdin()), hint)
    } else {
        text_of(file, fs::File::open(file), hint)
    }?;
    if text.starts_with('{') {
        return trace_signatures(file, &text);
    }
    let windows = read_signatures(&text)
        .map_err(|error| wrong(file, (error.line, error.column), &error.problem, SYMBOLS))?;
    Ok((windows, text))
}

/// Reads a model from a file. `-` is not stdin here, which may have the data.
pub(crate) fn model_in(file: &Path) -> Result<Model, Fault> {
    const HINT: &str = "models are written by `haul train`; without the option the shipped one is used";
    Model::read(&text_of(file, fs::File::open(file), HINT)?).map_err(|error| {
        let message = format!("{}: {}", file.display(), error.to_string().trim_end());
        fault::usage(message, HINT)
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
    let lost = format!("{} of {} lost", grouped(sample.lost), count(sample.packets, "packet"));
    match diagnosis.metric {
        None => format!("{name}: {lost}: inconclusive"),
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
        let hint = "only a sender's trace contains windows (those with losses); a signature file contains 1 and 0 as text";
        return Err(fault::usage(format!("{}: it contains no packets", file.display()), hint));
    }
    let (is_single, mut joined) = (windows.len() == 1, Joined::default());
    for (number, signature) in windows.iter().enumerate() {
        let sample = Sample::of(signature, words);
        let diagnosis = joined.classify(model, &sample, signature, words);
        if as_object {
            out_json(&json!({
                "file": file.display().to_string(),
                "window": number,
                "packets": sample.packets, "lost": sample.lost, "loss_rate": sample.loss_rate(),
                "complexity": sample.complexity, "success_proportion": sample.success_proportion,
                "metric": metric(&diagnosis), "p_host": diagnosis.p_host, "p_network": diagnosis.p_network(),
                "verdict": diagnosis.cause().name(),
            }));
        } else {
            let name = file.display();
            let name = if is_single { name.to_string() } else { format!("{name}, window {number}") };
            out(Lines::from(line(&name, &sample, &diagnosis)));
        }
    }
    Ok(())
}

/// Diagnoses each window of each file, as a running transfer does. Reports unreadable files at the end.
pub(crate) fn run(files: &[PathBuf], model: Option<&Path>, as_object: bool) -> Result<u8, Fault> {
    let model = model.map_or_else(|| Ok(Model::shipped().clone()), model_in)?;
    let mut words = model.words();
    let mut failed = Vec::new();
    for file in files {
        failed.extend(diagnose_file(file, &model, &mut words, as_object).err());
    }
    let last = if failed.len() == files.len() { failed.pop() } else { None };
    for fault in &failed {
        eprint_lines(error_lines(fault));
    }
    let code = if failed.is_empty() { 0 } else { SOME_FAILED };
    last.map_or(Ok(code), Err)
}
