//! What a client and a server agree on before there are connections.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use haul_stack::{Recipe, Registry};
use haul_wire::control::{Accept, Cipher, ControlMessage, FrameDecoder, Request, encode_frame};

use super::{Reached, check_accept, default_settings, hello, not_accept, reach};
use crate::clock::after;
use crate::crypto::ENCRYPTED;
use crate::endpoint::{ConnectionOptions, SavedResumption};
use crate::tls::{HandshakeError, Readiness, flush, receive, wait};
use crate::{EngineError, HaulUrl};

/// How a client opens a connection.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// As [`ConnectOptions::timeout`](super::ConnectOptions::timeout).
    pub timeout: Duration,
    /// How the connection runs.
    pub channel: ConnectionOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { ciphers: ENCRYPTED.to_vec(), timeout: super::TIMEOUT, channel: ConnectionOptions::default() }
    }
}

/// Agrees with the server of `url` on a recipe, over a TLS connection that is closed again.
pub(crate) async fn agree(
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Registry,
    options: &OpenOptions,
    readiness: &impl Readiness,
) -> Result<SavedResumption, EngineError> {
    let request = Request::Connect { recipe: recipe.to_toml(), versions: registry.versions(recipe) };
    let hello = hello(options.ciphers.clone(), request, default_settings());
    let timeout = options.timeout;
    let mut server = reach(url, hello, timeout, readiness).await?;
    let began = Instant::now();
    server.send(&ControlMessage::Hello(server.hello.clone()))?;
    let accept = server.wait_for_accept(timeout, readiness).await?;
    let checked = check_accept(&accept, &server.secrets, &options.ciphers);
    let last = match &checked {
        Ok(()) => ControlMessage::Bye,
        Err(error) => ControlMessage::Abort(error.fault()),
    };
    // It has been agreed on whether or not the last message leaves.
    let _ = server.send(&last);
    server.tls.send_close_notify();
    let _ = flush(&mut server.tls, &server.tcp);
    checked?;
    Ok(SavedResumption {
        server: server.peer,
        identity: accept.session,
        secret: server.secrets.connection,
        cipher: accept.cipher,
        // Where TCP had to repeat something, it took much longer than a round trip.
        round_trip: server.round_trip.min(began.elapsed().into()),
        last_epoch: 0,
        recipe: recipe.to_toml(),
    })
}

impl Reached {
    /// Sends a message, or as much of it as the connection takes now.
    fn send(&mut self, message: &ControlMessage) -> Result<(), EngineError> {
        let mut frame = Vec::new();
        encode_frame(message, &mut frame).map_err(|e| EngineError::TooLong(e.to_string()))?;
        let sent = self.tls.writer().write_all(&frame).and_then(|()| flush(&mut self.tls, &self.tcp));
        sent.map(drop).map_err(|error| EngineError::lost(error.to_string()))
    }

    async fn wait_for_accept(
        &mut self,
        timeout: Duration,
        readiness: &impl Readiness,
    ) -> Result<Accept, EngineError> {
        let deadline = after(timeout);
        let lost = |error| match error {
            HandshakeError::TimedOut => {
                EngineError::timed_out("the server's answer to the request", Some(timeout))
            }
            error => error.into(),
        };
        let (mut decoder, mut buffer) = (FrameDecoder::new(), [0; 4_096]);
        loop {
            // Nothing comes now, or nothing any more: the next read tells which.
            while let Ok(len @ 1..) = self.tls.reader().read(&mut buffer) {
                decoder.feed(&buffer[..len]);
            }
            while let Some(message) =
                decoder.next_message().map_err(|e| EngineError::protocol(e.to_string()))?
            {
                match message {
                    ControlMessage::Accept(accept) => return Ok(accept),
                    ControlMessage::Refuse(fault) | ControlMessage::Abort(fault) => {
                        return Err(EngineError::Peer(fault.from_peer()));
                    }
                    // A server that takes its time wants to know whether the client is still there.
                    ControlMessage::Ping(number) => self.send(&ControlMessage::Pong(number))?,
                    other => return Err(not_accept(&other)),
                }
            }
            wait(&self.tls, &self.tcp, deadline, readiness).await.map_err(lost)?;
            flush(&mut self.tls, &self.tcp).map_err(|error| lost(error.into()))?;
            receive(&mut self.tls, &self.tcp).map_err(lost)?;
        }
    }
}
