//! Copies over ssh, against a real sshd.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    FAR, HAUL, Host, LIMIT, Mtu, Net, Running, Sshd, assert_same, assert_same_file, at, children, contents,
    copy, directory, file, free_port, many, names, run_here, until,
};

/// A name with characters that are special to a shell, to C strings or to URLs.
const ODD: &[u8] = b"it's \"a\" $(touch oops); %41 \xff\xfe *";

/// `far:PATH`.
fn far(path: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("{FAR}:"));
    word.push(path);
    word
}

#[test]
fn trees_to_and_from_the_home_directory() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let (tree, back) = (here.path().join("tree"), here.path().join("back"));
    many(&tree, 50, 2_000_000);
    file(&tree.join(OsStr::from_bytes(ODD)).join("x"), 5, 5_000);
    sshd.copies([tree.as_os_str(), &far("there")]).exits(0);
    assert_same(&tree, &sshd.home().join("there"));
    sshd.copies([far("~/there"), back.clone().into()]).exits(0);
    assert_same(&tree, &back);
    until("the server to end", || sshd.hauls().is_empty());
}

#[test]
fn no_shell_interprets_names() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let name = OsStr::from_bytes(ODD);
    let (source, back) = (here.path().join(name), here.path().join("back"));
    file(&source, 1, 100_000);
    let mut there = sshd.home().into_os_string().into_vec();
    there.push(b'/');
    there.extend_from_slice(ODD);
    sshd.copies([source.as_os_str(), &far(OsString::from_vec(there))]).exits(0);
    assert_same_file(&source, &sshd.home().join(name));
    sshd.copies([far(name), back.clone().into()]).exits(0);
    assert_same_file(&source, &back);
    assert_eq!(names(&sshd.home()).len(), 1, "unexpected files: {:?}", names(&sshd.home()));
}

#[test]
fn a_banner_and_a_forced_command_are_tolerated() {
    let Some(sshd) = Sshd::here("ForceCommand $HOME/wrapper") else { return };
    sshd.script(
        "wrapper",
        "head -c 30000 /dev/zero | tr '\\0' 'w'; echo; echo '#haul-over-ssh# {'; cd /\n\
         printf 'Welcome, and no line end'; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"",
    );
    let here = directory();
    file(&here.path().join("file"), 1, 300_000);
    sshd.copies([here.path().join("file").as_os_str(), &far("got")]).exits(0);
    assert_same_file(&here.path().join("file"), &sshd.home().join("got"));
}

#[test]
fn owners_are_copied_on_request_as_in_local_copies() {
    if !rustix::process::geteuid().is_root() {
        crate::support::skip("only root can give files away");
        return;
    }
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    std::os::unix::fs::lchown(&source, Some(54_321), Some(54_322)).unwrap();
    let owner =
        |name: &str| std::os::unix::fs::MetadataExt::uid(&fs::metadata(sshd.home().join(name)).unwrap());
    sshd.copies([source.as_os_str(), &far("plain")]).exits(0);
    sshd.copies([OsStr::new("-a"), source.as_os_str(), &far("owned")]).exits(0);
    assert_eq!((owner("plain"), owner("owned")), (0, 54_321));
    // The remote side's configuration applies, and the report says so.
    fs::create_dir_all(sshd.home().join(".config/haul")).unwrap();
    fs::write(sshd.home().join(".config/haul/config.toml"), "[serve]\npreserve = \"none\"").unwrap();
    let outcome = sshd.copies([OsStr::new("-a"), source.as_os_str(), &far("refused")]).exits(0);
    assert_eq!(owner("refused"), 0);
    assert!(outcome.stderr.contains("does not permit the owner 54321:54322"), "{outcome:?}");
}

#[test]
fn through_a_jump_host() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    file(&here.path().join("file"), 1, 300_000);
    let logins = || sshd.log().matches("Accepted publickey").count();
    let source = here.path().join("file");
    sshd.copies([source.as_os_str(), &far("one")]).exits(0);
    assert_eq!(logins(), 1);
    sshd.copies([OsStr::new("-J"), OsStr::new(FAR), source.as_os_str(), &far("two")]).exits(0);
    assert_eq!(logins(), 3);
    assert_same_file(&source, &sshd.home().join("two"));
}

