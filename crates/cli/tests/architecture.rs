//! Checks the rules of ARCHITECTURE.md that the compiler does not enforce: which crate may import which, that
//! sans-IO crates use no clocks, threads, sockets or files, where unsafe code is allowed, and that files do
//! not import each other in cycles.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The workspace crates that each library crate may import. Programs are not listed, because no crate
/// imports them.
const MAY_IMPORT: [(&str, &[&str]); 15] = [
    ("haul-base", &[]),
    ("haul-wire", &["haul-base"]),
    ("haul-diagnosis", &["haul-base"]),
    ("haul-stack", &["haul-base"]),
    ("haul-proto", &["haul-base", "haul-wire", "haul-stack", "haul-diagnosis"]),
    ("haul-sim", &["haul-base"]),
    ("haul-host", &["haul-base"]),
    ("haul-udp", &["haul-base"]),
    ("haul-engine", &["haul-base", "haul-wire", "haul-stack", "haul-proto", "haul-udp", "haul-host"]),
    ("haul-mover", &["haul-base", "haul-wire", "haul-proto"]),
    ("haul-wan", &["haul-base", "haul-sim", "haul-udp"]),
    ("haul-cli", ANY),
    ("haul-lab", ANY),
    (FOR_TESTS, &["haul-base"]),
    ("haulage", &["haul-base", "haul-wire", "haul-stack", "haul-proto", "haul-engine"]),
];
/// Every crate that appears as an import in `MAY_IMPORT`.
const ANY: &[&str] = &[
    "haul-base",
    "haul-wire",
    "haul-diagnosis",
    "haul-stack",
    "haul-proto",
    "haul-sim",
    "haul-host",
    "haul-udp",
    "haul-engine",
    "haul-mover",
    "haul-wan",
    "haulage",
];

/// Additional imports for tests and examples: the simulator runs the state machines it is built for, and the
/// sender and receiver jobs of the mover run over simulated paths, because their interaction only shows with
/// a transport between them.
const MAY_IMPORT_IN_TESTS: [(&str, &str); 3] =
    [("haul-sim", "haul-proto"), ("haul-sim", "haul-stack"), ("haul-mover", "haul-sim")];

/// Crates that the tests of any crate may import, and non-test code may not.
const FOR_TESTS: &str = "haul-testing";

/// Crates that take the time and the bytes as arguments and start no threads.
const SANS_IO: [&str; 6] =
    ["haul-base", "haul-wire", "haul-diagnosis", "haul-stack", "haul-proto", "haul-sim"];
/// External libraries that those crates may use: none does I/O, and the ciphers get their keys as arguments.
const PURE: [&str; 16] = [
    "aws-lc-rs",
    "blake3",
    "data-encoding",
    "derive_more",
    "levenberg-marquardt",
    "nalgebra",
    "percent-encoding",
    "postcard",
    "reed-solomon-simd",
    "serde",
    "siphasher",
    "statrs",
    "subtle",
    "thiserror",
    "toml",
    "zeroize",
];
/// Names that must not appear in their sources.
const IMPURE: [&str; 20] = [
    "Instant",
    "SystemTime",
    "UNIX_EPOCH",
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "UnixDatagram",
    "ToSocketAddrs",
    "std::thread",
    "std::fs",
    "std::process",
    "std::env",
    "std::os::fd",
    "std::os::unix::fs",
    "std::os::unix::net",
    "thread_rng",
    "libc",
    "rustix",
    "println!",
];
/// Files with unsafe code: the UDP driver, and the emulator's TUN devices.
const UNSAFE: [&str; 2] = ["crates/udp/", "crates/wan/src/net/"];

struct Package {
    name: String,
    directory: PathBuf,
    /// Name and kind (`dev`, `build` or empty) of each dependency.
    dependencies: Vec<(String, Option<String>)>,
}

impl Package {
    fn new(value: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let manifest = PathBuf::from(text(&value["manifest_path"]).expect("a package has a manifest"));
        let dependencies = value["dependencies"].as_array().expect("a list").iter();
        Self {
            name: text(&value["name"]).expect("a package has a name"),
            directory: manifest.parent().expect("a manifest is in a directory").to_owned(),
            dependencies: dependencies
                .map(|d| (text(&d["name"]).expect("a dependency has a name"), text(&d["kind"])))
                .collect(),
        }
    }

