use postcard::ser_flavors::Flavor;
use serde::Serialize;

use super::{ControlMessage, InvalidEntry};

/// Maximum length of a frame's body in bytes.
pub const MAX_FRAME: usize = 1 << 20;

/// Length of the length field before each body.
const LENGTH_LEN: usize = 4;

/// An empty receive buffer with more capacity is freed.
const MAX_IDLE_CAPACITY: usize = 64 * 1024;

/// Error of writing or reading a frame. After a read error the channel is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length of a received frame exceeds the limit.
    #[error("the peer announced a control message of {len} bytes; {limit} are permitted")]
    TooLong {
        /// Announced length in bytes.
        len: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The message does not fit a frame.
    #[error("a control message does not fit its frame of {MAX_FRAME} bytes")]
    DoesNotFit,
    /// The body is not a message of this protocol version.
    #[error("the peer sent a control message that is damaged or of another version ({0})")]
    Malformed(postcard::Error),
    /// The message is followed by further bytes.
    #[error("the peer sent a control message with {0} bytes too many")]
    Trailing(usize),
    /// The message is not in its shortest encoding.
    #[error("the peer sent a control message in a non-canonical encoding")]
    NotCanonical,
    /// The message has a value out of range.
    #[error("a control message contains an invalid value: {0}")]
    Invalid(#[from] InvalidEntry),
}

/// Returns the length of a frame's body, from the four bytes before it.
///
/// # Errors
/// [`FrameError::TooLong`] if it exceeds `limit` or [`MAX_FRAME`].
pub fn body_len(length: [u8; LENGTH_LEN], limit: usize) -> Result<usize, FrameError> {
    let (len, limit) = (u32::from_be_bytes(length) as usize, limit.min(MAX_FRAME));
    if len > limit { Err(FrameError::TooLong { len, limit }) } else { Ok(len) }
}

/// Appends `message` to `out` as one frame. On an error, `out` is unchanged.
///
/// # Errors
/// [`FrameError::Invalid`] if the message is not [valid](ControlMessage::validate),
/// [`FrameError::DoesNotFit`] if it is longer than [`MAX_FRAME`].
pub fn encode_frame(message: &ControlMessage, out: &mut Vec<u8>) -> Result<(), FrameError> {
    message.validate()?;
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_LEN]);
    let body_start = out.len();
    let end = body_start + MAX_FRAME;
    if postcard::serialize_with_flavor(message, AppendFlavor { out, end }).is_err() {
        // Serialising these types cannot fail, so the limit was reached.
        out.truncate(start);
        return Err(FrameError::DoesNotFit);
    }
    let len = (out.len() - body_start) as u32;
    out[start..body_start].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Returns the encoded length of `value`, for example one entry, for filling frames up to [`MAX_FRAME`]. A
/// list takes at most 10 bytes more than its elements, a message 1 more than its contents.
pub fn encoded_len<T: Serialize + ?Sized>(value: &T) -> usize {
    // Counting cannot fail, nor can serialising the types of this crate.
    postcard::serialize_with_flavor(value, CountFlavor(0)).unwrap_or(usize::MAX)
}

/// Reads frames from a byte stream that arrives in pieces of any size.
///
/// Buffers only received bytes, and never allocates as much as a length field announces. Feed it the result
/// of each read, then call [`FrameDecoder::next_message`] until it returns `None`.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    consumed: usize,
    failed: Option<FrameError>,
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameDecoder {
    /// Creates a decoder of frames up to [`MAX_FRAME`].
    pub const fn new() -> Self {
        Self { buffer: Vec::new(), consumed: 0, failed: None }
    }

    /// Appends the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Decodes the next message; `None` until more bytes are fed. Errors are final: the same error is
    /// returned again, and further bytes are ignored.
    ///
    /// # Errors
    /// If the bytes are not a frame or not a message.
    pub fn next_message(&mut self) -> Result<Option<ControlMessage>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match split_frame(&self.buffer[self.consumed..]) {
            Ok(None) => Ok(None),
            Ok(Some(body)) => {
                let decoded = decode_body(body);
                self.consumed += LENGTH_LEN + body.len();
                self.free_empty_buffer();
                decoded.map(Some).map_err(|error| self.fail(error))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Returns the number of bytes that are not yet part of a message. If it is not zero at the end of the
    /// stream, the stream was truncated inside a frame.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.consumed
    }

    fn free_empty_buffer(&mut self) {
        if self.consumed == self.buffer.len() {
            self.consumed = 0;
            self.buffer.clear();
            if self.buffer.capacity() > MAX_IDLE_CAPACITY {
                self.buffer = Vec::new();
            }
        }
    }

    fn fail(&mut self, error: FrameError) -> FrameError {
        self.failed = Some(error.clone());
        self.buffer = Vec::new();
        self.consumed = 0;
        error
    }
}

/// Returns the body of the first frame in `bytes`, if it is complete.
fn split_frame(bytes: &[u8]) -> Result<Option<&[u8]>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_LEN>() else {
        return Ok(None);
    };
    Ok(rest.get(..body_len(*length, MAX_FRAME)?))
}

