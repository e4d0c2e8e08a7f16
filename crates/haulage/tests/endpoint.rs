//! One endpoint for several connections.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod common;

use std::fs;

use haulage::{ConnectionError, Endpoint, Listener, Options, preset};

use common::{TIMEOUT, exchange};

fn listener(address: &str) -> Listener {
    Listener::bind(address.parse().unwrap()).unwrap()
}

#[test]
fn one_endpoint_has_connections_with_several_servers_over_ipv4_and_ipv6() {
    let servers = [("127.0.0.1", listener("127.0.0.1:0")), ("::1", listener("[::1]:0"))];
    let endpoint = Endpoint::client().unwrap();
    let recipe = preset("msg").unwrap();
    let mut ends = Vec::new();
    for (host, server) in servers.iter().chain(&servers) {
        let client = endpoint.connect(&server.url(host), &recipe, &Options::default()).wait().unwrap();
        assert_eq!(client.peer(), server.local_addr());
        ends.push((client, server.accept().wait_for(TIMEOUT).unwrap()));
    }
    for (number, (client, server)) in ends.iter().enumerate() {
        exchange(client, server, &number.to_string());
    }
}

#[test]
fn a_server_connects_to_others_by_the_socket_of_its_listener() {
    let (first, second) = (listener("127.0.0.1:0"), listener("127.0.0.1:0"));
    let recipe = preset("msg").unwrap();
    let connect = |from: &Listener, to: &Listener| {
        let here =
            from.endpoint().connect(&to.url("127.0.0.1"), &recipe, &Options::default()).wait().unwrap();
        (here, to.accept().wait_for(TIMEOUT).unwrap())
    };
    let pairs = [connect(&first, &second), connect(&second, &first)];
    for (client, server) in &pairs {
        exchange(client, server, "to and fro");
    }
    assert_eq!(pairs[0].1.peer(), first.local_addr());
    pairs[0].0.close(TIMEOUT).unwrap();
    exchange(&pairs[1].0, &pairs[1].1, "goes on");
}

#[test]
fn a_client_that_comes_back_on_the_same_endpoint_ends_its_older_connection() {
    let listener = listener("127.0.0.1:0");
    let file = std::env::temp_dir().join(format!("haulage-endpoint-{}", std::process::id()));
    let options = Options { resumption: Some(file.clone()), ..Options::default() };
    let endpoint = Endpoint::client().unwrap();
    let old = endpoint.connect(&listener.url("127.0.0.1"), &preset("msg").unwrap(), &options).wait().unwrap();
    exchange(&old, &listener.accept().wait_for(TIMEOUT).unwrap(), "first");
    let new = endpoint.resume(&options).unwrap();
    new.send(b"without a handshake").wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"without a handshake");
    assert!(matches!(old.ended(), Some(ConnectionError::Closed)));
    drop(old);
    exchange(&new, &server, "goes on");
    fs::remove_file(file).unwrap();
}
