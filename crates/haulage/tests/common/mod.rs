//! What tests of several subjects share.

use std::time::Duration;

use haulage::Connection;

/// Longer than anything takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A message there, and the same back.
pub(crate) fn exchange(client: &Connection, server: &Connection, text: &str) {
    client.send(text.as_bytes()).wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, text.as_bytes());
    server.send(text.as_bytes()).wait().unwrap();
    assert_eq!(client.recv().wait_for(TIMEOUT).unwrap().data, text.as_bytes());
}
