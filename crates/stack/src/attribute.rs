//! Attributes: named, typed values that micro-protocols put into the header of every data packet. Their places
//! are fixed when the stack is built, so reading one is an array access (wu-h-ctp section 3.2 found the hash
//! table of its ancestor too slow and used a static one; here the table is gone).

use std::marker::PhantomData;
use std::num::NonZeroU16;

/// A type that an attribute may have. All are big-endian on the wire.
pub trait AttributeType: Copy + 'static {
    /// What reading gives.
    type Value: Copy;
    /// Bytes on the wire.
    const LEN: usize;
    /// Reads from exactly [`AttributeType::LEN`] bytes.
    fn read(bytes: &[u8]) -> Self::Value;
    /// Writes to exactly [`AttributeType::LEN`] bytes.
    fn write(value: Self::Value, bytes: &mut [u8]);
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl AttributeType for $t {
            type Value = $t;
            const LEN: usize = size_of::<$t>();
            #[inline]
            fn read(bytes: &[u8]) -> $t {
                let mut word = [0; size_of::<$t>()];
                word.copy_from_slice(bytes);
                <$t>::from_be_bytes(word)
            }
            #[inline]
            fn write(value: $t, bytes: &mut [u8]) {
                bytes.copy_from_slice(&value.to_be_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

/// An unsigned integer of 48 bits, read as `u64`; the upper bits of what is written are dropped.
#[derive(Clone, Copy, Debug)]
pub enum U48 {}

impl AttributeType for U48 {
    type Value = u64;
    const LEN: usize = 6;

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[2..].copy_from_slice(bytes);
        u64::from_be_bytes(word)
    }

    #[inline]
    fn write(value: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&value.to_be_bytes()[2..]);
    }
}

/// Where an attribute of type `T` lies in a data packet: bytes from the packet's start.
pub struct Attribute<T> {
    /// The offset and one, so that an `Option` takes no more room.
    above_offset: NonZeroU16,
    of_type: PhantomData<fn() -> T>,
}

impl<T> Clone for Attribute<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Attribute<T> {}

impl<T> Attribute<T> {
    #[inline]
    fn offset(self) -> usize {
        usize::from(self.above_offset.get()) - 1
    }
}

impl<T> std::fmt::Debug for Attribute<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attribute(@{})", self.offset())
    }
}

impl<T: AttributeType> Attribute<T> {
    pub(crate) fn at(offset: u16) -> Self {
        Self { above_offset: NonZeroU16::MIN.saturating_add(offset), of_type: PhantomData }
    }

    /// The bytes of the attribute within its packet.
    #[inline]
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.offset()..self.offset() + T::LEN
    }
}

/// One attribute of a layout, for people and checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeInfo {
    /// Its name, unique in the stack.
    pub name: &'static str,
    /// Bytes from the start of the packet.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
    /// Whether it is readable without the keys (it is authenticated all the same).
    pub clear: bool,
}

/// How the packets of one stack look: `kind u8 | packet number u48 | clear attributes | sealed attributes |
/// payload | tag`. Control packets have no sealed attributes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    pub(crate) clear_len: u16,
    pub(crate) data_len: u16,
    pub(crate) tag_len: u16,
    pub(crate) attributes: Vec<AttributeInfo>,
}

impl Layout {
    /// Bytes in front of what is encrypted.
    pub fn clear_len(&self) -> usize {
        usize::from(self.clear_len)
    }

    /// Bytes in front of the payload of a data packet.
    pub fn data_header_len(&self) -> usize {
        usize::from(self.data_len)
    }

    /// Bytes behind the payload.
    pub fn tag_len(&self) -> usize {
        usize::from(self.tag_len)
    }

    /// Bytes of a data packet beside its payload.
    pub fn data_overhead(&self) -> usize {
        self.data_header_len() + self.tag_len()
    }

    /// Every attribute, in the order of declaration.
    pub fn attributes(&self) -> &[AttributeInfo] {
        &self.attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_48_bits_drop_what_does_not_fit() {
        let mut bytes = [0; 8];
        <u64 as AttributeType>::write(0x0102_0304_0506_0708, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        U48::write(0xFFFF_0000_0000_0001, &mut bytes[..6]);
        assert_eq!(U48::read(&bytes[..6]), 1);
        U48::write((1 << 48) - 1, &mut bytes[..6]);
        assert_eq!(U48::read(&bytes[..6]), (1 << 48) - 1);
    }
}
