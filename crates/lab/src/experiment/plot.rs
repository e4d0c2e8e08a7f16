//! Diagrams as SVG.

use std::collections::BTreeSet;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{Color, RGBColor};
use toml::Table;

use super::grid::draw_grid;
use super::measure::{label, number};
use super::plan::{CurveSpec, HeatSpec, OverTimeSpec, PlotSpec};
use super::results::Results;
use super::stats::{deviation, mean};
use super::windows::draw_windows;

/// Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const WIDTH: u32 = 820;
const PANEL: u32 = 300;

/// A line with its name and its points; each has its scatter, or none.
pub(super) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64, f64)>,
    pub style: Style,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Joined in their order.
    Joined,
    /// Each for itself.
    Dots,
}

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

/// One selection for each line: its name, and the values that it has.
pub(super) fn lines_of(results: &Results, series: Option<&String>, at: &Table) -> Vec<(String, Table)> {
    let Some(key) = series else { return vec![(String::new(), at.clone())] };
    let line = |value: toml::Value| {
        let mut chosen = at.clone();
        let name = label(&value);
        chosen.insert(key.clone(), value);
        (name, chosen)
    };
    results.values_of(key, at).into_iter().map(line).collect()
}

/// The unit in which numbers of this size are drawn.
pub(super) fn scale(most: f64) -> (f64, &'static str) {
    match most {
        _ if most >= 1e9 => (1e9, "G"),
        _ if most >= 1e6 => (1e6, "M"),
        _ if most >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
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

/// One panel with these lines.
pub(super) fn draw_lines(lines: &[Line], y_name: &str, x_name: &str, file: &Path) -> Result<(), String> {
    let root = SVGBackend::new(file, (WIDTH, PANEL)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    panel(&root, lines, y_name, x_name)?;
    root.present().map_err(text)
}

fn draw_over_time(spec: &OverTimeSpec, results: &Results, file: &Path) -> Result<(), String> {
    let panels = spec.over_time.len();
    let root = SVGBackend::new(file, (WIDTH, PANEL * panels as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    for (area, name) in root.split_evenly((panels, 1)).iter().zip(&spec.over_time) {
        let mut lines = Vec::new();
        for (title, at) in lines_of(results, spec.series.as_ref(), &spec.at) {
            let run = results.select(&at).next().and_then(|cell| cell.runs.first());
            let (interval, values) = run
                .and_then(|run| run.recorded(name))
                .ok_or_else(|| format!("nothing was recorded of `{name}`"))?;
            let point = |(index, value): (usize, &u64)| ((index + 1) as f64 * interval, *value as f64, 0.0);
            let points = values.iter().enumerate().map(point).collect();
            lines.push(Line { name: title, points, style: Style::Joined });
        }
        panel(area, &lines, name, "seconds")?;
    }
    root.present().map_err(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// What a set of numbers spans, with some room; from zero where that costs little.
fn span(values: impl Iterator<Item = f64> + Clone, from_zero: bool) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    let low = if from_zero { low.min(0.0) } else { low };
    let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-9);
    (if low == 0.0 { 0.0 } else { low - room })..(high + room)
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What the backend says when it cannot draw.
#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
pub(super) fn text(error: DrawingAreaErrorKind<std::io::Error>) -> String {
    error.to_string()
}

/// An axis: its name with the unit, and what numbers are divided by.
struct Axis {
    name: String,
    scale: f64,
}

impl Axis {
    fn new(name: &str, values: impl Iterator<Item = f64>) -> Self {
        let (scale, unit) = scale(values.fold(0.0, f64::max));
        let name = if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") };
        Self { name, scale }
    }
}

fn panel(area: &Area<'_>, lines: &[Line], y_name: &str, x_name: &str) -> Result<(), String> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    if all().next().is_none() {
        return Err(format!("there is nothing to draw of `{y_name}`"));
    }
    let x = Axis::new(x_name, all().map(|point| point.0));
    let y = Axis::new(y_name, all().map(|point| point.1));
    let ends: Vec<f64> = all().flat_map(|(_, y, scatter)| [y - scatter, y + scatter]).collect();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(
            span(all().map(|point| point.0 / x.scale), false),
            span(ends.iter().map(|end| end / y.scale), true),
        )
        .map_err(text)?;
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(WHITE).x_desc(&x.name).y_desc(&y.name).draw().map_err(text)?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        draw_line(&mut chart, line, *colour, (x.scale, y.scale))?;
    }
    if lines.iter().all(|line| line.name.is_empty()) {
        return Ok(());
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8));
    legend.border_style(BLACK.mix(0.3)).draw().map_err(text)
}

/// So few dots have to be large to be seen.
const FEW: usize = 20;

/// One line with the scatter of its points.
fn draw_line(
    chart: &mut Chart<'_, '_>,
    line: &Line,
    colour: RGBColor,
    (x_scale, y_scale): (f64, f64),
) -> Result<(), String> {
    let points = line.points.iter().map(|(x, y, _)| (x / x_scale, y / y_scale));
    let drawn = match line.style {
        Style::Joined => chart.draw_series(LineSeries::new(points, colour.stroke_width(2))),
        Style::Dots => {
            let radius = if line.points.len() > FEW { 1 } else { 4 };
            chart.draw_series(points.map(|point| Circle::new(point, radius, colour.mix(0.6).filled())))
        }
    };
    let drawn = drawn.map_err(text)?;
    if !line.name.is_empty() {
        let sample = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
        drawn.label(&line.name).legend(sample);
    }
    let bars = line.points.iter().filter(|(_, _, scatter)| *scatter > 0.0).map(|(x, y, scatter)| {
        let (x, low, high) = (x / x_scale, (y - scatter) / y_scale, (y + scatter) / y_scale);
        PathElement::new([(x, low), (x, high)], colour.stroke_width(1))
    });
    chart.draw_series(bars).map_err(text).map(|_| ())
}

const ROW: i32 = 22;
const NAMES: i32 = 190;
const COLUMN: i32 = 76;
const HEAD: i32 = 120;

/// Where the cell of this number begins, pixels.
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
    let put = |words: &str, place: (i32, i32)| {
        root.draw(&Text::new(words.to_owned(), place, font.clone())).map_err(text)
    };
    for (index, column) in columns.iter().enumerate() {
        let slanted = font.transform(FontTransform::Rotate270);
        let place = (after(NAMES, COLUMN, index) + COLUMN / 3, HEAD - 8);
        root.draw(&Text::new(label(column), place, slanted)).map_err(text)?;
    }
    for (at, row) in rows.iter().enumerate() {
        let top = after(HEAD, ROW, at);
        put(&label(row), (6, top + 5))?;
        for (index, column) in columns.iter().enumerate() {
            let value = heat_value(results, spec, (column, row))?;
            let left = after(NAMES, COLUMN, index);
            let corners = [(left, top), (left + COLUMN - 2, top + ROW - 2)];
            root.draw(&Rectangle::new(corners, warmth(value).filled())).map_err(text)?;
            put(&format!("{value:.2}"), (left + 22, top + 5))?;
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

/// From orange at 0 through white at one half to blue at 1.
fn warmth(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let toward = |end: u8, by: f64| (255.0 - (255.0 - f64::from(end)) * by) as u8;
    let (end, by) =
        if share < 0.5 { (COLOURS[1], 1.0 - 2.0 * share) } else { (COLOURS[0], 2.0 * share - 1.0) };
    let by = by * 0.8;
    RGBColor(toward(end.0, by), toward(end.1, by), toward(end.2, by))
}

/// The names of the diagrams' files.
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
