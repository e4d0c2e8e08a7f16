//! Signals that stop the program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, exits, haul, lossy, starting};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Resets SIGHUP to its default, in case the tests themselves run under nohup.
const HEARS_HANGUPS: [&str; 2] = ["env", "--default-signal=HUP"];

/// A copy that takes longer than any test waits.
struct Copy {
    server: Server,
    client: Child,
    trace: PathBuf,
    _places: [TempDir; 2],
}

impl Copy {
    fn start() -> Self {
        Self::started_by(&HEARS_HANGUPS)
    }

    /// Starts the copy with `starter` in front of the client's command.
    fn started_by(starter: &[&str]) -> Self {
        Self::of(starter, |source, server| [source, server.at("copy")])
    }

    /// `words` returns source and destination from a large file and the server.
    fn of(starter: &[&str], words: impl Fn(String, &Server) -> [String; 2]) -> Self {
        let places = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [here, root] = places.each_ref().map(TempDir::path);
        let (source, trace) = (here.join("source"), here.join("trace"));
        fs::write(&source, vec![7; 32_000_000]).unwrap();
        let mut server = Server::started_by(&HEARS_HANGUPS, root, &["--json"]);
        let listening: Value = serde_json::from_str(&server.url).unwrap();
        listening["url"].as_str().unwrap().clone_into(&mut server.url);
        let mut command = starting(starter);
        let words = words(source.display().to_string(), &server);
        command.args(["cp", "--rate", "1Mbit", "--events"]).arg(&trace).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let client = command.spawn().unwrap();
        let copy = Self { server, client, trace, _places: places };
        copy.until_event("progress");
        copy
    }

