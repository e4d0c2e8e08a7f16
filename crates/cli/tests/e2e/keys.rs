//! URLs that are wrong, expired or malformed.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Mtu, Net, Outcome, Server, at, directory, file, names, run, run_here, tampered};

fn world(options: &[&str]) -> Option<(Net, TempDir, Server)> {
    let net = Net::new(Mtu::Ethernet)?;
    let root = directory();
    file(&root.path().join("file"), 1, 100_000);
    let server = Server::start(&net, root.path(), options);
    Some((net, root, server))
}

fn get(net: &Net, url: &str) -> Outcome {
    let here = directory();
    let outcome = run(&net.client, [Path::new("cp"), Path::new(url), &here.path().join("got")]);
    assert_eq!(names(here.path()).is_empty(), outcome.code != Some(0));
    outcome
}

#[test]
fn a_wrong_secret_or_certificate_is_refused() {
    let Some((net, root, mut server)) = world(&[]) else {
        return;
    };
    let url = server.at("file");
    for character in [46, 60, 85] {
        get(&net, &tampered(&url, character)).exits(6).assert_shows(&[]);
    }
    for character in [3, 20, 41] {
        get(&net, &tampered(&url, character)).exits(6).assert_shows(&["certificate"]);
    }
    let source = root.path().join("file");
    let target = tampered(&server.at("written"), 60);
    run(&net.client, [Path::new("cp"), &source, Path::new(&target)]).exits(6);
    assert_eq!(names(root.path()), ["file"]);
    assert!(server.process.is_running());
    get(&net, &url).exits(0);
}

#[test]
fn the_url_of_an_earlier_server_is_refused() {
    let Some((net, root, server)) = world(&[]) else {
        return;
    };
    let old = server.at("file");
    drop(server);
    let _server = Server::start(&net, root.path(), &[]);
    get(&net, &old).exits(6).assert_shows(&["certificate"]);
}

#[test]
fn an_expired_url_is_refused_by_both_sides() {
    let Some((net, _root, server)) = world(&["--expires", "1s"]) else {
        return;
    };
    let url = server.at("file");
    std::thread::sleep(Duration::from_millis(2_100));
    get(&net, &url).exits(6).assert_shows(&["expired"]);
    // The URL claims a later expiry: the client accepts it, and the server refuses it.
    get(&net, &tampered(&url, 90)).exits(6).assert_shows(&["expired"]);
    // The server logs one line, without `-v`, with the client's address. The first client never connected.
    let log = server.process.stderr();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refused")).collect();
    assert!(
        lines.len() == 1 && ["10.77.0.1:", "expired"].iter().all(|word| lines[0].contains(word)),
        "{log}"
    );
    let is_dated = lines[0].starts_with(|c: char| c.is_ascii_digit());
    assert!(is_dated, "{log}");
}

#[test]
fn an_unexpired_url_is_accepted() {
    let Some((net, _root, server)) = world(&["--expires", "1h"]) else {
        return;
    };
    get(&net, &server.at("file")).exits(0);
}

#[test]
fn an_invalid_url_is_a_usage_error() {
    let urls = [
        "haul://",
        "haul://host",
        "haul://host:7000/file",
        "haul://host:7000/file?k=",
        "haul://host:7000/file?k=AAAA",
        "haul://host:7000/file?k=!!!!",
        "haul://host:99999/file?k=AQ",
        "haul://:7000/?k=AQ",
        "https://host:7000/file",
    ];
    let here = directory();
    for url in urls {
        let target = here.path().join("got");
        run_here([Path::new("cp"), Path::new(url), &target]).exits(2).assert_shows(&[]);
        run_here(["bench", url]).exits(2).assert_shows(&[]);
    }
    assert!(names(here.path()).is_empty());
}

#[test]
fn no_server_at_the_address() {
    let Some((net, root, server)) = world(&[]) else {
        return;
    };
    let url = server.at("file");
    drop(server);
    get(&net, &url).exits(5).assert_shows(&["refused", "7000"]);
    // Another program listens on the port.
    let listener = net.server.enter(|| std::net::TcpListener::bind("0.0.0.0:7000").unwrap());
    let answering = std::thread::spawn(move || {
        use std::io::Write;
        if let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    get(&net, &url).exits(5).assert_shows(&[]);
    answering.join().unwrap();
    let nowhere = at(&url.replace(Net::SERVER, "10.77.0.99"), "file");
    drop(root);
    get(&net, &nowhere).exits(5).assert_shows(&["10.77.0.99"]);
}
