//! One endpoint for several connections.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;
#[path = "common/relay.rs"]
mod relay;

use std::sync::{Arc, Mutex, mpsc};
use std::{fs, thread};

use haulage::stack::{Declaration, MicroProtocol, Registration, Resolution};
use haulage::{
    AcceptError, Connection, ConnectionError, ConnectionOptions, Endpoint, Event, ListenOptions, Listener,
    LossModel, Options, Url, preset, registry,
};

use common::{TIMEOUT, exchange};
use relay::relay;

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
fn an_empty_cipher_list_is_an_error_before_connecting() {
    // No server listens there.
    let server = listener("127.0.0.1:0");
    let url = server.url("127.0.0.1");
    drop(server);
    let options = Options { ciphers: Vec::new(), ..Options::default() };
    let messages = Connection::open(&url, &preset("msg").unwrap(), &options).wait().unwrap_err();
    let bytes =
        Endpoint::client().unwrap().open_writer(&url, &preset("bulk").unwrap(), &options).wait().unwrap_err();
    for error in [messages, bytes] {
        let text = error.to_string();
        assert!(text.contains("the list of ciphers is empty") && text.contains("Cipher::None"), "{text}");
    }
}

/// Models that all connections were given, by each of their recipes with `models`.
static USED_MODELS: Mutex<Vec<Arc<LossModel>>> = Mutex::new(Vec::new());

/// Replaces `rate_control` to record the loss model.
#[derive(Debug)]
struct Models;

impl MicroProtocol for Models {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, _: &mut Resolution<'_>) {}
}

#[test]
fn each_end_of_a_connection_has_its_own_loss_model() {
    let mut registry = registry();
    registry.register(Registration::new("models", 1, "takes the model", |_, setup| {
        USED_MODELS.lock().unwrap().extend(setup.get::<Arc<LossModel>>());
        Ok(Box::new(Models))
    }));
    let [client_model, server_model] = [(); 2].map(|()| Arc::new(LossModel::shipped().clone()));
    let mut listening = ListenOptions::new("127.0.0.1:0".parse().unwrap());
    (listening.registry, listening.loss_model) = (Arc::new(registry), Some(server_model.clone()));
    let registry = listening.registry.clone();
    let options = Options { registry, loss_model: Some(client_model.clone()), ..Options::default() };
    let listener = Listener::bind_with(listening).unwrap();
    let recipe = preset("msg").unwrap().with("models");
    let client = Connection::open(&listener.url("127.0.0.1"), &recipe, &options).wait().unwrap();
    let server = listener.accept().wait_for(TIMEOUT).unwrap();
    exchange(&client, &server, "hello");
    let check_models = |expected| {
        let used_models = USED_MODELS.lock().unwrap();
        let times = |expected| used_models.iter().filter(|model| Arc::ptr_eq(model, expected)).count();
        let times = (times(&client_model), times(&server_model), used_models.len());
        assert_eq!(times, (expected, expected, 2 * expected));
    };
    check_models(1);
    for changed in [recipe.clone().without("models"), recipe] {
        client.reconfigure(&changed).unwrap();
        for end in [&client, &server] {
            assert_eq!(end.event().wait_for(TIMEOUT).unwrap(), Event::Reconfigured);
        }
    }
    check_models(2);
}

#[test]
fn a_server_connects_to_others_through_its_listening_socket() {
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
    pairs[0].0.close().wait_for(TIMEOUT).unwrap();
    exchange(&pairs[1].0, &pairs[1].1, "goes on");
}

/// Two sockets of one port would each receive a part of the other's packets.
#[test]
fn a_port_whose_connections_are_still_open_is_not_available() {
    let first = listener("127.0.0.1:0");
    let (address, recipe) = (first.local_addr(), preset("msg").unwrap());
    let client = Connection::open(&first.url(""), &recipe, &Options::default()).wait().unwrap();
    let server = first.accept().wait_for(TIMEOUT).unwrap();
    drop(first);
    let error = Listener::bind(address).unwrap_err();
    assert!(matches!(error, AcceptError::Address { .. }), "{error:?}");
    exchange(&client, &server, "undisturbed");
}

#[test]
fn connecting_to_the_own_listener_is_an_error() {
    let listener = listener("127.0.0.1:0");
    let (url, recipe) = (listener.url(""), preset("msg").unwrap());
    let to_itself = listener.endpoint().connect(&url, &recipe, &Options::default()).wait().unwrap_err();
    assert!(to_itself.to_string().contains("own listener"), "{to_itself}");
    assert_eq!(listener.endpoint().known_peers(), 0);
    // The same process can reach it from another endpoint.
    let client = Endpoint::client().unwrap().connect(&url, &recipe, &Options::default()).wait().unwrap();
    exchange(&client, &listener.accept().wait_for(TIMEOUT).unwrap(), "hello");
}

#[test]
fn a_client_with_blocked_udp_does_not_delay_the_next_one() {
    let listener = listener("127.0.0.1:0");
    let url: Url = listener.url("127.0.0.1").parse().unwrap();
    let blocked = Url { port: relay(listener.local_addr(), |_, _| false), ..url.clone() };
    let open = |url: Url| {
        Endpoint::client()
            .unwrap()
            .open_writer(&url.to_string(), &preset("bulk").unwrap(), &Options::default())
            .wait()
            .unwrap()
    };
    let (begins, beginning) = mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let first = open(blocked);
            begins.send(()).unwrap();
            first
        });
        let accepted = scope.spawn(|| {
            let next = listener.accept_any().wait_for(TIMEOUT);
            [next, listener.accept_any().wait_for(TIMEOUT)]
        });
        beginning.recv().unwrap();
        let _second = open(url);
        let [next, last] = accepted.join().unwrap();
        assert!(next.is_ok(), "{next:?}");
        assert!(matches!(last, Err(AcceptError::Failed(_))), "{last:?}");
        drop(first.join().unwrap());
    });
}

#[test]
fn a_client_reconnecting_on_the_same_endpoint_ends_its_older_connection() {
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

#[test]
fn a_missing_file_name_is_reported_as_missing() {
    let error = Endpoint::client().unwrap().resume(&Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "no resumption file was given");
}

#[test]
fn a_url_without_a_host_reaches_the_listener_from_its_own_machine() {
    let recipe = preset("msg").unwrap();
    for (address, host) in
        [("127.0.0.1:0", ""), ("0.0.0.0:0", ""), ("[::]:0", ""), ("[::1]:0", ""), ("[::1]:0", "[::1]")]
    {
        let server = listener(address);
        let client = Connection::open(&server.url(host), &recipe, &Options::default()).wait().unwrap();
        exchange(&client, &server.accept().wait_for(TIMEOUT).unwrap(), address);
    }
}

#[test]
fn too_small_datagrams_are_raised_to_the_base_size() {
    for datagram in [0, 1, 40, 200] {
        let connection = || ConnectionOptions { datagram, ..ConnectionOptions::default() };
        let options = Options { connection: connection(), ..Options::default() };
        let mut listening = ListenOptions::new("127.0.0.1:0".parse().unwrap());
        listening.connection = connection();
        let listener = Listener::bind_with(listening).unwrap();
        let url = listener.url("127.0.0.1");
        let client = Connection::open(&url, &preset("msg").unwrap(), &options).wait().unwrap();
        exchange(&client, &listener.accept().wait_for(TIMEOUT).unwrap(), &"long ".repeat(1_000));
    }
}
