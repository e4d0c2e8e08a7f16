//! Synchronising, dry runs, growing files and pipes, in both directions and within one machine, on the
//! loopback interface and without privileges.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use haul_testing::attempts;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, object, run};

/// A tree on one side, a directory on the other, and the server between them.
struct Places {
    here: TempDir,
    root: TempDir,
    server: Server,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug)]
enum Way {
    Up,
    Down,
    Local,
}

const WAYS: [Way; 3] = [Way::Up, Way::Down, Way::Local];

impl Places {
    fn new() -> Self {
        let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = Server::start(root.path(), &[]);
        Self { here, root, server }
    }

    /// The source's directory and its command-line name, then the destination's.
    fn of(&self, way: Way) -> (std::path::PathBuf, String, std::path::PathBuf, String) {
        let local = |name: &str| {
            (self.here.path().join(name), lossy(self.here.path().join(name).as_os_str().as_encoded_bytes()))
        };
        let remote = |name: &str| (self.root.path().join(name), self.server.at(name));
        let ((src, from), (dst, to)) = match way {
            Way::Up => (local("src"), remote("dst")),
            Way::Down => (remote("src"), local("dst")),
            Way::Local => (local("src"), local("dst")),
        };
        fs::create_dir_all(src.join("sub")).unwrap();
        fs::create_dir_all(dst.join("sub")).unwrap();
        fs::write(src.join("a"), "aaa").unwrap();
        fs::write(src.join("sub/b"), "bbbb").unwrap();
        // In a URL `/.` goes before the `?`.
        let from = if from.contains("?k=") { from.replacen("?k=", "/.?k=", 1) } else { format!("{from}/.") };
        (src, from, dst, to)
    }
}

fn names(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(at) = open.pop() {
        for item in fs::read_dir(&at).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                open.push(path.clone());
            }
            all.push(lossy(path.strip_prefix(root).unwrap().as_os_str().as_encoded_bytes()));
        }
    }
    all.sort();
    all
}

#[test]
fn delete_synchronises_two_directories() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        fs::write(dst.join("old"), "old").unwrap();
        fs::create_dir_all(dst.join("sub/gone")).unwrap();
        fs::write(dst.join("sub/gone/x"), "x").unwrap();
        // First a dry run.
        let dry = run(&["cp", "-n", "--delete", &from, &to]);
        exits(&dry, 0);
        let stdout = lossy(&dry.stdout);
        for line in ["send a (3 B)", "send sub/b (4 B)", "delete old", "delete sub/gone", "delete sub/gone/x"]
        {
            assert!(stdout.lines().any(|shown| shown == line), "{way:?}: {line} in {stdout}");
        }
        assert!(
            stdout.ends_with("would send 7 B in 2 files, 0 files there already, 3 names deleted\n"),
            "{stdout}"
        );
        assert_eq!(names(&dst), ["old", "sub", "sub/gone", "sub/gone/x"], "{way:?}");
        // Then with too low a limit.
        let few = run(&["cp", "--json", "--delete", "--max-delete", "2", &from, &to]);
        exits(&few, 3);
        let result = object(&few);
        assert_eq!((&result["ok"], &result["deleted_files"]), (&false.into(), &0.into()), "{result}");
        assert_eq!(result["error"]["code"], "not_permitted");
        assert_eq!(names(&dst), ["a", "old", "sub", "sub/b", "sub/gone", "sub/gone/x"]);
        // Then the deletion.
        let done = run(&["cp", "-v", "--delete", &from, &to]);
        exits(&done, 0);
        let words = lossy(&done.stderr);
        assert!(words.contains("delete sub/gone/x\n") && words.contains("3 names deleted"), "{words}");
        assert_eq!(names(&dst), names(&src), "{way:?}");
        let repeated = object(&run(&["cp", "--json", "--delete", &from, &to]));
        assert_eq!(
            (&repeated["kept_files"], &repeated["deleted_files"]),
            (&2.into(), &0.into()),
            "{repeated}"
        );
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

