//! `haul pipe` between two namespaces.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{LIMIT, Mtu, Net, PORT, directory, haul, until};

/// A listener and its URL.
pub(super) struct Listening {
    pub(super) child: Child,
    pub(super) url: String,
}

pub(super) fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(super) fn listen(net: &Net, directory: &Path, options: &[&str]) -> Listening {
    let file = directory.join("url");
    let listen = format!("0.0.0.0:{PORT}");
    let mut command = haul(&net.server, ["pipe", "--listen", &listen, "--host", Net::SERVER, "--url-file"]);
    let child = start(command.arg(&file).args(options));
    Listening { child, url: url_in(&file) }
}

fn url_in(file: &Path) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        let url = std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        if !url.is_empty() {
            return url;
        }
        assert!(Instant::now() < end, "no URL");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a client has its UDP socket, and so contacts the listener even if it is interrupted. Before it has its
/// handlers of signals, it has other sockets.
fn has_udp_socket(pid: u32) -> bool {
    let tables = ["udp", "udp6"].map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    // The inode is the tenth column (proc_net(5)).
    let inodes = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let sockets: Vec<_> =
        inodes.filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(9)?))).collect();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.any(|target| sockets.iter().any(|socket| *socket == target.to_string_lossy()))
}

/// Writes `input` to stdin and returns exit code, stdout and stderr.
fn feed(mut child: Child, input: Vec<u8>) -> (i32, Vec<u8>, String) {
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let result = finish(child);
    drop(writer.join());
    result
}

pub(super) fn finish(child: Child) -> (i32, Vec<u8>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// As [`finish`], for a process that must end without further input.
fn finish_within(mut child: Child, most: Duration) -> (i32, Vec<u8>, String) {
    let end = Instant::now() + most;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= end {
            child.kill().unwrap();
            panic!("still running after {most:?}: {}", finish(child).2);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    finish(child)
}

fn lines(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|number| format!("line {number} {}\n", "x".repeat(number % 300)).into_bytes())
        .collect()
}

#[test]
fn bytes_and_lines_arrive_unchanged_in_both_directions() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for (preset, input) in [
        ("bulk", lines(60_000)),
        ("default", lines(30_000)),
        ("fobs", lines(30_000)),
        ("rbudp", lines(30_000)),
        ("msg", lines(3_000)),
    ] {
        for reverse in [&[][..], &["--reverse"]] {
            let place = directory();
            let listening = listen(&net, place.path(), reverse);
            let mut command = haul(&net.client, ["pipe", "--preset", preset]);
            let client = start(command.args(reverse).arg(&listening.url));
            let (sender, receiver) =
                if reverse.is_empty() { (client, listening.child) } else { (listening.child, client) };
            let expected = input.clone();
            let reading = std::thread::spawn(move || finish(receiver));
            let (code, _, stderr) = feed(sender, input.clone());
            let (other, got, words) = reading.join().unwrap();
            assert_eq!((code, other), (0, 0), "{preset} {reverse:?}: {stderr} {words}");
            assert!(got == expected, "{preset} {reverse:?}: {} of {} bytes", got.len(), expected.len());
        }
    }
}

