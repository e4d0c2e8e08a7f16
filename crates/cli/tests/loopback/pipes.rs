//! `haul pipe` without privileges.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul_testing::attempts;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::secrets::{Running, url_in};
use crate::support::{exits, haul, lossy, object};

/// A listening `haul pipe`, and its URL, which it writes to a file in `place`.
fn listening(place: &Path, options: &[&str]) -> (Running, String) {
    listening_to(place, options, Stdio::piped())
}

fn listening_to(place: &Path, options: &[&str], stdout: Stdio) -> (Running, String) {
    let file = place.join("url");
    let mut listen = haul();
    listen
        .env("XDG_RUNTIME_DIR", place)
        .args(["pipe", "--listen", "127.0.0.1:0", "--url-file"])
        .arg(&file)
        .args(options);
    listen.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
    let there = Running(listen.spawn().unwrap());
    (there, url_in(&file))
}

/// Exit codes and stderr of a listener and a client started for different directions.
fn misdirected(listener: &[&str], client: &[&str]) -> [(Option<i32>, String); 2] {
    let place = tempfile::tempdir().unwrap();
    let (mut there, url) = listening(place.path(), listener);
    let here = haul().arg("pipe").args(client).arg(&url).stdin(Stdio::null()).output().unwrap();
    let mut stderr = String::new();
    there.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = there.0.wait().unwrap().code();
    [(code, stderr), (here.status.code(), lossy(&here.stderr))]
}

#[test]
fn reverse_on_one_side_only_ends_both_with_the_reason_and_a_hint() {
    for preset in ["bulk", "msg"] {
        for (listener, client, each) in [
            (&["--reverse"][..], &["--preset", preset][..], "each sends"),
            (&[], &["--preset", preset, "--reverse"], "each receives"),
        ] {
            let [(there, listener), (here, client)] = misdirected(listener, client);
            assert_eq!((there, here), (Some(2), Some(6)), "{listener} {client}");
            assert!(listener.contains(each), "{preset}: {listener}");
            assert!(client.contains("other direction"), "{preset}: {client}");
            for stderr in [listener, client] {
                assert!(
                    stderr.contains("hint: give --reverse on both sides or on neither"),
                    "{preset}: {stderr}"
                );
            }
        }
    }
}

/// Messages that are not read must not count as transferred.
#[test]
fn a_second_message_client_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (mut there, url) = listening(place.path(), &[]);
    let client = || {
        let mut command = haul();
        command.args(["pipe", "--preset", "msg"]).arg(&url).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut first = client();
    let mut input = first.stdin.take().unwrap();
    input.write_all(b"first\n").unwrap();
    let (mut output, mut read) = (there.0.stdout.take().unwrap(), [0; 6]);
    output.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"first\n");
    let mut second = client();
    // It may have ended before it reads this.
    let _ = second.stdin.take().unwrap().write_all(b"second\n");
    let second = second.wait_with_output().unwrap();
    exits(&second, 5);
    input.write_all(b"last\n").unwrap();
    drop(input);
    exits(&first.wait_with_output().unwrap(), 0);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "last\n");
    assert!(there.0.wait().unwrap().success());
}

/// Regression test: parts of a line equal to the part before were suppressed as repeated readings.
#[test]
fn a_reading_longer_than_a_message_ends_the_pipe() {
    let place = tempfile::tempdir().unwrap();
    let (mut there, url) = listening(place.path(), &[]);
    let mut connect = haul();
    connect.args(["pipe", "--preset", "sensor"]).arg(&url).stdin(Stdio::piped());
    let mut here = connect.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // What was read before is sent, though more slowly than it is read.
    let shorter: Vec<String> = (0..300).map(|n| format!("{n}\n")).collect();
    let readings = format!("{}\n{}", "0".repeat(1_023), shorter.concat());
    let input = [&readings[..], &"0".repeat(4_096)].concat();
    here.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut received = String::new();
    there.0.stdout.take().unwrap().read_to_string(&mut received).unwrap();
    assert_eq!(received, readings);
    let here = here.wait_with_output().unwrap();
    exits(&here, 2);
    let stderr = lossy(&here.stderr);
    assert!(
        stderr.contains("more than 1024 bytes") && stderr.contains("hint: send shorter lines"),
        "{stderr}"
    );
    assert!(!there.0.wait().unwrap().success());
}

