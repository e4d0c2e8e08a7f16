//! Networks that let only part of the traffic through.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    LIMIT, Mtu, Net, PORT, Running, Server, Way, assert_same_file, directory, file, haul, names, run, until,
};

/// Limit on the time until blocked UDP is reported.
const BLOCKED_WITHIN: Duration = Duration::from_secs(5);

fn world(size: usize) -> Option<(Net, TempDir, TempDir, Server)> {
    let net = Net::new(Mtu::Ethernet)?;
    let (here, root) = (directory(), directory());
    file(&here.path().join("up"), 1, size);
    let server = Server::start(&net, root.path(), &[]);
    Some((net, here, root, server))
}

#[test]
fn blocked_udp_is_reported_in_time_with_port_and_direction() {
    // More than the sender may have unacknowledged, so the copy cannot finish without acknowledgements.
    let Some((net, here, root, mut server)) = world(100_000_000) else {
        return;
    };
    let url = server.at("copy");
    let ways =
        [(Way::ToServer, "from the client to the server"), (Way::ToClient, "from the server to the client")];
    let blocked = |words: &str| {
        let attempt = || {
            let outcome =
                run(&net.client, [Path::new("cp"), &here.path().join("up"), Path::new(&url)]).exits(5);
            println!("reported after {:?}", outcome.took);
            outcome
        };
        // A busy machine may delay one attempt.
        let in_time = (0..3).map(|_| attempt()).find(|outcome| outcome.took < BLOCKED_WITHIN);
        let outcome = in_time.expect("one of three attempts is in time");
        outcome.assert_shows(&["UDP", &PORT.to_string(), words]);
        assert!(names(root.path()).is_empty());
        let json = run(&net.client, ["bench", "--json", &url]).exits(5);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("one JSON object");
        assert_eq!(json["error"]["code"], "udp_blocked");
    };
    for (way, words) in ways {
        net.block_udp(way);
        blocked(words);
        net.unblock_udp(way);
    }
    assert!(server.process.is_running());
    run(&net.client, [Path::new("cp"), &here.path().join("up"), Path::new(&url)]).exits(0);
}

/// Blocks UDP in one direction during a copy; a copy in either direction needs both.
fn stops_in_the_middle(way: Way, upload: bool) {
    let Some((net, here, root, mut server)) = world(24 << 20) else {
        return;
    };
    let (local, remote) = (here.path().join("up"), root.path().join("down"));
    std::fs::copy(&local, &remote).unwrap();
    let (url, copied) = (server.at(if upload { "copy" } else { "down" }), here.path().join("copy"));
    let (from, to) =
        if upload { (local.as_path(), Path::new(&url)) } else { (Path::new(&url), copied.as_path()) };
    let target = if upload { &root } else { &here };
    let copy = Running::start(haul(&net.client, ["cp", "--rate", "20Mbit"]).arg(from).arg(to));
    until("a temporary file", || std::fs::read_dir(target.path()).unwrap().count() > 1);
    net.block_udp(way);
    copy.wait(LIMIT).exits(5).assert_shows(&["UDP"]);
    assert_eq!(names(target.path()).len(), 1);
    net.unblock_udp(way);
    assert!(server.process.is_running());
    run(&net.client, [Path::new("cp"), from, to]).exits(0);
    assert_same_file(if upload { &local } else { &remote }, &target.path().join("copy"));
}

#[test]
fn data_stops_during_an_upload() {
    stops_in_the_middle(Way::ToServer, true);
}

#[test]
fn feedback_stops_during_an_upload() {
    stops_in_the_middle(Way::ToClient, true);
}

#[test]
fn data_stops_during_a_download() {
    stops_in_the_middle(Way::ToClient, false);
}

#[test]
fn feedback_stops_during_a_download() {
    stops_in_the_middle(Way::ToServer, false);
}

#[test]
fn a_short_outage_is_survived() {
    let Some((net, here, root, server)) = world(24 << 20) else {
        return;
    };
    let source = here.path().join("up");
    let mut command = haul(&net.client, ["cp", "--rate", "100Mbit"]);
    let copy = Running::start(command.arg(&source).arg(server.at("copy")));
    until("a temporary file", || std::fs::read_dir(root.path()).unwrap().count() > 0);
    for way in [Way::ToServer, Way::ToClient] {
        net.block_udp(way);
        std::thread::sleep(Duration::from_millis(700));
        net.unblock_udp(way);
    }
    copy.wait(LIMIT).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}

#[test]
fn the_control_connection_breaks_during_a_transfer() {
    let Some((net, here, root, mut server)) = world(24 << 20) else {
        return;
    };
    let source = here.path().join("up");
    let rule = format!("-p tcp --dport {PORT} -j REJECT --reject-with tcp-reset");
    let mut command = haul(&net.client, ["cp", "--rate", "20Mbit"]);
    let copy = Running::start(command.arg(&source).arg(server.at("copy")));
    until("a temporary file", || std::fs::read_dir(root.path()).unwrap().count() > 0);
    net.server.firewall("-A", &rule);
    copy.wait(LIMIT).exits(5).assert_shows(&["run the same command again to resume"]);
    assert!(names(root.path()).is_empty());
    net.server.firewall("-D", &rule);
    assert!(server.process.is_running());
    let url = server.at("copy");
    run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}

#[test]
fn a_local_firewall_rule_is_named_at_the_start_and_survived_later() {
    let Some((net, here, root, server)) = world(24 << 20) else {
        return;
    };
    let rule = |verb: &str| {
        let arguments = format!("-w {verb} OUTPUT -p udp --dport {PORT} -j DROP");
        assert!(net.client.command("iptables").args(arguments.split(' ')).status().unwrap().success());
    };
    let (source, url) = (here.path().join("up"), server.at("copy"));
    rule("-A");
    let outcome = run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(5);
    outcome.assert_shows(&["may not send UDP packets", "firewall rule"]);
    rule("-D");
    let mut command = haul(&net.client, ["cp", "--rate", "60Mbit"]);
    let copy = Running::start(command.arg(&source).arg(&url));
    until("a temporary file", || std::fs::read_dir(root.path()).unwrap().count() > 0);
    std::thread::sleep(Duration::from_millis(300));
    rule("-A");
    std::thread::sleep(Duration::from_millis(700));
    rule("-D");
    copy.wait(LIMIT).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}