#[test]
fn the_json_goes_to_the_stream_without_data() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let object = |text: &str| -> serde_json::Value {
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    for preset in ["bulk", "fobs", "msg"] {
        let place = directory();
        let listening = listen(&net, place.path(), &["--json"]);
        let mut command = haul(&net.client, ["pipe", "--json", "--preset", preset]);
        let client = start(command.arg(&listening.url));
        let receiver = std::thread::spawn(move || finish(listening.child));
        let (code, stdout, stderr) = feed(client, lines(500));
        let (other, got, words) = receiver.join().unwrap();
        assert_eq!((code, other), (0, 0), "{stderr} {words}");
        assert!(got == lines(500), "unexpected output: {} bytes", got.len());
        let sent = object(&String::from_utf8(stdout).unwrap());
        assert!(sent["packets_sent"].as_u64() > Some(0) && sent["rtt_ms"].as_f64() > Some(0.0), "{sent}");
        for report in [sent, object(&words)] {
            assert!(report["ok"] == true && report["preset"] == preset, "{report}");
            assert_eq!(report["bytes"].as_u64(), Some(lines(500).len() as u64), "{report}");
        }
    }
    let nobody = "haul://127.0.0.1:9/?cert=none";
    let mut command = haul(&net.client, ["pipe", "--json", "--reverse", nobody]);
    let (code, stdout, stderr) = feed(start(&mut command), Vec::new());
    assert!(code != 0 && stdout.is_empty(), "{stderr}");
    assert!(object(&stderr)["error"]["code"].is_string(), "{stderr}");
}

#[test]
fn frames_of_a_fixed_rate_stream_arrive_and_the_receiver_counts_them() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let place = directory();
    let listening = listen(&net, place.path(), &[]);
    let mut command = haul(&net.client, ["pipe", "--preset", "viz", "--rate", "50Mbit", "--frame", "500B"]);
    let client = start(command.arg(&listening.url));
    let receiver = std::thread::spawn(move || finish(listening.child));
    let (code, _, stderr) = feed(client, vec![7; 500_000]);
    let (other, got, words) = receiver.join().unwrap();
    assert_eq!((code, other), (0, 0), "{stderr} {words}");
    assert!(words.contains("messages"), "{words}");
    assert!(
        got.len() % 500 == 0 && got.len() > 250_000 && got.iter().all(|&byte| byte == 7),
        "{}",
        got.len()
    );
}

#[test]
fn conflicting_directions_are_refused_with_the_reason() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for preset in ["bulk", "msg"] {
        let place = directory();
        let mut listening = listen(&net, place.path(), &["--reverse"]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset]);
        let (code, _, stderr) = feed(start(command.arg(&listening.url)), Vec::new());
        assert_eq!(code, 6, "{stderr}");
        assert!(stderr.contains("--reverse") || stderr.contains("does not receive"), "{stderr}");
        listening.child.kill().unwrap();
        drop(finish(listening.child));
    }
}

#[test]
fn a_killed_side_is_noticed_by_the_peer() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for (preset, sender_dies) in [("bulk", true), ("bulk", false), ("msg", true), ("msg", false)] {
        let place = directory();
        let mut listening = listen(&net, place.path(), &[]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset]);
        let mut client = start(command.arg(&listening.url));
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"first\n").unwrap();
        let mut first = [0; 6];
        listening.child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let (mut dies, survives) =
            if sender_dies { (client, listening.child) } else { (listening.child, client) };
        dies.kill().unwrap();
        drop(finish(dies));
        let (code, _, stderr) = finish(survives);
        assert_eq!(code, 5, "{preset}, sender dies: {sender_dies}: {stderr}");
        assert!(stderr.contains("cannot be resumed") && !stderr.contains("to resume"), "{preset}: {stderr}");
        drop(stdin);
    }
}

#[test]
fn closing_stdout_or_ctrl_c_ends_both_sides() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for preset in ["bulk", "msg"] {
        let place = directory();
        let mut listening = listen(&net, place.path(), &[]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset]);
        let client = start(command.arg(&listening.url));
        drop(listening.child.stdout.take());
        let sender = std::thread::spawn(move || feed(client, lines(400_000)));
        let (code, _, stderr) = finish(listening.child);
        assert_eq!(code, 0, "{preset}: {stderr}");
        assert!(stderr.contains("the reader of stdout has gone"), "{stderr}");
        let (code, _, stderr) = sender.join().unwrap();
        assert!(code != 0 && stderr.contains("error: "), "{preset}: {code} {stderr}");
        let place = directory();
        let listening = listen(&net, place.path(), &[]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset]);
        let mut client = start(command.arg(&listening.url));
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"first\n").unwrap();
        let pid = rustix::process::Pid::from_child(&client);
        until("the client to have a UDP socket", || has_udp_socket(client.id()));
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let (code, _, stderr) = finish(client);
        assert_eq!(code, 130, "{preset}: {stderr}");
        let (code, _, stderr) = finish(listening.child);
        assert_eq!(code, 5, "{preset}: wrong exit code after an interruption: {stderr}");
        drop(stdin);
    }
}