#[test]
fn delete_keeps_excluded_files() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        fs::write(src.join("own.tmp"), "own").unwrap();
        for name in ["old", "their.tmp", "sub/their.tmp", "sub/old"] {
            fs::write(dst.join(name), "x").unwrap();
        }
        fs::create_dir(dst.join("cache")).unwrap();
        fs::write(dst.join("cache/old"), "x").unwrap();
        let chosen = ["--delete", "--exclude", "*.tmp", "--exclude", "/cache/"];
        let cp = |options: &[&str]| run(&[&["cp"], options, &chosen, &[&from, &to]].concat());
        let dry = cp(&["-n"]);
        exits(&dry, 0);
        let stdout = lossy(&dry.stdout);
        let deleted: Vec<&str> = stdout.lines().filter(|line| line.starts_with("delete ")).collect();
        assert_eq!(deleted, ["delete old", "delete sub/old"], "{way:?}");
        exits(&cp(&["--max-delete", "1"]), 3);
        assert!(dst.join("old").exists());
        let done = cp(&["--json", "--max-delete", "2"]);
        exits(&done, 0);
        assert_eq!(object(&done)["deleted_files"], 2, "{way:?}");
        assert_eq!(names(&dst), ["a", "cache", "cache/old", "sub", "sub/b", "sub/their.tmp", "their.tmp"]);
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

#[test]
fn a_list_of_paths_conflicts_with_delete() {
    let output = run(&["cp", "--delete", "--files-from", "/dev/null", "src/.", "dst"]);
    exits(&output, 2);
    let stderr = lossy(&output.stderr);
    assert!(stderr.contains("deletes only in directories that are sent whole"), "{stderr}");
}

#[test]
fn delete_keeps_files_filtered_by_size_or_ignore_file() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        fs::write(src.join(".gitignore"), "*.log\n").unwrap();
        for (root, name, size) in [
            (&src, "both.log", 1),
            (&src, "large", 5000),
            (&dst, "both.log", 1),
            (&dst, "sub/their.log", 1),
            (&dst, "large", 10),
            (&dst, "old", 1),
            (&dst, "sub/old-and-large", 5000),
        ] {
            fs::write(root.join(name), vec![b'x'; size]).unwrap();
        }
        let chosen = ["--delete", "--gitignore", "--max-size", "4KB", "-x"];
        let cp = |options: &[&str]| run(&[&["cp"], options, &chosen, &[&from, &to]].concat());
        exits(&cp(&["--max-delete", "1"]), 3);
        assert!(dst.join("old").exists());
        let done = cp(&["--json", "--max-delete", "2"]);
        exits(&done, 0);
        assert_eq!(object(&done)["deleted_files"], 2, "{way:?}");
        let remaining = [".gitignore", "a", "both.log", "large", "sub", "sub/b", "sub/their.log"];
        assert_eq!(names(&dst), remaining, "{way:?}");
        assert_eq!(fs::read(dst.join("large")).unwrap().len(), 10);
        assert_eq!(object(&cp(&["--json"]))["deleted_files"], 0, "{way:?}");
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

#[test]
fn delete_keeps_other_file_systems_like_rsync() {
    let has = |program: &str, word: &str| {
        Command::new(program).arg(word).output().is_ok_and(|o| o.status.success())
    };
    let may_mount = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !has("rsync", "--version") || !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: needs rsync, and unshare with a mount namespace");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    fs::create_dir_all(here.path().join("src/mounted")).unwrap();
    fs::write(here.path().join("src/a"), "a").unwrap();
    for dst in ["ours", "theirs"] {
        fs::create_dir_all(here.path().join(dst).join("mounted/deep")).unwrap();
        for name in ["old", "mounted/x", "mounted/deep/y"] {
            fs::write(here.path().join(dst).join(name), "x").unwrap();
        }
    }
    let script = "mount -t tmpfs none \"$1/src/mounted\" && echo in >\"$1/src/mounted/in\" && \
                  rsync -rlptx --delete \"$1/src/\" \"$1/theirs/\" && exec \"$0\" cp -x --delete \"$1/src/.\" \"$1/ours\"";
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_haul")])
        .arg(here.path())
        .env("HAUL_CONFIG", "");
    exits(&command.output().unwrap(), 0);
    assert_eq!(names(&here.path().join("ours")), names(&here.path().join("theirs")));
    let remaining = ["a", "mounted", "mounted/deep", "mounted/deep/y", "mounted/x"];
    assert_eq!(names(&here.path().join("ours")), remaining);
}

