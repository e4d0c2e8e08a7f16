//! Attributes: named, typed values that micro-protocols put into the header of every data packet. Their
//! offsets are fixed when the stack is built, so reading one is an array access. (Wu-h-ctp section 3.2
//! replaced the hash table of its ancestor, which was too slow, with a static one; here there is no table.)

use std::marker::PhantomData;
use std::num::NonZeroU16;

/// A type of attribute values. All are big-endian on the wire.
pub trait AttributeType: Copy + 'static {
    /// The Rust type of the value.
    type Value: Copy;
    /// Length on the wire, in bytes.
    const LEN: usize;
    /// Reads a value from exactly [`AttributeType::LEN`] bytes.
    fn read(bytes: &[u8]) -> Self::Value;
    /// Writes a value to exactly [`AttributeType::LEN`] bytes.
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

/// An unsigned 48-bit integer, read as `u64`; writing drops the upper 16 bits.
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

/// Handle of an attribute of type `T`: its byte offset from the start of a data packet.
pub struct Attribute<T> {
    /// The offset plus one, so that an `Option` of the handle is no larger.
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

    /// Byte range of the attribute within its packet.
    #[inline]
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.offset()..self.offset() + T::LEN
    }
}

/// Description of one attribute of a layout, for display and checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeInfo {
    /// Name, unique in the stack.
    pub name: &'static str,
    /// Offset from the start of the packet, in bytes.
    pub offset: u16,
    /// Length in bytes.
    pub len: u16,
    /// Whether the attribute is readable without the keys. It is authenticated in any case.
    pub clear: bool,
}

/// Packet format of a stack:
/// `kind u8 | packet number u48 | clear attributes | sealed attributes | payload | tag`. Control packets have
/// no sealed attributes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    pub(crate) clear_len: u16,
    pub(crate) data_len: u16,
    pub(crate) tag_len: u16,
    pub(crate) attributes: Vec<AttributeInfo>,
}

impl Layout {
    /// Bytes before the encrypted part.
    pub fn clear_len(&self) -> usize {
        usize::from(self.clear_len)
    }

    /// Bytes before the payload of a data packet.
    pub fn data_header_len(&self) -> usize {
        usize::from(self.data_len)
    }

    /// Bytes after the payload.
    pub fn tag_len(&self) -> usize {
        usize::from(self.tag_len)
    }

    /// Bytes of a data packet besides its payload.
    pub fn data_overhead(&self) -> usize {
        self.data_header_len() + self.tag_len()
    }

    /// All attributes, in the order of declaration.
    pub fn attributes(&self) -> &[AttributeInfo] {
        &self.attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_48_bits_truncate() {
        let mut bytes = [0; 8];
        <u64 as AttributeType>::write(0x0102_0304_0506_0708, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        U48::write(0xFFFF_0000_0000_0001, &mut bytes[..6]);
        assert_eq!(U48::read(&bytes[..6]), 1);
        U48::write((1 << 48) - 1, &mut bytes[..6]);
        assert_eq!(U48::read(&bytes[..6]), (1 << 48) - 1);
    }
}
