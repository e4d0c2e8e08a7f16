//! File names and messages of a peer are escaped before they reach the terminal.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use data_encoding::BASE64;
use haul_base::is_unprintable;
use haul_engine::{ListenOptions, Listener};
use haul_wire::control::{Fault, FaultCode};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, object, run};

/// A name that ends a line, sets a title, clears a line, and reverses the text after it.
const NAME: &str = "a\nMoved 9.9 GB in 1 file, all verified\n\u{1b}]0;title\u{7}\u{9b}2K\u{202e}\u{2066}b";
/// A forged line that the name would print unescaped.
const FORGED: &str = "\nMoved 9.9 GB";

/// Asserts that the output contains no control characters and no forged line.
#[track_caller]
fn assert_harmless(output: &[u8]) {
    let output = lossy(output);
    assert!(!output.contains(FORGED), "{output}");
    assert!(!output.replace('\n', "").contains(is_unprintable), "{output:?}");
}

#[track_caller]
fn all_harmless(output: &Output) {
    assert_harmless(&output.stdout);
    assert_harmless(&output.stderr);
}

/// A directory `set` with two files of that name: one ordinary, one that cannot be sent.
fn set() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let set = place.path().join("set");
    fs::create_dir_all(set.join(NAME)).unwrap();
    fs::write(set.join(NAME).join(NAME), "contents").unwrap();
    let _ = std::os::unix::net::UnixListener::bind(set.join("socket")).unwrap();
    fs::rename(set.join("socket"), set.join(format!("{NAME} socket"))).unwrap();
    place
}