#[test]
fn a_dry_run_itemises_for_scripts() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        exits(&run(&["cp", "-q", &from, &to]), 0);
        fs::write(src.join("a"), "changed").unwrap();
        fs::create_dir(src.join("new")).unwrap();
        fs::write(src.join("new/c"), "c").unwrap();
        let result = object(&run(&["cp", "--dry-run", "--json", &from, &to]));
        let list = |word: &str| result["items"][word].clone();
        assert_eq!(list("replace"), serde_json::json!([{ "path": "a", "size": 7 }]), "{way:?} {result}");
        assert_eq!(list("mkdir"), serde_json::json!([{ "path": "new" }]));
        assert_eq!(list("send"), serde_json::json!([{ "path": "new/c", "size": 1 }]));
        assert_eq!(list("keep"), serde_json::json!([{ "path": "sub/b" }]));
        assert_eq!((&result["dry_run"], &result["ok"]), (&true.into(), &true.into()));
        assert_eq!(
            (&result["files"], &result["bytes"], &result["kept_files"]),
            (&2.into(), &8.into(), &1.into())
        );
        assert_eq!(result["negotiated"]["cipher"].is_string(), !matches!(way, Way::Local), "{result}");
        assert_eq!(fs::read(dst.join("a")).unwrap(), b"aaa");
        let verbose = run(&["cp", "-nv", &from, &to]);
        assert!(lossy(&verbose.stdout).contains("\nkeep sub/b\n"), "{}", lossy(&verbose.stdout));
        fs::set_permissions(src.join("sub/b"), fs::Permissions::from_mode(0o600)).unwrap();
        let result = object(&run(&["cp", "--dry-run", "--json", &from, &to]));
        assert_eq!(result["items"]["adjust"], serde_json::json!([{ "path": "sub/b" }]), "{way:?}");
        assert!(lossy(&run(&["cp", "-n", &from, &to]).stdout).contains("\nadjust sub/b\n"));
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

#[test]
fn verbose_names_created_and_changed_files() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        fs::write(src.join("odd\x1b\n"), "x").unwrap();
        let stdout_and_names = |options: &[&str]| {
            let output = run(&[&["cp"], options, &[&from, &to]].concat());
            exits(&output, 0);
            (lossy(&output.stdout), lossy(&output.stderr))
        };
        let names = |words: &str| {
            let actions = ["send ", "replace ", "mkdir ", "link ", "delete ", "keep ", "adjust "];
            let is_one = |line: &&str| actions.iter().any(|action| line.starts_with(action));
            let mut lines: Vec<String> = words.lines().filter(is_one).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let (out, words) = stdout_and_names(&["-v"]);
        let odd = r"send odd\x1b\n (1 B)";
        assert_eq!(names(&words), ["send a (3 B)", odd, "send sub/b (4 B)"], "{way:?} {words}");
        assert_eq!(out, "");
        assert_eq!(names(&stdout_and_names(&["-v"]).1), [""; 0], "{way:?}");
        fs::write(src.join("a"), "changed").unwrap();
        fs::create_dir(src.join("new")).unwrap();
        let (_, words) = stdout_and_names(&["-v"]);
        assert_eq!(names(&words), ["mkdir new", "replace a (7 B)"], "{way:?}");
        // No list without `-v`, with JSON output, or with `-q`.
        for options in [&["-I"][..], &["-I", "-v", "--json"], &["-I", "-v", "-q"]] {
            let (out, words) = stdout_and_names(options);
            assert_eq!(names(&words), [""; 0], "{way:?} {options:?}");
            assert_eq!(out.lines().count(), usize::from(options.contains(&"--json")));
        }
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

#[test]
fn a_server_for_one_session_waits_out_dry_runs() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(root.path().join("file"), "there").unwrap();
    let mut server = Server::start(root.path(), &["--once"]);
    let to = here.path().join("got");
    exits(&run(&["cp", "-n", &server.at("file"), to.to_str().unwrap()]), 0);
    assert!(!to.exists());
    exits(&run(&["cp", "-q", &server.at("file"), to.to_str().unwrap()]), 0);
    assert_eq!(fs::read(&to).unwrap(), b"there");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_read_only_server_refuses_deletions_and_uploads() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(root.path().join("theirs"), "x").unwrap();
    let server = Server::start(root.path(), &["--read-only"]);
    let from = format!("{}/.", here.path().display());
    exits(&run(&["cp", "--delete", &from, &server.at("")]), 6);
    exits(&run(&["cp", "-", &server.at("new")]), 6);
    assert_eq!(names(root.path()), ["theirs"]);
}