/// The limit in docs/cli.md for noticing a dead peer.
const GONE: Duration = Duration::from_secs(12);

#[test]
fn a_client_ending_before_its_first_message_ends_the_listener() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for preset in ["msg", "viz", "sensor", "bulk", "fobs"] {
        for reverse in [&[][..], &["--reverse"]] {
            let place = directory();
            let listening = listen(&net, place.path(), reverse);
            let mut command = haul(&net.client, ["pipe", "--preset", preset]);
            let client = start(command.args(reverse).arg(&listening.url));
            let (sender, receiver) =
                if reverse.is_empty() { (client, listening.child) } else { (listening.child, client) };
            let (code, _, stderr) = feed(sender, Vec::new());
            let (other, got, words) = finish_within(receiver, GONE);
            assert_eq!((code, other), (0, 0), "{preset} {reverse:?}: {stderr} {words}");
            assert!(got.is_empty(), "{preset} {reverse:?}");
        }
    }
}

#[test]
fn a_client_interrupted_before_its_first_message_ends_the_listener() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    for preset in ["msg", "viz", "sensor", "bulk"] {
        let place = directory();
        let listening = listen(&net, place.path(), &[]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset]);
        let mut client = start(command.arg(&listening.url));
        let stdin = client.stdin.take().unwrap();
        until("the client to have a UDP socket", || has_udp_socket(client.id()));
        let pid = rustix::process::Pid::from_child(&client);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let (code, _, stderr) = finish_within(client, GONE);
        assert_eq!(code, 130, "{preset}: {stderr}");
        let (code, got, stderr) = finish_within(listening.child, GONE);
        assert!(code == 5 && got.is_empty(), "{preset}: wrong exit code after an interruption: {stderr}");
        drop(stdin);
    }
}

#[test]
fn too_large_frames_are_refused_before_anything_is_sent() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let nobody = format!("haul://127.0.0.1:9/?k=AQ{}", "A".repeat(96));
    for (preset, frame, words, hint) in [
        ("msg", "0B", "must not be zero", "leave it out"),
        ("sensor", "2000B", "exceeds the maximum message size of sensor", "hint: "),
        ("viz", "1MiB", "max_message", "hint: "),
    ] {
        let mut command = haul(&net.client, ["pipe", "--preset", preset, "--frame", frame, &nobody]);
        let (code, _, stderr) = feed(start(&mut command), vec![7; 5_000]);
        assert_eq!(code, 2, "{preset}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains(hint), "{preset}: {stderr}");
    }
}

#[test]
fn a_line_longer_than_a_message_is_split_and_rejoined() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    // A reading may not be split.
    for (preset, len) in [("msg", 200_000), ("sensor", 1_023)] {
        let place = directory();
        let listening = listen(&net, place.path(), &[]);
        let mut command = haul(&net.client, ["pipe", "--preset", preset, "--rate", "50Mbit"]);
        let client = start(command.arg(&listening.url));
        let line: Vec<u8> = (0..len).map(|at| b'a' + (at / 700 % 26) as u8).chain(*b"\n").collect();
        let expected = line.clone();
        let receiver = std::thread::spawn(move || finish(listening.child));
        let (code, _, stderr) = feed(client, line);
        let (other, got, words) = receiver.join().unwrap();
        assert_eq!((code, other), (0, 0), "{preset}: {stderr} {words}");
        assert!(got == expected, "{preset}: {} of {} bytes", got.len(), expected.len());
    }
}