#[test]
fn a_pipe_reports_its_recipe_in_both_directions() {
    for reverse in [&[][..], &["--reverse"]] {
        let place = tempfile::tempdir().unwrap();
        let (mut there, url) = listening(place.path(), &[&["--json"], reverse].concat());
        let mut connect = haul();
        connect.args(["pipe", "--json"]).args(reverse).arg(&url);
        connect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut here = connect.spawn().unwrap();
        let sender = if reverse.is_empty() { &mut here } else { &mut there.0 };
        sender.stdin.take().unwrap().write_all(b"data").unwrap();
        let here = here.wait_with_output().unwrap();
        exits(&here, 0);
        let mut both = lossy(&here.stdout) + &lossy(&here.stderr);
        there.0.stdout.take().unwrap().read_to_string(&mut both).unwrap();
        there.0.stderr.take().unwrap().read_to_string(&mut both).unwrap();
        assert!(there.0.wait().unwrap().success() && both.contains("data"), "{both}");
        for known in [r#""preset":"bulk""#, r#""controller":"bbr""#, r#""cipher":"#] {
            assert_eq!(both.matches(known).count(), 2, "{both}");
        }
        assert!(!both.contains(r#""cipher":"""#), "{both}");
    }
}

#[test]
fn both_sides_of_a_pipe_write_traces() {
    let events =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    for preset in ["bulk", "msg"] {
        let place = tempfile::tempdir().unwrap();
        let trace = place.path().join("trace");
        let (mut there, url) = listening(place.path(), &["--events", trace.to_str().unwrap()]);
        let mut connect = haul();
        connect.args(["pipe", "-q", "--preset", preset, "--events", "-"]).arg(&url);
        let mut here = connect.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = here.stdin.take().unwrap();
        stdin.write_all(b"one\n").unwrap();
        sleep(Duration::from_millis(500));
        drop(stdin);
        let here = here.wait_with_output().unwrap();
        assert!(there.0.wait().unwrap().success() && here.status.success());
        let there = std::fs::read_to_string(&trace).unwrap();
        for (trace, receives) in [(lossy(&here.stdout), false), (there, true)] {
            let events = events(&trace);
            let [start, .., end] = &events[..] else { panic!("{trace}") };
            assert_eq!((&start["event"], &start["receives"]), (&"start".into(), &receives.into()));
            assert_eq!(end["event"], "end");
            assert!(receives || events.iter().any(|event| event["event"] == "progress"), "{trace}");
            assert_eq!(end["preset"], preset);
        }
    }
    let output = haul().args(["pipe", "--listen", "127.0.0.1:0", "--events", "-"]).output().unwrap();
    exits(&output, 2);
    assert!(lossy(&output.stderr).contains("the data and --events - both mean stdout"));
}

#[test]
fn bytes_and_messages_use_the_chosen_law() {
    for preset in ["bulk", "msg"] {
        let place = tempfile::tempdir().unwrap();
        let (mut there, url) = listening(place.path(), &[]);
        let mut connect = haul();
        connect.args(["pipe", "--preset", preset, "--controller", "reno", "--diagnosis", "signature"]);
        connect.args(["--rate", "80Mbit"]).arg(&url);
        connect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut here = connect.spawn().unwrap();
        here.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
        exits(&here.wait_with_output().unwrap(), 0);
        let mut received = String::new();
        there.0.stdout.take().unwrap().read_to_string(&mut received).unwrap();
        assert_eq!(received, "one\ntwo\n", "{preset}");
    }
}

#[test]
fn a_listener_refuses_options_that_the_client_decides() {
    for options in [["--controller", "reno"], ["--rate", "1Mbit"], ["--set", "chunk=1MB"]] {
        let output = haul().args(["pipe", "--listen", "127.0.0.1:0"]).args(options).output().unwrap();
        exits(&output, 2);
        let stderr = lossy(&output.stderr);
        assert!(stderr.contains(&format!("give {} beside the URL", options[0])), "{stderr}");
    }
}

/// They were ignored, and a mistaken listener connected to the URL in the environment.
#[test]
fn a_client_refuses_the_options_of_a_listener() {
    let url = format!("haul://127.0.0.1:9/?k=AQ{}", "A".repeat(96));
    for options in [["--url-file", "/nonexistent/url"], ["--host", "here"]] {
        let output = haul().arg("pipe").args(options).env("HAUL_URL", &url).output().unwrap();
        exits(&output, 2);
        let stderr = lossy(&output.stderr);
        assert!(stderr.contains(&format!("give {} beside --listen", options[0])), "{stderr}");
    }
}

/// Polls until `found` returns a value.
fn soon<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out");
        sleep(Duration::from_millis(20));
    }
}

