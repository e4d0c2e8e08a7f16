//! Sessions whose recipe is negotiated.

use std::sync::{Arc, Mutex};

use haul_base::{Piece, Rate};
use haul_engine::{ConnectOptions, EngineError, HaulUrl, Listener, Waker, connect, offer};
use haul_proto::presets::preset;
use haul_proto::{Available, ObjectSink, ObjectSource};
use haul_stack::Recipe;
use haul_wire::control::{FaultCode, Request, Settings};

use crate::support::{Relay, TIMEOUT, listener, session_pair, settings_of};

/// Message at the end of a round, sent only by `rbudp`.
const ROUND: u8 = 16;
const FEEDBACK: u8 = 3;
const LEN: usize = 3_000_000;

fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

struct Pattern;

impl ObjectSource for Pattern {
    fn available(&mut self) -> Available {
        Available { upto: LEN as u64, end: true }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = byte_at(at));
    }

    fn release(&mut self, _: u64) {}
}

#[derive(Clone)]
struct CollectingSink(Arc<Mutex<Vec<u8>>>);

impl ObjectSink for CollectingSink {
    fn deliver(&mut self, data: &[u8], pieces: &[Piece]) {
        let mut stored = self.0.lock().unwrap();
        for piece in pieces {
            let at = piece.offset as usize;
            stored[at..at + piece.range.len()].copy_from_slice(&data[piece.range.clone()]);
        }
    }

    fn limit(&mut self) -> u64 {
        u64::MAX
    }

    fn complete(&mut self, len: u64) {
        assert_eq!(len, LEN as u64);
    }
}

fn shipped(name: &str) -> Recipe {
    preset(name).unwrap().unwrap()
}

fn fixed(recipe: &Recipe) -> Settings {
    settings_of(recipe, Some(Rate::from_mbps(200)))
}

fn options(settings: Settings) -> ConnectOptions {
    ConnectOptions::new(Request::BenchSend, settings)
}

/// The server refuses, and both peers get the reason.
fn refused(listener: &Listener, url: &HaulUrl, settings: Settings) -> EngineError {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(url, options(settings)).unwrap_err());
        let incoming = listener.accept(TIMEOUT).unwrap();
        let ours = incoming.accept().unwrap_err();
        let theirs = client.join().unwrap();
        assert_eq!(ours.fault().code, theirs.fault().code);
        theirs
    })
}

#[test]
fn both_ends_run_the_recipe_that_was_negotiated() {
    let runs = [
        ("bulk", "udp", false),
        ("fobs", "udp", false),
        ("rbudp", "udp", true),
        ("fobs", "control", false),
        ("rbudp", "control", true),
    ];
    for (name, over, has_rounds) in runs {
        let mut recipe = shipped(name);
        haul_proto::micro::registry().set(&mut recipe, "bitmap_ack.over", over).unwrap();
        let listener = listener("127.0.0.1");
        let relay = Relay::start(listener.local_addr());
        let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
        let (mut client, mut server) = session_pair(&listener, &url, options(fixed(&recipe)));
        assert_eq!(client.settings(), server.settings());
        let stored = CollectingSink(Arc::new(Mutex::new(vec![0; LEN])));
        let sending = client.start_sending(Box::new(Pattern), Waker::new().unwrap()).unwrap();
        let receiving = server.start_receiving(Box::new(stored.clone()), Waker::new().unwrap()).unwrap();
        assert!(sending.wait_delivered(TIMEOUT).unwrap(), "{name}: timed out");
        assert!(receiving.wait_delivered(TIMEOUT).unwrap(), "{name}: timed out");
        let right = stored.0.lock().unwrap().iter().zip(0..).all(|(&byte, at)| byte == byte_at(at));
        assert!(right, "{name}: the object differs");
        let closes = relay.received.lock().unwrap().iter().any(|packet| packet[0] == ROUND);
        assert_eq!(closes, has_rounds, "{name}");
        let has_reports = relay.answered.lock().unwrap().iter().any(|packet| packet[0] == FEEDBACK);
        assert_eq!(has_reports, over == "udp", "{name} over {over}");
    }
}

#[test]
fn recipes_without_objects_are_refused_before_anything_is_sent() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    for (recipe, lack) in [
        (shipped("viz"), "needs object"),
        (shipped("fobs").without("seal"), "needs seal"),
        (shipped("fobs").without("liveness"), "needs liveness"),
        (shipped("fobs").without("retransmit"), "object needs retransmit"),
        (shipped("fobs").with("warp"), "no micro-protocol `warp`"),
    ] {
        let error = connect(&url, options(fixed(&recipe))).unwrap_err();
        assert!(matches!(error, EngineError::Recipe(_)) && error.fault().message.contains(lack), "{error:?}");
        assert_eq!(error.fault().code, FaultCode::Usage);
    }
    let error = connect(&url, options(settings_of(&shipped("fobs"), None))).unwrap_err();
    assert!(error.fault().message.contains("needs a rate"), "{error:?}");
    assert_eq!(listener.stats().connections, 0);
}

#[test]
fn other_versions_and_other_micro_protocols_at_the_client_are_refused() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    let mut theirs = fixed(&shipped("fobs"));
    theirs.recipe.as_mut().unwrap().versions[0].1 = 300;
    let error = refused(&listener, &url, theirs);
    assert_eq!(error.fault().code, FaultCode::VersionMismatch);
    assert!(error.to_string().contains("version 300"), "{error}");
    let mut theirs = fixed(&shipped("fobs"));
    theirs.recipe.as_mut().unwrap().versions.push(("warp".to_owned(), 1));
    let error = refused(&listener, &url, theirs);
    assert_eq!(error.fault().code, FaultCode::Usage);
    assert!(error.to_string().contains("`warp`"), "{error}");
}

#[test]
fn a_server_that_answers_with_another_recipe_is_abandoned() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    for other in [None, Some(offer(&shipped("rbudp")))] {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&url, options(fixed(&shipped("fobs")))).unwrap_err());
            let incoming = listener.accept(TIMEOUT).unwrap();
            let settings = Settings { recipe: other, ..incoming.settings().clone() };
            let session = incoming.accept_with(settings).unwrap();
            let error = client.join().unwrap();
            assert!(error.to_string().contains("another recipe"), "{error}");
            let reported = session.control().recv(Some(TIMEOUT)).unwrap_err();
            assert!(reported.to_string().contains("another recipe"), "{reported}");
        });
    }
}
