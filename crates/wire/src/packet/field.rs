//! Fixed-size big-endian fields, read and written in order.

use super::{MAX_OFFSET, PacketError};

/// Length of a u48.
pub(super) const U48_LEN: usize = 6;

/// Splits off the `N` bytes of fixed fields.
pub(super) fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), PacketError> {
    bytes.split_first_chunk::<N>().ok_or(PacketError::Truncated { len: bytes.len(), needed: N })
}

/// Reads fields from bytes whose length was checked before.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().expect("the length of all fields was checked");
        self.0 = rest;
        *field
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn u48(&mut self) -> u64 {
        let mut wide = [0; 8];
        wide[8 - U48_LEN..].copy_from_slice(&self.take::<U48_LEN>());
        u64::from_be_bytes(wide)
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Writes fields into bytes whose length was checked before.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(field.len());
        here.copy_from_slice(field);
        self.0 = rest;
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value]);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_be_bytes());
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_be_bytes());
        self
    }

    pub(super) fn u48(&mut self, value: u64) -> &mut Self {
        debug_assert!(value <= MAX_OFFSET, "{value} does not fit 48 bits");
        self.put(&value.to_be_bytes()[8 - U48_LEN..]);
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_be_bytes());
        self
    }
}
