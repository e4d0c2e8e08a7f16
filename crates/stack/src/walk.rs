//! Walks over the packets of a batch.

use std::marker::PhantomData;

use crate::attribute::AttributeType;

/// Walks over the packets of a batch; see [`Batch::live`].
#[derive(Clone, Debug)]
pub struct Live(pub(crate) u64);

impl Live {
    /// How many there are still to come.
    pub fn count_left(&self) -> usize {
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
}

/// The values of one attribute in the packets of a batch; see [`Batch::values`](crate::Batch::values).
#[derive(Clone, Debug)]
pub struct Values<'b, T> {
    /// From where the next packet has the attribute.
    rest: &'b [u8],
    stride: usize,
    live: u64,
    of_type: PhantomData<fn() -> T>,
}

impl<'b, T: AttributeType> Values<'b, T> {
    pub(crate) fn new(from_first: &'b [u8], stride: usize, live: u64) -> Self {
        Self { rest: from_first, stride, live, of_type: PhantomData }
    }
}

impl<T: AttributeType> Iterator for Values<'_, T> {
    type Item = T::Value;

    #[inline]
    fn next(&mut self) -> Option<T::Value> {
        if self.live == 0 {
            return None;
        }
        if self.live & 1 == 0 {
            // Seldom: the packets in front of this one were taken.
            let skip = self.live.trailing_zeros();
            self.rest = &self.rest[skip as usize * self.stride..];
            self.live >>= skip;
        }
        let value = T::read(&self.rest[..T::LEN]);
        self.rest = self.rest.get(self.stride..).unwrap_or_default();
        self.live >>= 1;
        Some(value)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.live.count_ones() as usize;
        (left, Some(left))
    }
}
