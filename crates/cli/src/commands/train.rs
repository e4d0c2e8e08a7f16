//! `haul train`: fits a loss model to the user's own system.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use blake3::Hasher;
use haul_diagnosis::{
    Bin, Confusion, Normality, Provenance, Sample, Trained, Words, clopper_pearson, cross_validate,
    train as fit,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::args::TrainArgs;
use crate::commands::diagnose::signatures_of;
use crate::fault::{self, Fault};
use crate::output::{count, out_fields, out_verbatim};

const FOLDS: usize = 10;
/// p-value of the normality test below which data is called not normal.
const SIGNIFICANT: f64 = 0.05;

/// Returns the measures of every window with losses; hashes the text of all windows.
fn samples(files: &[PathBuf], words: &mut Words, hash: &mut Hasher) -> Result<Vec<Sample>, Fault> {
    let mut samples = Vec::new();
    for file in files {
        let (windows, text) = signatures_of(file)?;
        hash.update(text.as_bytes());
        let lossy = windows.iter().filter(|window| window.lost_packets() > 0);
        samples.extend(lossy.map(|window| Sample::of(window, words)));
    }
    Ok(samples)
}

fn provenance(args: &TrainArgs, hash: &Hasher) -> Provenance {
    let uname = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let files = |cause: &str, files: &[PathBuf]| {
        format!("{} of losses by the {cause}", count(files.len() as u64, "file"))
    };
    Provenance {
        data: format!("{}, {}", files("host", &args.host), files("network", &args.network)),
        data_hash: hash.finalize().to_hex().to_string(),
        seed: Some(args.seed),
        system: format!("{} {} {}", word(uname.sysname()), word(uname.release()), word(uname.machine())),
        date: OffsetDateTime::now_utc().date().to_string(),
        ..Provenance::default()
    }
}

fn rejected(bins: &[Bin], test: impl Fn(&Bin) -> Option<Normality>) -> (usize, usize) {
    let tested: Vec<_> = bins.iter().filter_map(test).collect();
    (tested.iter().filter(|test| test.p < SIGNIFICANT).count(), tested.len())
}

fn fit_line(cause: &str, r2: f64, bins: &[Bin]) -> String {
    let (all, tested) = rejected(bins, |bin| bin.normality);
    let (inside, tested_inside) = rejected(bins, |bin| bin.normality_without_outliers);
    format!(
        "{cause}: R^2 {r2:.4}; not normal (Shapiro-Wilk, p < {SIGNIFICANT}): {all} of {tested} bins, without outliers {inside} of \
         {tested_inside}\n"
    )
}

fn confusion_line(cause: &str, of: &Confusion) -> String {
    let share = |hits| {
        let share = clopper_pearson(hits, of.in_range());
        format!("{:.3} % ({:.3} to {:.3})", share.found * 100.0, share.low * 100.0, share.high * 100.0)
    };
    format!(
        "{cause}, {} in range: correct {}, wrong {}, inconclusive {}; out of range {}\n",
        count(of.in_range(), "window"),
        share(of.correct),
        share(of.wrong),
        share(of.inconclusive),
        of.out_of_range
    )
}

fn report(trained: &Trained, held_out: &[Confusion; 2], hash: &str) -> String {
    [
        fit_line("host", trained.host_r2, &trained.host_bins),
        fit_line("network", trained.network_r2, &trained.network_bins),
        format!("Held out, {FOLDS} parts in turn, with 95 % intervals:\n"),
        confusion_line("host", &held_out[0]),
        confusion_line("network", &held_out[1]),
        format!("Model BLAKE3 {hash}"),
    ]
    .concat()
}

fn bins_object(bins: &[Bin]) -> Vec<Value> {
    let object = |bin: &Bin| {
        json!({
            "loss_from": bin.range.from, "loss_to": bin.range.to, "windows": bin.windows, "mean": bin.mean,
            "deviation": bin.deviation, "fitted": bin.fitted, "normality": bin.normality,
            "normality_without_outliers": bin.normality_without_outliers,
        })
    };
    bins.iter().map(object).collect()
}

fn object(trained: &Trained, held_out: &[Confusion; 2], hash: &str) -> Value {
    let cause = |r2: f64, bins: &[Bin], held_out: &Confusion| json!({ "r2": r2, "bins": bins_object(bins), "held_out": held_out });
    json!({
        "model_hash": hash,
        "host": cause(trained.host_r2, &trained.host_bins, &held_out[0]),
        "network": cause(trained.network_r2, &trained.network_bins, &held_out[1]),
    })
}

/// Rejects an output that is stdout or one of the signature files.
fn check_output(args: &TrainArgs) -> Result<(), Fault> {
    let output = &args.output;
    if output.as_os_str() == "-" {
        let why = "--output - means stdout, where the fit is printed";
        return Err(fault::usage(why, "name a file for the model"));
    }
    let id = |file: &PathBuf| fs::metadata(file).map(|stat| (stat.dev(), stat.ino())).ok();
    let is_input = |output_id| args.host.iter().chain(&args.network).any(|file| id(file) == Some(output_id));
    if id(output).is_some_and(is_input) {
        let why =
            format!("{} is one of the signature files, which the model would replace", output.display());
        return Err(fault::usage(why, "name another file for the model"));
    }
    Ok(())
}

pub(crate) fn run(args: &TrainArgs, as_object: bool) -> Result<u8, Fault> {
    check_output(args)?;
    let mut hash = Hasher::new();
    let mut words = Words::of_length(args.word_length).expect("the command line has its bounds");
    let host = samples(&args.host, &mut words, &mut hash)?;
    let network = samples(&args.network, &mut words, &mut hash)?;
    let too_few = |error: haul_diagnosis::TrainError| {
        fault::usage(error.to_string(), "both loss-rate ranges need windows of both causes; record more")
    };
    let trained = fit(&host, &network, args.word_length, provenance(args, &hash)).map_err(too_few)?;
    let held_out = cross_validate(&host, &network, args.word_length, FOLDS, args.seed).map_err(too_few)?;
    let text = trained.model.write();
    fs::write(&args.output, &text)
        .map_err(|error| fault::io(format_args!("cannot write {}", args.output.display()), &error))?;
    let model_hash = blake3::hash(text.as_bytes()).to_hex();
    if as_object {
        out_fields(object(&trained, &held_out, &model_hash), None);
    } else {
        out_verbatim(&report(&trained, &held_out, &model_hash));
    }
    Ok(0)
}
