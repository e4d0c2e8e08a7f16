//! Key generations: generation g serves the packet numbers `g << 22 ..`, and each secret is derived from the
//! previous one, which is then dropped.

use aws_lc_rs::aead;
use haul_stack::Unauthentic;
use haul_wire::control::Cipher;
use haul_wire::secret::Secret;
use siphasher::sip::SipHasher24;
use zeroize::Zeroizing;

/// Packet numbers per generation, as a power of two. 2^22 packets stay below the 2^23 that RFC 9001, section
/// 6.6, allows under one AES-GCM key.
const GENERATION_BITS: u32 = 22;
/// Bytes of an AEAD tag (RFC 5116, section 5; RFC 8439).
const AEAD_TAG_LEN: usize = 16;
/// Bytes of the tag in a session without encryption.
const TOKEN_TAG_LEN: usize = 8;
/// Longest header of a packet: kind, packet number, session.
const MAX_HEADER_LEN: usize = 16;

const NEXT_CONTEXT: &str = "haulage 1 data key ratchet: next generation";
const KEY_CONTEXT: &str = "haulage 1 data key ratchet: packet key and nonce";

/// Ciphers offered and permitted by default, in order of preference.
pub const ENCRYPTED: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

/// Returns the generation of a 48-bit packet number.
pub(super) const fn generation_of(pn: u64) -> u32 {
    (pn >> GENERATION_BITS) as u32
}

/// Returns the bytes of a packet's tag.
pub const fn tag_len(cipher: Cipher) -> usize {
    match cipher {
        Cipher::None => TOKEN_TAG_LEN,
        Cipher::Aes128Gcm | Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => AEAD_TAG_LEN,
    }
}

/// Derives the secret of the next generation. The current one cannot be derived from it.
pub(super) fn next_secret(present: &Secret) -> Secret {
    blake3::derive_key(NEXT_CONTEXT, present.as_bytes()).into()
}

/// The expanded key of one generation.
#[derive(derive_more::Debug)]
pub(super) enum PacketKey {
    /// AWS-LC zeroises its own key.
    #[debug("(secret)")]
    Aead { key: aead::LessSafeKey, iv: Zeroizing<[u8; 12]> },
    /// Key of SipHash-2-4 (Aumasson and Bernstein, 2012), which is cheap on inputs of a few bytes.
    #[debug("(secret)")]
    Token(Zeroizing<[u8; 16]>),
}

impl PacketKey {
    /// Derives the key of the generation with this secret.
    pub(super) fn of(secret: &Secret, cipher: Cipher) -> Self {
        let mut material = Zeroizing::new([0; 44]);
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hasher.update(secret.as_bytes()).finalize_xof().fill(&mut *material);
        Self::new(cipher, &material)
    }

    fn new(cipher: Cipher, material: &[u8; 44]) -> Self {
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            Cipher::None => {
                let mut key = Zeroizing::new([0; 16]);
                key.copy_from_slice(&material[..16]);
                return Self::Token(key);
            }
        };
        let key = aead::UnboundKey::new(algorithm, &material[..algorithm.key_len()])
            .expect("the slice has the length that the algorithm asks for");
        let mut iv = Zeroizing::new([0; 12]);
        iv.copy_from_slice(&material[32..]);
        Self::Aead { key: aead::LessSafeKey::new(key), iv }
    }

    /// Encrypts the body and writes the tag. `packet` consists of header, body and space for the tag.
    pub(super) fn seal(&self, packet: &mut [u8], header_len: usize, pn: u64) {
        let (header, rest) = packet.split_at_mut(header_len);
        match self {
            Self::Aead { key, iv } => {
                let (body, tag) = rest.split_at_mut(rest.len() - AEAD_TAG_LEN);
                let sealed = key
                    .seal_in_place_separate_tag(nonce(iv, pn), aead::Aad::from(&*header), body)
                    .expect("a datagram is shorter than what an AEAD can seal");
                tag.copy_from_slice(sealed.as_ref());
            }
            Self::Token(key) => {
                let at = rest.len() - TOKEN_TAG_LEN;
                let token = token(key, header, rest.len(), pn);
                rest[at..].copy_from_slice(&token.to_be_bytes());
            }
        }
    }

    /// Authenticates and decrypts in place; returns the length of the body.
    pub(super) fn open(&self, packet: &mut [u8], header_len: usize, pn: u64) -> Result<usize, Unauthentic> {
        let (header, rest) = packet.split_at_mut_checked(header_len).ok_or(Unauthentic)?;
        match self {
            Self::Aead { key, iv } => {
                let opened = key.open_in_place(nonce(iv, pn), aead::Aad::from(&*header), rest);
                opened.map(|body| body.len()).map_err(|_| Unauthentic)
            }
            Self::Token(key) => {
                let body_len = rest.len().checked_sub(TOKEN_TAG_LEN).ok_or(Unauthentic)?;
                let token = token(key, header, rest.len(), pn).to_be_bytes();
                let same = aws_lc_rs::constant_time::verify_slices_are_equal(&token, &rest[body_len..]);
                same.map(|()| body_len).map_err(|_| Unauthentic)
            }
        }
    }
}

/// Nonce: the packet number, as the last bytes of a 96-bit string, XOR the IV (RFC 8446, section 5.3).
fn nonce(iv: &[u8; 12], pn: u64) -> aead::Nonce {
    let mut bytes = *iv;
    for (byte, pn_byte) in bytes[4..].iter_mut().zip(pn.to_be_bytes()) {
        *byte ^= pn_byte;
    }
    aead::Nonce::assume_unique_for_key(bytes)
}

/// Tag without encryption: binds header, packet number and length to the session, but not the body.
fn token(key: &[u8; 16], header: &[u8], rest_len: usize, pn: u64) -> u64 {
    let mut input = [0; MAX_HEADER_LEN + 16];
    let header = &header[..header.len().min(MAX_HEADER_LEN)];
    input[..header.len()].copy_from_slice(header);
    input[MAX_HEADER_LEN..MAX_HEADER_LEN + 8].copy_from_slice(&pn.to_be_bytes());
    input[MAX_HEADER_LEN + 8..].copy_from_slice(&(rest_len as u64).to_be_bytes());
    SipHasher24::new_with_key(key).hash(&input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_agree_with_the_vectors_of_the_paper_and_its_reference_code() {
        let hasher = SipHasher24::new_with_key(&std::array::from_fn(|i| i as u8));
        let input: Vec<u8> = (0..15).collect();
        // Appendix A of the paper: fifteen bytes.
        assert_eq!(hasher.hash(&input), 0xa129_ca61_49be_45e5);
        // vectors.h of the reference code: nothing, and one whole word.
        assert_eq!(hasher.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(hasher.hash(&input[..8]), 0x93f5_f579_9a93_2462);
    }
}