#[test]
fn only_the_new_part_of_a_grown_file_is_sent() {
    let places = Places::new();
    for way in WAYS {
        let (src, from, dst, to) = places.of(way);
        let data: Vec<u8> = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(src.join("log"), &data[..12_000_000]).unwrap();
        exits(&run(&["cp", "-q", "--growing", &from, &to]), 0);
        fs::OpenOptions::new()
            .append(true)
            .open(src.join("log"))
            .unwrap()
            .write_all(&data[12_000_000..])
            .unwrap();
        let result = object(&run(&["cp", "--json", "--growing", &from, &to]));
        assert_eq!(result["resumed_bytes"], 12_000_000, "{way:?}: {result}");
        assert!(fs::read(dst.join("log")).unwrap() == data);
        let _ = fs::remove_dir_all(&src);
        let _ = fs::remove_dir_all(&dst);
    }
}

fn feed(arguments: &[&str], data: &[u8]) -> Output {
    let mut command = haul();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(data).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn stdin_is_copied_to_a_file_and_files_to_stdout() {
    let places = Places::new();
    let data: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let stored = feed(&["cp", "--json", "-", &places.server.at("stored")], &data);
    exits(&stored, 0);
    assert_eq!((&object(&stored)["bytes"], &object(&stored)["files"]), (&data.len().into(), &1.into()));
    assert!(fs::read(places.root.path().join("stored")).unwrap() == data);
    let local = places.here.path().join("local");
    exits(&feed(&["cp", "-q", "-", local.to_str().unwrap()], b"here"), 0);
    assert_eq!(fs::read(&local).unwrap(), b"here");
    exits(&feed(&["cp", "-q", "-", &places.server.at("empty")], b""), 0);
    assert_eq!(names(places.root.path()), ["empty", "stored"], "no other files");
    // Downloads: one, two in a row, and from this machine.
    let (one, two) = (places.server.at("stored"), places.server.at("empty"));
    let shown = run(&["cp", "-q", &one, &two, "-"]);
    exits(&shown, 0);
    assert!(shown.stdout == data);
    let shown = run(&["cp", "-q", local.to_str().unwrap(), "-"]);
    exits(&shown, 0);
    assert_eq!(shown.stdout, b"here");
    // To stdout, two hard links of one file are two files.
    let other = places.here.path().join("other");
    fs::hard_link(&local, &other).unwrap();
    let shown = run(&["cp", "-q", local.to_str().unwrap(), other.to_str().unwrap(), "-"]);
    exits(&shown, 0);
    assert_eq!(shown.stdout, b"herehere");
}

#[test]
fn a_slow_input_program_is_named_instead_of_storage() {
    let places = Places::new();
    let limit = || {
        let mut command = haul();
        command
            .args(["cp", "--json", "-", &places.server.at("slow")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for _ in 0..80 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            stdin.write_all(&[1; 16_000]).unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        exits(&output, 0);
        object(&output)["limited_by"].clone()
    };
    assert_eq!(attempts(limit, |limit| limit == "application"), "application");
}

/// How often the program syncs while it stores three bytes from stdin; `None` if strace cannot trace here.
fn syncs_of_a_stream(options: &[&str]) -> Option<usize> {
    let dir = tempfile::tempdir().unwrap();
    let (trace, stored) = (dir.path().join("trace"), dir.path().join("stored"));
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=fsync,fdatasync,syncfs", "-o"]).arg(&trace);
    command.arg(haul().get_program()).args(["cp", "-q"]).args(options).arg("-").arg(&stored);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).env("HAUL_CONFIG", "").spawn();
    let mut child = child.ok()?;
    // Without permission to trace, the trace is empty.
    let _ = child.stdin.take().unwrap().write_all(b"abc");
    let ended = child.wait_with_output().unwrap();
    if !fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("+++ exited with ")) {
        return None;
    }
    exits(&ended, 0);
    assert_eq!(fs::read(&stored).unwrap(), b"abc");
    Some(fs::read_to_string(&trace).unwrap().matches("sync(").count())
}

#[test]
fn data_from_stdin_is_on_disk_when_reported() {
    let Some(syncs) = syncs_of_a_stream(&[]) else {
        eprintln!("SKIPPED: strace is missing or may not trace here");
        return;
    };
    assert!(syncs >= 2, "the file and its name: {syncs}");
    assert_eq!(syncs_of_a_stream(&["--sync", "none"]), Some(0));
}

#[test]
fn a_reader_that_closes_stdout_early_causes_no_error() {
    let places = Places::new();
    fs::write(places.root.path().join("big"), vec![b'x'; 30_000_000]).unwrap();
    let mut command = haul();
    command.args(["cp", "-q", &places.server.at("big"), "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut head = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let outcome = child.wait_with_output().unwrap();
    exits(&outcome, 0);
    assert_eq!((head, lossy(&outcome.stderr)), ([b'x'; 1000], String::new()));
}

#[test]
fn stdout_receives_only_selected_files() {
    let places = Places::new();
    let dir = places.root.path().join("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a"), "aaa").unwrap();
    fs::write(dir.join("b.tmp"), "bbbbb").unwrap();
    let url = places.server.at("d/.");
    for (option, shown) in
        [("--exclude=*.tmp", "aaa"), ("--min-size=4B", "bbbbb"), ("--files-from=list", "bbbbb")]
    {
        fs::write(places.here.path().join("list"), "b.tmp\n").unwrap();
        let output =
            haul().args(["cp", "-q", option, &url, "-"]).current_dir(places.here.path()).output().unwrap();
        exits(&output, 0);
        assert_eq!(lossy(&output.stdout), shown, "{option}");
    }
}

#[test]
fn options_without_effect_on_a_stream_are_refused() {
    let places = Places::new();
    let (url, file) = (places.server.at("new"), places.server.at("f"));
    fs::write(places.root.path().join("f"), "there").unwrap();
    let of_stdin: [&[&str]; 8] = [
        &["--exclude", "*"],
        &["--files-from", "/dev/null"],
        &["--min-size", "5GB"],
        &["-c"],
        &["--delete"],
        &["--verify"],
        &["--growing"],
        &["--detach"],
    ];
    let of_stdout: [&[&str]; 4] = [&["-c"], &["--delete"], &["-a"], &["--detach"]];
    let both = of_stdin.iter().map(|options| (options, ["-", &url[..]]));
    for (options, words) in both.chain(of_stdout.iter().map(|options| (options, [&file[..], "-"]))) {
        let output = run(&[&["cp"], *options, &words].concat());
        exits(&output, 2);
        assert!(lossy(&output.stderr).contains("--"), "{}", lossy(&output.stderr));
    }
    assert_eq!(names(places.root.path()), ["f"]);
    // Configured options for copies of files are ignored.
    let configured = haul()
        .env("HAUL_EXCLUDE", "*")
        .env("HAUL_CHECKSUM", "true")
        .args(["cp", "-q", "-", &url])
        .output()
        .unwrap();
    exits(&configured, 0);
    assert_eq!(names(places.root.path()), ["f", "new"]);
    // --detach needs two remote machines.
    exits(&run(&["cp", "--detach", "src", "dst"]), 2);
    exits(&run(&["cp", "--detach", "src", &url]), 2);
    // An ssh port needs an ssh address.
    exits(&run(&["cp", "-P", "22", "src", "dst"]), 2);
    exits(&run(&["cp", "-P", "22", "src", &url]), 2);
}

#[test]
fn unsupported_pipe_requests_are_reported() {
    let places = Places::new();
    let url = places.server.at("f");
    fs::create_dir(places.root.path().join("f")).unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        (&["cp", "-", &url], 7, "directory"),
        (&["cp", "-", &places.server.at("d/")], 2, "needs a file name"),
        (&["cp", "-", "x", &url], 2, "only source"),
        (&["cp", "-", "-"], 2, "cat"),
        (&["cp", "--json", &url, "-"], 2, "--json"),
        (&["cp", "-n", "-", &url], 2, "--dry-run"),
        (&["cp", "-q", &url, "-"], 2, "not a regular file"),
        (&["cp", "--max-delete", "3", "a", &url], 2, "--delete"),
    ];
    for (arguments, code, needle) in cases {
        let output = run(arguments);
        exits(&output, code);
        let words = lossy(&output.stderr) + &lossy(&output.stdout);
        assert!(words.contains(needle), "{arguments:?}: {words}");
    }
}