    /// The events so far.
    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.trace).unwrap_or_default();
        // The last line may be incomplete.
        let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
        complete_lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn until_event(&self, name: &str) {
        let begun = Instant::now();
        while !self.events().iter().any(|event| event["event"] == name) {
            assert!(begun.elapsed() < TIMEOUT, "no `{name}` in {:?}", self.events());
            sleep(Duration::from_millis(5));
        }
    }

    /// The server's report of a session that has ended.
    fn session(&mut self) -> Value {
        let mut line = String::new();
        BufReader::new(self.server.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn send_signal(&self, signal: Signal) {
        kill(&self.client, signal);
    }

    fn output(self) -> (Output, Vec<Value>) {
        let Self { mut client, trace, .. } = self;
        ended(&mut client);
        let output = client.wait_with_output().unwrap();
        let text = fs::read_to_string(trace).unwrap();
        (output, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

/// Waits for the process and returns its exit status.
fn ended(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("it has not ended");
        }
        sleep(Duration::from_millis(5));
    }
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn simultaneous_signals_count_as_one() {
    for pair in [[Signal::INT, Signal::TERM], [Signal::TERM, Signal::INT]] {
        let copy = Copy::start();
        // timeout(1) signals the process and then its group.
        for signal in pair {
            copy.send_signal(signal);
        }
        let (output, events) = copy.output();
        exits(&output, 130);
        assert!(lossy(&output.stderr).contains("cp --rate 1Mbit"), "{}", lossy(&output.stderr));
        assert_eq!(events.last().unwrap()["event"], "end", "{events:?}");
    }
}

#[test]
fn a_closed_terminal_stops_a_copy_as_sigterm_does() {
    let copy = Copy::start();
    copy.send_signal(Signal::HUP);
    let (output, events) = copy.output();
    exits(&output, 130);
    let sender = format!("interrupted by SIGHUP from process {} (", std::process::id());
    assert!(lossy(&output.stderr).contains(&sender), "{}", lossy(&output.stderr));
    assert!(lossy(&output.stderr).contains("Run it again with: "), "{}", lossy(&output.stderr));
    assert_eq!(events.last().unwrap()["event"], "end", "{events:?}");
}

#[test]
fn an_interrupted_stream_is_not_reported_as_resumable() {
    let (stdio, hint) = ("-".to_owned(), "hint: start the whole pipe again: a stream cannot be resumed");
    for from_stdin in [true, false] {
        let copy = Copy::of(&[], |source, server| {
            if from_stdin { [stdio.clone(), server.at("copy")] } else { [source, stdio.clone()] }
        });
        copy.send_signal(Signal::INT);
        let output = copy.output().0;
        exits(&output, 130);
        let stderr = lossy(&output.stderr);
        assert!(stderr.contains(hint) && !stderr.contains("Run it again"), "{stderr}");
    }
}

#[test]
fn nohup_copies_survive_their_terminal() {
    let copy = Copy::started_by(&["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    copy.send_signal(Signal::HUP);
    let seen = copy.events().len();
    let begun = Instant::now();
    while copy.events().len() < seen + 10 {
        assert!(begun.elapsed() < TIMEOUT, "no progress: {:?}", copy.events());
        sleep(Duration::from_millis(5));
    }
    copy.send_signal(Signal::TERM);
    exits(&copy.output().0, 130);
}

#[test]
fn a_servers_exit_code_shows_whether_it_cut_a_session_off() {
    for signal in [Signal::TERM, Signal::HUP] {
        let mut copy = Copy::start();
        copy.send_signal(Signal::INT);
        assert_eq!(ended(&mut copy.client).code(), Some(130));
        let error = copy.session()["result"]["error"].clone();
        assert_eq!((&error["code"], &error["on"]), (&"peer_stopped".into(), &"127.0.0.1".into()), "{error}");
        assert_eq!(error["message"], "the client was stopped by SIGINT");
        kill(&copy.server.child, signal);
        assert_eq!(ended(&mut copy.server.child).code(), Some(0), "it was idle");
        let mut copy = Copy::start();
        kill(&copy.server.child, signal);
        assert_eq!(ended(&mut copy.server.child).code(), Some(130), "it interrupted a session");
        let session = copy.session();
        let message = session["result"]["error"]["message"].as_str().unwrap();
        let sender = format!("from process {} (", std::process::id());
        assert!(message.starts_with("interrupted by SIG") && message.contains(&sender), "{session}");
        // Only the server was stopped.
        let (output, _) = copy.output();
        exits(&output, 5);
        let stderr = lossy(&output.stderr);
        assert!(stderr.contains("error: on 127.0.0.1: the server was stopped by SIG"), "{stderr}");
        assert!(stderr.contains("to resume") && !stderr.contains(&sender), "{stderr}");
    }
}

/// Whether the process handles SIGTERM itself (`proc_pid_status(5)`).
fn handles_sigterm(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

#[test]
fn one_signal_ends_a_program_that_waits_for_its_input() {
    let here = tempfile::tempdir().unwrap();
    let fifo = here.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    let at_fifo = format!("@{fifo}");
    for words in [
        &["cp", "--files-from", "-", "src", "dst"][..],
        &["cp", "--exclude-from", fifo, "src", "dst"],
        &["cp", "@-", "dst"],
        &["bench", &at_fifo],
        &["pipe", "@-"],
        &["cp", "--events", fifo, "src", "dst"],
    ] {
        let mut command = haul();
        command.current_dir(here.path()).args(words).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while !handles_sigterm(&child) {
            assert!(begun.elapsed() < TIMEOUT, "{words:?}");
            sleep(Duration::from_millis(5));
        }
        kill(&child, Signal::TERM);
        assert_eq!(ended(&mut child).code(), Some(130), "{words:?}");
    }
}

#[test]
fn unread_output_blocks_nothing() {
    let here = tempfile::tempdir().unwrap();
    let (source, copy) = (here.path().join("source"), here.path().join("copy"));
    fs::write(&source, "contents").unwrap();
    for verbose in ["-q", "-v", "-vvv"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = haul().args(["cp", verbose]).args([&source, &copy]).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{verbose}");
        assert_eq!(fs::read(&copy).unwrap(), b"contents");
        fs::remove_file(&copy).unwrap();
    }
}

#[test]
fn a_file_above_the_process_limit_fails_and_others_continue() {
    let here = tempfile::tempdir().unwrap();
    let [source, copy] = ["source", "copy"].map(|name| here.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), vec![7; 1_000_000]).unwrap();
    fs::write(source.join("small"), "contents").unwrap();
    let mut command = starting(&["sh", "-c", "ulimit -f 100; exec \"$@\"", "sh"]);
    let output = command.arg("cp").args([&source, &copy]).output().unwrap();
    exits(&output, 3);
    let stderr = lossy(&output.stderr);
    assert!(stderr.contains("large`: File too large") && stderr.contains("a limit permits"), "{stderr}");
    assert_eq!(fs::read(copy.join("small")).unwrap(), b"contents");
    assert!(!copy.join("large").exists());
}

#[test]
fn a_process_started_by_ssh_ends_with_its_stdin_but_not_by_sighup() {
    for command in ["serve", "cp"] {
        let mut started = starting(&HEARS_HANGUPS);
        started
            .args([command, "--for-ssh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = started.spawn().unwrap();
        let mut announcement = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut announcement).unwrap();
        assert!(announcement.contains("#haul-over-ssh#"), "{announcement}");
        // If the first signal requested a stop, the second would end the process at once.
        for _ in 0..2 {
            kill(&child, Signal::HUP);
            sleep(Duration::from_millis(700));
            assert!(child.try_wait().unwrap().is_none(), "{command}");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
