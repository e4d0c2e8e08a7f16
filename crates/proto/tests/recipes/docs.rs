//! The generated lists of `docs/recipes.md` and `docs/controllers.md`. `UPDATE_DOCS=1` updates them.

use std::fmt::Write as _;
use std::path::Path;

use haul_proto::presets::{PRESETS, preset};
use haul_proto::{LawRegistration, micro};
use haul_stack::{ParameterKind, ParameterSpec};

const TEXT: &str = include_str!("../../../../docs/recipes.md");
const LAWS: &str = include_str!("../../../../docs/controllers.md");

/// The micro-protocols of each built-in recipe; recipes with the same ones share a line.
fn presets() -> String {
    let mut lines: Vec<(Vec<String>, Vec<&str>)> = Vec::new();
    for (name, _) in PRESETS {
        let recipe = preset(name).unwrap().unwrap();
        let registry = micro::registry();
        let parts = registry.iter().filter(|known| recipe.has(known.name)).map(|known| known.name.to_owned());
        let parts: Vec<String> = parts.collect();
        match lines.iter_mut().find(|(known, _)| *known == parts) {
            Some((_, names)) => names.push(name),
            None => lines.push((parts, vec![name])),
        }
    }
    let line = |(parts, names): &(Vec<String>, Vec<&str>)| {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        item(&format!("- {}: {}.", code(names, ", "), code(&parts, ", ")))
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Every micro-protocol with its parameters; errors of a recipe report requirements and conflicts.
fn protocols() -> String {
    let mut text = String::new();
    for known in micro::registry().iter() {
        writeln!(text, "- **`{}`**: {}.", known.name, known.summary).unwrap();
        for parameter in known.parameters {
            writeln!(text, "  - {}: {}", assignment(parameter), parameter.help).unwrap();
        }
    }
    text.trim_end().lines().map(item).collect::<Vec<_>>().join("\n")
}

/// A parameter with its default, and the other values if it is a choice.
fn assignment(parameter: &ParameterSpec) -> String {
    let others = match parameter.kind {
        ParameterKind::Choice(words) => {
            words.iter().copied().filter(|word| *word != parameter.default).collect()
        }
        _ => Vec::new(),
    };
    let others = if others.is_empty() { String::new() } else { format!(" or {}", code(&others, ", ")) };
    format!("`{}={}`{others}", parameter.name, parameter.default)
}

/// An item of a list, wrapped at 120 characters.
fn item(line: &str) -> String {
    wrapped(line, 2)
}

/// A line wrapped at 120 characters; continuation lines are indented by `hanging`.
fn wrapped(line: &str, hanging: usize) -> String {
    let first = line.len() - line.trim_start().len();
    let indent = first + hanging;
    let (mut text, mut length) = (" ".repeat(first), first);
    for word in line.split_whitespace() {
        if length + 1 + word.chars().count() > 120 {
            text = format!("{}\n{}", text.trim_end(), " ".repeat(indent));
            length = indent;
        }
        text.push_str(word);
        text.push(' ');
        length += word.chars().count() + 1;
    }
    text.trim_end().to_owned()
}

fn code(names: &[&str], between: &str) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(between)
}

/// The page with the first paragraph of each law's section regenerated: summary, source and parameters with
/// their defaults; `haul presets` explains them.
fn with_laws(page: &str) -> String {
    haul_proto::laws().iter().fold(page.to_owned(), |page, law| {
        let heading = format!("### `{}`\n\n", law.name);
        let from = page.find(&heading).expect("every law has a section") + heading.len();
        let to = from + page[from..].find("\n\n").expect("text follows the generated paragraph");
        format!("{}{}{}", &page[..from], law_line(law), &page[to..])
    })
}

fn law_line(law: &LawRegistration) -> String {
    let mut summary = law.summary.chars();
    let first = summary.next().into_iter().flat_map(char::to_uppercase);
    let mut text: String = first.chain(summary).collect();
    write!(text, " ({}).", law.source).unwrap();
    let parameters =
        law.parameters.iter().map(|parameter| format!("{}={}", parameter.name, parameter.default));
    let parameters: Vec<String> = parameters.collect();
    let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
    if !parameters.is_empty() {
        write!(text, " {}.", code(&parameters, ", ")).unwrap();
    }
    wrapped(&text, 0)
}

/// The text with the part between the marks of `name` replaced.
fn replaced(text: &str, name: &str, new: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("\n<!-- end {name} -->"));
    let from = text.find(&begin).expect("the page has this mark") + begin.len();
    // If nothing is between the marks, the line break before the end mark belongs to the begin mark's line.
    let to = from - 1 + text[from - 1..].find(&end).expect("the page has this mark");
    format!("{}{new}{}", &text[..from], &text[to..])
}

/// Compares a page with its expected contents, or updates it.
fn check(name: &str, text: &str, expected: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        std::fs::write(page, expected).unwrap();
        return;
    }
    assert!(
        text == expected,
        "docs/{name} is out of date; run this test with UPDATE_DOCS=1 to update its lists"
    );
}

#[test]
fn lists_in_the_documentation_match_the_registries() {
    let recipes = replaced(&replaced(TEXT, "presets", &presets()), "micro-protocols", &protocols());
    check("recipes.md", TEXT, &recipes);
    check("controllers.md", LAWS, &with_laws(LAWS));
}

#[test]
fn every_law_and_shipped_recipe_is_documented() {
    for law in haul_proto::laws() {
        let section = LAWS.split_once(&format!("### `{}`\n\n", law.name)).expect("every law has a section").1;
        let section = section.split("\n## ").next().and_then(|rest| rest.split("\n### ").next()).unwrap();
        let picture = format!("img/laws-real-{}.svg", law.name);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(&picture);
        assert!(section.contains(&picture) && file.is_file(), "{}: no diagram in its section", law.name);
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
fn shipped_recipes_have_their_names_and_can_be_built() {
    let registry = std::sync::Arc::new(micro::registry());
    for (name, _) in PRESETS {
        let recipe = preset(name).unwrap().unwrap();
        assert_eq!(recipe.name, *name);
        assert!(!recipe.summary.is_empty());
        registry.compile(&recipe, 16).unwrap();
    }
}
