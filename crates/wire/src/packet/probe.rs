use super::field::{Reader, Writer, split};
use super::{COMMON_HEADER_LEN, PacketError};

/// Length of the fields of a PROBE before the padding.
pub const PROBE_BODY_MIN: usize = 2;

/// The body of a PROBE, followed by zero padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeBody {
    /// Size of the whole datagram in UDP payload bytes, including header and tag.
    pub size: u16,
}

impl ProbeBody {
    /// Parses a plaintext body. The padding must be zero, and the size more than header and body take. The
    /// caller, who knows the length of the tag, must check that the size is that of the datagram.
    ///
    /// # Errors
    /// [`PacketError::Truncated`]; [`PacketError::Padding`] if the padding is not zero or the size too small.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        let (fields, padding) = split::<PROBE_BODY_MIN>(body)?;
        let size = Reader(fields).u16();
        if usize::from(size) < COMMON_HEADER_LEN + body.len() || padding.iter().any(|&byte| byte != 0) {
            return Err(PacketError::Padding);
        }
        Ok(Self { size })
    }

    /// Fills `body` with the field and zeros.
    ///
    /// # Panics
    /// If `body` is shorter than [`PROBE_BODY_MIN`].
    pub fn write(&self, body: &mut [u8]) {
        let (fields, padding) = body.split_at_mut(PROBE_BODY_MIN);
        Writer(fields).u16(self.size);
        padding.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_must_be_zero_and_not_longer_than_announced() {
        let mut body = [0; 1182];
        ProbeBody { size: 1200 }.write(&mut body);
        assert!(ProbeBody::parse(&body).is_ok());
        body[1181] = 1;
        assert_eq!(ProbeBody::parse(&body), Err(PacketError::Padding));
        ProbeBody { size: 1188 }.write(&mut body);
        assert_eq!(ProbeBody::parse(&body), Err(PacketError::Padding));
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        assert_eq!(ProbeBody::parse(&[1]), Err(PacketError::Truncated { len: 1, needed: PROBE_BODY_MIN }));
    }
}