    /// All source files of the crate: `src`, and if `everything` is set also tests, benches and examples.
    fn sources(&self, everything: bool) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        let mut open =
            if everything { vec![self.directory.clone()] } else { vec![self.directory.join("src")] };
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.clone(), code_of(&fs::read_to_string(&path).unwrap())));
            }
        }
        assert!(!files.is_empty(), "{} has sources", self.name);
        files
    }
}

/// `text` without line comments, whether they fill a line or follow code. Keeps strings, so a forbidden name
/// in a string counts as a violation.
fn code_of(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

fn packages() -> Vec<Package> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    metadata["packages"].as_array().expect("a list").iter().map(Package::new).collect()
}

/// Whether `code` contains `word` as a whole word.
fn names(code: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (code[..at].chars().next_back(), code[at + word.len()..].chars().next());
        !is_part(before) && !is_part(after)
    })
}

#[test]
fn crates_import_only_allowed_crates() {
    let packages = packages();
    let workspace_packages: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    for package in &packages {
        let rule = MAY_IMPORT.iter().find(|(name, _)| *name == package.name);
        let (_, allowed) = rule.unwrap_or_else(|| panic!("{} is missing from the table", package.name));
        for (dependency, kind) in
            package.dependencies.iter().filter(|(name, _)| workspace_packages.contains(name.as_str()))
        {
            let in_tests = kind.as_deref() == Some("dev");
            let extra = MAY_IMPORT_IN_TESTS.contains(&(package.name.as_str(), dependency.as_str()));
            if in_tests && (extra || dependency == FOR_TESTS) {
                continue;
            }
            assert!(allowed.contains(&dependency.as_str()), "{} must not import {dependency}", package.name);
        }
    }
}

#[test]
fn sans_io_crates_use_no_clocks_io_or_threads() {
    for package in packages().iter().filter(|package| SANS_IO.contains(&package.name.as_str())) {
        let used = package.dependencies.iter().filter(|(_, kind)| kind.as_deref() != Some("dev"));
        for (dependency, _) in used.filter(|(name, _)| !name.starts_with("haul-")) {
            assert!(PURE.contains(&dependency.as_str()), "{} uses {dependency}", package.name);
        }
        for (path, code) in package.sources(false) {
            // Unit tests may print what they measure.
            let is_test = path.file_name().is_some_and(|name| name == "tests.rs");
            for word in IMPURE.into_iter().filter(|&word| !(is_test && word == "println!")) {
                assert!(!names(&code, word), "{} names {word}", path.display());
            }
        }
        let bans = fs::read_to_string(package.directory.join("clippy.toml")).unwrap_or_default();
        assert!(bans.contains("std::time::Instant::now"), "{}: clippy.toml must ban clocks", package.name);
    }
}

#[test]
fn unsafe_code_is_only_in_allowed_files() {
    for package in packages() {
        let manifest = fs::read_to_string(package.directory.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} must use workspace lints", package.name);
        for (path, code) in package.sources(true) {
            let text = path.to_string_lossy();
            if UNSAFE.iter().any(|place| text.contains(place)) || text.ends_with("cli/tests/architecture.rs")
            {
                continue;
            }
            assert!(!names(&code, "unsafe"), "{text} has unsafe code");
            assert!(!names(&code, "unsafe_code"), "{text} disables the lint");
        }
    }
}

/// Output for people goes through `output`, which escapes it. The listed files may write directly: they write
/// data, or messages between Haulage processes.
#[test]
fn only_the_output_layer_writes_to_the_terminal() {
    const MAY: [&str; 6] = [
        "src/output/lines.rs",
        "src/output/progress.rs",
        "src/logging.rs",
        "src/commands/cp/stdio.rs",
        "src/commands/pipe/stdio.rs",
        "src/commands/agent.rs",
    ];
    let packages = packages();
    let cli = packages.iter().find(|package| package.name == "haul-cli").expect("it is in the table");
    for (path, code) in cli.sources(false) {
        let text = path.to_string_lossy();
        let may = MAY.iter().any(|place| text.ends_with(place));
        let code = code.split("mod tests {").next().unwrap_or_default();
        for word in ["io::stderr", "io::stdout", "print!", "println!", "eprint!", "eprintln!"] {
            assert!(may || !code.contains(word), "{text} writes directly ({word})");
        }
    }
}

