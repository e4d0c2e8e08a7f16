//! Control messages (ancillary data), built and read as plain bytes.
//!
//! The layout is that of `struct cmsghdr`: `length (usize, header included) | level i32 | type i32 | data`,
//! each message aligned to the size of a `usize` (cmsg(3)).

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = align(size_of::<usize>() + 2 * size_of::<i32>());

const fn align(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// Returns the length of a message with `data` bytes.
pub(crate) const fn space(data: usize) -> usize {
    HEADER + align(data)
}

/// A buffer of control messages.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Control<N> {
    pub(crate) const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// Appends a message. Returns false, and appends nothing, if it does not fit.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) -> bool {
        let end = self.len + space(data.len());
        let Some(part) = self.bytes.get_mut(self.len..end) else {
            return false;
        };
        part.fill(0);
        part[..ALIGN].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        part[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        part[ALIGN + 4..ALIGN + 8].copy_from_slice(&kind.to_ne_bytes());
        part[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len = end;
        true
    }

    /// Returns the pushed or received messages as bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the whole buffer, for the kernel to write to.
    pub(crate) fn space_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets the length that the kernel has written.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(N);
    }

    /// Iterates over the messages: level, type, data.
    pub(crate) fn messages(&self) -> Messages<'_> {
        Messages { rest: self.as_bytes() }
    }
}

/// Iterator over control messages; stops at the first that is malformed.
#[derive(Clone, Debug)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = (i32, i32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, after) = self.rest.split_first_chunk()?;
        let (level, after) = after.split_first_chunk()?;
        let (kind, _) = after.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let data = self.rest.get(HEADER..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data))
    }
}

/// Reads the first four bytes of `data` as an int; an IPv4 TOS has only one byte.
pub(crate) fn int(data: &[u8]) -> Option<i32> {
    match data.first_chunk() {
        Some(four) => Some(i32::from_ne_bytes(*four)),
        None => data.first().map(|&one| i32::from(one)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_control_message_without_space_changes_nothing() {
        let mut control = Control::<{ space(4) }>::EMPTY;
        assert!(control.push(1, 2, &[1, 2, 3, 4]));
        assert!(!control.push(1, 3, &[1]));
        assert_eq!(control.messages().count(), 1);
    }

    proptest! {
        #[test]
        fn pushed_control_messages_read_back(list in prop::collection::vec(
            (any::<i32>(), any::<i32>(), prop::collection::vec(any::<u8>(), 0..20)), 0..8,
        )) {
            let mut control = Control::<512>::EMPTY;
            for (level, kind, data) in &list {
                prop_assert!(control.push(*level, *kind, data));
            }
            let back: Vec<_> = control.messages().map(|(l, k, d)| (l, k, d.to_vec())).collect();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..128), len in 0usize..200) {
            let mut control = Control::<128>::EMPTY;
            control.space_mut()[..bytes.len()].copy_from_slice(&bytes);
            control.set_len(len);
            prop_assert!(control.messages().count() <= 128 / HEADER + 1);
        }
    }
}