#[test]
fn ssh_prompts_at_the_terminal_and_fails_without_one() {
    let Some(sshd) = Sshd::here("") else { return };
    if !["script", "setsid"].iter().all(|tool| Command::new(tool).arg("-V").output().is_ok()) {
        crate::support::skip("the programs `script` and `setsid` are missing");
        return;
    }
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    sshd.protect_key("open sesame");
    let words = [source.as_os_str(), &far("got")];
    let mut alone = Command::new("setsid");
    alone.args(["-w", HAUL]);
    Running::start(&mut copy(alone, &sshd.config(), words))
        .wait(LIMIT)
        .exits(6)
        .assert_shows(&["Permission denied", "terminal"]);
    let line: Vec<String> =
        sshd.cp(words).get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &format!("'{HAUL}' {}", line.join(" ")), "/dev/null"]);
    crate::support::clean(&mut terminal);
    terminal.env("HAUL_REMOTE_BINARY", HAUL).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = Started(terminal.spawn().unwrap());
    let (mut seen, mut buffer) = (Vec::new(), [0; 256]);
    while !seen.windows(10).any(|window| window == b"passphrase") {
        let len = terminal.0.stdout.as_mut().unwrap().read(&mut buffer).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..len]);
    }
    terminal.0.stdin.as_mut().unwrap().write_all(b"open sesame\n").unwrap();
    terminal.0.stdout.as_mut().unwrap().read_to_end(&mut seen).unwrap();
    assert!(terminal.0.wait().unwrap().success(), "{}", String::from_utf8_lossy(&seen));
    assert_same_file(&source, &sshd.home().join("got"));
}

#[test]
fn the_remote_servers_configuration_applies() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let (source, back) = (here.path().join("file"), here.path().join("back"));
    file(&source, 1, 10_000);
    fs::create_dir_all(sshd.home().join(".config/haul")).unwrap();
    let configure = |text: &str| fs::write(sshd.home().join(".config/haul/config.toml"), text).unwrap();
    let free = free_port();
    configure(&format!(
        "[serve]\nport_range = \"{free}\"\nlisten = \"192.0.2.1:7\"\nroot = \"/nonexistent\""
    ));
    let outcome = sshd.copies([OsStr::new("--dry-run"), source.as_os_str(), &far("got")]).exits(0);
    assert!(outcome.stdout.contains(&format!(" at 127.0.0.1:{free}\n")), "{outcome:?}");
    sshd.copies([source.as_os_str(), &far("got")]).exits(0);
    configure("[serve]\nread_only = true");
    sshd.copies([source.as_os_str(), &far("again")]).exits(6).assert_shows(&["read-only"]);
    sshd.copies([far("got"), back.clone().into()]).exits(0);
    assert_same_file(&source, &back);
    assert!(!sshd.home().join("again").exists());
}

#[test]
fn over_ipv6() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let Some(sshd) = Sshd::on(&net.server, Net::SERVER_V6) else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 300_000);
    let key = sshd.key();
    for (number, place) in ["far:", "[fd77::2]:", "ssh://[fd77::2]:22/~/"].iter().enumerate() {
        let to = OsString::from(format!("{place}{number}"));
        let words = [OsStr::new("-i"), key.as_os_str(), source.as_os_str(), &to];
        Running::start(&mut copy(net.client.command(HAUL), &sshd.config(), words)).wait(LIMIT).exits(0);
        assert_same_file(&source, &sshd.home().join(number.to_string()));
    }
}

#[test]
fn ssh_options_and_ssh_urls() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    // The configured port is wrong; each of these overrides it.
    let config = sshd.config();
    let text = fs::read_to_string(&config).unwrap();
    let line = text.lines().find(|line| line.starts_with("Port ")).unwrap();
    let port = line.trim_start_matches("Port ").to_owned();
    fs::write(&config, text.replace(line, "Port 1")).unwrap();
    let option = format!("Port={port}");
    for (number, options) in
        [["-P", &port], ["-o", &option], ["--ssh", &format!("ssh -p '{port}'")]].iter().enumerate()
    {
        let to = far(format!("{number}"));
        sshd.copies([OsStr::new(options[0]), OsStr::new(options[1]), source.as_os_str(), &to]).exits(0);
    }
    let url = format!("ssh://{FAR}:{port}/~/3");
    sshd.copies([OsStr::new("-P"), OsStr::new("1"), source.as_os_str(), OsStr::new(&url)]).exits(0);
    assert_eq!(names(&sshd.home()), ["0", "1", "2", "3"]);
}

