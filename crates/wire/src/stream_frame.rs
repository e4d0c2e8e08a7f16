//! Frames in the messages of a connection with streams (docs/wire-format.md).

/// Number of a stream. The low bit identifies the peer that opened it: 0 for the client.
pub type StreamId = u32;

/// Length of the header of an application message.
pub const MESSAGE_HEADER: usize = 1;
/// Length of the header of stream data.
pub const DATA_HEADER: usize = 13;

const MESSAGE: u8 = 0;
const DATA: u8 = 1;
const LAST: u8 = 2;
const RESET: u8 = 3;
const STOP: u8 = 4;
const STREAM_LIMIT: u8 = 5;
const MESSAGE_LIMIT: u8 = 6;
const STREAMS: u8 = 7;

/// A message as sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'f> {
    /// An application message.
    Message(&'f [u8]),
    /// Bytes of a stream.
    Data {
        /// Stream number.
        stream: StreamId,
        /// Offset in the stream.
        offset: u64,
        /// Whether the stream ends after them.
        last: bool,
        /// Payload.
        bytes: &'f [u8],
    },
    /// The sender resets the stream.
    Reset(StreamId),
    /// The receiver no longer reads the stream.
    Stop(StreamId),
    /// The receiver accepts bytes up to this offset.
    StreamLimit {
        /// Stream number.
        stream: StreamId,
        /// First offset that may not be sent yet.
        limit: u64,
    },
    /// The receiver accepts messages up to this sum of their costs.
    MessageLimit(u64),
    /// The receiver accepts this number of streams in total.
    Streams(u32),
}

impl<'f> Frame<'f> {
    /// Parses a frame that takes the whole message; `None` if it is invalid.
    pub fn parse(message: &'f [u8]) -> Option<Self> {
        let (&kind, body) = message.split_first()?;
        if kind == MESSAGE {
            return Some(Self::Message(body));
        }
        if kind == MESSAGE_LIMIT {
            return Some(Self::MessageLimit(u64::from_be_bytes(body.try_into().ok()?)));
        }
        let (&number, body) = body.split_first_chunk()?;
        let number = StreamId::from_be_bytes(number);
        match (kind, body) {
            (DATA | LAST, body) => {
                let (&offset, bytes) = body.split_first_chunk()?;
                let (offset, last) = (u64::from_be_bytes(offset), kind == LAST);
                Some(Self::Data { stream: number, offset, last, bytes })
            }
            (STREAM_LIMIT, limit) => {
                Some(Self::StreamLimit { stream: number, limit: u64::from_be_bytes(limit.try_into().ok()?) })
            }
            (RESET, []) => Some(Self::Reset(number)),
            (STOP, []) => Some(Self::Stop(number)),
            (STREAMS, []) => Some(Self::Streams(number)),
            _ => None,
        }
    }

    /// Returns the frame as the bytes of one message.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Message(bytes) => [&[MESSAGE], bytes].concat(),
            Self::Data { stream, offset, last, bytes } => {
                let kind = if last { LAST } else { DATA };
                [&[kind][..], &stream.to_be_bytes(), &offset.to_be_bytes(), bytes].concat()
            }
            Self::Reset(stream) => numbered(RESET, stream),
            Self::Stop(stream) => numbered(STOP, stream),
            Self::Streams(count) => numbered(STREAMS, count),
            Self::StreamLimit { stream, limit } => {
                [&numbered(STREAM_LIMIT, stream)[..], &limit.to_be_bytes()].concat()
            }
            Self::MessageLimit(limit) => [&[MESSAGE_LIMIT][..], &limit.to_be_bytes()].concat(),
        }
    }
}

fn numbered(kind: u8, number: u32) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_frame_round_trips_and_truncated_ones_are_refused() {
        let (stream, limit) = (7, 1 << 40);
        for frame in [
            Frame::Message(b"text"),
            Frame::Data { stream, offset: 1 << 33, last: false, bytes: b"bytes" },
            Frame::Data { stream, offset: u64::MAX, last: true, bytes: b"" },
            Frame::Reset(stream),
            Frame::Stop(stream),
            Frame::StreamLimit { stream, limit },
            Frame::MessageLimit(limit),
            Frame::Streams(1 << 20),
        ] {
            let bytes = frame.to_bytes();
            assert_eq!(Frame::parse(&bytes), Some(frame));
            let has_text = matches!(frame, Frame::Message(_) | Frame::Data { .. });
            for cut in 0..bytes.len() {
                assert!(Frame::parse(&bytes[..cut]).is_none() || has_text, "{frame:?} {cut}");
            }
            assert!(Frame::parse(&[&bytes[..], &[0]].concat()).is_none() || has_text, "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_that_are_read_are_written_identically(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(frame) = Frame::parse(&bytes) {
                prop_assert_eq!(frame.to_bytes(), bytes);
            }
        }
    }
}
