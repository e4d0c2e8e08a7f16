//! A server's identity while it runs: a fresh certificate, a fresh secret, and their expiry.

use std::time::Duration;

use aws_lc_rs::digest;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::{Zeroize, Zeroizing};

use crate::clock::{is_past, unix_now};
use crate::{EngineError, Secret};

/// A server's certificate and key, the secret that clients must know, and the expiry of both.
#[derive(derive_more::Debug)]
#[debug("ServerIdentity({expires:?})")]
pub(crate) struct ServerIdentity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: Zeroizing<PrivatePkcs8KeyDer<'static>>,
    /// Proves that a client has the URL.
    pub(crate) secret: Secret,
    /// Expiry in seconds since 1970; no client is accepted from then on.
    pub(crate) expires: Option<u64>,
}

impl ServerIdentity {
    /// Generates an identity, valid for `lifetime` or until it is dropped.
    pub(crate) fn generate(lifetime: Option<Duration>) -> Result<Self, EngineError> {
        let mut certified = rcgen::generate_simple_self_signed(vec!["haul".to_owned()])
            .map_err(|e| EngineError::system_other("cannot make a certificate", e))?;
        let key = Zeroizing::new(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
        certified.signing_key.zeroize();
        Ok(Self {
            certificate: certified.cert.der().clone(),
            key,
            secret: random::<32>()?.into(),
            expires: lifetime.map(|l| unix_now().saturating_add(l.as_secs().max(1))),
        })
    }

    pub(crate) fn is_expired(&self) -> bool {
        is_past(self.expires)
    }

    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.certificate)
    }
}

/// SHA-256 of a certificate in DER.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, certificate);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}

/// Cryptographically secure random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], EngineError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|e| EngineError::system_other("no random numbers", e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identity_is_unique() {
        let a = ServerIdentity::generate(None).unwrap();
        let b = ServerIdentity::generate(None).unwrap();
        assert_ne!(a.fingerprint(), b.fingerprint());
        assert_ne!(a.secret, b.secret);
        assert!(!a.is_expired());
        assert!(!format!("{a:?}").contains("secret"));
    }

    #[test]
    fn the_expiry_is_one_lifetime_ahead() {
        let lifetime = Duration::from_secs(3600);
        let before = unix_now();
        let identity = ServerIdentity::generate(Some(lifetime)).unwrap();
        let at = identity.expires.unwrap();
        assert!((before + 3600..=unix_now() + 3600).contains(&at));
    }
}
