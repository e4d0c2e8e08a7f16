use super::PROTOCOL_VERSION;
use super::codec::FrameError;

/// Maximum length of a [`Hello`](super::Hello)'s frame body in bytes.
pub const MAX_HELLO_BODY: usize = 128 << 10;

/// Position of [`Hello`](super::Hello) among the messages.
const HELLO: u32 = 0;

/// The beginning of a [`Hello`](super::Hello): enough to verify that a client knows the secret without
/// parsing its request. Reading it allocates no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloHead {
    /// Of this protocol version.
    ThisVersion {
        /// Proof, as in [`Hello`](super::Hello).
        proof: [u8; 32],
    },
    /// Of another version, about which nothing else is known.
    OtherVersion(u16),
}

impl HelloHead {
    /// Sufficient number of bytes: message number, this version in one byte, and proof.
    pub const LEN: usize = {
        assert!(PROTOCOL_VERSION < 128, "a varint of one byte");
        1 + 1 + 32
    };

    /// Parses the first [`HelloHead::LEN`] bytes of a frame's body, or all if there are fewer.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] if this is not a Hello.
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let (version, rest) = take::<(u32, u16)>(body)
            .and_then(|((number, version), rest)| {
                if number == HELLO { Ok((version, rest)) } else { Err(postcard::Error::DeserializeBadEnum) }
            })
            .map_err(FrameError::Malformed)?;
        if version != PROTOCOL_VERSION {
            return Ok(Self::OtherVersion(version));
        }
        let (proof, _) = take(rest).map_err(FrameError::Malformed)?;
        Ok(Self::ThisVersion { proof })
    }
}

fn take<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), postcard::Error> {
    postcard::take_from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ControlMessage, Hello, Request, Settings, body_len, encode_frame};

    fn hello(version: u16) -> Vec<u8> {
        let settings = Settings::default();
        let proof = std::array::from_fn(|at| at as u8);
        let hello = Hello { version, proof, ciphers: Vec::new(), request: Request::Check, settings };
        let mut frame = Vec::new();
        encode_frame(&ControlMessage::Hello(hello), &mut frame).unwrap();
        frame
    }

    #[test]
    fn the_head_is_a_prefix_of_the_message() {
        let frame = hello(PROTOCOL_VERSION);
        let len = body_len(*frame.first_chunk().unwrap(), MAX_HELLO_BODY).unwrap();
        assert_eq!(len, frame.len() - 4);
        let head = HelloHead::parse(&frame[4..][..HelloHead::LEN]).unwrap();
        assert_eq!(head, HelloHead::ThisVersion { proof: std::array::from_fn(|at| at as u8) });
        for version in [0, 1, PROTOCOL_VERSION + 1, 300, u16::MAX] {
            let head = HelloHead::parse(&hello(version)[4..][..HelloHead::LEN]).unwrap();
            assert_eq!(head, HelloHead::OtherVersion(version));
        }
        // Only the beginning of another version's Hello is specified.
        assert_eq!(HelloHead::parse(&[0, 100]), Ok(HelloHead::OtherVersion(100)));
    }

    #[test]
    fn an_invalid_hello_is_refused() {
        let ours = PROTOCOL_VERSION as u8;
        let proof_missing = [&[0, ours][..], &[0; 31]].concat();
        for body in [&[][..], &[0], &[12], &[7, 2], &[0, 0xff, 0xff, 0xff], &proof_missing] {
            assert!(matches!(HelloHead::parse(body), Err(FrameError::Malformed(_))), "{body:?}");
        }
        let too_long = FrameError::TooLong { len: MAX_HELLO_BODY + 1, limit: MAX_HELLO_BODY };
        assert_eq!(body_len((MAX_HELLO_BODY as u32 + 1).to_be_bytes(), MAX_HELLO_BODY), Err(too_long));
    }
}