/// A controller sees measurements only: no other control law, and no code that applies its decisions. The
/// pacer knows a rate and a burst, and no law.
#[test]
fn control_laws_do_not_import_each_other() {
    let packages = packages();
    let proto = packages.iter().find(|package| package.name == "haul-proto").expect("it is in the table");
    let control = proto.directory.join("src/control");
    // A control law has a registry entry; shared helper files have none.
    let laws: Vec<(String, String)> = fs::read_dir(&control)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, code_of(&fs::read_to_string(&path).unwrap()))
        })
        .filter(|(_, code)| code.contains("static LAW: LawRegistration"))
        .collect();
    assert!(laws.len() >= 9, "{:?}", laws.iter().map(|law| &law.0).collect::<Vec<_>>());
    for (law, code) in &laws {
        for (other, _) in laws.iter().filter(|(other, _)| other != law) {
            assert!(!names(code, &format!("{other}::")), "{law} imports {other}");
        }
        for forbidden in ["crate::bulk", "crate::connection", "crate::pacer", "haul_wire"] {
            assert!(!names(code, forbidden), "{law} imports {forbidden}");
        }
    }
    let pacer = code_of(&fs::read_to_string(proto.directory.join("src/pacer.rs")).unwrap());
    assert!(!names(&pacer, "control"), "the pacer must not refer to control laws");
}

/// Known import cycles: the crate, the modules of the cycle, and why it stays. `stage::*` stands for all
/// children of `stage`.
const CIRCLES_LEFT: [(&str, &[&str], &str); 2] = [
    (
        "haul-stack",
        &["context", "protocol"],
        "a micro-protocol gets its context as an argument, and the context calls micro-protocols",
    ),
    (
        "haul-sim",
        &["stage", "stage::*"],
        "a stage accepts any change, and a change has the parameters of its stage",
    ),
];

/// The modules of a crate, one per file, by path (`receive::commit`), with the code of each except its tests.
fn modules(package: &Package) -> BTreeMap<String, String> {
    let root = package.directory.join("src");
    let mut modules = BTreeMap::new();
    for (path, code) in package.sources(false) {
        let relative = path.strip_prefix(&root).unwrap().with_extension("");
        let mut names: Vec<&str> = relative.iter().map(|name| name.to_str().unwrap()).collect();
        let is_test = names.iter().any(|name| *name == "tests" || name.ends_with("_tests"));
        if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(name)) {
            names.pop();
        }
        if !is_test {
            let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            // `main.rs` and `lib.rs` count as one module here.
            modules.entry(names.join("::")).or_insert_with(String::new).push_str(&code);
        }
    }
    modules
}

/// The paths in `code` that begin with `crate`, `super` or `self`, relative to the crate's root, with braces
/// expanded. With `exported`, only those of `pub use`.
fn paths(code: &str, module: &str, exported: bool) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_export = |at: usize| {
        let statement = code[..at].rsplit([';', '}', '{']).next().unwrap_or_default().trim_start();
        statement.starts_with("pub") && statement.trim_end().ends_with("use")
    };
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_part = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !is_part && (!exported || is_export(at)) {
                let base = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
                read_path(&code[at..], base, &mut found);
            }
        }
    }
    found
}

/// The module's code without re-exports (`pub use`) and `mod` declarations.
fn own_code(code: &str) -> String {
    let is_declaration = |line: &str| {
        let line = line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        line.starts_with("mod ") && line.ends_with(';')
    };
    let mut own = String::new();
    for statement in code.split_inclusive(';') {
        let before = statement.rsplit_once("use ").map_or(statement, |(before, _)| before);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let passes_on = before.len() < statement.len() && line.trim_start().starts_with("pub");
        own.push_str(if passes_on { &before[..before.len() - line.len()] } else { statement });
    }
    own.lines().filter(|line| !is_declaration(line)).flat_map(|line| [line, "\n"]).collect()
}