#[test]
fn a_dry_run_moves_nothing_and_reports_the_negotiation() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    let outcome = sshd.copies([OsStr::new("--dry-run"), source.as_os_str(), &far("x")]).exits(0);
    assert!(outcome.stdout.contains("to far:x\n") && outcome.stdout.contains("cipher: "), "{outcome:?}");
    assert!(names(&sshd.home()).is_empty());
    until("the server to end", || sshd.hauls().is_empty());
}

#[test]
fn file_failures_are_reported_as_in_any_copy() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let to = here.path().join("x").into_os_string();
    sshd.copies([far("missing"), to.clone()]).exits(7).assert_shows(&["missing"]);
    let outcome = sshd.copies([OsString::from("--json"), far("missing"), to]).exits(7);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["error"]["code"], "no_such_path");
    assert!(names(here.path()).is_empty());
}

fn end(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits for a temporary file with allocated blocks.
#[track_caller]
fn until_under_way(directory: &Path) {
    use std::os::unix::fs::MetadataExt;
    until("bytes at the destination", || {
        let entries = fs::read_dir(directory).unwrap().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).any(|found| found.is_file() && found.blocks() > 0)
    });
}

#[test]
fn the_transfer_survives_the_end_of_ssh() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 12 << 20);
    let words = [OsStr::new("--rate"), OsStr::new("60Mbit"), source.as_os_str(), &far("got")];
    let copy = Running::start(&mut sshd.cp(words));
    until_under_way(&sshd.home());
    let ssh = children(copy.id());
    assert_eq!(ssh.len(), 1);
    end(ssh[0], Signal::KILL);
    let outcome = copy.wait(LIMIT).exits(0);
    assert!(outcome.stderr.contains("ssh connection to far ended early"), "{}", outcome.stderr);
    assert_same_file(&source, &sshd.home().join("got"));
    until("the server to end", || sshd.hauls().is_empty());
}

#[test]
fn no_remote_process_remains_when_the_client_is_stopped_or_killed() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 24 << 20);
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let words = [OsStr::new("--rate"), OsStr::new("20Mbit"), source.as_os_str(), &far("got")];
        let copy = Running::start(&mut sshd.cp(words));
        until_under_way(&sshd.home());
        copy.signal(signal);
        assert_eq!(copy.wait(LIMIT).code, code);
        until("the server to end", || sshd.hauls().is_empty());
        assert!(!sshd.home().join("got").exists());
    }
}

#[test]
fn a_server_started_by_ssh_keeps_exactly_the_configured_space_free() {
    let Some(sshd) = Sshd::here("") else { return };
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 3_000_000);
    let cp = |min_free: &str| {
        let haul = sshd.script("haul", &format!("exec '{HAUL}' \"$@\" {min_free}"));
        let words = [OsStr::new("--remote-binary"), haul.as_os_str(), source.as_os_str(), &far("got")];
        sshd.copies(words)
    };
    cp("--min-free 1000000GB").exits(7).assert_shows(&["must stay free", "--min-free"]);
    assert!(!sshd.home().join("got").exists());
    cp("").exits(0);
    assert_same_file(&source, &sshd.home().join("got"));
}

#[test]
fn a_server_started_by_ssh_ends_with_its_stdin() {
    let Some(sshd) = Sshd::here("") else { return };
    let mut command = Command::new(HAUL);
    crate::support::clean(&mut command);
    // Stdin is at its end immediately.
    command.env("HOME", sshd.home()).args(["serve", "--once", "--for-ssh"]);
    let outcome = Running::start(&mut command).wait(LIMIT).exits(130);
    assert!(outcome.stdout.starts_with("#haul-over-ssh# {"), "{outcome:?}");
}

/// A server as ssh starts it, with a pipe as its stdin. Killed when dropped.
struct Started(std::process::Child);

