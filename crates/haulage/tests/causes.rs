//! Causes of errors: down to the system's error, and no message twice.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter::successors;

use haulage::{AcceptError, Connection, Endpoint, Listener, OpenError, Options, preset};

/// Returns the system's error at the end of the chain of `error`; no message may repeat that of its cause.
fn system_error<'a>(error: &'a (dyn Error + 'static)) -> &'a io::Error {
    let chain: Vec<_> = successors(Some(error), |&link| link.source()).collect();
    for (at, link) in chain.iter().enumerate() {
        let repeated = chain[at + 1..].iter().find(|cause| link.to_string().contains(&cause.to_string()));
        assert!(repeated.is_none(), "{chain:?}");
    }
    chain.last().and_then(|last| last.downcast_ref()).unwrap_or_else(|| panic!("{chain:?}"))
}

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn opened(url: &str) -> [OpenError; 2] {
    let options = Options::default();
    [
        Connection::open(url, &preset("msg").unwrap(), &options).wait().unwrap_err(),
        Endpoint::client().unwrap().open_writer(url, &preset("bulk").unwrap(), &options).wait().unwrap_err(),
    ]
}

#[test]
fn a_port_without_a_listener_refuses() {
    let url = listener().url("127.0.0.1");
    for error in opened(&url) {
        assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
        assert_eq!(system_error(&error).kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn a_name_without_an_address_has_the_resolvers_reason() {
    let listener = listener();
    for error in opened(&listener.url("no-such-host.invalid")) {
        assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
        assert!(!system_error(&error).to_string().is_empty());
    }
}

#[test]
fn a_taken_port_is_reported_as_in_use() {
    let first = listener();
    let error = Listener::bind(first.local_addr()).unwrap_err();
    assert!(matches!(error, AcceptError::Address(_)), "{error:?}");
    assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
    assert_eq!(system_error(&error).kind(), ErrorKind::AddrInUse);
    // Converted to an error of a stream, it has the same cause.
    let error = io::Error::from(haulage::Error::from(error));
    assert_eq!(system_error(&error).kind(), ErrorKind::AddrInUse);
}
