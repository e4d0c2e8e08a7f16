//! Stretches of a file's stream that stand one behind the other in the object.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    counter: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    pub(crate) fn new(counter: &Arc<AtomicU64>, bytes: u64) -> Self {
        counter.fetch_add(bytes, Ordering::Relaxed);
        Self { counter: counter.clone(), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A stretch: where it begins in the stream, and in all stretches put together.
#[derive(Clone, Copy, Debug)]
struct Section {
    start: u64,
    at: u64,
}

/// See the module's text. There may be very many, so they stand in memory once, for the reader and for the data path.
#[derive(Debug)]
pub(crate) struct Sections {
    each: Vec<Section>,
    len: u64,
    _held: Option<Held>,
}

impl Sections {
    pub(crate) const EACH: u64 = size_of::<Section>() as u64;

    /// Of ranges in order, none of them empty.
    pub(crate) fn new(ranges: impl ExactSizeIterator<Item = Range<u64>>, held: Option<Held>) -> Self {
        let mut len = 0;
        let section = |range: Range<u64>| {
            let at = len;
            len += range.end - range.start;
            Section { start: range.start, at }
        };
        let each = ranges.map(section).collect();
        Self { each, len, _held: held }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// The ranges of the stream, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.each.len()).map(|index| self.range(index))
    }

    /// Those of them that end after `offset` of the stream.
    pub(crate) fn ranges_after(&self, offset: u64) -> impl Iterator<Item = Range<u64>> {
        let behind = self.each.partition_point(|section| section.start <= offset);
        let first = behind.checked_sub(1).filter(|&before| self.range(before).end > offset);
        (first.unwrap_or(behind)..self.each.len()).map(|index| self.range(index))
    }

    /// Where the byte `at` of all stretches is in the stream, and how many bytes follow there with it. `at` must be
    /// less than [`Sections::len`].
    pub(crate) fn locate(&self, at: u64) -> (u64, u64) {
        let index = self.each.partition_point(|section| section.at <= at) - 1;
        let range = self.range(index);
        let start = range.start + (at - self.each[index].at);
        (start, range.end - start)
    }

    fn range(&self, index: usize) -> Range<u64> {
        let Section { start, at } = self.each[index];
        let end = self.each.get(index + 1).map_or(self.len, |next| next.at);
        start..start + (end - at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_held_is_given_back_when_the_last_user_has_gone() {
        let counter = Arc::default();
        let sections = Arc::new(Sections::new(std::iter::once(0..5), Some(Held::new(&counter, 16))));
        let other = sections.clone();
        drop(sections);
        assert_eq!(counter.load(Ordering::Relaxed), 16);
        drop(other);
        assert_eq!(counter.load(Ordering::Relaxed), 0);
    }

    proptest! {
        #[test]
        fn each_byte_is_found_where_it_stands(gaps in vec((0..5u64, 1..5u64), 1..40)) {
            let mut end = 0;
            let ranges: Vec<Range<u64>> = gaps
                .iter()
                .map(|(gap, len)| {
                    let start = end + gap;
                    end = start + len;
                    start..end
                })
                .collect();
            let sections = Sections::new(ranges.iter().cloned(), None);
            prop_assert_eq!(sections.ranges().collect::<Vec<_>>(), ranges.clone());
            let bytes: Vec<(u64, u64)> =
                ranges.iter().flat_map(|range| range.clone().map(|byte| (byte, range.end - byte))).collect();
            prop_assert_eq!(sections.len(), bytes.len() as u64);
            for (at, byte) in bytes.into_iter().enumerate() {
                prop_assert_eq!(sections.locate(at as u64), byte);
            }
            for offset in 0..end + 2 {
                let after: Vec<_> = ranges.iter().filter(|range| range.end > offset).cloned().collect();
                prop_assert_eq!(sections.ranges_after(offset).collect::<Vec<_>>(), after);
            }
        }
    }
}
