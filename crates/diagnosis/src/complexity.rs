//! First-order complexity (d'Alessandro and Politi; dickens-classifier, section 3.1.1): the number of
//! distinct words in a signature.

use std::ops::RangeInclusive;

use crate::Signature;

/// Supported word lengths: the longest needs 2 MiB.
pub const WORD_LENGTHS: RangeInclusive<u32> = 1..=24;

/// Counts the distinct words of one length. Reused between windows for its memory: one bit per possible word.
#[derive(Clone, Debug)]
pub struct Words {
    length: u32,
    seen: Box<[u64]>,
}

/// Scan over the words of one signature.
struct Scan<'a> {
    words: &'a mut Words,
    word: usize,
    symbols: u64,
    found: u64,
}

impl Words {
    /// Creates a counter for words of `length` packets; `None` if the length is not in [`WORD_LENGTHS`].
    pub fn of_length(length: u32) -> Option<Self> {
        let words = 1usize << length.min(*WORD_LENGTHS.end());
        WORD_LENGTHS.contains(&length).then(|| Self { length, seen: vec![0; words.div_ceil(64)].into() })
    }

    /// Returns the number of packets in a word.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns `Na(n)`, the number of distinct words of consecutive packets. Takes time proportional to the
    /// number of runs of lost packets, not of packets.
    pub fn count(&mut self, signature: &Signature) -> u64 {
        if signature.runs().is_empty() {
            return u64::from(signature.packets() >= u64::from(self.length));
        }
        self.seen.fill(0);
        let mut scan = Scan { words: self, word: 0, symbols: 0, found: 0 };
        let mut position = 0;
        for run in signature.runs() {
            scan.push(1, run.first - position);
            scan.push(0, run.packets);
            position = run.first + run.packets;
        }
        scan.push(1, signature.packets() - position);
        scan.found
    }

    /// Returns `C1 = log2(Na(n)) / n`, 0 to 1. The paper prints a 2 for the `n`; with `n`, a random sequence
    /// tends to 1, as its text says. `None` for a signature shorter than a word.
    pub fn complexity(&mut self, signature: &Signature) -> Option<f64> {
        let words = self.count(signature);
        (words > 0).then(|| (words as f64).log2() / f64::from(self.length))
    }
}

impl Scan<'_> {
    /// Adds `packets` with the same outcome. After a whole word of them, there are no more new words.
    fn push(&mut self, symbol: usize, packets: u64) {
        let length = u64::from(self.words.length);
        let mask = (1 << length) - 1;
        for _ in 0..packets.min(length) {
            self.word = (self.word << 1 | symbol) & mask;
            self.symbols += 1;
            if self.symbols >= length {
                let (place, bit) = (&mut self.words.seen[self.word / 64], 1 << (self.word % 64));
                self.found += u64::from(*place & bit == 0);
                *place |= bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The binary tree of dickens-classifier, section 3.1.3 and figure 2: each word is a path of branches;
    /// one that adds a branch is new.
    #[derive(Default)]
    struct Tree([Option<Box<Tree>>; 2]);

    impl Tree {
        fn insert(&mut self, word: &[bool]) -> bool {
            let mut is_new = false;
            let mut node = self;
            for symbol in word {
                let branch = &mut node.0[usize::from(*symbol)];
                is_new |= branch.is_none();
                node = branch.get_or_insert_default();
            }
            is_new
        }
    }

    fn by_tree(symbols: &[bool], length: u32) -> u64 {
        let mut tree = Tree::default();
        symbols.windows(length as usize).filter(|word| tree.insert(word)).count() as u64
    }

    fn signature(symbols: &[bool]) -> Signature {
        let lost = symbols.iter().enumerate().filter(|(_, arrived)| !**arrived).map(|(at, _)| at as u64);
        Signature::of_lost(symbols.len() as u64, lost)
    }

    fn symbols(text: &str) -> Vec<bool> {
        text.bytes().map(|symbol| symbol == b'1').collect()
    }

    fn count(text: &str, length: u32) -> u64 {
        Words::of_length(length).unwrap().count(&signature(&symbols(text)))
    }

    #[test]
    fn the_words_of_the_papers_examples() {
        assert_eq!([1, 2, 3].map(|length| count("0010100", length)), [2, 3, 4]);
        // 0010, 0100, 1001, and 0010 again, which is known; 0101 ends it.
        assert_eq!([4, 5, 6, 7].map(|end| count(&"00100101"[..end], 4)), [1, 2, 3, 3]);
        assert_eq!((count("00100101", 4), by_tree(&symbols("00100101"), 4)), (4, 4));
    }

    #[test]
    fn one_symbol_has_no_complexity_and_a_random_sequence_nearly_all() {
        let complexity =
            |symbols: &[bool], length| Words::of_length(length).unwrap().complexity(&signature(symbols));
        assert_eq!(complexity(&vec![true; 71_000], 17), Some(0.0));
        assert_eq!(complexity(&[false; 100], 17), Some(0.0));
        assert_eq!(complexity(&[false; 16], 17), None);
        assert_eq!(complexity(&[], 17), None);
        let mut state = 1u64;
        let random: Vec<bool> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 63 == 1
        })
        .take(1_000_000)
        .collect();
        let found = complexity(&random, 10).unwrap();
        assert!(found > 0.9999, "{found}");
        // Two repeated words count as two, at any length.
        let found = complexity(&[true, false].repeat(1_000), 17).unwrap();
        assert!((found - 1.0 / 17.0).abs() < 1e-12, "{found}");
    }

    #[test]
    fn lengths_out_of_bounds_are_refused() {
        assert!([0, 25, 64].map(Words::of_length).iter().all(Option::is_none));
        assert_eq!(count("0110", 24), 0);
    }

    proptest! {
        #[test]
        fn complexity_matches_the_papers_tree(
            stretches in vec((any::<bool>(), 1usize..60), 0..40), noise in vec(any::<bool>(), 0..300), length in WORD_LENGTHS
        ) {
            let runs = stretches.iter().flat_map(|(arrived, packets)| vec![*arrived; *packets]);
            let symbols: Vec<bool> = runs.chain(noise).collect();
            let mut words = Words::of_length(length).unwrap();
            prop_assert_eq!(words.count(&signature(&symbols)), by_tree(&symbols, length));
            // An earlier count has no effect.
            prop_assert_eq!(words.count(&signature(&symbols)), by_tree(&symbols, length));
        }
    }
}
