//! The tables of `docs/recipes.md`. Run with `UPDATE_DOCS=1` to write them anew.

use std::fmt::Write as _;
use std::path::Path;

use haul_proto::micro;
use haul_proto::presets::{PRESETS, preset};
use haul_stack::Recipe;

const TEXT: &str = include_str!("../../../../docs/recipes.md");
const LAWS: &str = include_str!("../../../../docs/controllers.md");

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
            writeln!(text, "| `{name}` | {} | `{default}` | {help} |", parameter.kind).unwrap();
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

/// Every control law with its parameters.
fn laws() -> String {
    let mut text = "| law | what it does | source |\n|---|---|---|\n".to_owned();
    for law in haul_proto::laws() {
        writeln!(text, "| `{}` | {} | {} |", law.name, law.summary, law.source).unwrap();
    }
    for law in haul_proto::laws().iter().filter(|law| !law.parameters.is_empty()) {
        write!(text, "\n| parameter of `{}` | value | default | |\n|---|---|---|---|\n", law.name).unwrap();
        for parameter in law.parameters {
            let (name, default, help) = (parameter.name, parameter.default, parameter.help);
            writeln!(text, "| `{name}` | {} | `{default}` | {help} |", parameter.kind).unwrap();
        }
    }
    text.trim_end().to_owned()
}

/// The text with what stands between the marks of `name` replaced.
fn replaced(text: &str, name: &str, new: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("\n<!-- end {name} -->"));
    let from = text.find(&begin).expect("the page has this mark") + begin.len();
    // The line break before the end mark is the last of the begin mark's line where nothing stands between.
    let to = from - 1 + text[from - 1..].find(&end).expect("the page has this mark");
    format!("{}{new}{}", &text[..from], &text[to..])
}

/// Compares a page with what it should be, or writes it.
fn check(name: &str, text: &str, wanted: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        std::fs::write(page, wanted).unwrap();
        return;
    }
    assert!(text == wanted, "docs/{name} is behind; run this test with UPDATE_DOCS=1 to write its tables");
}

#[test]
fn the_tables_of_the_pages_are_those_of_the_registries() {
    let recipes = replaced(&replaced(TEXT, "presets", &presets()), "micro-protocols", &protocols());
    check("recipes.md", TEXT, &recipes);
    check("controllers.md", LAWS, &replaced(LAWS, "laws", &laws()));
}

#[test]
fn every_law_has_a_section_and_every_shipped_recipe_is_told_of() {
    let headings: Vec<&str> = LAWS.lines().filter(|line| line.starts_with('#')).collect();
    for law in haul_proto::laws() {
        let name = format!("`{}`", law.name);
        assert!(
            headings.iter().any(|heading| heading.contains(&name)),
            "docs/controllers.md has no section {name}"
        );
    }
    for (page, text) in [
        ("cli.md", include_str!("../../../../docs/cli.md")),
        ("transport.md", include_str!("../../../../docs/transport.md")),
    ] {
        for (name, _) in PRESETS.iter().filter(|(name, _)| preset(name).unwrap().unwrap().has("object")) {
            assert!(text.contains(&format!("`{name}`")), "docs/{page} does not name the recipe {name}");
        }
    }
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
