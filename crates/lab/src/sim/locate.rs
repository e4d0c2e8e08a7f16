//! Locates errors in scenario files.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::Problem;

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The value of this key.
    Key(String),
    /// This element of a list.
    At(usize),
}

/// An invalid field: the problem, and what is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Path of the field in the document.
    pub field: Vec<Step>,
    /// Description of the problem.
    pub message: String,
}

impl Fault {
    /// Creates a fault of `key` in entry `index` of the list `list`.
    pub(super) fn of(list: &str, index: usize, key: &str, message: impl Into<String>) -> Self {
        let field = vec![Step::Key(list.to_owned()), Step::At(index), Step::Key(key.to_owned())];
        Self { field, message: message.into() }
    }
}

/// Formats a field as in keys of `--set`.
pub(super) fn key_of(field: &[Step]) -> String {
    let mut text = String::new();
    for step in field {
        let dot = if text.is_empty() { "" } else { "." };
        // Writing to a string cannot fail.
        let _ = match step {
            Step::Key(key) => write!(text, "{dot}{key}"),
            Step::At(index) => write!(text, "[{index}]"),
        };
    }
    text
}

fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}

/// Returns the position of `field`, or of its deepest existing parent.
fn span_of(text: &str, field: &[Step]) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut span = None;
    let mut table = Some(root.get_ref());
    let mut list = None;
    for step in field {
        let value: &Spanned<DeValue<'_>> = match step {
            Step::Key(key) => {
                let found = table.and_then(|t| t.iter().find(|(k, _)| k.get_ref().as_ref() == key.as_str()));
                let Some((_, value)) = found else { return span };
                value
            }
            Step::At(index) => {
                let Some(value) = list.and_then(|l: &toml::de::DeArray<'_>| l.get(*index)) else {
                    return span;
                };
                value
            }
        };
        span = Some(value.span());
        (table, list) = match value.get_ref() {
            DeValue::Table(inner) => (Some(inner), None),
            DeValue::Array(inner) => (None, Some(inner)),
            _ => (None, None),
        };
    }
    span
}

/// Returns the field whose key or value is at offset `at`.
fn field_at(text: &str, at: usize) -> Vec<Step> {
    fn find_steps(value: &Spanned<DeValue<'_>>, at: usize, into: &mut Vec<Step>) {
        match value.get_ref() {
            DeValue::Table(table) => find_in_table(table, at, into),
            DeValue::Array(list) => {
                // Entries of `[[name]]` are not contiguous: takes the last one that starts before the offset.
                let found = list.iter().enumerate().rfind(|(_, v)| v.span().start <= at);
                if let Some((index, value)) = found {
                    into.push(Step::At(index));
                    find_steps(value, at, into);
                }
            }
            _ => {}
        }
    }
    fn covers(value: &Spanned<DeValue<'_>>, at: usize) -> bool {
        match value.get_ref() {
            DeValue::Array(list) if !value.span().contains(&at) => list.iter().any(|v| covers(v, at)),
            DeValue::Table(table) if !value.span().contains(&at) => {
                table.iter().any(|(key, v)| key.span().contains(&at) || covers(v, at))
            }
            _ => value.span().contains(&at),
        }
    }
    fn find_in_table(table: &DeTable<'_>, at: usize, into: &mut Vec<Step>) {
        let found = table.iter().find(|(key, value)| key.span().contains(&at) || covers(value, at));
        if let Some((key, value)) = found {
            into.push(Step::Key(key.get_ref().to_string()));
            if !key.span().contains(&at) {
                find_steps(value, at, into);
            }
        }
    }
    let mut field = Vec::new();
    if let Ok(root) = DeTable::parse(text) {
        find_in_table(root.get_ref(), at, &mut field);
    }
    field
}

const HINT: &str = "docs/scenarios.md lists the fields of a scenario";

/// Returns the problem of a file that cannot be parsed as a scenario.
pub(super) fn unreadable(file: &Path, text: &str, error: &toml::de::Error) -> Problem {
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    let Some(span) = error.span() else {
        return Problem::usage(format!("{}: {message}", file.display()), HINT);
    };
    let (line, column) = line_and_column(text, span.start);
    let field = key_of(&field_at(text, span.start));
    let place = if field.is_empty() { String::new() } else { format!("`{field}`: ") };
    Problem::usage(format!("{}:{line}:{column}: {place}{message}", file.display()), HINT)
}

/// Returns the problem of an invalid field.
pub(super) fn problem_at(file: &Path, text: &str, fault: &Fault) -> Problem {
    let (field, message) = (key_of(&fault.field), &fault.message);
    let place = span_of(text, &fault.field).map_or_else(String::new, |span| {
        let (line, column) = line_and_column(text, span.start);
        format!(":{line}:{column}")
    });
    Problem::usage(format!("{}{place}: `{field}`: {message}", file.display()), HINT)
}
