//! Diagrams of transmission windows: figures 1, 2, 4, 5 and 6 of dickens-classifier, and the calibration.

use std::path::Path;

use haul_diagnosis::{Curve, Model, Signature};
use toml::Table;

use super::classes::reliability;
use super::lines::{Line, Style, draw_lines, lines_of};
use super::plan::{WindowView, WindowsSpec};
use super::results::Results;
use super::stats::{deviation, mean};

/// Bins of the loss rate and of the success proportion; the paper uses 1 %.
const LOSS_BIN: f64 = 0.0025;
const SUCCESS_BINS: usize = 100;

impl WindowView {
    /// Returns the name used in file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Positions => "positions",
            Self::Complexity => "complexity",
            Self::MeanComplexity => "mean-complexity",
            Self::SuccessProportion => "success-proportion",
            Self::Words => "words",
            Self::Reliability => "reliability",
        }
    }

    const fn axes(self) -> (&'static str, &'static str) {
        match self {
            Self::Positions => ("run", "position in the window (packets)"),
            Self::Complexity => ("complexity", "loss rate"),
            Self::MeanComplexity => ("mean complexity", "loss rate"),
            Self::SuccessProportion => ("share of the windows", "success proportion"),
            Self::Words => ("distinct words of 17 packets", "packets of the window"),
            Self::Reliability => ("share that the host lost", "posterior probability of the host"),
        }
    }
}

/// Draws one diagram.
pub(super) fn draw_windows(spec: &WindowsSpec, results: &Results, file: &Path) -> Result<(), String> {
    let mut lines = Vec::new();
    for (index, (name, at)) in lines_of(results, spec.series.as_ref(), &spec.at).into_iter().enumerate() {
        let mut name = name;
        let (points, style) = match spec.show {
            WindowView::Positions => (positions(results, &at, index), Style::Dots),
            WindowView::Complexity => (complexities(results, &at), Style::Dots),
            WindowView::MeanComplexity => (mean_complexities(results, &at), Style::Joined),
            WindowView::SuccessProportion => (success_proportions(results, &at), Style::Joined),
            WindowView::Words => {
                let (points, complexity) = words(results, &at);
                name = format!("{name}: complexity {complexity:.3}");
                (points, Style::Joined)
            }
            WindowView::Reliability => {
                let bins = reliability(results, &at);
                (bins.iter().map(|bin| (bin.posterior, bin.by_host, 0.0)).collect(), Style::Dots)
            }
        };
        lines.push(Line { name, points, style });
    }
    if spec.show == WindowView::Complexity {
        let model = Model::shipped();
        lines.push(curve("model, host", &model.host.complexity));
        lines.push(curve("model, network", &model.network.complexity));
    }
    if spec.show == WindowView::Reliability {
        let points = vec![(0.0, 0.0, 0.0), (1.0, 1.0, 0.0)];
        lines.push(Line { name: "calibrated".to_owned(), points, style: Style::Joined });
    }
    let (y, x) = spec.show.axes();
    draw_lines(&lines, y, x, file)
}

/// Returns the positions of lost packets, in one row for each value of the series.
fn positions(results: &Results, at: &Table, row: usize) -> Vec<(f64, f64, f64)> {
    let first = results.windows(at).find(|window| !window.lost.is_empty());
    first
        .map(|window| window.lost.iter().map(|at| (*at as f64, row as f64, 0.0)).collect())
        .unwrap_or_default()
}

/// Number of points at which words are counted.
const PARTS: u64 = 100;

/// Returns the number of different words of the first window up to each percent of it, and its complexity.
fn words(results: &Results, at: &Table) -> (Vec<(f64, f64, f64)>, f64) {
    let mut words = Model::shipped().words();
    let first = results.windows(at).find(|window| !window.lost.is_empty());
    let Some(window) = first else { return (Vec::new(), 0.0) };
    let up_to = |part: u64| {
        let packets = window.packets * part / PARTS;
        let lost = window.lost.iter().copied().filter(|lost| *lost < packets);
        (packets as f64, words.count(&Signature::of_lost(packets, lost)) as f64, 0.0)
    };
    ((1..=PARTS).map(up_to).collect(), window.complexity.unwrap_or_default())
}

fn measured(results: &Results, at: &Table) -> Vec<(f64, f64)> {
    results.windows(at).filter_map(|window| Some((window.loss_rate, window.complexity?))).collect()
}

fn complexities(results: &Results, at: &Table) -> Vec<(f64, f64, f64)> {
    measured(results, at).into_iter().map(|(rate, complexity)| (rate, complexity, 0.0)).collect()
}

fn mean_complexities(results: &Results, at: &Table) -> Vec<(f64, f64, f64)> {
    let all = measured(results, at);
    let range = Model::shipped().complexity_range;
    let bins = (range.to / LOSS_BIN).ceil() as usize;
    let bin = |index: usize| {
        let inside = |(rate, _): &&(f64, f64)| range.contains(*rate) && (*rate / LOSS_BIN) as usize == index;
        let values: Vec<f64> = all.iter().filter(inside).map(|(_, complexity)| *complexity).collect();
        let middle = (index as f64 + 0.5) * LOSS_BIN;
        (!values.is_empty()).then(|| (middle, mean(&values), deviation(&values)))
    };
    (0..bins).filter_map(bin).collect()
}

fn success_proportions(results: &Results, at: &Table) -> Vec<(f64, f64, f64)> {
    let all: Vec<f64> = results.windows(at).filter_map(|window| window.success_proportion).collect();
    let share = |index: usize| {
        let inside = all.iter().filter(|value| (**value * SUCCESS_BINS as f64) as usize == index).count();
        inside as f64 / all.len().max(1) as f64
    };
    (0..SUCCESS_BINS).map(|index| ((index as f64 + 0.5) / SUCCESS_BINS as f64, share(index), 0.0)).collect()
}

fn curve(name: &str, of: &Curve) -> Line {
    let range = Model::shipped().complexity_range;
    let rates = (0..=200).map(|step| range.from + (range.to - range.from) * f64::from(step) / 200.0);
    let points = rates.map(|rate| (rate, of.at(rate), 0.0)).collect();
    Line { name: name.to_owned(), points, style: Style::Joined }
}
