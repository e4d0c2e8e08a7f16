//! TLS 1.3 as Haulage uses it: the server's certificate is pinned by its fingerprint, there are no
//! resumptions and no early data, and everything else that is secret comes from the exporter.

mod config;
mod exporter;
mod handshake;

pub(crate) use config::{ALPN, client_config, server_config};
pub(crate) use exporter::SessionSecrets;
pub(crate) use handshake::{
    HandshakeError, InThread, Readiness, flush, handshake, prepare_tcp, receive, wait, wait_for,
};

#[cfg(test)]
mod test_pair;
#[cfg(test)]
pub(crate) use test_pair::pair;