/// Runs `haul ctl` for a process whose control socket is in `place`, once the socket exists.
fn ctl(place: &Path, process: &Running, changes: &[&str]) -> Output {
    let name = process.0.id().to_string();
    soon(|| place.join("haul").join(&name).exists().then_some(()));
    haul().env("XDG_RUNTIME_DIR", place).args(["ctl", "--json", &name]).args(changes).output().unwrap()
}

fn law(output: &Output) -> Value {
    exits(output, 0);
    object(output)["copy"]["rate_control"].clone()
}

/// The sender's law after `haul ctl` on the receiver requested another one, and a rate above the ceiling
/// given with the URL.
fn law_after_a_request(preset: &str, reverse: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (there, url) = listening(place, reverse);
    let mut connect = haul();
    connect.env("XDG_RUNTIME_DIR", place).args(["pipe", "--preset", preset, "--rate", "16Mbit"]);
    connect.args(reverse).arg(&url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let here = Running(connect.spawn().unwrap());
    let (mut sender, mut receiver) = if reverse.is_empty() { (here, there) } else { (there, here) };
    for (wrong, words) in [("controller=frobnicate", "frobnicate"), ("rate=0bit", "above zero")] {
        let refused = ctl(place, &receiver, &[wrong]);
        exits(&refused, 2);
        assert!(lossy(&refused.stderr).contains(words), "{}", lossy(&refused.stderr));
    }
    let reply = ctl(place, &receiver, &["controller=reno", "rate=900Mbit"]);
    assert_eq!(object(&reply)["copy"]["side"], "receives");
    assert_eq!((&law(&reply)["controller"], &law(&reply)["rate"]), (&"reno".into(), &"900Mbit".into()));
    let changed = soon(|| Some(law(&ctl(place, &sender, &[]))).filter(|law| law["controller"] == "reno"));
    let mut stdin = sender.0.stdin.take().unwrap();
    stdin.write_all(b"after the change\n").unwrap();
    drop(stdin);
    let mut received = String::new();
    receiver.0.stdout.take().unwrap().read_to_string(&mut received).unwrap();
    assert_eq!(received, "after the change\n", "{preset} {reverse:?}");
    assert!(sender.0.wait().unwrap().success() && receiver.0.wait().unwrap().success());
    assert!(!place.join("haul").exists(), "the directory of control sockets is left");
    changed
}

#[test]
fn a_receiving_pipe_changes_its_senders_law_but_not_its_ceiling() {
    for (preset, reverse, rate) in [
        ("bulk", &[][..], "16Mbit"),
        ("bulk", &["--reverse"], "900Mbit"),
        ("streams", &[], "900Mbit"),
        ("streams", &["--reverse"], "900Mbit"),
    ] {
        assert_eq!(law_after_a_request(preset, reverse)["rate"], rate, "{preset} {reverse:?}");
    }
}

/// Nobody reads the receiver's stdout, so it is full.
#[test]
fn a_receiving_pipe_answers_while_its_reader_is_stuck() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (there, url) = listening(place, &[]);
    let mut connect = haul();
    connect.env("XDG_RUNTIME_DIR", place).arg("pipe").arg(&url).stdin(Stdio::piped());
    let mut here = Running(connect.stderr(Stdio::piped()).spawn().unwrap());
    let mut stdin = here.0.stdin.take().unwrap();
    stdin.write_all(&vec![7; 1 << 20]).unwrap();
    // More than a kernel pipe holds.
    let moved = |output: &Output| object(output)["copy"]["bytes"].as_u64().filter(|&bytes| bytes > 1 << 16);
    soon(|| moved(&ctl(place, &there, &[])));
    assert_eq!(law(&ctl(place, &there, &["controller=reno"]))["controller"], "reno");
}

