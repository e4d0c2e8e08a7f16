//! Conversion of ranges of sequence numbers to statements about each.

use std::ops::Range;

use crate::micro::events::Statement;

/// Adds statements about the range from `start` to the end of the last of `ranges`, which may be empty.
/// What lies between two of them is known to be missing if they `are_complete`.
pub(super) fn state(
    start: u64,
    ranges: impl Iterator<Item = Range<u64>>,
    are_complete: bool,
    into: &mut Vec<Statement>,
) {
    let mut told = start;
    let first_word = into.len();
    for Range { start: from, end: to } in ranges {
        let mut at = told;
        while at < to {
            let word = first_word + ((at - start) / 64) as usize;
            let first = start + (at - start) / 64 * 64;
            if into.len() <= word {
                into.push(Statement { first, received: 0, known: 0 });
            }
            let end = to.min(first + 64);
            let (missing, come) = (mask(first, at, from.min(end)), mask(first, at.max(from), end));
            let statement = &mut into[word];
            statement.received |= come;
            statement.known |= come | if are_complete { missing } else { 0 };
            at = end;
        }
        told = told.max(to);
    }
}

/// Mask of the bits `from..to` of a word that starts with `first`; zero if the range is empty.
fn mask(first: u64, from: u64, to: u64) -> u64 {
    if from >= to {
        return 0;
    }
    let len = to - from;
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    ones << (from - first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn statements_match_the_ranges(
            below in 0u64..1_000, base in 0u64..1_200, complete: bool,
            pieces in prop::collection::vec((1u64..100, 1u64..150), 0..6),
        ) {
            let start = below.max(base);
            let (mut at, mut ranges) = (below, Vec::new());
            for (gap, len) in pieces {
                ranges.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let mut words = Vec::new();
            state(start, ranges.iter().cloned(), complete, &mut words);
            let find = |n: u64| words.iter().find(|w| (w.first..w.first + 64).contains(&n));
            for n in start..at + 70 {
                let come = ranges.iter().any(|range| range.contains(&n));
                let bit = |word: u64, first: u64| word >> (n - first) & 1 == 1;
                let said = find(n).is_some_and(|w| bit(w.received, w.first));
                let known = find(n).is_some_and(|w| bit(w.known, w.first));
                prop_assert_eq!(said, come, "{}", n);
                prop_assert_eq!(known, come || complete && n < at, "{}", n);
            }
        }
    }
}
