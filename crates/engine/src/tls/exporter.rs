//! What a session's secrets are derived from: exported keying material (RFC 8446, section 7.5), which only
//! the two ends of this TLS connection know.

use haul_wire::control::Cipher;
use haul_wire::packet::ConnectionId;
use rustls::Connection;

use crate::crypto::{DataKeys, FrameKeys, ResumptionSecret};
use crate::{EngineError, Role, Secret};

const AUTH_LABEL: &[u8] = b"EXPORTER-haul-auth";
const DATA_LABEL: &[u8] = b"EXPORTER-haul-data";
const TICKET_LABEL: &[u8] = b"EXPORTER-haul-ticket";
const SESSION_LABEL: &[u8] = b"EXPORTER-haul-session";
const CIPHERS: [Cipher; 4] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None];

/// Everything that is exported from the TLS connection of a session.
pub(crate) struct SessionSecrets {
    /// Names the session in control frames; not secret.
    pub(crate) session: u32,
    /// What the keys of control frames are derived from, and those of later connections.
    pub(crate) ticket: ResumptionSecret,
    auth: Secret,
    data: Vec<DataSecrets>,
}

struct DataSecrets {
    cipher: Cipher,
    from_client: Secret,
    from_server: Secret,
}

impl SessionSecrets {
    /// Exports them from a connection whose handshake is complete.
    pub(crate) fn export(tls: &Connection) -> Result<Self, EngineError> {
        let data = CIPHERS.map(|cipher| export_directions(tls, DATA_LABEL, cipher));
        Ok(Self {
            session: u32::from_be_bytes(export(tls, SESSION_LABEL, &[])?),
            ticket: ResumptionSecret(export::<32>(tls, TICKET_LABEL, &[])?.into()),
            auth: export::<32>(tls, AUTH_LABEL, &[])?.into(),
            data: data.into_iter().collect::<Result<_, _>>()?,
        })
    }

    /// What proves that the client knows `secret`, on this connection only.
    pub(crate) fn proof(&self, secret: &Secret) -> blake3::Hash {
        blake3::keyed_hash(secret.as_bytes(), self.auth.as_bytes())
    }

    /// The packet keys for the cipher that was agreed.
    pub(crate) fn data_keys(&self, cipher: Cipher) -> DataKeys {
        let secrets = self.data.iter().find(|s| s.cipher == cipher).expect("every cipher has its secrets");
        DataKeys::new(cipher, secrets.from_client.clone(), secrets.from_server.clone())
    }

    /// What authenticates the control frames of the session at the end of `role`.
    pub(crate) fn frame_keys(&self, role: Role) -> FrameKeys {
        FrameKeys::new(&self.ticket, ConnectionId::of_session(self.session), role)
    }
}

fn export_directions(tls: &Connection, label: &[u8], cipher: Cipher) -> Result<DataSecrets, EngineError> {
    let from = |role| export::<32>(tls, label, &context(cipher, role)).map(Secret::from);
    Ok(DataSecrets { cipher, from_client: from(Role::Client)?, from_server: from(Role::Server)? })
}

/// Cipher and sender, one byte each: another cipher or direction is another key.
fn context(cipher: Cipher, sender: Role) -> [u8; 2] {
    let cipher = match cipher {
        Cipher::Aes128Gcm => 1,
        Cipher::Aes256Gcm => 2,
        Cipher::ChaCha20Poly1305 => 3,
        Cipher::None => 4,
    };
    let sender = match sender {
        Role::Client => 1,
        Role::Server => 2,
    };
    [cipher, sender]
}

fn export<const N: usize>(tls: &Connection, label: &[u8], context: &[u8]) -> Result<[u8; N], EngineError> {
    tls.export_keying_material([0; N], label, Some(context))
        .map_err(|e| EngineError::system("cannot derive keys from TLS", e))
}

#[cfg(test)]
mod tests {
    use haul_proto::{Open, Seal};

    use super::*;
    use crate::tls::pair;

    #[test]
    fn both_ends_derive_the_same_for_every_cipher_and_another_connection_does_not() {
        let [client, server] = pair().map(|(tls, _)| SessionSecrets::export(&tls).unwrap());
        let other = SessionSecrets::export(&pair()[0].0).unwrap();
        assert_eq!(client.session, server.session);
        assert_eq!(client.proof(&[7; 32].into()), server.proof(&[7; 32].into()));
        assert_ne!(client.proof(&[7; 32].into()), client.proof(&[8; 32].into()));
        assert_ne!(client.proof(&[7; 32].into()), other.proof(&[7; 32].into()));
        for cipher in CIPHERS {
            let mut packet = [0; 64];
            client.data_keys(cipher).sealer(Role::Client).seal_batch(&mut packet, 64, 7, 3);
            let opens = |secrets: &SessionSecrets, cipher| {
                secrets.data_keys(cipher).opener(Role::Server).open(&mut packet.clone(), 7, 3).is_ok()
            };
            assert!(opens(&server, cipher));
            assert!(!opens(&other, cipher));
            let others = CIPHERS.into_iter().filter(|c| *c != cipher);
            assert!(others.into_iter().all(|other| !opens(&server, other)), "{cipher}");
        }
    }
}
