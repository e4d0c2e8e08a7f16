//! A saved resumption state does not weaken what the URL and the options demand.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use haulage::{Cipher, Connection, Endpoint, Error, ListenOptions, Listener, OpenError, Options, preset};

use common::{TIMEOUT, exchange};

const LOOPBACK: &str = "127.0.0.1";

fn address() -> SocketAddr {
    format!("{LOOPBACK}:0").parse().unwrap()
}

fn options(directory: &tempfile::TempDir) -> Options {
    let resumption: Option<PathBuf> = Some(directory.path().join("state"));
    Options { resumption, ..Options::default() }
}

fn open(url: &str, options: &Options) -> Result<Connection, OpenError> {
    Connection::open(url, &preset("msg").unwrap(), options).wait()
}

/// Connects once, so that the file of `options` holds the state, and closes.
fn store_state(server: &Listener, options: &Options) {
    let client = open(&server.url(LOOPBACK), options).unwrap();
    let accepted = server.accept().wait_for(TIMEOUT).unwrap();
    exchange(&client, &accepted, "hello");
    client.close().wait_for(TIMEOUT).unwrap();
}

#[test]
fn a_url_of_another_server_at_the_same_address_does_not_resume() {
    let (directory, server) = (tempfile::tempdir().unwrap(), Listener::bind(address()).unwrap());
    let options = options(&directory);
    store_state(&server, &options);
    // Its key, but the first server's port.
    let other = Listener::bind(address()).unwrap();
    let (port, other_port) = (server.local_addr().port(), other.local_addr().port());
    let url = other.url(LOOPBACK).replace(&format!(":{other_port}/"), &format!(":{port}/"));
    let refused = open(&url, &options).unwrap_err();
    assert!(matches!(refused, OpenError::NotTrusted(_)), "{refused:?}");
    // The state of the server that is there is still good.
    let client = open(&server.url(LOOPBACK), &options).unwrap();
    exchange(&client, &server.accept().wait_for(TIMEOUT).unwrap(), "resumed");
}

#[test]
fn an_expired_url_does_not_resume() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(&directory);
    let lifetime = Duration::from_secs(2);
    let listening = ListenOptions { expires: Some(lifetime), ..ListenOptions::new(address()) };
    let server = Listener::bind_with(listening).unwrap();
    store_state(&server, &options);
    thread::sleep(lifetime + Duration::from_millis(100));
    let refused = open(&server.url(LOOPBACK), &options).unwrap_err();
    assert!(matches!(&refused, OpenError::NotTrusted(error) if matches!(**error, Error::Expired(_))));
    // A client that does not check is not answered.
    let endpoint = Endpoint::client().unwrap();
    let options = Options { timeout: Duration::from_secs(1), ..options };
    let client = endpoint.resume(&options).unwrap();
    assert!(client.closed().wait_for(TIMEOUT).is_ok());
    assert_eq!(server.endpoint().statistics().connections, 1);
}

#[test]
fn a_state_without_encryption_is_not_resumed_by_a_client_that_requires_it() {
    let directory = tempfile::tempdir().unwrap();
    let bare = Options { ciphers: vec![Cipher::None], ..options(&directory) };
    let listening = ListenOptions { permit_cipher_none: true, ..ListenOptions::new(address()) };
    let server = Listener::bind_with(listening).unwrap();
    store_state(&server, &bare);
    let error = Endpoint::client().unwrap().resume(&options(&directory)).unwrap_err();
    assert!(error.to_string().contains("cipher"), "{error}");
    let client = open(&server.url(LOOPBACK), &options(&directory)).unwrap();
    exchange(&client, &server.accept().wait_for(TIMEOUT).unwrap(), "sealed");
    assert_ne!(client.cipher(), Cipher::None);
}
