//! Iterators over the packets of a batch.

use crate::fields::Fields;

/// Iterator over the indices of packets in a batch; see [`Batch::live`](crate::Batch::live).
#[derive(Clone, Debug)]
pub struct Live(pub(crate) u64);

impl Live {
    /// Number of indices left.
    pub fn remaining(&self) -> usize {
        self.0.count_ones() as usize
    }
}

impl Iterator for Live {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let i = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(i)
    }

    #[inline]
    fn last(self) -> Option<usize> {
        self.0.checked_ilog2().map(|i| i as usize)
    }
}

/// Iterator over values of attributes in the packets of a batch; see [`Batch::values`](crate::Batch::values).
#[derive(Clone, Debug)]
pub struct Values<'b, F> {
    /// The buffer from the next packet on.
    rest: &'b [u8],
    fields: F,
    end: usize,
    stride: usize,
    live: u64,
}

impl<'b, F: Fields> Values<'b, F> {
    pub(crate) fn new(packets: &'b [u8], fields: F, stride: usize, live: u64) -> Self {
        Self { rest: packets, fields, end: fields.end(), stride, live }
    }
}

impl<F: Fields> Iterator for Values<'_, F> {
    type Item = F::Values;

    #[inline]
    fn next(&mut self) -> Option<F::Values> {
        if self.live == 0 {
            return None;
        }
        // Mostly 0: packets before this one are rarely taken.
        let skip = self.live.trailing_zeros();
        if skip > 0 {
            self.rest = &self.rest[skip as usize * self.stride..];
            self.live >>= skip;
        }
        let values = self.fields.read(&self.rest[..self.end]);
        self.rest = self.rest.get(self.stride..).unwrap_or_default();
        self.live >>= 1;
        Some(values)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.live.count_ones() as usize;
        (left, Some(left))
    }

    /// A loop without branches if nothing was taken; used by `sum`, `max` and `for_each`.
    #[inline]
    fn fold<B, G: FnMut(B, F::Values) -> B>(self, init: B, mut f: G) -> B {
        let mut folded = init;
        if self.live & self.live.wrapping_add(1) == 0 {
            // A `u32`, half the width of an address, so that the sum cannot overflow and needs no check.
            let (stride, mut at) = (self.stride as u32, 0u32);
            for _ in 0..self.live.count_ones() {
                let from = at as usize;
                folded = f(folded, self.fields.read(&self.rest[from..from + self.end]));
                at = at.wrapping_add(stride);
            }
            return folded;
        }
        for values in self {
            folded = f(folded, values);
        }
        folded
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Values;
    use crate::attribute::Attribute;

    proptest! {
        #[test]
        fn values_belong_to_the_remaining_packets(
            bytes in prop::collection::vec(any::<u8>(), 64 * 20..64 * 20 + 4), live: u64, stride in 2usize..20,
        ) {
            let expected: Vec<u16> = (0..64)
                .filter(|i| live >> i & 1 == 1)
                .map(|i| u16::from_be_bytes([bytes[i * stride], bytes[i * stride + 1]]))
                .collect();
            for live in [live, if live & 1 == 1 { u64::MAX } else { (1 << (live >> 58)) - 1 }] {
                let values = || Values::new(&bytes, Attribute::<u16>::at(0), stride, live);
                let singly: Vec<u16> = std::iter::from_fn({ let mut v = values(); move || v.next() }).collect();
                let mut folded = Vec::new();
                values().for_each(|value| folded.push(value));
                prop_assert_eq!(&singly, &folded);
                prop_assert_eq!(values().size_hint(), (folded.len(), Some(folded.len())));
            }
            prop_assert_eq!(Values::new(&bytes, Attribute::<u16>::at(0), stride, live).collect::<Vec<_>>(), expected);
        }
    }
}
