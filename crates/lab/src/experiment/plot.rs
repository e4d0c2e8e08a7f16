//! Diagrams as SVG.

use std::collections::BTreeSet;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::{Color, RGBColor};

use super::grid::draw_grid;
use super::lines::{COLOURS, Line, PANEL, Style, WIDTH, draw_lines, lines_of, panel, text};
use super::measure::{label, number};
use super::plan::{CurveSpec, HeatSpec, OverTimeSpec, PlotSpec};
use super::results::Results;
use super::stats::{deviation, mean};
use super::windows::draw_windows;

/// Draws all diagrams of an experiment into a directory.
pub(super) fn draw_all(
    experiment: &str,
    plots: &[PlotSpec],
    results: &Results,
    out: &Path,
) -> Result<(), String> {
    let single: Vec<&PlotSpec> = plots.iter().filter(|plot| plot.file_each().is_none()).collect();
    for (plot, file) in single.iter().zip(files(experiment, &single)) {
        draw(plot, results, &out.join(file))?;
    }
    for (plot, (key, at)) in plots.iter().filter_map(|plot| Some((plot, plot.file_each()?))) {
        for value in results.values_of(key, at) {
            let file = format!("{experiment}-{}.svg", label(&value));
            draw(&plot.only(key, value), results, &out.join(file))?;
        }
    }
    Ok(())
}

/// Draws one diagram.
fn draw(spec: &PlotSpec, results: &Results, file: &Path) -> Result<(), String> {
    match spec {
        PlotSpec::Curve(curve) => draw_curve(curve, results, file),
        PlotSpec::OverTime(over_time) => draw_over_time(over_time, results, file),
        PlotSpec::Grid(grid) => draw_grid(grid, results, file),
        PlotSpec::Heat(heat) => draw_heat(heat, results, file),
        PlotSpec::Windows(windows) => draw_windows(windows, results, file),
    }
}

fn draw_curve(spec: &CurveSpec, results: &Results, file: &Path) -> Result<(), String> {
    let mut lines = Vec::new();
    for (name, at) in lines_of(results, spec.series.as_ref(), &spec.at) {
        let mut points = Vec::new();
        for cell in results.select(&at) {
            let place = cell.value(&spec.x).and_then(number);
            let place = place.ok_or_else(|| format!("`{}` is no number", spec.x))?;
            let values = cell.of(&spec.measure)?;
            points.push((place, mean(&values), deviation(&values)));
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.push(Line { name, points, style: Style::Joined });
    }
    draw_lines(&lines, &spec.measure.text, &spec.x, file)
}

fn draw_over_time(spec: &OverTimeSpec, results: &Results, file: &Path) -> Result<(), String> {
    let panels = spec.over_time.len();
    let root = SVGBackend::new(file, (WIDTH, PANEL * panels as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    for (area, name) in root.split_evenly((panels, 1)).iter().zip(&spec.over_time) {
        let mut lines = Vec::new();
        for (title, at) in lines_of(results, spec.series.as_ref(), &spec.at) {
            let run = results.select(&at).next().and_then(|cell| cell.runs.first());
            let (interval, values) =
                run.and_then(|run| run.recorded(name)).ok_or_else(|| format!("`{name}` was not recorded"))?;
            let point = |(index, value): (usize, &u64)| ((index + 1) as f64 * interval, *value as f64, 0.0);
            let points = values.iter().enumerate().map(point).collect();
            lines.push(Line { name: title, points, style: Style::Joined });
        }
        panel(area, &lines, name, "seconds")?;
    }
    root.present().map_err(text)
}

const ROW: i32 = 22;
const NAMES: i32 = 190;
const COLUMN: i32 = 76;
const HEAD: i32 = 120;

/// Returns the start of a cell, pixels.
fn after(first: i32, size: i32, index: usize) -> i32 {
    first.saturating_add(size.saturating_mul(i32::try_from(index).unwrap_or(i32::MAX)))
}

fn draw_heat(spec: &HeatSpec, results: &Results, file: &Path) -> Result<(), String> {
    let columns = results.values_of(&spec.columns, &spec.at);
    let rows = results.values_of(&spec.rows, &spec.at);
    let size = (after(NAMES, COLUMN, columns.len()), after(HEAD, ROW, rows.len()) + 8);
    let root = SVGBackend::new(file, (size.0 as u32, size.1 as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    let font = ("sans-serif", 13).into_font();
    let draw_text = |words: &str, place: (i32, i32)| {
        root.draw(&Text::new(words.to_owned(), place, font.clone())).map_err(text)
    };
    for (index, column) in columns.iter().enumerate() {
        let slanted = font.transform(FontTransform::Rotate270);
        let place = (after(NAMES, COLUMN, index) + COLUMN / 3, HEAD - 8);
        root.draw(&Text::new(label(column), place, slanted)).map_err(text)?;
    }
    for (at, row) in rows.iter().enumerate() {
        let top = after(HEAD, ROW, at);
        draw_text(&label(row), (6, top + 5))?;
        for (index, column) in columns.iter().enumerate() {
            let value = heat_value(results, spec, (column, row))?;
            let left = after(NAMES, COLUMN, index);
            let corners = [(left, top), (left + COLUMN - 2, top + ROW - 2)];
            root.draw(&Rectangle::new(corners, warmth(value).filled())).map_err(text)?;
            draw_text(&format!("{value:.2}"), (left + 22, top + 5))?;
        }
    }
    root.present().map_err(text)
}

fn heat_value(
    results: &Results,
    spec: &HeatSpec,
    (column, row): (&toml::Value, &toml::Value),
) -> Result<f64, String> {
    let mut at = spec.at.clone();
    at.insert(spec.columns.clone(), column.clone());
    at.insert(spec.rows.clone(), row.clone());
    Ok(mean(&results.cell(&at)?.of(&spec.heat)?) / spec.per)
}

/// Returns a colour from orange at 0 through white at 0.5 to blue at 1.
fn warmth(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let toward = |end: u8, by: f64| (255.0 - (255.0 - f64::from(end)) * by) as u8;
    let (end, by) =
        if share < 0.5 { (COLOURS[1], 1.0 - 2.0 * share) } else { (COLOURS[0], 2.0 * share - 1.0) };
    let by = by * 0.8;
    RGBColor(toward(end.0, by), toward(end.1, by), toward(end.2, by))
}

/// Returns the file names of the diagrams.
fn files(experiment: &str, plots: &[&PlotSpec]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let name = |plot: &&PlotSpec| {
        let what = match *plot {
            PlotSpec::Curve(curve) => curve.measure.text.rsplit('.').next().unwrap_or_default().to_owned(),
            PlotSpec::OverTime(_) => "over-time".to_owned(),
            PlotSpec::Grid(grid) => {
                let series = grid.grid.first().map_or("grid", |stretch| &stretch.series);
                series.split('.').next().unwrap_or_default().to_owned()
            }
            PlotSpec::Heat(_) => "heat".to_owned(),
            PlotSpec::Windows(windows) => windows.show.name().to_owned(),
        };
        let plain: String = what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let mut name = format!("{experiment}-{plain}.svg");
        let mut count = 1;
        while !taken.insert(name.clone()) {
            count += 1;
            name = format!("{experiment}-{plain}-{count}.svg");
        }
        name
    };
    plots.iter().map(name).collect()
}
