//! Exactly the files selected on the command line arrive, whichever side walks the tree.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy};

/// A tree `s` with odd names, beside a directory `outside`.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for directory in ["s/src/build", "s/build", "s/logs", "outside"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    for file in
        ["s/a.o", "s/src/b.o", "s/src/b.c", "s/src/build/c.c", "s/build/x", "s/logs/l.log", "outside/o"]
    {
        fs::write(at(file), file).unwrap();
    }
    fs::write(at("s/big"), vec![7; 300_000]).unwrap();
    fs::write(at("s/.gitignore"), "*.log\n/build/\n").unwrap();
    fs::write(at("s").join(OsStr::from_bytes(b"odd\xff\n.bin")), "odd").unwrap();
    symlink("src/b.c", at("s/link")).unwrap();
    dir
}

/// Every path below a directory.
fn names(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(at) = open.pop() {
        for item in fs::read_dir(&at).into_iter().flatten() {
            let path = item.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path.clone());
            }
            found.insert(
                path.strip_prefix(directory).unwrap().as_os_str().as_bytes().escape_ascii().to_string(),
            );
        }
    }
    found
}

/// Copies the tree with the same options as an upload, a download and a local copy, and checks what arrives.
/// Returns the exit code.
#[track_caller]
fn arrives(options: &[OsString], stdin: &[u8], expected: &[&str]) -> i32 {
    let here = tree();
    let server = Server::start(here.path(), &[]);
    let at = |path: &str| here.path().join(path).into_os_string();
    let ways = [
        (at("s"), OsString::from(server.at("up")), "up"),
        (OsString::from(server.at("s")), at("down"), "down"),
        (at("s"), at("local"), "local"),
    ];
    let mut codes = BTreeSet::new();
    for (from, to, name) in ways {
        let mut child = haul()
            .args(["cp", "-q"])
            .args(options)
            .args([from, to])
            .current_dir(here.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A run that does not read stdin may have closed it.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        let output = child.wait_with_output().unwrap();
        let found = names(&here.path().join(name));
        let expected: BTreeSet<String> = expected.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(found, expected, "{name}: {}", lossy(&output.stderr));
        for file in found.iter().filter(|file| !file.contains('\\')) {
            let (sent, got) = (here.path().join("s").join(file), here.path().join(name).join(file));
            if sent.is_file() {
                assert_eq!(fs::read(&sent).unwrap(), fs::read(&got).unwrap(), "{file}");
            }
        }
        codes.insert(output.status.code().unwrap());
    }
    assert_eq!(codes.len(), 1, "{codes:?}");
    codes.pop_first().unwrap()
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn rules_apply_in_every_direction() {
    let options =
        words("--include /s/src/build/ --exclude build/ --exclude *.o --exclude big --exclude odd*");
    let expected =
        [".gitignore", "link", "logs", "logs/l.log", "src", "src/b.c", "src/build", "src/build/c.c"];
    assert_eq!(arrives(&options, b"", &expected), 0);
}

#[test]
fn a_pattern_that_is_not_utf8_is_transmitted() {
    let odd = OsString::from_vec(b"odd\xff*".to_vec());
    let options = ["--include".into(), odd, "--include".into(), "/s".into(), "--exclude".into(), "*".into()];
    assert_eq!(arrives(&options, b"", &["odd\\xff\\n.bin"]), 0);
}

#[test]
fn rules_from_a_file_and_sizes() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    fs::write(rules.path(), "# objects\n*.o\n\n+ /s/src/***\n- /s/*/\n").unwrap();
    let mut options = words("--max-size 100KB --exclude odd* --exclude-from");
    options.push(rules.path().into());
    let expected = [".gitignore", "link", "src", "src/b.c", "src/build", "src/build/c.c"];
    assert_eq!(arrives(&options, b"", &expected), 0);
    assert_eq!(arrives(&words("--min-size 100KB --exclude */*/ --exclude link"), b"", &["big"]), 0);
}

#[test]
fn listed_paths_from_stdin_with_a_missing_one() {
    let expected = ["src", "src/build", "src/build/c.c", "odd\\xff\\n.bin", "logs"];
    let list = b"src/build/c.c\0odd\xff\n.bin\0logs\0missing\0";
    assert_eq!(arrives(&words("-0 --files-from -"), list, &expected), 3);
    assert_eq!(arrives(&words("--files-from -"), b"./big\n.\n", &["big"]), 0);
}

#[test]
fn ignore_files_are_applied_on_request() {
    let expected = [
        ".gitignore",
        "a.o",
        "big",
        "link",
        "logs",
        "odd\\xff\\n.bin",
        "src",
        "src/b.c",
        "src/b.o",
        "src/build",
        "src/build/c.c",
    ];
    assert_eq!(arrives(&words("--gitignore"), b"", &expected), 0);
}

#[test]
fn links_are_followed_but_not_out_of_a_servers_root() {
    let here = tree();
    symlink("../outside", here.path().join("s/out")).unwrap();
    let server = Server::start(&here.path().join("s"), &[]);
    let down = here.path().join("down");
    let output = haul().args(["cp", "-qL", &server.at("")]).arg(&down).output().unwrap();
    exits(&output, 3);
    assert!(
        lossy(&output.stderr).contains("leads outside the served directory"),
        "{}",
        lossy(&output.stderr)
    );
    assert!(!down.join("out").exists() && !down.join("link").is_symlink());
    assert_eq!(fs::read_to_string(down.join("link")).unwrap(), "s/src/b.c");
    let local = here.path().join("local");
    exits(&haul().args(["cp", "-qLx"]).args([&here.path().join("s"), &local]).output().unwrap(), 0);
    assert_eq!(fs::read_to_string(local.join("out/o")).unwrap(), "outside/o");
}

#[test]
fn usage_errors_name_their_option() {
    let here = tree();
    let cases: [(&str, &str); 6] = [
        ("--exclude [x s d", "--exclude"),
        ("--include a//b s d", "--include"),
        ("--exclude-from missing s d", "--exclude-from"),
        ("--files-from missing s d", "--files-from"),
        ("--files-from s/big s outside d", "--files-from"),
        ("--max-size 7 s d", "--max-size"),
    ];
    for (line, option) in cases {
        for extra in [&[][..], &["--dry-run"]] {
            let output =
                haul().arg("cp").args(words(line)).args(extra).current_dir(here.path()).output().unwrap();
            exits(&output, 2);
            assert!(lossy(&output.stderr).contains(option), "{line}: {}", lossy(&output.stderr));
            assert!(!here.path().join("d").exists());
        }
    }
}

#[test]
fn a_list_too_long_for_a_server_is_refused_with_a_hint() {
    let here = tree();
    let server = Server::start(here.path(), &[]);
    fs::write(here.path().join("list"), "some/long/path/of/a/file\n".repeat(10_000)).unwrap();
    let list = here.path().join("list");
    let run = |from: &OsStr, to: &OsStr| {
        haul().args(["cp", "-q", "--files-from"]).arg(&list).args([from, to]).output().unwrap()
    };
    let down = run(OsStr::new(&server.at("s")), here.path().join("down").as_os_str());
    assert_ne!(down.status.code(), Some(0));
    assert!(lossy(&down.stderr).contains("name fewer paths"), "{}", lossy(&down.stderr));
    // A list that the sender itself reads has no such limit; the one path, listed repeatedly, is reported
    // missing once.
    let up = run(here.path().join("s").as_os_str(), OsStr::new(&server.at("up")));
    exits(&up, 3);
}

/// Like `/dev/zero` with `-0`: an endless list of empty names.
#[test]
fn empty_names_in_a_list_use_no_memory() {
    let tree = tree();
    for (option, separator) in [("-0", 0), ("-v", b'\n')] {
        let words = ["cp", "--dry-run", option, "--files-from", "-", "s", "d"];
        let mut command = haul();
        command.current_dir(tree.path()).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut list = child.stdin.take().unwrap();
        let empty = vec![separator; 1 << 20];
        (0..100).for_each(|_| list.write_all(&empty).unwrap());
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        assert!(kib.unwrap().parse::<u64>().unwrap() < 60_000, "{status}");
        list.write_all(b"big").unwrap();
        drop(list);
        let output = child.wait_with_output().unwrap();
        exits(&output, 0);
        assert!(lossy(&output.stdout).contains("big"), "{output:?}");
    }
}

#[test]
fn configuration_files_and_the_environment_choose_too() {
    let here = tree();
    let config = here.path().join("config.toml");
    fs::write(&config, "[cp]\nexclude = ['*.o', '*']\ninclude = ['/s', 'src/', '*.c']\nmax_size = '1KB'\n")
        .unwrap();
    let run = |to: &str, options: &[&str], environment: Option<(&str, &str)>| {
        let mut command = haul();
        command.env("HAUL_CONFIG", &config).envs(environment).args(["cp", "-q"]).args(options);
        exits(&command.args(["s", to]).current_dir(here.path()).output().unwrap(), 0);
        names(&here.path().join(to)).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(run("file", &[], None), ["src", "src/b.c"]);
    // All rules apply in the order of precedence of their sources, the includes of each first.
    assert_eq!(run("typed", &["--exclude", "b.c"], None), ["src"]);
    assert_eq!(run("env", &[], Some(("HAUL_EXCLUDE", "b.c"))), ["src"]);
    assert_eq!(run("env2", &[], Some(("HAUL_INCLUDE", "/s\n*.o"))), ["a.o", "src", "src/b.c", "src/b.o"]);
}

/// Regression test: a typed `--exclude` replaced the configured ones, and `--delete` removed what they protect.
#[test]
fn a_typed_exclude_leaves_configured_ones_in_force() {
    let here = tempfile::tempdir().unwrap();
    let at = |path: &str| here.path().join(path);
    fs::create_dir(at("s")).unwrap();
    fs::create_dir_all(at("d/data")).unwrap();
    for file in ["s/a", "d/data/db", "d/extra"] {
        fs::write(at(file), file).unwrap();
    }
    fs::write(at("config"), "[cp]\nexclude = ['/data/']\n").unwrap();
    let mut copy = haul();
    copy.env("HAUL_CONFIG", at("config")).current_dir(here.path());
    exits(&copy.args(["cp", "--delete", "--exclude", "*.tmp", "s/.", "d/"]).output().unwrap(), 0);
    assert_eq!(names(&at("d")), ["a", "data", "data/db"].map(str::to_owned).into());
}
