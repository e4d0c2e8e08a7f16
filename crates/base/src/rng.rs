//! Seeded random numbers. The sequence of a seed never changes, so that a printed seed reproduces a run.

/// xoshiro256++ (Blackman and Vigna, 2019), seeded through `SplitMix64` as its authors recommend.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator from `seed`, which determines its whole sequence.
    pub fn from_seed(seed: u64) -> Self {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        Self { state: [next(), next(), next(), next()] }
    }

    /// Returns 64 uniform random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a uniform number in `[0, 1)` with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number in `0..bound`, or 0 if `bound` is 0. Uses the widening product, whose bias is
    /// below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.next_f64() < p
    }

    /// Fills `buffer` with random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences_and_different_seeds_do_not() {
        let draw = |seed| {
            let mut rng = Rng::from_seed(seed);
            (0..64).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn the_sequence_never_changes() {
        // Changing this changes every recorded simulation.
        let mut rng = Rng::from_seed(1);
        let first = [rng.next_u64(), rng.next_u64()];
        let mut again = Rng::from_seed(1);
        assert_eq!(first, [again.next_u64(), again.next_u64()]);
        assert_eq!(first[0], 0xcfc5_d07f_6f03_c29b);
    }

    #[test]
    fn chance_is_close_to_its_probability() {
        let mut rng = Rng::from_seed(3);
        let hits = (0..100_000).filter(|_| rng.chance(0.01)).count();
        // Expected 1000 with standard deviation 31.5; allows five deviations.
        assert!((843..1157).contains(&hits), "{hits}");
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::from_seed(5);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
    }
}
