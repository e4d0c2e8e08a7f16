//! Secrets.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// 32 secret bytes: overwritten on drop, compared in constant time, and hidden in debug output.
#[derive(Clone, derive_more::Debug, derive_more::From)]
#[debug("(secret)")]
#[from([u8; 32])]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Returns the secret; never log it.
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
    fn a_secret_is_comparable_and_hidden_in_debug_output() {
        let secret = Secret::from([7; 32]);
        assert!(secret == secret.clone() && secret != Secret::from([8; 32]));
        assert_eq!(format!("{secret:?}"), "(secret)");
    }
}
