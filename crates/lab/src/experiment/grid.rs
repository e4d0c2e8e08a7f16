//! Small panels, one per value of a key, with the same axes: an overview of many runs in a small file.

use std::path::Path;

use plotters::prelude::*;
use toml::Table;

use super::lines::{COLOURS, lines_of, scale, text};
use super::measure::{Stretch, label};
use super::plan::GridSpec;
use super::results::Results;

const COLUMNS: usize = 4;
/// Size of a panel without its title, pixels.
const WIDTH: i32 = 196;
const HEIGHT: i32 = 88;
const TITLE: i32 = 16;
/// Space between panels and around them.
const SPACE: i32 = 12;
/// Space for the labels of the vertical axis.
const LEFT_MARGIN: i32 = 40;
const HEAD: i32 = 24;

/// Name of a panel, and the points of its lines.
type Panel = (String, Vec<Vec<(f64, f64)>>);

/// Maximum of the axes of all panels.
struct Ends {
    seconds: f64,
    value: f64,
}

impl Ends {
    fn of(panels: &[Panel]) -> Self {
        let points = || panels.iter().flat_map(|(_, lines)| lines.iter().flatten());
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(1e-9, f64::max);
        Self { seconds: most(|point| point.0), value: most(|point| point.1) }
    }

    /// Returns the position of a point in a panel with this upper left corner, pixels.
    fn place(&self, (left, top): (i32, i32), (seconds, value): (f64, f64)) -> (i32, i32) {
        let right = (seconds / self.seconds * f64::from(WIDTH)).round() as i32;
        let up = (value / self.value * f64::from(HEIGHT)).round() as i32;
        (left + right, top + HEIGHT - up)
    }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a grid.
pub(super) fn draw_grid(spec: &GridSpec, results: &Results, file: &Path) -> Result<(), String> {
    let mut panels: Vec<Panel> = Vec::new();
    let mut names = Vec::new();
    for value in results.values_of(&spec.each, &spec.at) {
        let name = label(&value);
        let mut at = spec.at.clone();
        at.insert(spec.each.clone(), value);
        let (line_names, points) = lines(spec, results, &at)?.into_iter().unzip();
        names = line_names;
        panels.push((name, points));
    }
    let ends = Ends::of(&panels);
    let (columns, rows) = (panels.len().min(COLUMNS), panels.len().div_ceil(COLUMNS));
    let width = corner(columns.max(2) - 1, 0).0 + WIDTH + SPACE;
    let size = (width, corner(0, rows).1 - TITLE + SPACE);
    let root = SVGBackend::new(file, (size.0.unsigned_abs(), size.1.unsigned_abs())).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    draw_legend(&root, &names, &ends)?;
    for (index, (name, lines)) in panels.iter().enumerate() {
        let (column, row) = (index % COLUMNS, index / COLUMNS);
        draw_panel(&root, corner(column, row), (name, lines), &ends)?;
        if column == 0 {
            draw_scale(&root, corner(column, row), &ends)?;
        }
    }
    root.present().map_err(text)
}

/// Name of a line, and its points: `(seconds, value)`.
type Named = (String, Vec<(f64, f64)>);

/// Returns the lines of a panel: one for each quantity and value of the series.
fn lines(spec: &GridSpec, results: &Results, at: &Table) -> Result<Vec<Named>, String> {
    let mut lines = Vec::new();
    for stretch in &spec.grid {
        for (value, at) in lines_of(results, spec.series.as_ref(), at) {
            let name = format!("{} {value}", stretch.series);
            lines.push((name.trim_end().to_owned(), points(stretch, results, &at)?));
        }
    }
    Ok(lines)
}

/// Returns the recorded points of the first matching run.
fn points(stretch: &Stretch, results: &Results, at: &Table) -> Result<Vec<(f64, f64)>, String> {
    let run = results.select(at).next().and_then(|cell| cell.runs.first());
    let points = run.and_then(|run| stretch.of(run));
    points.map(Iterator::collect).ok_or_else(|| format!("`{}` was not recorded", stretch.series))
}

/// Returns the upper left corner of a panel, pixels.
fn corner(column: usize, row: usize) -> (i32, i32) {
    let along = |index: usize, step: i32| step * i32::try_from(index).unwrap_or(i32::MAX / step);
    (LEFT_MARGIN + along(column, WIDTH + SPACE), HEAD + TITLE + along(row, HEIGHT + TITLE + SPACE))
}

fn draw_text(root: &Root<'_>, words: &str, place: (i32, i32), colour: RGBColor) -> Result<(), String> {
    let style = ("sans-serif", 12).into_font().color(&colour);
    root.draw(&Text::new(words.to_owned(), place, style)).map_err(text)
}

/// Draws the description of the axes, and the line names in their colours.
fn draw_legend(root: &Root<'_>, names: &[String], ends: &Ends) -> Result<(), String> {
    let what = format!("{}, {:.0} s", scale(ends.value).1, ends.seconds);
    draw_text(root, what.trim_start_matches(", "), (8, 6), BLACK)?;
    for (index, (name, colour)) in names.iter().zip(COLOURS.iter().cycle()).enumerate() {
        draw_text(root, name, (corner(index, 0).0 + 2 * TITLE, 6), *colour)?;
    }
    Ok(())
}

fn draw_panel(
    root: &Root<'_>,
    corner: (i32, i32),
    (name, lines): (&str, &[Vec<(f64, f64)>]),
    ends: &Ends,
) -> Result<(), String> {
    let frame = [corner, (corner.0 + WIDTH, corner.1 + HEIGHT)];
    root.draw(&Rectangle::new(frame, BLACK.mix(0.3))).map_err(text)?;
    draw_text(root, name, (corner.0 + 2, corner.1 - 13), BLACK)?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let places: Vec<_> = line.iter().map(|point| ends.place(corner, *point)).collect();
        root.draw(&PathElement::new(places, colour.stroke_width(1))).map_err(text)?;
    }
    Ok(())
}

/// Draws the minimum and maximum labels of the vertical axis.
fn draw_scale(root: &Root<'_>, corner: (i32, i32), ends: &Ends) -> Result<(), String> {
    let (by, _) = scale(ends.value);
    draw_text(root, &format!("{:.0}", ends.value / by), (8, corner.1), BLACK)?;
    draw_text(root, "0", (LEFT_MARGIN - 12, corner.1 + HEIGHT - 11), BLACK)
}
