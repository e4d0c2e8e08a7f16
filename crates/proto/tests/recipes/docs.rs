//! The tables of `docs/recipes.md`. Run with `UPDATE_DOCS=1` to write them anew.

use std::fmt::Write as _;
use std::path::Path;

use haul_proto::micro;
use haul_proto::presets::{PRESETS, preset};
use haul_stack::{ParameterKind, Recipe};

const TEXT: &str = include_str!("../../../../docs/recipes.md");

fn kind(kind: ParameterKind) -> String {
    match kind {
        ParameterKind::Rate => "rate".to_owned(),
        ParameterKind::Bytes => "size".to_owned(),
        ParameterKind::Span => "time".to_owned(),
        ParameterKind::Integer(from, to) => format!("{from} to {to}"),
        ParameterKind::Number(from, to) => format!("{from} to {to}"),
        ParameterKind::Flag => "true or false".to_owned(),
        ParameterKind::Choice(words) => words.join(", "),
        ParameterKind::Text => "text".to_owned(),
    }
}

/// Which micro-protocol stands in which shipped recipe.
fn presets() -> String {
    let recipes: Vec<Recipe> = PRESETS.iter().map(|(name, _)| preset(name).unwrap().unwrap()).collect();
    let mut table = "| micro-protocol |".to_owned();
    for recipe in &recipes {
        write!(table, " {} |", recipe.name).unwrap();
    }
    table.push_str("\n|---|");
    table.push_str(&"---|".repeat(recipes.len()));
    for known in micro::registry().iter() {
        write!(table, "\n| `{}` |", known.name).unwrap();
        for recipe in &recipes {
            table.push_str(if recipe.has(known.name) { " x |" } else { " |" });
        }
    }
    table
}

/// Every micro-protocol with its parameters, needs and conflicts.
fn protocols() -> String {
    let mut text = String::new();
    for known in micro::registry().iter() {
        writeln!(text, "### `{}`\n\n{}.", known.name, capitalised(known.summary)).unwrap();
        for needs in known.needs {
            writeln!(text, "Needs {}.", code(needs, " or ")).unwrap();
        }
        for (other, reason) in known.conflicts {
            writeln!(text, "Not with `{other}`: {reason}.").unwrap();
        }
        if !known.parameters.is_empty() {
            text.push_str("\n| parameter | value | default | |\n|---|---|---|---|\n");
        }
        for parameter in known.parameters {
            let (name, default, help) = (parameter.name, parameter.default, parameter.help);
            writeln!(text, "| `{name}` | {} | `{default}` | {help} |", kind(parameter.kind)).unwrap();
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

fn code(names: &[&str], between: &str) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(between)
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// The text with what stands between the marks of `name` replaced.
fn replaced(text: &str, name: &str, new: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("\n<!-- end {name} -->"));
    let from = text.find(&begin).expect("the page has this mark") + begin.len();
    let to = from + text[from..].find(&end).expect("the page has this mark");
    format!("{}{new}{}", &text[..from], &text[to..])
}

#[test]
fn the_tables_of_the_page_are_those_of_the_recipes() {
    let wanted = replaced(&replaced(TEXT, "presets", &presets()), "micro-protocols", &protocols());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md");
        std::fs::write(page, &wanted).unwrap();
        return;
    }
    assert!(
        TEXT == wanted,
        "docs/recipes.md is behind; run this test with UPDATE_DOCS=1 to write its tables"
    );
}

#[test]
fn shipped_recipes_bear_their_names_and_can_be_built() {
    let registry = std::sync::Arc::new(micro::registry());
    for (name, _) in PRESETS {
        let recipe = preset(name).unwrap().unwrap();
        assert_eq!(recipe.name, *name);
        assert!(!recipe.summary.is_empty());
        registry.compile(&recipe, 16).unwrap();
    }
}
