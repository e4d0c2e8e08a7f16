//! `SipHash-2-4` (Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012): a keyed 64-bit tag that
//! is cheap on inputs of a few bytes. It marks the packets of sessions without encryption.

use zeroize::Zeroizing;

/// A `SipHash` key.
pub(crate) struct SipKey {
    k0: Zeroizing<u64>,
    k1: Zeroizing<u64>,
}

struct State([u64; 4]);

impl State {
    fn rounds(&mut self, count: usize) {
        let [v0, v1, v2, v3] = &mut self.0;
        for _ in 0..count {
            *v0 = v0.wrapping_add(*v1);
            *v1 = v1.rotate_left(13) ^ *v0;
            *v0 = v0.rotate_left(32);
            *v2 = v2.wrapping_add(*v3);
            *v3 = v3.rotate_left(16) ^ *v2;
            *v0 = v0.wrapping_add(*v3);
            *v3 = v3.rotate_left(21) ^ *v0;
            *v2 = v2.wrapping_add(*v1);
            *v1 = v1.rotate_left(17) ^ *v2;
            *v2 = v2.rotate_left(32);
        }
    }

    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.rounds(2);
        self.0[0] ^= word;
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

impl SipKey {
    /// A key from 16 secret bytes.
    pub(crate) fn new(bytes: &[u8; 16]) -> Self {
        Self { k0: word(&bytes[..8]).into(), k1: word(&bytes[8..]).into() }
    }

    /// The 64-bit tag of `data`.
    pub(crate) fn hash(&self, data: &[u8]) -> u64 {
        let (k0, k1) = (*self.k0, *self.k1);
        let mut state = State([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]);
        let (words, rest) = data.split_at(data.len() & !7);
        for chunk in words.chunks_exact(8) {
            state.absorb(word(chunk));
        }
        // The last word carries what is left over and, in its highest byte, the length.
        state.absorb(word(rest) | (data.len() as u64) << 56);
        state.0[2] ^= 0xff;
        state.rounds(4);
        state.0.iter().fold(0, |hash, v| hash ^ v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_the_vectors_of_the_paper_and_its_reference_code() {
        let key = SipKey::new(&std::array::from_fn(|i| i as u8));
        let input: Vec<u8> = (0..15).collect();
        // Appendix A of the paper: fifteen bytes.
        assert_eq!(key.hash(&input), 0xa129_ca61_49be_45e5);
        // vectors.h of the reference code: nothing, and one whole word.
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash(&input[..8]), 0x93f5_f579_9a93_2462);
    }
}