/// Paths by which a module's `own` code refers to its children without `self`: `child::f()`, `use
/// child::Item`, `use child as other`.
fn paths_to_children(own: &str, module: &str, children: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for child in children {
        for (at, _) in own.match_indices(child) {
            let (before, after) = (&own[..at], &own[at + child.len()..]);
            let is_part = before.ends_with(|c: char| c.is_alphanumeric() || "_:.".contains(c));
            let is_whole = before.ends_with("use ") && after.starts_with([';', ' ']);
            if !is_part && (after.starts_with("::") || is_whole) {
                let base = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
                read_path(&own[at..], base, &mut found);
            }
        }
    }
    found
}

/// Whether a module's `own` code uses a `name` that it also re-exports, as a type or as a called function.
fn uses(own: &str, name: &str) -> bool {
    own.lines().filter(|line| line.trim().trim_end_matches(',') != name).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let after = &line[at + name.len()..];
            let is_part = line[..at].ends_with(|c: char| c.is_alphanumeric() || "_:.".contains(c))
                || after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            let is_type = name.starts_with(char::is_uppercase);
            !is_part && (is_type || after.starts_with('(') || after.starts_with("::"))
        })
    })
}

/// Parses a path at the beginning of `text`, relative to `base`; returns the rest of the text as well.
fn read_path<'a>(text: &'a str, mut base: Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = read_path(rest, base.clone(), found).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                Some(next) => return next.trim_start().trim_start_matches('}'),
                None => return rest.trim_start_matches('}'),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        "crate" => base.clear(),
        "super" => drop(base.pop()),
        "self" | "" => {}
        name => base.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(deeper) if deeper.starts_with(|c: char| c.is_alphabetic() || "_{*".contains(c)) => {
            read_path(deeper, base, found)
        }
        _ => {
            found.push(base);
            rest
        }
    }
}

/// The modules that each module imports. A re-exported name counts as an import from the module that defines
/// it. Imports of a parent from its child count, re-exports do not.
fn imports(modules: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let split = |path: &[String]| {
        let known = |len: &usize| modules.contains_key(&path[..*len].join("::"));
        let len = (0..=path.len()).rev().find(known).unwrap_or(0);
        let (module, _) = modules.get_key_value(&path[..len].join("::")).expect("the root is a module");
        (module.as_str(), path.get(len).cloned().unwrap_or_default())
    };
    let mut passed_on = BTreeMap::new();
    for (module, code) in modules {
        let mut exports = paths(code, module, true);
        // Matches `pub use child::Item`.
        for statement in code.split(';') {
            let Some((before, path)) = statement.rsplit_once("use ") else { continue };
            if before.rsplit('\n').next().unwrap_or_default().starts_with("pub") {
                let base = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
                read_path(path, base, &mut exports);
            }
        }
        for path in exports {
            let (source, _) = split(&path);
            let name = path.last().cloned().unwrap_or_default();
            passed_on.insert((module.as_str(), name), source);
        }
    }
    let target = |path: &[String]| {
        let (mut module, name) = split(path);
        for _ in 0..modules.len() {
            match passed_on.get(&(module, name.clone())) {
                Some(&source) if source != module => module = source,
                _ => break,
            }
        }
        module
    };
    modules
        .iter()
        .map(|(module, code)| {
            let (own, prefix) = (own_code(code), if module.is_empty() { "" } else { &format!("{module}::") });
            let below = modules.keys().filter_map(|other| other.strip_prefix(prefix));
            let children: Vec<&str> = below.filter(|name| !name.is_empty() && !name.contains("::")).collect();
            let mut used = paths(code, module, false);
            used.extend(paths_to_children(&own, module, &children));
            let mut used: BTreeSet<&str> = used.iter().map(|path| target(path)).collect();
            let passed = passed_on.iter().filter(|((passer, name), _)| passer == module && uses(&own, name));
            used.extend(passed.map(|(_, source)| *source));
            (module.as_str(), used)
        })
        .collect()
}

/// Groups of modules that reach each other (strongly connected components), each listed once.
fn circles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<BTreeSet<&'a str>> {
    let reached = |from: &'a str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            for &next in imports.get(module).into_iter().flatten().filter(|&&next| next != module) {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|&module| (module, reached(module))).collect();
    let in_circle = all.iter().filter(|(module, reached)| reached.contains(*module));
    in_circle
        .map(|(module, reached)| {
            reached
                .iter()
                .copied()
                .filter(|other| all.get(other).is_some_and(|back| back.contains(module)))
                .collect()
        })
        .collect()
}

