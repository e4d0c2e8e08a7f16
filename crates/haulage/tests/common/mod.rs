//! Shared helpers.

use std::time::Duration;

use haulage::Connection;

/// Longer than any operation takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a message and returns the same one back.
pub(crate) fn exchange(client: &Connection, server: &Connection, text: &str) {
    client.send(text.as_bytes()).wait().unwrap();
    assert_eq!(server.recv().wait_for(TIMEOUT).unwrap().data, text.as_bytes());
    server.send(text.as_bytes()).wait().unwrap();
    assert_eq!(client.recv().wait_for(TIMEOUT).unwrap().data, text.as_bytes());
}
