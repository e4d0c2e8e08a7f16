//! Secrets of a session, derived from exported keying material (RFC 8446, section 7.5), which only the two
//! ends of its TLS connection know.

use haul_proto::connection::{ConnectionKeys, FrameKeys, Opener, ResumptionSecret, Sealer};
use haul_wire::control::Cipher;
use haul_wire::packet::ConnectionId;
use rustls::Connection;

use crate::{EngineError, Role, Secret};

const AUTH_LABEL: &[u8] = b"EXPORTER-haul-auth";
const CONNECTION_LABEL: &[u8] = b"EXPORTER-haul-connection";
const SESSION_LABEL: &[u8] = b"EXPORTER-haul-session";

/// All secrets exported from the TLS connection of a session.
pub(crate) struct SessionSecrets {
    /// Session ID in control frames; not secret.
    pub(crate) session: u32,
    /// Secret from which all other keys are derived.
    pub(crate) connection: ResumptionSecret,
    auth: Secret,
}

impl SessionSecrets {
    /// Exports the secrets of a connection whose handshake is complete.
    pub(crate) fn export(tls: &Connection) -> Result<Self, EngineError> {
        Ok(Self {
            session: u32::from_be_bytes(export(tls, SESSION_LABEL)?),
            connection: ResumptionSecret(export::<32>(tls, CONNECTION_LABEL)?.into()),
            auth: export::<32>(tls, AUTH_LABEL)?.into(),
        })
    }

    /// Proof that the client knows `secret`, valid on this connection only.
    pub(crate) fn proof(&self, secret: &Secret) -> blake3::Hash {
        blake3::keyed_hash(secret.as_bytes(), self.auth.as_bytes())
    }

    /// Keys that authenticate the session's control frames at the end of `role`.
    pub(crate) fn frame_keys(&self, role: Role) -> FrameKeys {
        FrameKeys::new(&self.connection, ConnectionId::of_session(self.session), role)
    }

    /// Keys that protect the session's packets at the end of `role`.
    pub(crate) fn keys(&self, role: Role, cipher: Cipher) -> (Sealer, Opener) {
        let id = ConnectionId::of_session(self.session);
        ConnectionKeys::new(&self.connection, &id, role).session_pair(cipher)
    }
}

fn export<const N: usize>(tls: &Connection, label: &[u8]) -> Result<[u8; N], EngineError> {
    tls.export_keying_material([0; N], label, Some(&[]))
        .map_err(|e| EngineError::system_other("cannot derive keys from TLS", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::pair;

    #[test]
    fn both_ends_derive_equal_keys_and_other_connections_do_not() {
        let [client, server] = pair().map(|(tls, _)| SessionSecrets::export(&tls).unwrap());
        let other = SessionSecrets::export(&pair()[0].0).unwrap();
        assert_eq!(client.session, server.session);
        assert_eq!(client.proof(&[7; 32].into()), server.proof(&[7; 32].into()));
        assert_ne!(client.proof(&[7; 32].into()), client.proof(&[8; 32].into()));
        assert_ne!(client.proof(&[7; 32].into()), other.proof(&[7; 32].into()));
        assert_eq!(client.connection.0, server.connection.0);
        assert_ne!(client.connection.0, other.connection.0);
        assert_ne!(client.connection.0, client.auth);
    }
}
