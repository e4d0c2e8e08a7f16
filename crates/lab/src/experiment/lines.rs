//! Building blocks of diagrams: named lines, and the panels in which they are drawn.

use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{Color, RGBColor};
use toml::Table;

use super::measure::label;
use super::results::Results;

/// Colours distinguishable with any colour vision (Okabe and Ito, 2008).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
pub(super) const WIDTH: u32 = 820;
pub(super) const PANEL: u32 = 300;

/// A named line; each point has its scatter, or 0.
pub(super) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64, f64)>,
    pub style: Style,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Connected in order.
    Joined,
    /// Separate.
    Dots,
}

/// Returns a selection for each line: its name and values.
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

/// Returns divisor and unit prefix for values up to `most`.
pub(super) fn scale(most: f64) -> (f64, &'static str) {
    match most {
        _ if most >= 1e9 => (1e9, "G"),
        _ if most >= 1e6 => (1e6, "M"),
        _ if most >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    }
}

/// Draws one panel with these lines.
pub(super) fn draw_lines(lines: &[Line], y_name: &str, x_name: &str, file: &Path) -> Result<(), String> {
    let root = SVGBackend::new(file, (WIDTH, PANEL)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    panel(&root, lines, y_name, x_name)?;
    root.present().map_err(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Returns the range of some numbers with a margin; from zero if that costs little space.
fn span(values: impl Iterator<Item = f64> + Clone, from_zero: bool) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    let low = if from_zero { low.min(0.0) } else { low };
    let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-9);
    (if low == 0.0 { 0.0 } else { low - room })..(high + room)
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Converts a backend error to text.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` expects")]
pub(super) fn text(error: DrawingAreaErrorKind<std::io::Error>) -> String {
    error.to_string()
}

/// An axis: name with unit, and divisor.
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

/// Draws lines with axes and a legend into an area.
pub(super) fn panel(area: &Area<'_>, lines: &[Line], y_name: &str, x_name: &str) -> Result<(), String> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    if all().next().is_none() {
        return Err(format!("there are no values of `{y_name}` to draw"));
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

/// Up to this number, dots are drawn larger.
const FEW: usize = 20;

/// Draws one line with the scatter of its points.
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