#[test]
fn file_names_are_shown_without_control_characters() {
    let (place, root) = (set(), tempfile::tempdir().unwrap());
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let mut serve = haul();
    serve
        .args(["serve", "-v", "--listen", "127.0.0.1:0", "--url-file", &path("url"), "--root"])
        .arg(root.path());
    let mut server = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !fs::read_to_string(path("url")).unwrap_or_default().contains("?k=") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let url = format!("@{}", path("url"));
    let dry = run(&["cp", "-n", "-v", &path("set"), &url]);
    assert!(lossy(&dry.stdout).contains(r"a\nMoved 9.9 GB"), "{}", lossy(&dry.stdout));
    let up = run(&["cp", "-v", &path("set"), &url]);
    exits(&up, 3);
    assert!(lossy(&up.stderr).contains(r"send set/a\nMoved 9.9 GB"), "{}", lossy(&up.stderr));
    let down = run(&["cp", "-v", &format!("{url}:set"), &path("back")]);
    let missing = run(&["cp", &format!("{url}:{NAME}"), &path("back")]);
    let here = run(&["cp", &path(NAME), &path("back")]);
    let named = run(&["cp", &format!("--{NAME}"), "x"]);
    let other = run(&["status", &path(NAME)]);
    let listed = run(&["cp", "--exclude-from", &path(NAME), &path("set"), &path("back")]);
    for output in [&dry, &up, &down, &missing, &here, &named, &other, &listed] {
        all_harmless(output);
    }
    for output in [&missing, &here, &named, &other, &listed] {
        assert!(!output.status.success() && lossy(&output.stderr).contains(r"\nMoved 9.9 GB"), "{output:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let mut log = Vec::new();
    server.stderr.unwrap().read_to_end(&mut log).unwrap();
    assert!(lossy(&log).contains(r"\nMoved 9.9 GB"), "{}", lossy(&log));
    assert_harmless(&log);
}

#[test]
fn names_in_json_are_exact() {
    let place = tempfile::tempdir().unwrap();
    let set = place.path().join("set");
    let odd = OsStr::from_bytes(b"odd\xff\n");
    fs::create_dir_all(set.join(odd)).unwrap();
    fs::write(set.join(NAME), "contents").unwrap();
    let _ = std::os::unix::net::UnixListener::bind(set.join("socket")).unwrap();
    fs::rename(set.join("socket"), set.join(odd).join(odd)).unwrap();
    let words = ["cp", "-n", "--json", set.to_str().unwrap(), "/nowhere-to-be"];
    let dry = run(&words[..]);
    assert_harmless(&dry.stdout);
    let lists = object(&dry)["items"].clone();
    let path_of = |item: &Value| match item.get("path_b64") {
        Some(base64) => BASE64.decode(base64.as_str().unwrap().as_bytes()).unwrap(),
        None => item["path"].as_str().unwrap().as_bytes().to_vec(),
    };
    let has =
        |list: &Value, name: &[u8]| list.as_array().unwrap().iter().any(|item| path_of(item).ends_with(name));
    assert!(has(&lists["send"], NAME.as_bytes()) && has(&lists["mkdir"], odd.as_bytes()), "{lists}");
    let to = place.path().join("to");
    let output = run(&["cp", "--json", set.to_str().unwrap(), to.to_str().unwrap()]);
    exits(&output, 3);
    assert_harmless(&output.stdout);
    let failures = object(&output)["failures"].clone();
    assert!(has(&failures, &[odd.as_bytes(), b"/", odd.as_bytes()].concat()), "{failures}");
    assert!(failures[0]["path_b64"].is_string(), "{failures}");
}

/// A server that may send any messages.
fn hostile(
    serve: impl FnOnce(haul_engine::Incoming) + Send + 'static,
) -> (String, std::thread::JoinHandle<()>) {
    let listener = Listener::bind(ListenOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    let url = listener.url("127.0.0.1", b"").to_string();
    let serving = std::thread::spawn(move || {
        if let Some(incoming) = listener.accept(Duration::from_secs(60)) {
            serve(incoming);
        }
    });
    (url, serving)
}

#[test]
fn server_messages_are_shown_without_control_characters() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("source"), "contents").unwrap();
    let source = place.path().join("source");
    let copy = |url: &str, options: &[&str]| {
        run(&[&["cp", "-vv"], options, &[source.to_str().unwrap(), url]].concat())
    };
    let (url, serving) = hostile(|incoming| incoming.refuse(Fault::new(FaultCode::Busy, NAME, NAME)));
    let refused = copy(&url, &[]);
    serving.join().unwrap();
    exits(&refused, 1);
    assert!(
        lossy(&refused.stderr).contains(r"error: on 127.0.0.1: a\nMoved 9.9 GB"),
        "{}",
        lossy(&refused.stderr)
    );
    all_harmless(&refused);
    let accept = |incoming: haul_engine::Incoming| {
        let mut recipe = incoming.recipe().clone();
        recipe.name = NAME.to_owned();
        let recipe = Some(haul_engine::offer(&recipe));
        let settings = haul_wire::control::Settings { recipe, ..incoming.settings().clone() };
        let session = incoming.accept_with(settings).unwrap();
        session.control().abort(Fault::new(FaultCode::DiskFull, NAME, NAME));
    };
    for options in [&[][..], &["--json"], &["-n"]] {
        let (url, serving) = hostile(accept);
        let ended = copy(&url, options);
        serving.join().unwrap();
        assert!(!ended.status.success());
        all_harmless(&ended);
    }
}

#[test]
fn failures_name_the_machine_they_happened_on() {
    let (place, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = place.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "contents").unwrap();
    let _ = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    // A directory blocks the file's place at the destination.
    fs::create_dir_all(root.path().join("source/file/in-the-way")).unwrap();
    let server = Server::start(root.path(), &[]);
    let output = run(&["cp", source.to_str().unwrap(), &server.url]);
    exits(&output, 3);
    let stderr = lossy(&output.stderr);
    let line =
        |name: &str| stderr.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{stderr}"));
    assert!(line("failed: source/file").starts_with("failed: source/file: on 127.0.0.1: "), "{stderr}");
    assert!(line("failed: source/socket").starts_with("failed: source/socket: here: "), "{stderr}");
    let output = run(&["cp", "--json", &server.at("missing"), place.path().to_str().unwrap()]);
    assert_eq!(object(&output)["error"]["on"], "127.0.0.1");
    // The opposite direction: the destination on this machine is missing.
    let output = run(&["cp", "--json", &server.at("source"), "/proc/nowhere/"]);
    assert_eq!(object(&output)["error"]["on"], "here", "{}", object(&output));
    // Within one machine the report names no host.
    let output = run(&["cp", source.to_str().unwrap(), place.path().join("copy").to_str().unwrap()]);
    let stderr = lossy(&output.stderr);
    assert!(
        stderr.contains("failed: source/socket: `")
            && !stderr.contains("here: ")
            && !stderr.contains(": on "),
        "{stderr}"
    );
}
