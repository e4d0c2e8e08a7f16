use super::field::{Reader, Writer, split};
use super::{COMMON_HEADER_LEN, PacketError};

/// Bytes of the fields of a HELLO or `HELLO_ACK` in front of the padding.
pub const HELLO_BODY_MIN: usize = 18;
/// Bytes of the fields of a PROBE in front of the padding.
pub const PROBE_BODY_MIN: usize = 2;

/// The body of a HELLO, and of the `HELLO_ACK` that answers it with the same nonce at the same size. What
/// follows the fields is zero padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloBody {
    /// Chosen at random by the client; tells which HELLO an answer is for.
    pub nonce: u64,
    /// Size of the whole datagram: UDP payload bytes, header and tag included.
    pub size: u16,
    /// In a `HELLO_ACK`: what the client is to send back, to show that it gets what is sent to its address; 0 if it need
    /// not, or has. In a HELLO: the latest that came, or 0.
    pub challenge: u64,
}

impl HelloBody {
    /// Reads a plain body. The padding must be zero and the size more than header and body take; that it
    /// is the datagram's is for the caller to check, who knows the length of the tag.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        let (fields, padding) = split::<HELLO_BODY_MIN>(body)?;
        let mut fields = Reader(fields);
        let parsed = Self { nonce: fields.u64(), size: fields.u16(), challenge: fields.u64() };
        check_padding(padding, body.len(), parsed.size)?;
        Ok(parsed)
    }

    /// Fills `body` with the fields and zeros.
    ///
    /// # Panics
    /// If `body` is shorter than [`HELLO_BODY_MIN`].
    pub fn write(&self, body: &mut [u8]) {
        let (fields, padding) = body.split_at_mut(HELLO_BODY_MIN);
        Writer(fields).u64(self.nonce).u16(self.size).u64(self.challenge);
        padding.fill(0);
    }
}

/// The body of a PROBE. What follows the field is zero padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeBody {
    /// Size of the whole datagram: UDP payload bytes, header and tag included.
    pub size: u16,
}

impl ProbeBody {
    /// Reads a plain body, with the checks of [`HelloBody::parse`].
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        let (fields, padding) = split::<PROBE_BODY_MIN>(body)?;
        let parsed = Self { size: Reader(fields).u16() };
        check_padding(padding, body.len(), parsed.size)?;
        Ok(parsed)
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

fn check_padding(padding: &[u8], body_len: usize, size: u16) -> Result<(), PacketError> {
    if usize::from(size) < COMMON_HEADER_LEN + body_len || padding.iter().any(|&b| b != 0) {
        return Err(PacketError::Padding);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_must_be_zero_and_not_longer_than_announced() {
        let mut body = [0; 1182];
        HelloBody { nonce: 5, size: 1200, challenge: 9 }.write(&mut body);
        assert!(HelloBody::parse(&body).is_ok());
        body[1181] = 1;
        assert_eq!(HelloBody::parse(&body), Err(PacketError::Padding));
        HelloBody { nonce: 5, size: 1188, challenge: 0 }.write(&mut body);
        assert_eq!(HelloBody::parse(&body), Err(PacketError::Padding));
        ProbeBody { size: 1188 }.write(&mut body);
        assert_eq!(ProbeBody::parse(&body), Err(PacketError::Padding));
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        for len in 0..HELLO_BODY_MIN {
            let cut = HelloBody::parse(&[0xff; HELLO_BODY_MIN][..len]);
            assert_eq!(cut, Err(PacketError::Truncated { len, needed: HELLO_BODY_MIN }));
        }
        assert_eq!(ProbeBody::parse(&[1]), Err(PacketError::Truncated { len: 1, needed: PROBE_BODY_MIN }));
    }
}
