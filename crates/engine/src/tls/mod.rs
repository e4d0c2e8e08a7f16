//! TLS 1.3 as Haulage uses it: the server's certificate is pinned by its fingerprint, resumption and early
//! data are disabled, and all other secrets come from the exporter.

mod config;
mod exporter;
mod handshake;

pub(crate) use config::{ALPN, client_config, server_config};
pub(crate) use exporter::SessionSecrets;
pub(crate) use handshake::{
    BlockingWait, HandshakeError, Readiness, STEP_TIMEOUT, flush, handshake, prepare_tcp, receive, wait,
    wait_for,
};

#[cfg(test)]
mod test_pair;
#[cfg(test)]
pub(crate) use test_pair::pair;
