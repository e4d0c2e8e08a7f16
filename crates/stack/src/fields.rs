//! Fields: one or several attributes that are read or written together.

use crate::attribute::{Attribute, AttributeType};

mod sealed {
    pub trait Sealed {}
}

/// What an iteration over a batch reads or writes in each packet: an [`Attribute`], an array of them, a pair
/// or a triple. One iteration for several costs less than one for each.
pub trait Fields: Copy + sealed::Sealed {
    /// Type of the values.
    type Values;
    /// Bytes from the start of the packet to the end of the last field.
    fn end(self) -> usize;
    /// Reads the values from a packet.
    ///
    /// # Panics
    /// If the packet is shorter than [`Fields::end`].
    fn read(self, packet: &[u8]) -> Self::Values;
    /// Writes the values to a packet.
    ///
    /// # Panics
    /// As [`Fields::read`].
    fn write(self, values: Self::Values, packet: &mut [u8]);
}

impl<T: AttributeType> sealed::Sealed for Attribute<T> {}

impl<T: AttributeType> Fields for Attribute<T> {
    type Values = T::Value;

    #[inline]
    fn end(self) -> usize {
        self.range().end
    }

    #[inline]
    fn read(self, packet: &[u8]) -> T::Value {
        T::read(&packet[self.range()])
    }

    #[inline]
    fn write(self, value: T::Value, packet: &mut [u8]) {
        T::write(value, &mut packet[self.range()]);
    }
}

impl<F: Fields, const N: usize> sealed::Sealed for [F; N] {}

impl<F: Fields, const N: usize> Fields for [F; N] {
    type Values = [F::Values; N];

    #[inline]
    fn end(self) -> usize {
        self.into_iter().map(F::end).max().unwrap_or(0)
    }

    #[inline]
    fn read(self, packet: &[u8]) -> [F::Values; N] {
        self.map(|field| field.read(packet))
    }

    #[inline]
    fn write(self, values: [F::Values; N], packet: &mut [u8]) {
        for (field, value) in self.into_iter().zip(values) {
            field.write(value, packet);
        }
    }
}

macro_rules! tuples {
    ($(($($field:ident $value:ident),*))*) => {$(
        impl<$($field: Fields),*> sealed::Sealed for ($($field,)*) {}

        #[expect(non_snake_case, reason = "variables are named as their types")]
        impl<$($field: Fields),*> Fields for ($($field,)*) {
            type Values = ($($field::Values,)*);

            #[inline]
            fn end(self) -> usize {
                let ($($field,)*) = self;
                0 $(.max($field.end()))*
            }

            #[inline]
            fn read(self, packet: &[u8]) -> Self::Values {
                let ($($field,)*) = self;
                ($($field.read(packet),)*)
            }

            #[inline]
            fn write(self, ($($value,)*): Self::Values, packet: &mut [u8]) {
                let ($($field,)*) = self;
                $($field.write($value, packet);)*
            }
        }
    )*};
}

tuples! { (A a, B b) (A a, B b, C c) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_written_together_are_read_together() {
        let (short, long) = (Attribute::<u16>::at(9), Attribute::<u64>::at(0));
        let mut packet = [0xFF; 12];
        (short, [long]).write((0x0102, [3]), &mut packet);
        assert_eq!(packet, [0, 0, 0, 0, 0, 0, 0, 3, 0xFF, 1, 2, 0xFF]);
        assert_eq!((short, [long], short).read(&packet), (0x0102, [3], 0x0102));
        assert_eq!(((short, long).end(), [long; 2].end(), <[Attribute<u8>; 0]>::end([])), (11, 8, 0));
    }
}