impl Started {
    fn new(home: &Path) -> Self {
        let mut command = Command::new(HAUL);
        crate::support::clean(&mut command);
        command.env("HOME", home).args(["serve", "--once", "--for-ssh"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(piped.spawn().unwrap())
    }

    /// Sends the server its permissions and returns its URL.
    fn url(&mut self, permit: &str) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        writeln!(self.0.stdin.as_mut().unwrap(), "{permit}").unwrap();
        let announced: Value = serde_json::from_str(line.trim_start_matches("#haul-over-ssh# ")).unwrap();
        announced["url"].as_str().unwrap().replace("by-ssh", "127.0.0.1")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_started_by_ssh_serves_only_its_request() {
    let (here, home) = (directory(), directory());
    let source = here.path().join("file");
    file(&source, 1, 10_000);
    file(&home.path().join("secret"), 2, 10_000);
    let mut server = Started::new(home.path());
    let receive_policy = serde_json::to_value(haul_wire::control::ReceivePolicy::default()).unwrap();
    let preserve = serde_json::to_value(haul_wire::control::Preserve::default()).unwrap();
    let url = server.url(&serde_json::json!({ "put": [b"in", receive_policy, preserve] }).to_string());
    let cp = |from: &Path, to: &Path| run_here([Path::new("cp"), from, to]);
    let at = |path: &str| PathBuf::from(at(&url, path));
    let got = here.path().join("got");
    cp(&at("secret"), &got).exits(6).assert_shows(&["started over ssh for another copy"]);
    cp(&source, &at("elsewhere")).exits(6);
    cp(&source, &at("in/../elsewhere")).exits(6);
    run_here([Path::new("bench"), &at("")]).exits(6);
    assert_eq!(names(home.path()), ["secret"]);
    assert_eq!(names(here.path()), ["file"]);
    cp(&source, &at("in")).exits(0);
    assert_same_file(&source, &home.path().join("in"));
    assert_eq!(server.0.wait().unwrap().code(), Some(0), "the server must end after one session");
}

/// The server's firewall allows ssh and five ports.
fn narrow(server: &Host) {
    for rule in [
        "-p tcp --dport 22 -j ACCEPT",
        "-p tcp --dport 5000:5004 -j ACCEPT",
        "-p udp --dport 5000:5004 -j ACCEPT",
    ] {
        server.firewall("-A", rule);
    }
    server.firewall("-A", "-m conntrack --ctstate ESTABLISHED -j ACCEPT");
    server.firewall("-A", "-p tcp -j REJECT");
    server.firewall("-A", "-p udp -j REJECT");
}

#[test]
fn a_firewall_is_reported_and_a_port_range_passes_it() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let Some(sshd) = Sshd::on(&net.server, Net::SERVER) else { return };
    narrow(&net.server);
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 300_000);
    let cp = |options: &[&str]| {
        let words = options.iter().map(OsStr::new).chain([source.as_os_str()]);
        let mut command = copy(net.client.command(HAUL), &sshd.config(), words);
        Running::start(command.arg(far("got"))).wait(LIMIT)
    };
    cp(&[]).exits(5).assert_shows(&["--port-range", "must be open for TCP and UDP"]);
    assert!(names(&sshd.home()).is_empty());
    cp(&["--port-range", "5000-5004"]).exits(0);
    assert_same_file(&source, &sshd.home().join("got"));
    let _taken = net.server.enter(|| std::net::TcpListener::bind("0.0.0.0:5004").unwrap());
    cp(&["--port-range", "5004"]).exits(1).assert_shows(&["none of the ports 5004 is free"]);
    cp(&["--port-range", "5003-5004", "-I"]).exits(0);
    // TCP passes and UDP does not.
    net.server.firewall("-I", "-p udp --dport 5000:5004 -j DROP");
    cp(&["--port-range", "5000-5003", "--ignore-times"]).exits(5).assert_shows(&["UDP", "ports 5000-5003"]);
}

#[test]
fn the_address_used_by_ssh_is_preferred_to_the_resolved_name() {
    let Some(net) = Net::new(Mtu::Ethernet) else { return };
    let Some(sshd) = Sshd::on(&net.server, Net::SERVER) else { return };
    // ssh connects with a ProxyCommand; the host name does not resolve.
    let bridge = format!("exec 3<>/dev/tcp/{}/22; cat <&3 & cat >&3", Net::SERVER);
    let option = format!("ProxyCommand=bash -c '{bridge}'");
    let here = directory();
    let source = here.path().join("file");
    file(&source, 1, 300_000);
    let text = fs::read_to_string(sshd.config()).unwrap();
    fs::write(sshd.config(), text.replace(Net::SERVER, "10.77.0.99")).unwrap();
    let words = [OsStr::new("-o"), OsStr::new(&option), source.as_os_str(), &far("got")];
    Running::start(&mut copy(net.client.command(HAUL), &sshd.config(), words)).wait(LIMIT).exits(0);
    assert_eq!(fs::read(sshd.home().join("got")).unwrap(), contents(1, 300_000));
}
