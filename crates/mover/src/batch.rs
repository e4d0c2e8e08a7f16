//! Lists that go to the peer, cut so that each part fits a frame.

use haul_wire::control::MAX_FRAME;

/// Bytes of one part; the last item may exceed it. Items are far smaller than the rest of the frame.
const PART_BYTES: usize = MAX_FRAME / 4;

/// Splits off the items of the next message: as many as fit, at least one if there is any.
pub(crate) fn next_part<T>(items: &mut Vec<T>, most: usize, size: impl Fn(&T) -> usize) -> Vec<T> {
    let mut bytes = 0;
    let fits = items.iter().take(most).take_while(|item| {
        let before = bytes;
        bytes += size(item);
        before < PART_BYTES
    });
    let len = fits.count();
    let rest = items.split_off(len);
    std::mem::replace(items, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bounded_in_items_and_bytes_and_lose_nothing() {
        let mut items: Vec<usize> = (0..100).map(|i| i * 1000).collect();
        let all = items.clone();
        let mut back = Vec::new();
        while !items.is_empty() {
            let part = next_part(&mut items, 40, |&bytes| bytes);
            assert!(!part.is_empty() && part.len() <= 40);
            assert!(part.iter().sum::<usize>() < MAX_FRAME);
            back.extend(part);
        }
        assert_eq!(back, all);
    }
}