/// Decodes a frame's whole body, and accepts only what [`encode_frame`] writes.
fn decode_body(body: &[u8]) -> Result<ControlMessage, FrameError> {
    let (message, rest) = postcard::take_from_bytes::<ControlMessage>(body).map_err(FrameError::Malformed)?;
    if !rest.is_empty() {
        return Err(FrameError::Trailing(rest.len()));
    }
    message.validate()?;
    // postcard also accepts varints that are longer than needed.
    match postcard::serialize_with_flavor(&message, Compare(body)) {
        Ok([]) => Ok(message),
        _ => Err(FrameError::NotCanonical),
    }
}

/// Serialises to the end of a vector, up to a limit.
struct AppendFlavor<'a> {
    out: &'a mut Vec<u8>,
    end: usize,
}

impl Flavor for AppendFlavor<'_> {
    type Output = ();

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        if data.len() > self.end - self.out.len() {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.out.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.try_extend(&[data])
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Counts the serialised bytes.
struct CountFlavor(usize);

impl Flavor for CountFlavor {
    type Output = usize;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0 += data.len();
        Ok(())
    }

    fn try_push(&mut self, _: u8) -> postcard::Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.0)
    }
}

/// Compares the serialised bytes with the given ones; returns what remains of these.
struct Compare<'a>(&'a [u8]);

