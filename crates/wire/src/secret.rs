//! What must not be shown.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// 32 secret bytes. They are overwritten when they are dropped, compared in the same time wherever they differ, and not
/// shown.
#[derive(Clone, derive_more::Debug, derive_more::From)]
#[debug("(secret)")]
#[from([u8; 32])]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// The secret itself; never to be logged.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Eq for Secret {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_and_not_shown() {
        let secret = Secret::from([7; 32]);
        assert!(secret == secret.clone() && secret != Secret::from([8; 32]));
        assert_eq!(format!("{secret:?}"), "(secret)");
    }
}