#[test]
fn haul_ctl_changes_the_law_of_a_sending_pipe() {
    for preset in ["bulk", "streams"] {
        let place = tempfile::tempdir().unwrap();
        let (mut there, url) = listening(place.path(), &[]);
        let mut connect = haul();
        connect.env("XDG_RUNTIME_DIR", place.path()).args(["pipe", "--preset", preset]).arg(&url);
        let mut here = Running(connect.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let name = here.0.id().to_string();
        let begun = Instant::now();
        while !place.path().join("haul").join(&name).exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "timed out");
            sleep(Duration::from_millis(10));
        }
        let ctl = |change: &str| {
            let words = ["ctl", "--json", &name, change];
            haul().env("XDG_RUNTIME_DIR", place.path()).args(words).output().unwrap()
        };
        exits(&ctl("controller=frobnicate"), 2);
        let changed = ctl("controller=reno");
        exits(&changed, 0);
        assert_eq!(object(&changed)["copy"]["rate_control"]["controller"], "reno", "{preset}");
        let mut stdin = here.0.stdin.take().unwrap();
        stdin.write_all(b"after the change\n").unwrap();
        drop(stdin);
        let mut received = String::new();
        there.0.stdout.take().unwrap().read_to_string(&mut received).unwrap();
        assert_eq!(received, "after the change\n", "{preset}");
        assert!(here.0.wait().unwrap().success());
        assert!(!place.path().join("haul").exists(), "the directory of control sockets is left");
    }
}

