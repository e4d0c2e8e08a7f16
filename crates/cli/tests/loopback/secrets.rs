//! The key of a URL does not leak.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, run};

/// The key of a URL.
fn key(url: &str) -> &str {
    url.split_once("?k=").unwrap().1
}

/// A process, killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the file `path` contains a URL, and returns it.
pub(crate) fn url_in(path: &Path) -> String {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.contains("?k=") {
            return text.trim().to_owned();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "no URL");
        sleep(Duration::from_millis(5));
    }
}

/// A server, a file with its URL, and a directory with a file `source`.
struct World {
    place: TempDir,
    root: TempDir,
    server: Server,
}

impl World {
    fn new() -> Self {
        let (place, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = Server::start(root.path(), &[]);
        fs::write(place.path().join("url"), format!("{}\n", server.url)).unwrap();
        fs::write(place.path().join("source"), "contents").unwrap();
        Self { place, root, server }
    }

    fn haul(&self, arguments: &[&str]) -> Command {
        let mut command = haul();
        command.args(arguments).current_dir(self.place.path()).env("HAUL_URL", &self.server.url);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.haul(arguments).output().unwrap()
    }

    /// Runs a command with these bytes on its stdin.
    fn run_with_stdin(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut command = self.haul(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin).unwrap();
        child.wait_with_output().unwrap()
    }

    fn received(&self, name: &str) -> String {
        fs::read_to_string(self.root.path().join(name)).unwrap()
    }
}

#[test]
fn a_url_comes_from_a_file_stdin_or_the_environment() {
    let world = World::new();
    let line = format!("{}\n", world.server.url);
    fs::create_dir(world.root.path().join("by")).unwrap();
    exits(&world.output(&["cp", "source", "@url:by/file"]), 0);
    exits(&world.run_with_stdin(&["cp", "source", "@-:by/stdin"], line.as_bytes()), 0);
    exits(&world.output(&["cp", "source", "@env:by/env"]), 0);
    for name in ["by/file", "by/stdin", "by/env"] {
        assert_eq!(world.received(name), "contents");
    }
    exits(&world.output(&["cp", "@url:by/file", "@url:by/env", "."]), 0);
    assert!(world.place.path().join("env").exists());
    // After the first line stdin is data.
    let both = [line.as_bytes(), b"data\nand more"].concat();
    exits(&world.run_with_stdin(&["cp", "-", "@-:by/both"], &both), 0);
    assert_eq!(world.received("by/both"), "data\nand more");
    for url in [&["@url"][..], &["@env"], &[]] {
        exits(&world.output(&[&["bench", "--bytes", "1MB"], url].concat()), 0);
    }
    exits(&world.run_with_stdin(&["bench", "--bytes", "1MB", "@-"], line.as_bytes()), 0);
    for url in [&["bench", "@env"][..], &["bench"]] {
        let empty = world.haul(url).env("HAUL_URL", "").output().unwrap();
        exits(&empty, 2);
        assert!(!lossy(&empty.stderr).contains("does not start"), "{}", lossy(&empty.stderr));
    }
}

#[test]
fn a_pipe_takes_its_url_from_a_file() {
    let place = tempfile::tempdir().unwrap();
    let url = place.path().join("url");
    let mut listen = haul();
    listen.args(["pipe", "--listen", "127.0.0.1:0", "--url-file"]).arg(&url);
    let mut there = Running(listen.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let text = url_in(&url);
    let mut pipe = haul();
    pipe.arg("pipe").arg("@-").stdin(Stdio::piped()).stderr(Stdio::null());
    let mut here = Running(pipe.spawn().unwrap());
    here.0.stdin.take().unwrap().write_all(format!("{text}\ndata").as_bytes()).unwrap();
    assert!(here.0.wait().unwrap().success());
    let (mut data, mut stderr) = (String::new(), String::new());
    there.0.stdout.take().unwrap().read_to_string(&mut data).unwrap();
    there.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(data, "data");
    assert!(!stderr.contains(key(&text)), "{stderr}");
}

#[test]
fn with_url_file_the_url_appears_nowhere_else() {
    for json in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("url");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let mut command = haul();
        command.args(["serve", "-vvv", "--once", "--listen", "127.0.0.1:0", "--url-file"]).arg(&file);
        command.args(json.then_some("--json")).arg("--root").arg(place.path());
        let server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Running(server);
        let url = url_in(&file);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        exits(
            &run(&["cp", "-q", &url.replace("/?", "/url?"), place.path().join("copy").to_str().unwrap()]),
            0,
        );
        let (mut out, mut err) = (String::new(), String::new());
        server.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        server.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(!out.contains(key(&url)) && !err.contains(key(&url)), "{out} {err}");
        if json {
            let line: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
            assert_eq!((&line["event"], line["url_file"].as_str()), (&"listening".into(), file.to_str()));
        } else {
            assert_eq!(out, "");
        }
    }
}

#[test]
fn a_url_is_not_written_through_a_link() {
    let place = tempfile::tempdir().unwrap();
    let (target, link) = (place.path().join("target"), place.path().join("link"));
    fs::write(&target, "untouched").unwrap();
    symlink(&target, &link).unwrap();
    let root = place.path().to_str().unwrap();
    let refused =
        run(&["serve", "--listen", "127.0.0.1:0", "--root", root, "--url-file", link.to_str().unwrap()]);
    assert!(!refused.status.success());
    assert!(lossy(&refused.stderr).contains("symbolic link"), "{}", lossy(&refused.stderr));
    assert_eq!(fs::read_to_string(target).unwrap(), "untouched");
}

#[test]
fn human_readable_output_contains_no_key() {
    let world = World::new();
    let (url, key) = (world.server.url.as_str(), key(&world.server.url));
    let outputs = [
        world.output(&["bench", url, "one-more"]),
        world.output(&["cp", url, url]),
        world.output(&["cp", "-vvv", "source", &url.replace("haul://", "hual://"), "."]),
        world.output(&["cp", &url.replace("haul://", ""), "."]),
        world.output(&["cp", "-vvv", "source", url]),
        world.output(&["cp", "-n", "source", url]),
        world.output(&["cp", "--json", "source", &url[..url.len() - 3]]),
    ];
    for output in &outputs {
        let output = lossy(&[output.stdout.as_slice(), &output.stderr].concat());
        assert!(!output.contains(&key[..key.len() - 3]), "{output}");
    }
    exits(&outputs[0], 2);
    assert!(lossy(&outputs[0].stderr).contains("one-more"));
}

#[test]
fn the_resume_command_is_shown_without_its_key() {
    let world = World::new();
    fs::write(world.place.path().join("large"), vec![7; 32_000_000]).unwrap();
    for (destination, shown) in
        [(world.server.url.as_str(), "?k=...' (with the URL's key"), ("@url", " @url\n")]
    {
        let mut command = world.haul(&["cp", "--rate", "1Mbit", "--events", "events", "large", destination]);
        let mut copy = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let begun = Instant::now();
        while !fs::read_to_string(world.place.path().join("events")).unwrap_or_default().contains("progress")
        {
            assert!(begun.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&copy.0), Signal::INT).unwrap();
        assert_eq!(copy.0.wait().unwrap().code(), Some(130));
        let mut stderr = String::new();
        copy.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(stderr.contains("Run it again with: ") && stderr.contains(shown), "{stderr}");
        assert!(!stderr.contains(key(&world.server.url)), "{stderr}");
        let events = fs::read_to_string(world.place.path().join("events")).unwrap();
        assert!(!events.contains(key(&world.server.url)), "{events}");
        fs::remove_file(world.place.path().join("events")).unwrap();
    }
}

/// The files in /proc of a non-dumpable process belong to root (proc(5)), whoever started it.
#[test]
fn other_programs_of_the_same_user_cannot_read_the_memory() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "SKIPPED other_programs_of_the_same_user_cannot_read_the_memory: needs root, to be another user"
        );
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o777)).unwrap();
    // The program may be in a directory that only root can enter.
    let program = root.path().join("haul");
    haul_testing::copy_program(Path::new(haul().get_program()), &program);
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = haul_testing::unconfigured(Command::new("setpriv"));
    command.args(words).arg(&program).args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root.path());
    let mut server = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    let status = fs::metadata(format!("/proc/{}/environ", server.0.id())).unwrap();
    assert_eq!(status.uid(), 0, "another program of user 65534 could read it");
    // The server still works as an unprivileged user.
    let source = root.path().join("source");
    fs::write(&source, "contents").unwrap();
    exits(&run(&["cp", source.to_str().unwrap(), &url.trim().replace("/?", "/copy?")]), 0);
    assert_eq!(fs::read_to_string(root.path().join("copy")).unwrap(), "contents");
}