impl<'a> Flavor for Compare<'a> {
    type Output = &'a [u8];

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0 = self.0.strip_prefix(data).ok_or(postcard::Error::SerializeBufferFull)?;
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.try_extend(&[data])
    }

    fn finalize(self) -> postcard::Result<&'a [u8]> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{
        Entry, EntryKind, Extras, Fault, FaultCode, FileDigest, Hello, InvalidSelection,
        MAX_LAW_CHANGE_BYTES, MAX_LAW_CHANGES, MAX_NOTES, MAX_RULES, MAX_XATTR_VALUE, Notes, RelPath,
        Removal, Request, Rule, Selection, Settings, Summary, Verdict, Xattr,
    };

    fn decode(bytes: &[u8]) -> Result<Option<ControlMessage>, FrameError> {
        let mut decoder = FrameDecoder::new();
        decoder.feed(bytes);
        decoder.next_message()
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_be_bytes()[..], body].concat()
    }

    #[test]
    fn a_length_past_the_limit_is_refused_before_any_of_the_body() {
        let announced = (MAX_FRAME as u32 + 1).to_be_bytes();
        assert_eq!(decode(&announced), Err(FrameError::TooLong { len: MAX_FRAME + 1, limit: MAX_FRAME }));
        assert_eq!(decode(&(MAX_FRAME as u32).to_be_bytes()), Ok(None));
    }

    /// A foreign peer may send anything; invalid messages are rejected on arrival.
    #[test]
    fn texts_out_of_bounds_are_refused() {
        let decoded = |message: &ControlMessage| decode(&frame(&postcard::to_allocvec(message).unwrap()));
        let long = Fault { message: "x".repeat(1 << 17), ..Fault::new(FaultCode::Io, "", "") };
        let entries = entry(0, 0, EntryKind::Failed(long.clone()));
        let digests = ControlMessage::Digests(vec![FileDigest { entry: 0, result: Err(long.clone()) }]);
        let removed = ControlMessage::Removed(Removal { removed: 0, fault: Some(long.clone()) });
        let finish = |first| {
            let notes = Notes { count: 0, first };
            ControlMessage::Finish(Summary { entries: 0, failed: 0, bytes: 0, digest: [0; 32], notes })
        };
        let noted = finish(vec![long.message.clone()]);
        for message in [entries, digests, removed, noted, ControlMessage::Abort(long)] {
            assert_eq!(decoded(&message), Err(InvalidEntry::Text.into()));
        }
        assert!(decoded(&finish(vec![String::new(); MAX_NOTES])).is_ok());
        let too_many = decoded(&finish(vec![String::new(); MAX_NOTES + 1]));
        assert_eq!(too_many, Err(InvalidEntry::Notes.into()));
        let of_len = |message: usize, hint: usize| {
            let (message, hint) = ("x".repeat(message), "x".repeat(hint));
            decoded(&ControlMessage::Abort(Fault { message, hint, ..Fault::new(FaultCode::Io, "", "") }))
        };
        assert!(of_len(60 << 10, 4 << 10).is_ok());
        assert_eq!(of_len(60 << 10, (4 << 10) + 1), Err(InvalidEntry::Text.into()));
        let law = |changes, len| {
            let change = ("switch".to_owned(), "x".repeat(len));
            decoded(&ControlMessage::LawChange(vec![change; changes]))
        };
        assert!(law(1, MAX_LAW_CHANGE_BYTES - 6).is_ok() && law(MAX_LAW_CHANGES, 0).is_ok());
        for (changes, len) in [(1, MAX_LAW_CHANGE_BYTES - 5), (MAX_LAW_CHANGES + 1, 0)] {
            assert_eq!(law(changes, len), Err(InvalidEntry::LawChange.into()));
        }
        let ours = Fault::new(FaultCode::Io, "ä".repeat(1 << 17), "é".repeat(1 << 17));
        assert!(decoded(&ControlMessage::Abort(ours)).is_ok());
    }

    #[test]
    fn memory_follows_the_received_and_not_the_announced_length() {
        let mut decoder = FrameDecoder::new();
        decoder.feed(&(MAX_FRAME as u32).to_be_bytes());
        assert_eq!(decoder.next_message(), Ok(None));
        assert!(decoder.buffer.capacity() < 1024);
        // Announces 2^32 digests and contains none.
        assert!(decode(&frame(&[6, 0xff, 0xff, 0xff, 0xff, 0x0f])).is_err());
    }

    #[test]
    fn an_error_is_final() {
        let mut decoder = FrameDecoder::new();
        decoder.feed(&[frame(&[200]), frame(&[12])].concat());
        let error = decoder.next_message().unwrap_err();
        assert!(matches!(error, FrameError::Malformed(_)));
        decoder.feed(&frame(&[12]));
        assert_eq!(decoder.next_message(), Err(error));
        assert_eq!(decoder.buffered(), 0);
    }

    #[test]
    fn only_the_canonical_encoding_is_accepted() {
        assert_eq!(decode(&frame(&[10, 0])), Ok(Some(ControlMessage::Ping(0))));
        assert_eq!(decode(&frame(&[10, 0x80, 0])), Err(FrameError::NotCanonical));
        assert_eq!(decode(&frame(&[10, 0, 0, 0])), Err(FrameError::Trailing(2)));
        assert!(matches!(decode(&frame(&[10])), Err(FrameError::Malformed(_))));
        assert!(matches!(decode(&frame(&[])), Err(FrameError::Malformed(_))));
    }

    fn entry(mode: u32, mtime_nanos: u32, kind: EntryKind) -> ControlMessage {
        let path = RelPath::new(*b"a").unwrap();
        ControlMessage::Entries(vec![Entry { path, kind, mode, mtime_secs: 0, mtime_nanos, extras: None }])
    }

    #[test]
    fn values_out_of_range_are_refused_in_both_directions() {
        let link = |target: &[u8]| EntryKind::Symlink { target: target.to_vec() };
        let with = |xattrs: Vec<Xattr>| {
            let extras = Some(Box::new(Extras { xattrs: Some(xattrs), ..Extras::default() }));
            let path = RelPath::new(*b"a").unwrap();
            let kind = EntryKind::Directory;
            ControlMessage::Entries(vec![Entry {
                path,
                kind,
                mode: 0,
                mtime_secs: 0,
                mtime_nanos: 0,
                extras,
            }])
        };
        let xattr = |name: &[u8], len| Xattr { name: name.to_vec(), value: vec![0; len] };
        let refused = [
            (with(vec![xattr(b"", 0)]), InvalidEntry::Extras),
            (with(vec![xattr(b"a", MAX_XATTR_VALUE + 1)]), InvalidEntry::Extras),
            (with(vec![xattr(b"a", MAX_XATTR_VALUE); 4]), InvalidEntry::Extras),
            (entry(0o10_000, 0, EntryKind::Directory), InvalidEntry::Mode),
            (entry(0, 1_000_000_000, EntryKind::Directory), InvalidEntry::Nanoseconds),
            (entry(0, 0, EntryKind::File { size: 1 << 48, holes: vec![] }), InvalidEntry::Size),
            (entry(0, 0, link(b"")), InvalidEntry::Target),
            (entry(0, 0, link(b"a\0")), InvalidEntry::Target),
            (entry(0, 0, link(&[b'a'; 4097])), InvalidEntry::Target),
        ];
        for (message, error) in refused {
            let mut out = vec![1, 2, 3];
            assert_eq!(encode_frame(&message, &mut out), Err(FrameError::Invalid(error)));
            assert_eq!(out, [1, 2, 3]);
            let body = postcard::to_allocvec(&message).unwrap();
            assert_eq!(decode(&frame(&body)), Err(FrameError::Invalid(error)));
        }
        let largest = entry(0o7777, 999_999_999, EntryKind::File { size: (1 << 48) - 1, holes: vec![] });
        assert!(encode_frame(&largest, &mut Vec::new()).is_ok());
    }

    #[test]
    fn a_selection_out_of_bounds_is_refused_in_both_directions() {
        let settings = Settings::default();
        let hello = |pattern: &[u8], rules| {
            let rule = Rule { verdict: Verdict::Exclude, pattern: pattern.to_vec() };
            let selection = Selection { rules: vec![rule; rules], ..Selection::default() };
            let request = Request::Get {
                sources: Vec::new(),
                selection,
                growth: crate::control::Growth::Refuse,
                run: crate::control::RunMode::Move,
                preserve: crate::control::Preserve::default(),
            };
            let settings = settings.clone();
            ControlMessage::Hello(Hello { version: 1, proof: [0; 32], ciphers: vec![], request, settings })
        };
        for (message, error) in [
            (hello(b"", 1), InvalidSelection::Pattern),
            (hello(b"a\0", 1), InvalidSelection::Pattern),
            (hello(b"a", MAX_RULES + 1), InvalidSelection::TooManyRules),
        ] {
            let invalid = FrameError::Invalid(error.into());
            assert_eq!(encode_frame(&message, &mut Vec::new()), Err(invalid.clone()));
            let body = postcard::to_allocvec(&message).unwrap();
            assert_eq!(decode(&frame(&body)), Err(invalid));
        }
        assert!(encode_frame(&hello(b"a", MAX_RULES), &mut Vec::new()).is_ok());
    }

    #[test]
    fn a_path_that_escapes_is_refused() {
        let good = postcard::to_allocvec(&entry(0, 0, EntryKind::Directory)).unwrap();
        assert_eq!(good, [4, 1, 1, b'a', 1, 0, 0, 0, 0]);
        assert!(decode(&frame(&good)).is_ok());
        assert!(decode(&frame(&[4, 1, 2, b'.', b'.', 1, 0, 0, 0, 0])).is_err());
        assert!(decode(&frame(&[4, 1, 1, b'/', 1, 0, 0, 0, 0])).is_err());
    }

    #[test]
    fn a_full_frame_fits_and_one_more_does_not() {
        let digest = |entry| FileDigest { entry, result: Ok([0; 32]) };
        let per_frame = (MAX_FRAME - 1 - 10) / encoded_len(&digest(0));
        let mut digests = vec![digest(0); per_frame];
        let mut out = Vec::new();
        encode_frame(&ControlMessage::Digests(digests.clone()), &mut out).unwrap();
        assert_eq!(out.len(), 4 + encoded_len(&ControlMessage::Digests(digests.clone())));
        assert!(matches!(decode(&out), Ok(Some(ControlMessage::Digests(d))) if d == digests));

        digests.push(digest(0));
        let before = out.clone();
        assert_eq!(encode_frame(&ControlMessage::Digests(digests), &mut out), Err(FrameError::DoesNotFit));
        assert_eq!(out, before);
    }

    #[test]
    fn a_large_empty_buffer_is_freed() {
        let mut decoder = FrameDecoder::new();
        let mut out = Vec::new();
        let digests = vec![FileDigest { entry: 0, result: Ok([0; 32]) }; 4000];
        encode_frame(&ControlMessage::Digests(digests), &mut out).unwrap();
        decoder.feed(&out);
        assert!(decoder.next_message().unwrap().is_some());
        assert_eq!(decoder.buffer.capacity(), 0);
    }
}
