//! User code that panics while a recipe is compiled, a stack is built or a client is admitted: that client
//! gets an error, and others are not affected.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as Task, Wake, Waker};
use std::time::{Duration, Instant};

use haulage::stack::{Declaration, MicroProtocol, Registration, Resolution};
use haulage::{Connection, ListenOptions, Listener, Options, Recipe, Registry, preset, registry};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Where the server's `brittle` panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanicAt {
    Build,
    Declare,
    Bind,
    Nowhere,
}

#[derive(Debug)]
struct PanickingProtocol(PanicAt);

impl MicroProtocol for PanickingProtocol {
    fn declare(&mut self, _: &mut Declaration<'_>) {
        assert!(self.0 != PanicAt::Declare, "brittle cannot declare");
    }

    fn bind(&mut self, _: &mut Resolution<'_>) {
        assert!(self.0 != PanicAt::Bind, "brittle cannot bind");
    }
}

fn with_brittle(panic_at: PanicAt) -> Arc<Registry> {
    let mut registry = registry();
    registry.register(Registration::new(
        "brittle",
        1,
        "breaks",
        match panic_at {
            PanicAt::Build => |_, _| panic!("brittle cannot be built"),
            PanicAt::Declare => |_, _| Ok(Box::new(PanickingProtocol(PanicAt::Declare))),
            PanicAt::Bind => |_, _| Ok(Box::new(PanickingProtocol(PanicAt::Bind))),
            PanicAt::Nowhere => |_, _| Ok(Box::new(PanickingProtocol(PanicAt::Nowhere))),
        },
    ));
    Arc::new(registry)
}

fn options(panic_at: PanicAt) -> Options {
    Options { registry: with_brittle(panic_at), timeout: TIMEOUT, ..Options::default() }
}

fn exchange(client: &Connection, server: &Connection) {
    client.send(b"hello").wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, b"hello");
}

fn recipe() -> Recipe {
    preset("msg").unwrap().with("brittle")
}

#[test]
fn a_panicking_micro_protocol_of_the_server_ends_only_its_connection() {
    for panic_at in [PanicAt::Build, PanicAt::Declare, PanicAt::Bind] {
        let mut listening = ListenOptions::new("127.0.0.1:0".parse().unwrap());
        listening.registry = with_brittle(panic_at);
        let listener = Listener::bind_with(listening).unwrap();
        let url = listener.url("127.0.0.1");
        let open = || Connection::open(&url, &preset("msg").unwrap(), &Options::default()).wait().unwrap();
        let (before, before_there) = (open(), listener.accept().wait_for(TIMEOUT).unwrap());
        exchange(&before, &before_there);
        for _ in 0..2 {
            let error = Connection::open(&url, &recipe(), &options(PanicAt::Nowhere)).wait().unwrap_err();
            assert!(error.to_string().contains("brittle"), "{panic_at:?}: {error}");
        }
        let (after, after_there) = (open(), listener.accept().wait_for(TIMEOUT).unwrap());
        exchange(&after, &after_there);
        exchange(&before, &before_there);
    }
}

/// A micro-protocol that can be built once, when its recipe is checked, and never again.
fn registry_for_one_stack() -> Arc<Registry> {
    static BUILT_COUNT: AtomicU32 = AtomicU32::new(0);
    let mut registry = registry();
    registry.register(Registration::new("brittle", 1, "breaks", |_, _| {
        assert!(BUILT_COUNT.fetch_add(1, Ordering::Relaxed) == 0, "brittle cannot be built again");
        Ok(Box::new(PanickingProtocol(PanicAt::Nowhere)))
    }));
    Arc::new(registry)
}

#[test]
fn a_micro_protocol_panicking_on_accept_ends_only_its_connection_at_once() {
    let mut listening = ListenOptions::new("127.0.0.1:0".parse().unwrap());
    listening.registry = registry_for_one_stack();
    let listener = Listener::bind_with(listening).unwrap();
    let url = listener.url("127.0.0.1");
    let slow_options = Options { timeout: TIMEOUT * 3, ..options(PanicAt::Nowhere) };
    let client = Connection::open(&url, &recipe(), &slow_options).wait().unwrap();
    client.send(b"hello").wait().unwrap();
    let error = client.recv().wait_for(TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("aborted the connection"), "{error}");
    let other = Connection::open(&url, &preset("msg").unwrap(), &Options::default()).wait().unwrap();
    exchange(&other, &listener.accept().wait_for(TIMEOUT).unwrap());
}

#[test]
fn a_panicking_micro_protocol_of_the_client_is_an_error_there() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for panic_at in [PanicAt::Build, PanicAt::Declare, PanicAt::Bind] {
        let error =
            Connection::open(&listener.url("127.0.0.1"), &recipe(), &options(panic_at)).wait().unwrap_err();
        assert!(error.to_string().contains("brittle"), "{panic_at:?}: {error}");
    }
    assert_eq!(listener.endpoint().known_peers(), 0);
}

#[test]
fn a_panicking_recipe_check_refuses_only_its_client() {
    let mut listening = ListenOptions::new("127.0.0.1:0".parse().unwrap());
    listening.permit = Box::new(|recipe| {
        assert!(recipe.name != "evil", "I cannot look at this");
        Ok(())
    });
    let listener = Listener::bind_with(listening).unwrap();
    let url = listener.url("127.0.0.1");
    let mut panicking = preset("msg").unwrap();
    panicking.name = "evil".to_owned();
    let error = Connection::open(&url, &panicking, &Options::default()).wait().unwrap_err();
    assert!(error.to_string().contains("I cannot look at this"), "{error}");
    let client = Connection::open(&url, &preset("msg").unwrap(), &Options::default()).wait().unwrap();
    exchange(&client, &listener.accept().wait_for(TIMEOUT).unwrap());
}

/// A waker that panics, as that of an executor that was shut down may.
struct PanickingWaker(AtomicU32);

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("the executor was shut down");
    }
}

/// Waits until the waker was called this many times.
fn woken(dead: &PanickingWaker, times: u32) {
    let end = Instant::now() + TIMEOUT;
    while dead.0.load(Ordering::Relaxed) < times {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn panicking_wakers_do_not_end_the_endpoint() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = listener.url("127.0.0.1");
    let open = || Connection::open(&url, &preset("msg").unwrap(), &Options::default()).wait().unwrap();
    let dead = Arc::new(PanickingWaker(AtomicU32::new(0)));
    let waker = Waker::from(dead.clone());
    assert!(pin!(listener.accept()).poll(&mut Task::from_waker(&waker)).is_pending());
    let (client, server) = (open(), listener.accept().wait_for(TIMEOUT).unwrap());
    woken(&dead, 1);
    assert!(pin!(server.recv()).poll(&mut Task::from_waker(&waker)).is_pending());
    client.send(b"wake up").wait().unwrap();
    woken(&dead, 2);
    let (other, other_there) = (open(), listener.accept().wait_for(TIMEOUT).unwrap());
    exchange(&other, &other_there);
}