#[test]
fn files_have_no_import_cycles() {
    let is_known = |known: &str, module: &str| match known.strip_suffix('*') {
        Some(parent) => module.starts_with(parent),
        None => module == known,
    };
    let (mut found, mut unchecked) = (Vec::new(), BTreeSet::new());
    for package in packages() {
        let modules = modules(&package);
        for circle in circles(&imports(&modules)) {
            let is_left = |(name, known, _): &(&str, &[&str], &str)| {
                *name == package.name && circle.iter().all(|module| known.iter().any(|k| is_known(k, module)))
            };
            match CIRCLES_LEFT.iter().position(is_left) {
                Some(which) => drop(unchecked.insert(which)),
                None => found.push(format!("{}: {circle:?}", package.name)),
            }
        }
    }
    assert!(found.is_empty(), "move what two files need into a third one: {found:#?}");
    assert_eq!(unchecked.len(), CIRCLES_LEFT.len(), "remove exceptions for cycles that no longer exist");
}

/// Crates whose top-level modules, each with all its files, do not import each other in circles either.
const CRATES_OF_MODULES: [&str; 4] = ["haul-cli", "haul-engine", "haul-mover", "haulage"];

/// The imports between top-level modules, each with all its files.
fn of_top_level<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    fn top(module: &str) -> &str {
        module.split("::").next().unwrap_or_default()
    }
    let mut joined: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (module, imported) in imports {
        joined.entry(top(module)).or_default().extend(imported.iter().copied().map(top));
    }
    joined
}

#[test]
fn top_level_modules_have_no_import_cycles() {
    for package in packages().iter().filter(|package| CRATES_OF_MODULES.contains(&&*package.name)) {
        let modules = modules(package);
        let circles = circles(&of_top_level(&imports(&modules)));
        assert!(circles.is_empty(), "{}: {circles:#?}", package.name);
    }
}

fn modules_of<const N: usize>(modules: [(&str, &str); N]) -> BTreeMap<String, String> {
    modules.map(|(module, code)| (module.to_owned(), code.to_owned())).into()
}

#[test]
fn cycles_are_found_through_reexports() {
    let modules = modules_of([
        ("", "mod a;"),
        ("a", "pub(crate) use b::Thing;\nuse crate::d::{self, X, e::{Y}};"),
        ("a::b", "use super::c::Other; pub struct Thing;"),
        ("a::c", "use crate::a::Thing;"),
        ("d", "pub struct X;"),
        ("d::e", "pub struct Y; fn f() { super::super::a::g() }"),
    ]);
    let imports = imports(&modules);
    assert_eq!(imports["a"], ["d", "d::e"].into());
    assert_eq!(circles(&imports), [["a::b", "a::c"].into(), ["a", "d::e"].into()].into());
}

#[test]
fn cycles_of_parent_and_child_are_found_for_every_import_form() {
    for (parent, is_circle) in [
        ("use b::Item;", true),
        ("fn f() {\n    b::run();\n}", true),
        ("use b as other;", true),
        ("mod b;\npub(crate) use b::Item;\n\nfn f(item: &Item) {}", true),
        ("mod b;\npub(crate) use b::{Item, run};\n\nfn f() {\n    run(0)\n}", true),
        ("mod b;\n\nfn g() {}\n\npub(crate) use b::{Item, run};", false),
        ("mod b;\n\nfn f(ab: Ab) {\n    ab::c(ab.b)\n}", false),
        ("pub use b::Item;\n\nenum Kind {\n    Item,\n}", false),
    ] {
        let modules = modules_of([("", "mod a;"), ("a", parent), ("a::b", "use super::Other;")]);
        assert_eq!(imports(&modules)["a"].contains("a::b"), is_circle, "{parent}");
        assert_eq!(circles(&imports(&modules)).is_empty(), !is_circle, "{parent}");
    }
}

#[test]
fn words_are_found_as_words() {
    assert!(names("use std::thread;", "std::thread") && names("Instant::now()", "Instant"));
    assert!(!names("Instantly", "Instant") && !names("unsafe_code", "unsafe"));
    assert!(!code_of("let x = 1; // Instant\n/// SystemTime").contains("Time"));
}
