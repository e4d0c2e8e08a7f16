//! How a server reports its clients, and how many it admits.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{ChildStderr, Stdio};
use std::time::{Duration, Instant};

use haul_engine::{ConnectOptions, HaulUrl, Session, connect};
use haul_wire::control::{FaultCode, Layout, ReceivePolicy, Request};
use serde_json::Value;

use crate::support::{Server, exits, lossy, object, run, starting};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and its stderr.
pub(crate) struct LoggedServer {
    pub(crate) server: Server,
    stderr: BufReader<ChildStderr>,
}

impl LoggedServer {
    fn start(root: &Path, options: &[&str]) -> Self {
        Self::started_by(&[], root, options)
    }

    /// Starts the server with `starter` in front of the program.
    pub(crate) fn started_by(starter: &[&str], root: &Path, options: &[&str]) -> Self {
        let mut command = starting(starter);
        command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root).args(options);
        // A server that writes its URL to a file prints nothing on stdout.
        let stdout = if options.contains(&"--url-file") { Stdio::null() } else { Stdio::piped() };
        let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Server::of(child);
        let stderr = BufReader::new(server.child.stderr.take().unwrap());
        Self { server, stderr }
    }

    /// Its output up to a line that contains `end`.
    pub(crate) fn stderr_until(&mut self, end: &str) -> String {
        let mut stderr = String::new();
        while !stderr.lines().last().is_some_and(|line| line.contains(end)) {
            assert!(self.stderr.read_line(&mut stderr).unwrap() > 0, "{stderr}");
        }
        stderr
    }

    /// The rest of its output until it is stopped.
    fn remaining_stderr(mut self) -> String {
        self.server.child.kill().unwrap();
        let mut stderr = Vec::new();
        self.stderr.read_to_end(&mut stderr).unwrap();
        lossy(&stderr)
    }
}

/// An authenticated client that sends nothing further.
pub(crate) fn idle(url: &str) -> Result<Session, haul_engine::EngineError> {
    let url: HaulUrl = url.parse().unwrap();
    let (destination, receive_policy) = (b"idle".to_vec(), ReceivePolicy::default());
    let request = Request::Put { destination, layout: Layout::Into, receive_policy };
    connect(&url, ConnectOptions::new(request, haul_wire::control::Settings::default()))
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dry_run_is_not_logged_as_a_transfer() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = here.path().join("file");
    fs::write(&file, vec![1; 100_000]).unwrap();
    let mut logged_server = LoggedServer::start(root.path(), &[]);
    exits(&run(&["cp", "-n", file.to_str().unwrap(), &logged_server.server.at("copy")]), 0);
    logged_server.stderr_until("put: begins");
    let stderr = logged_server.stderr_until("put: ");
    assert!(stderr.contains("put: dry run, nothing was moved"), "{stderr}");
    assert!(!stderr.contains("Moved"), "{stderr}");
}

#[test]
fn wrong_secrets_are_logged_with_time_and_address_but_limited() {
    let root = tempfile::tempdir().unwrap();
    let logged_server = LoggedServer::start(root.path(), &[]);
    let right: HaulUrl = logged_server.server.url.parse().unwrap();
    let wrong = HaulUrl { secret: [9; 32].into(), ..right };
    for _ in 0..15 {
        let refused =
            connect(&wrong, ConnectOptions::new(Request::Check, haul_wire::control::Settings::default()));
        assert_eq!(refused.unwrap_err().fault().code, FaultCode::NotAuthorised);
    }
    let stderr = logged_server.remaining_stderr();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("client refused")).collect();
    assert_eq!(lines.len(), 10, "{stderr}");
    for line in lines {
        // RFC 3339 format.
        assert!(line.starts_with("20") && line[..20].contains('T'), "{line}");
        assert!(line.contains("127.0.0.1:") && line.contains("secret"), "{line}");
    }
}

#[test]
fn idle_sessions_do_not_lock_out_others() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = here.path().join("file");
    fs::write(&file, vec![1; 100_000]).unwrap();
    let options = ["--max-sessions", "2", "--idle-timeout", "1s"];
    let server = Server::start(root.path(), &options);
    let idle = [idle(&server.url).unwrap(), idle(&server.url).unwrap()];
    until("a free session", || {
        let copied = run(&["cp", "--json", file.to_str().unwrap(), &server.at("copy")]);
        let report: Value = object(&copied);
        assert!(copied.status.success() || report["error"]["code"] == "busy", "{report}");
        copied.status.success()
    });
    until("the end of one of them", || idle.iter().any(|session| session.control().failure().is_some()));
    let ended = idle.iter().filter_map(|session| session.control().failure());
    let codes: Vec<_> = ended.map(|error| error.fault().code).collect();
    assert_eq!(codes, [FaultCode::Busy], "only one session is evicted");
}

#[test]
fn one_address_gets_a_limited_share_of_sessions() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = here.path().join("file");
    fs::write(&file, "contents").unwrap();
    let server = Server::start(root.path(), &["--max-per-address", "1"]);
    let _idle = idle(&server.url).unwrap();
    let refused = run(&["cp", "--json", file.to_str().unwrap(), &server.at("copy")]);
    exits(&refused, 1);
    let error = &object(&refused)["error"];
    assert_eq!((&error["code"], &error["retryable"]), (&Value::from("busy"), &Value::from(true)));
    assert!(error["message"].as_str().unwrap().contains("1 session of 127.0.0.1"), "{error}");
}

#[test]
fn a_server_keeps_the_configured_space_free() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = here.path().join("file");
    fs::write(&file, vec![1; 3_000_000]).unwrap();
    let server = Server::start(root.path(), &["--min-free", "1000000GB"]);
    let refused = run(&["cp", "--json", file.to_str().unwrap(), &server.at("copy")]);
    exits(&refused, 7);
    let error = &object(&refused)["error"];
    assert_eq!(error["code"], "disk_full");
    assert!(error["hint"].as_str().unwrap().contains("--min-free"), "{error}");
    let reading = run(&["cp", "--json", &server.at("copy"), here.path().to_str().unwrap()]);
    assert_eq!(object(&reading)["error"]["code"], "no_such_path", "a download needs no free space");
}

#[test]
fn switching_rules_of_a_clients_recipe_do_not_replace_the_owners_law() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(root.path().join("file"), "contents").unwrap();
    let server = Server::start(root.path(), &["--set", "controller=bbr"]);
    let (from, to) = (server.at("file"), here.path().to_str().unwrap());
    let copy = |rules| run(&["cp", "--json", "--set", &format!("rate_control.switch={rules}"), &from, to]);
    let refused = copy("after 1s -> cubic");
    exits(&refused, 6);
    let error = &object(&refused)["error"];
    assert!(error["message"].as_str().unwrap().contains("fixes the controller to bbr"), "{error}");
    exits(&copy(""), 0);
}

/// Regression test: the server accepted such parameters and ignored them.
#[test]
fn a_server_refuses_parameters_unknown_to_its_recipe() {
    let output = run(&["serve", "--json", "--listen", "127.0.0.1:0", "--set", "retransmit.window=5"]);
    exits(&output, 2);
    let error = &object(&output)["error"];
    assert!(error["message"].as_str().unwrap().contains("retransmit.window"), "{error}");
}
