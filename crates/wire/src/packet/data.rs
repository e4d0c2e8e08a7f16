use super::field::{Reader, Writer, split};
use super::{MAX_OFFSET, MAX_SEQ, PacketError, PacketKind};

/// Length of the fields before the payload.
pub const DATA_BODY_LEN: usize = 16;

/// The fields of a DATA or `DATA_FIN` body. The payload follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataBody {
    /// Sequence number in the object, at most [`MAX_SEQ`]; a retransmitted packet keeps it.
    pub seq: u64,
    /// Offset of the payload in the object in bytes.
    pub offset: u64,
    /// Time of sending: microseconds of the sender's clock, wrapped to 32 bits.
    pub timestamp: u32,
}

impl DataBody {
    /// Parses the fields of a plaintext body; the payload is `body[DATA_BODY_LEN..]`. It ends at or below
    /// [`MAX_OFFSET`], and is empty only in a `DATA_FIN`. `kind` must be one of the two.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Kind`] for another `kind`; [`PacketError::NoPayload`];
    /// [`PacketError::Sequence`] and [`PacketError::Offset`] above their limits.
    pub fn parse(kind: PacketKind, body: &[u8]) -> Result<Self, PacketError> {
        let (fields, payload) = split::<DATA_BODY_LEN>(body)?;
        let mut fields = Reader(fields);
        let parsed = Self { seq: fields.u48(), offset: fields.u48(), timestamp: fields.u32() };
        match kind {
            PacketKind::Data if payload.is_empty() => return Err(PacketError::NoPayload),
            PacketKind::Data | PacketKind::DataFin => {}
            other => return Err(PacketError::Kind(other as u8)),
        }
        if parsed.seq > MAX_SEQ {
            return Err(PacketError::Sequence(parsed.seq));
        }
        if parsed.offset + payload.len() as u64 > MAX_OFFSET {
            return Err(PacketError::Offset(parsed.offset));
        }
        Ok(parsed)
    }

    /// Writes the fields to the start of `body`; the payload belongs in `body[DATA_BODY_LEN..]`.
    ///
    /// # Panics
    /// If `body` is shorter than [`DATA_BODY_LEN`].
    pub fn write(&self, body: &mut [u8]) {
        debug_assert!(self.seq <= MAX_SEQ, "sequence number {} out of range", self.seq);
        Writer(&mut body[..DATA_BODY_LEN]).u48(self.seq).u48(self.offset).u32(self.timestamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(seq: u64, offset: u64, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; DATA_BODY_LEN + payload];
        Writer(&mut bytes).u48(seq).u48(offset).u32(0);
        bytes
    }

    #[test]
    fn the_object_ends_at_its_largest_offset() {
        assert!(DataBody::parse(PacketKind::Data, &body(0, MAX_OFFSET - 10, 10)).is_ok());
        let past = DataBody::parse(PacketKind::Data, &body(0, MAX_OFFSET - 9, 10));
        assert_eq!(past, Err(PacketError::Offset(MAX_OFFSET - 9)));
    }

    #[test]
    fn a_sequence_number_that_feedback_cannot_express_is_refused() {
        assert!(DataBody::parse(PacketKind::Data, &body(MAX_SEQ, 0, 1)).is_ok());
        let past = DataBody::parse(PacketKind::Data, &body(MAX_SEQ + 1, 0, 1));
        assert_eq!(past, Err(PacketError::Sequence(MAX_SEQ + 1)));
    }

    #[test]
    fn other_kinds_have_no_data_body() {
        let bytes = body(0, 0, 1);
        assert_eq!(DataBody::parse(PacketKind::Probe, &bytes), Err(PacketError::Kind(6)));
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        let bytes = body(0, 0, 0);
        for len in 0..DATA_BODY_LEN {
            let cut = DataBody::parse(PacketKind::DataFin, &bytes[..len]);
            assert_eq!(cut, Err(PacketError::Truncated { len, needed: DATA_BODY_LEN }));
        }
    }
}