/// The report of a pipe that sends `bytes` in pieces to a listener whose stdout is read in pieces, one every
/// 50 ms.
fn limit_of_a_pipe(bytes: usize, fed: usize, read: usize, options: &[&str]) -> Value {
    const EACH: Duration = Duration::from_millis(50);
    let place = tempfile::tempdir().unwrap();
    let (mut there, url) = listening(place.path(), &[]);
    let mut connect = haul();
    connect.args(["pipe", "--json"]).args(options).arg(&url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut here = connect.spawn().unwrap();
    let (mut stdin, mut stdout) = (here.stdin.take().unwrap(), there.0.stdout.take().unwrap());
    let feeding = std::thread::spawn(move || {
        for piece in vec![7; bytes].chunks(fed) {
            stdin.write_all(piece).unwrap();
            sleep(EACH);
        }
    });
    let mut received = 0;
    loop {
        let mut piece = Vec::new();
        stdout.by_ref().take(read as u64).read_to_end(&mut piece).unwrap();
        if piece.is_empty() {
            break;
        }
        received += piece.len();
        sleep(EACH);
    }
    feeding.join().unwrap();
    assert_eq!(received, bytes);
    let output = here.wait_with_output().unwrap();
    exits(&output, 0);
    object(&output)
}

#[test]
fn a_sending_pipe_reports_its_limit() {
    // The limit is the writer of stdin, the reader of stdout, or the requested rate.
    for (bytes, fed, read, why) in [
        (600_000, 20_000, 1 << 20, "reading was behind"),
        (90_000_000, 90_000_000, 1_000_000, "writing was behind"),
    ] {
        let is_right = |limit: &Value| {
            let evidence = limit["limited_by_evidence"].as_str().unwrap_or_default();
            limit["limited_by"] == "application" && evidence.starts_with(why)
        };
        let limit = attempts(|| limit_of_a_pipe(bytes, fed, read, &[]), is_right);
        assert!(is_right(&limit), "{limit}");
    }
    let limit_with_rate = || limit_of_a_pipe(1_000_000, 1_000_000, 1 << 20, &["--rate", "4Mbit"]);
    let limit = attempts(limit_with_rate, |limit| limit["limited_by"] == "rate_ceiling");
    assert_eq!(limit["limited_by"], "rate_ceiling", "{limit}");
}

/// The sender buffers all of its input at once, and then waits.
#[test]
fn the_trace_of_a_sender_continues_while_it_waits() {
    let place = tempfile::tempdir().unwrap();
    let (mut there, url) = listening(place.path(), &[]);
    let mut stdout = there.0.stdout.take().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()).unwrap());
    let mut connect = haul();
    connect.args(["pipe", "-q", "--rate", "20Mbit", "--events", "-"]).arg(&url).stdin(Stdio::piped());
    let mut here = connect.stdout(Stdio::piped()).spawn().unwrap();
    here.stdin.take().unwrap().write_all(&vec![7; 5_000_000]).unwrap();
    let here = here.wait_with_output().unwrap();
    exits(&here, 0);
    assert_eq!(reading.join().unwrap(), 5_000_000);
    let trace = lossy(&here.stdout);
    assert!(trace.matches(r#""event":"progress""#).count() >= 10, "{trace}");
}

#[test]
fn an_interrupted_pipe_reports_what_was_moved() {
    for preset in ["bulk", "msg"] {
        let place = tempfile::tempdir().unwrap();
        let (mut there, url) = listening(place.path(), &["--json"]);
        let mut connect = haul();
        connect.args(["pipe", "--json", "--preset", preset]).arg(&url);
        connect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut here = connect.spawn().unwrap();
        let mut stdin = here.stdin.take().unwrap();
        stdin.write_all(b"one\n").unwrap();
        let mut received = [0; 4];
        there.0.stdout.as_mut().unwrap().read_exact(&mut received).unwrap();
        kill_process(Pid::from_child(&there.0), Signal::INT).unwrap();
        let mut stderr = String::new();
        there.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(there.0.wait().unwrap().code(), Some(130), "{stderr}");
        let here = here.wait_with_output().unwrap();
        exits(&here, 5);
        let receiver: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
        assert_eq!(receiver["error"]["code"], "interrupted", "{receiver}");
        for report in [receiver, object(&here)] {
            assert!(report["ok"] == false && report["bytes"] == 4 && report["preset"] == preset, "{report}");
            assert!(report["seconds"].as_f64() > Some(0.0), "{report}");
        }
        drop(stdin);
    }
}

#[test]
fn errors_of_a_receiving_pipe_do_not_enter_its_data() {
    let variable = |name: &'static str, value: &'static str| Some((name, value));
    for (words, variable, code) in [
        ("--listen 127.0.0.1:0 --json --events /nonexistent/x", None, 7),
        ("--listen=127.0.0.1:0 --diagnosis-model /nonexistent/x", variable("HAUL_JSON", "1"), 7),
        ("--listen 127.0.0.1:0 --json", variable("HAUL_FRAME", "5"), 2),
        ("--listen 127.0.0.1:0 --bogus --json", None, 2),
        ("--bogus", variable("HAUL_CONFIG", "config.toml"), 2),
        ("--reverse --json --preset nosuch haul://h:1/", None, 2),
    ] {
        let place = tempfile::tempdir().unwrap();
        let config = "json = true\n[pipe]\nlisten = '127.0.0.1:0'";
        std::fs::write(place.path().join("config.toml"), config).unwrap();
        let mut command = haul();
        command.arg("pipe").args(words.split(' ')).envs(variable).current_dir(place.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        exits(&output, code);
        assert!(output.stdout.is_empty(), "{words}: {}", lossy(&output.stdout));
        let stderr = lossy(&output.stderr);
        let object: Value = serde_json::from_str(stderr.lines().last().unwrap()).expect(&stderr);
        assert!(object["ok"] == false && object["error"]["message"].is_string(), "{words}: {stderr}");
    }
    for words in [
        &["pipe", "--bogus"][..],
        &["pipe", "--preset", "msg", "haul://h:1/", "--bogus"],
        &["-q", "pipe", "@url", "--bogus"],
    ] {
        // With a URL, the configured address does not make it a receiver.
        let configured = (words.len() > 2).then_some(("HAUL_LISTEN", "127.0.0.1:0"));
        let sender = haul().args(words).env("HAUL_JSON", "1").envs(configured).output().unwrap();
        assert!(object(&sender)["error"]["message"].as_str().unwrap().contains("--bogus"), "{sender:?}");
    }
}

/// Regression test: what could not be written to stdout was reported as received.
#[test]
fn a_receiving_pipe_reports_only_what_it_has_written() {
    for preset in ["bulk", "msg"] {
        let place = tempfile::tempdir().unwrap();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (mut there, url) = listening_to(place.path(), &["--json"], full.into());
        let mut connect = haul();
        connect.args(["pipe", "--preset", preset]).arg(&url).stdin(Stdio::piped());
        let mut here = connect.stderr(Stdio::null()).spawn().unwrap();
        here.stdin.take().unwrap().write_all(b"lost\n").unwrap();
        let mut stderr = String::new();
        there.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(there.0.wait().unwrap().code(), Some(7), "{stderr}");
        let report: Value = serde_json::from_str(stderr.lines().last().unwrap()).expect(&stderr);
        assert!(report["error"]["code"] == "disk_full" && report["bytes"] == 0, "{preset}: {report}");
        here.wait().unwrap();
    }
}
