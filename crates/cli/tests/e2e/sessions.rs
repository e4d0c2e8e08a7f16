//! Several clients of one server.

use std::path::Path;

use crate::support::{
    LIMIT, Mtu, Net, Running, Server, assert_same_file, directory, file, haul, names, run, tampered,
};

#[test]
fn four_concurrent_uploads_with_one_failing_and_one_refused() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    file(&root.path().join("in-the-way"), 99, 10);
    let server = Server::start(&net, root.path(), &[]);
    let source = |number: u64| here.path().join(format!("source-{number}"));
    let start = |from: &Path, to: &str| {
        let mut command = haul(&net.client, ["cp"]);
        Running::start(command.arg(from).arg(to))
    };
    let copies: Vec<_> = (0..4)
        .map(|number| {
            file(&source(number), number, 12_000_000);
            start(&source(number), &server.at(&format!("copy-{number}")))
        })
        .collect();
    let failing = start(&source(0), &server.at("in-the-way/x"));
    let refused = start(&source(0), &tampered(&server.at("x"), 60));
    failing.wait(LIMIT).exits(7);
    refused.wait(LIMIT).exits(6);
    for (number, copy) in (0..).zip(copies) {
        copy.wait(LIMIT).exits(0);
        assert_same_file(&source(number), &root.path().join(format!("copy-{number}")));
    }
    assert_eq!(names(root.path()).len(), 5);
}

#[test]
fn of_two_uploads_to_one_name_one_remains_complete() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let server = Server::start(&net, root.path(), &[]);
    let sources = [here.path().join("a"), here.path().join("b")];
    let copies = sources.iter().zip(1..).map(|(source, seed)| {
        file(source, seed, 8_000_000);
        Running::start(haul(&net.client, ["cp"]).arg(source).arg(server.at("same")))
    });
    for copy in copies.collect::<Vec<_>>() {
        copy.wait(LIMIT).exits(0);
    }
    let result = std::fs::read(root.path().join("same")).unwrap();
    assert!(sources.iter().any(|source| std::fs::read(source).unwrap() == result));
    assert_eq!(names(root.path()), ["same"]);
}

#[test]
fn a_silent_client_does_not_block_others() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let server = Server::start(&net, root.path(), &[]);
    let address = format!("{}:{}", Net::SERVER, crate::support::PORT);
    let _silent: Vec<_> =
        net.client.enter(|| (0..20).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect());
    let source = here.path().join("file");
    file(&source, 1, 100_000);
    let url = server.at("copy");
    run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(0);
}

#[test]
fn a_server_for_one_session_ends_after_it() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let source = here.path().join("file");
    file(&source, 1, 100_000);
    let server = Server::start(&net, root.path(), &["--once"]);
    let url = server.at("copy");
    run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(0);
    server.process.wait(LIMIT).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}
